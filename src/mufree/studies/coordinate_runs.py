"""The coordinate check: during the first updates, no activation may grow or shrink with width."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from ..errors import NonFiniteLoss, Reasons, Refused, refuse
from ..mup import Scales, mup_scales
from ..plan import OptimizerPlan
from ..random_state import random_state_kept
from ..training.loop import Trainer
from .cells import Cell, Parametrisation, check_grid
from .coordinates import STUDY, CoordCheck
from .custom import Batches, custom_task
from .fingerprint import check_fingerprint
from .probes import OUTPUT, activations
from .references import references
from .runner import Watcher, run_cells
from .store import CODE, Store
from .task import Task

STATISTIC = "mean_abs"
_DIGITS = 7
_STARTS = ("init", "zero_readout", "zero_query")


def run_coord_check(
    task: Task,
    *,
    widths: Sequence[int],
    rate: float,
    seeds: int,
    updates: int,
    folder: str | Path,
    parametrisation: Parametrisation = "mup",
    name: str | None = None,
    watcher: Watcher | None = None,
) -> CoordCheck:
    """Train what is missing in ``folder`` and return the whole check.

    Raises:
        Refused: For fewer than two widths, or a folder of something else.
    """
    reasons = Reasons()
    reasons.attempt(_check, widths=widths, rates=[rate], seeds=seeds, updates=updates)
    if len(set(widths)) < 2:
        reasons.add("too_few", "widths", f"{list(widths)}: growth with width needs two or more")
    reasons.refuse_if_any()
    cells = [
        Cell(width=width, rate=rate, seed=seed, updates=updates, parametrisation=parametrisation)
        for seed in range(seeds)
        for width in sorted(widths)
    ]
    store = Store(folder, STUDY, task.settings)
    if task.custom:
        check_fingerprint(store, task, cells)
    kept = run_cells(store, cells, lambda cell: check_cell(task, cell), watcher)
    rows = [
        {
            "width": cell["width"],
            "seed": cell["seed"],
            "module": module,
            "update": update,
            "statistic": STATISTIC,
            "at": at,
            "value": math.nan if value is None else value,
        }
        for cell in kept
        for module, update, at, value in cell["values"]
    ]
    random_start = (OUTPUT,) if _head_is_tied(task, min(widths)) else ()
    return CoordCheck(rows=rows, parametrisation=name or parametrisation, random_start=random_start)


def _head_is_tied(task: Task, width: int) -> bool:
    choices = {name: value for name, value in task.parametrize.items() if name not in _STARTS}
    try:
        with random_state_kept():
            return mup_scales(task.make(width), task.shapes, **choices).readout.way == "tied head"
    except Refused:  # the control may be a model that has no scales
        return False


def check_cell(task: Task, cell: Cell) -> dict[str, Any]:
    """Train one model for a few updates, and look into it before the first and after each.

    Returns:
        ``values`` (module, update, ``y`` or ``x``, mean of the entries' absolute values; None if it is no number),
        ``seconds``.
    """
    started = time.monotonic()
    trainer = task.start(cell)
    values = _look(task, trainer)
    try:
        for _ in range(cell.updates):
            trainer.advance()
            values += _look(task, trainer)
    except NonFiniteLoss:
        values += _look(task, trainer)
    return {"values": values, "seconds": round(time.monotonic() - started, 2)}


def coord_check(
    make: Callable[[int], Any],
    batches: Batches,
    loss: Callable[..., Any],
    *,
    base_width: int,
    widths: Sequence[int],
    optimizer: OptimizerPlan | Callable[[Scales | None], Any],
    seeds: int = 3,
    updates: int = 10,
    scales: str | Callable[[Scales], Scales] = "mup",
    folder: str | Path | None = None,
    watcher: Watcher | None = None,
    **as_parametrize: Any,
) -> CoordCheck:
    """Whether activations keep their size when a model gets wider, over the first updates, at ``y`` and at ``x``.

    Args:
        make: A fresh model at a width.
        batches: A function of the batch's number, or a sequence that is gone through again and again.
        loss: Mean loss, ``loss(model, batch)``, or ``loss(model, *batch)`` where batches are tuples.
        base_width: The base model's width; under about 32 the sums of few terms are noisy, and a right model may fail.
        widths: At least two; five octaves make a check worth its name.
        optimizer: A plan, or ``optimizer(scales)``; scales are None without μP. Its rate is one that the base model
            trains well with: about its best rate, up to 4 times that. At a smaller one a mistake hardly shows; at a
            much larger one training is unstable, and a right model fails.
        seeds: How many.
        updates: After each of which the model is looked into.
        scales: ``mup``; ``sp``, the control, which should not pass; or a function of μP's scales, to see that a
            mistake is found.
        folder: Keeps finished cells; without one nothing is kept. It is refused for another check, as by
            :func:`lr_transfer`.
        watcher: Hears how it goes on.
        **as_parametrize: Further arguments of :func:`mufree.parametrize`. Zero readouts and queries belong to the
            check: logits of random ones shrink with width before the first update. A tied head cannot start at zero:
            its logits must not grow, but may shrink until update 10.

    Returns:
        The finished check, with its ``verdict``, ``passed``, ``growth`` and ``plot(path)``.

    Raises:
        Refused: For fewer than two widths, unknown scales, or a folder of something else.

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, appendix D.1.
    """
    if scales not in ("mup", "sp") and not callable(scales):
        refuse("unknown", "scales", f"{scales!r} is not 'mup', 'sp' or a function of scales")
    plan = isinstance(optimizer, OptimizerPlan)
    rate = optimizer.peak_lr if isinstance(optimizer, OptimizerPlan) else 1.0
    choice: Any = optimizer if plan else lambda _rate, scales: optimizer(scales)  # type: ignore[operator]
    task = custom_task(
        make, batches, loss, base_width=base_width, optimizer=choice, updates=updates, parametrize=as_parametrize
    )
    name = scales if isinstance(scales, str) else getattr(scales, "__name__", "changed")
    if callable(scales):
        code = task.settings[CODE] | references(scales=scales)
        task = replace(task, adjust=scales, settings={**task.settings, "scales": name, CODE: code})
    with TemporaryDirectory() as nowhere:
        return run_coord_check(
            task,
            widths=widths,
            rate=rate,
            seeds=seeds,
            updates=updates,
            folder=folder or Path(nowhere) / STUDY,
            parametrisation="sp" if scales == "sp" else "mup",
            name=name,
            watcher=watcher,
        )


def hidden_rate_not_divided(scales: Scales) -> Scales:
    """Scales with a mistake: hidden parameters keep the base model's rate. A check that it passes is none."""
    changed = {
        path: replace(scale, lr=1.0, weight_decay=1.0) if scale.kind == "hidden" else scale
        for path, scale in scales.items()
    }
    return replace(scales, by_path=changed)


def _look(task: Task, trainer: Trainer) -> list[list[Any]]:
    """The model's statistics now, at every point that it has."""
    batch = next(iter(task.evaluation.values()))[0]
    arrays = tuple(map(mx.array, batch)) if isinstance(batch, tuple | list) else mx.array(batch)
    model, optimizer = trainer.model, trainer.optimizer
    model.eval()
    values = [[*row] for row in _statistics(task, model, arrays, trainer.position.update, "y")]
    if hasattr(optimizer, "averaged"):
        with optimizer.averaged(model):
            model.eval()
            values += _statistics(task, model, arrays, trainer.position.update, "x")
    model.train()
    return values


def _statistics(task: Task, model: Any, batch: Any, update: int, at: str) -> list[list[Any]]:
    found = activations(model, lambda: task.loss(model, batch))
    means = {name: _mean_abs(array) for name, array in found.items()}
    return [
        [name, update, at, float(f"{mean:.{_DIGITS}g}") if math.isfinite(mean) else None]
        for name, mean in means.items()
    ]


def _mean_abs(array: mx.array) -> float:
    """In two steps: MLX's CPU sums a whole array in one float32, which loses digits."""
    return float(mx.mean(mx.mean(mx.abs(array.astype(mx.float32)), axis=-1)).item())  # type: ignore[arg-type]


def _check(**values: Any) -> None:
    check_grid(**values)
