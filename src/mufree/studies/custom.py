"""A study's task from Python: any ``make(width)``, batches, loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..build import build_optimizer
from ..errors import refuse
from ..mup import Scales, make_base_shapes
from ..plan import OptimizerPlan
from ..random_state import random_state_kept
from .cells import Cell
from .references import hash_arrays, references, steady
from .store import CODE
from .task import Task

Batches = Callable[[int], Any] | Sequence[Any]
OptimizerChoice = OptimizerPlan | Callable[[float, Scales | None], Any]
HASHED = 3
"""Training batches, the first ones, by whose values a study is told from another."""
EVALUATED = 8
"""Training batches, the first ones, that a cell is evaluated on where no others are given."""


def custom_task(
    make: Callable[[int], Any],
    batches: Batches,
    loss: Callable[..., Any],
    *,
    base_width: int,
    optimizer: OptimizerChoice,
    updates: int,
    evaluation: Sequence[Any] | None = None,
    parametrize: Mapping[str, Any] | None = None,
) -> Task:
    """A task whose seeds use different batches, the same ones at every width.

    What cannot be written down is told from another by hashes: of the base model's fresh weights, of the first batches
    and those of the evaluation, and of the functions with all that they refer to (see :mod:`.references`).

    Raises:
        Refused: If there are no batches.
    """
    numbered = _numbered(batches)
    options = dict(parametrize or {})
    functions: dict[str, Any] = {"make": make, "loss": loss, "parametrize": options}
    functions |= {} if isinstance(optimizer, OptimizerPlan) else {"optimizer": optimizer}
    functions |= {"batches": batches} if callable(batches) else {}
    before = references(**functions)
    with random_state_kept():
        shapes = make_base_shapes(make, base_width=base_width)
        mx.random.seed(0)
        base = make(base_width)
        fixed = [numbered(n) for n in range(EVALUATED)] if evaluation is None else list(evaluation)
        first = hash_arrays(dict(tree_flatten([numbered(n) for n in range(HASHED)])))
    code = steady(before, references(**functions))
    code |= references(model={path: type(module) for path, module in base.named_modules()})
    return Task(
        make=make,
        batch=lambda number, seed: numbered(seed * updates + number),
        loss=lambda model, batch: loss(model, *batch) if isinstance(batch, list | tuple) else loss(model, batch),
        shapes=shapes,
        optimizer=lambda cell, model, scales: make_optimizer(optimizer, cell, model, scales),
        evaluation={"loss": fixed},
        parametrize=options,
        custom=True,
        settings={
            "base_width": base_width,
            "model": hash_arrays(dict(tree_flatten(base.parameters()))),
            "batches": first,
            "evaluation": hash_arrays(dict(tree_flatten(fixed))),
            "optimizer": _optimizer_settings(optimizer),
            CODE: code,
        },
    )


def make_optimizer(optimizer: OptimizerChoice, cell: Cell, model: Any, scales: Scales | None) -> Any:
    """The optimizer of a cell."""
    if isinstance(optimizer, OptimizerPlan):
        return build_optimizer(replace(optimizer, peak_lr=cell.rate), model, scales=scales)
    return optimizer(cell.rate, scales)


def _numbered(batches: Batches) -> Callable[[int], Any]:
    if callable(batches):
        return batches
    rows = list(batches)
    if not rows:
        refuse("missing", "batches", "are none; give at least one")
    return lambda number: rows[number % len(rows)]


def _optimizer_settings(optimizer: OptimizerChoice) -> Any:
    if isinstance(optimizer, OptimizerPlan):
        return {name: value for name, value in optimizer.as_metadata().items() if name != "peak_lr"}
    return "a function"
