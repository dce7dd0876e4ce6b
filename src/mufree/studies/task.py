"""What a study trains: models by width, batches by number, a loss and an optimizer; and one cell of it, trained."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from ..errors import NonFiniteLoss
from ..mup import BaseShapes, Scales, parametrize
from ..training.loop import Trainer
from .cells import Cell

ROUNDED = 6
"""Decimals of a kept loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the cells of a study have in common.

    Args:
        make: A fresh model at a width, from the global random state.
        batch: Training batch by its number, counted from 0, and the seed; the same at every width.
        loss: Mean loss of a batch, ``loss(model, batch)``.
        shapes: Base shapes.
        optimizer: The optimizer of a cell for a model; its scales are None without μP.
        evaluation: Fixed batches by the name of the loss that they give.
        parametrize: Further arguments of :func:`~mufree.mup.parametrize`.
        scales: μP's scales of a model whose start stays as ``make`` gave it, as of a fine-tune; by default
            :func:`~mufree.mup.parametrize` makes both.
        adjust: Changes μP's scales before the optimizer is made, to see that a check notices.
        accumulation: Micro-batches an update.
        measured: Updates besides the last after which a cell is evaluated.
        settings: What produced a cell besides its own fields, as JSON.
        custom: Whether it is made of anybody's functions, which settings alone may not tell from others.
    """

    make: Callable[[int], Any]
    batch: Callable[[int, int], Any]
    loss: Callable[[Any, Any], mx.array]
    shapes: BaseShapes
    optimizer: Callable[[Cell, Any, Scales | None], Any]
    evaluation: Mapping[str, Sequence[Any]]
    parametrize: Mapping[str, Any] = field(default_factory=dict)
    scales: Callable[[Any], Scales] | None = None
    adjust: Callable[[Scales], Scales] | None = None
    accumulation: int = 1
    measured: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    custom: bool = False

    def start(self, cell: Cell) -> Trainer:
        """A cell before its first update; sets the global random state from its seed."""
        mx.random.seed(cell.seed)
        model = self.make(cell.width)
        scales = self._scales(model) if cell.parametrisation == "mup" else None
        optimizer = self.optimizer(cell, model, scales)
        mx.eval(model.parameters())
        return Trainer(
            model,
            optimizer,
            lambda number: self.batch(number, cell.seed),
            accumulation=self.accumulation,
            loss=self.loss,
        )

    def _scales(self, model: Any) -> Scales:
        scales = parametrize(model, self.shapes, **self.parametrize) if self.scales is None else self.scales(model)
        return scales if self.adjust is None else self.adjust(scales)


def train_cell(task: Task, cell: Cell) -> dict[str, Any]:
    """Train a cell to its end, or until its loss is no number any more.

    Returns:
        ``curve`` (the training loss of every update, at ``y``), ``losses`` (at ``x``, by the name of the evaluation;
        None where the cell diverged), ``measured`` (the same after each update in ``task.measured``), ``diverged`` (the
        update at which it did, or None), ``seconds``.
    """
    started = time.monotonic()
    trainer = task.start(cell)
    curve: list[float] = []
    measured: dict[str, dict[str, float | None]] = {}
    diverged = None
    try:
        for update in range(1, cell.updates + 1):
            curve.append(round(trainer.advance(), ROUNDED))
            if update in task.measured:
                measured[str(update)] = _losses(task, trainer)
        losses = _losses(task, trainer)
        if None in losses.values():
            diverged = cell.updates
    except NonFiniteLoss:
        diverged = trainer.position.update
        losses = dict.fromkeys(task.evaluation)
    return {
        "losses": losses,
        "diverged": diverged,
        "measured": measured,
        "curve": curve,
        "seconds": round(time.monotonic() - started, 2),
    }


def _losses(task: Task, trainer: Trainer) -> dict[str, float | None]:
    found = {name: trainer.evaluate(batches) for name, batches in task.evaluation.items()}
    return {name: round(loss, ROUNDED) if math.isfinite(loss) else None for name, loss in found.items()}
