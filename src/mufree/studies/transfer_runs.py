"""Training the grid of a transfer: from a task, or from any ``make(width)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import refuse
from .cells import PARAMETRISATIONS, Parametrisation, check_grid, grid
from .custom import Batches, OptimizerChoice, custom_task
from .fingerprint import check_fingerprint
from .runner import Watcher, run_cells
from .store import Store
from .task import Task, train_cell
from .transfer import STUDY, Transfer


def run_transfer(
    task: Task,
    *,
    base_width: int,
    widths: Sequence[int],
    rates: Sequence[float],
    updates: int,
    seeds: int,
    folder: str | Path,
    parametrisations: Sequence[Parametrisation] = PARAMETRISATIONS,
    context: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Transfer:
    """Train what is missing of the grid in ``folder``, and return all of it.

    Raises:
        Refused: For a grid that cannot be trained, or a folder of something else.
    """
    check_grid(widths=widths, rates=rates, seeds=seeds, updates=updates)
    cells = grid(widths=widths, rates=rates, seeds=range(seeds), updates=updates, parametrisations=parametrisations)
    store = Store(folder, STUDY, task.settings)
    if task.custom:
        check_fingerprint(store, task, cells)
    rows = run_cells(store, cells, lambda cell: train_cell(task, cell), watcher)
    return Transfer(rows=rows, base_width=base_width, context=context or {})


def lr_transfer(
    make: Callable[[int], Any],
    batches: Batches,
    loss: Callable[..., Any],
    *,
    base_width: int,
    widths: Sequence[int],
    rates: Sequence[float],
    optimizer: OptimizerChoice,
    updates: int,
    seeds: int = 2,
    folder: str | Path,
    parametrisations: Sequence[Parametrisation] = PARAMETRISATIONS,
    evaluation: Sequence[Any] | None = None,
    watcher: Watcher | None = None,
    **as_parametrize: Any,
) -> Transfer:
    """Whether the best learning rate stays where it is when a model gets wider.

    Args:
        make: A fresh model at a width.
        batches: Training batches: a function of their number, or a sequence that is gone through again and again.
        loss: Mean loss, ``loss(model, batch)``, or ``loss(model, *batch)`` where batches are tuples.
        base_width: Where the rate is tuned; added to ``widths`` if it is not among them.
        widths: At least one other width.
        rates: A grid with a constant factor, wide enough for every minimum to lie inside.
        optimizer: A plan, whose rate is replaced, or ``optimizer(rate, scales)``; scales are None without μP.
        updates: Of every cell.
        seeds: How many.
        folder: Keeps finished cells, so that a stopped study goes on. It is refused for another study: functions are
            compared with what they refer to, batches by their values, and each call trains three updates of the
            narrowest model again, whose losses must be those that the folder was begun with.
        parametrisations: ``mup``, and ``sp`` for the control.
        evaluation: Fixed batches for the loss at ``x``; by default the first 8 training batches.
        watcher: Hears how it goes on.
        **as_parametrize: Further arguments of :func:`mufree.parametrize`.

    Returns:
        The finished grid, with its ``verdict``, ``passed``, ``table()``, ``plot(path)`` and ``recipe()``.

    Raises:
        Refused: For a single width, a grid that cannot be trained, or a folder of something else.

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, Algorithm 1.
    """
    widths = sorted({base_width, *widths})
    check_grid(widths=widths, rates=rates, seeds=seeds, updates=updates)
    check_widths(widths)
    task = custom_task(
        make,
        batches,
        loss,
        base_width=base_width,
        optimizer=optimizer,
        updates=updates,
        evaluation=evaluation,
        parametrize=as_parametrize,
    )
    return run_transfer(
        task,
        base_width=base_width,
        widths=widths,
        rates=rates,
        updates=updates,
        seeds=seeds,
        folder=folder,
        parametrisations=parametrisations,
        watcher=watcher,
    )


def check_widths(widths: Sequence[int]) -> None:
    """Refuse a single width.

    Raises:
        Refused: If there is only one.
    """
    if len(widths) < 2:
        refuse(
            "too_few",
            "widths",
            f"{', '.join(map(str, widths))}: one width shows no transfer; give another",
        )
