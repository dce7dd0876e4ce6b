"""A study's task from Python: any ``make(width)``, batches, loss and optimizer."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..build import build_optimizer
from ..errors import refuse
from ..mup import Scales, make_base_shapes
from ..plan import OptimizerPlan
from ..random_state import random_state_kept
from .cells import Cell
from .task import Task

Batches = Callable[[int], Any] | Sequence[Any]
OptimizerChoice = OptimizerPlan | Callable[[float, Scales | None], Any]
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

    What cannot be written down, such as a function, is told from another by a hash: of the base model's fresh weights
    and of the first batch.

    Raises:
        Refused: If there are no batches.
    """
    numbered = _numbered(batches)
    with random_state_kept():
        shapes = make_base_shapes(make, base_width=base_width)
        mx.random.seed(0)
        model = _hash(dict(tree_flatten(make(base_width).parameters())))
    fixed = [numbered(n) for n in range(EVALUATED)] if evaluation is None else list(evaluation)
    options = dict(parametrize or {})
    return Task(
        make=make,
        batch=lambda number, seed: numbered(seed * updates + number),
        loss=lambda model, batch: loss(model, *batch) if isinstance(batch, list | tuple) else loss(model, batch),
        shapes=shapes,
        optimizer=lambda cell, model, scales: make_optimizer(optimizer, cell, model, scales),
        evaluation={"loss": fixed},
        parametrize=options,
        settings={
            "base_width": base_width,
            "model": model,
            "batch": _hash({"": numbered(0)}),
            "evaluation": _hash({"": fixed[0]}) if fixed else None,
            "loss": _named(loss),
            "optimizer": _optimizer_settings(optimizer),
            "parametrize": {name: repr(value) for name, value in options.items()},
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
    return _named(optimizer)


def _named(function: Any) -> str:
    """A function by its name and source, as far as Python knows it."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return str(name)
    return f"{name} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def _hash(tree: Any) -> str:
    found = hashlib.sha256()
    for path, value in sorted(tree_flatten(tree)):
        array = np.asarray(value.astype(mx.float32) if isinstance(value, mx.array) else value)
        found.update(f"{path} {array.shape} {array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:16]
