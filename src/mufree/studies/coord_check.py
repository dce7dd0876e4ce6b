"""The coordinate check: during the first updates, no activation may grow or shrink with width."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from ..errors import NonFiniteLoss, Reasons, refuse
from ..files import read_json, write_json
from ..mup import Scales
from ..mup.verdict import slope, spread
from ..plan import OptimizerPlan
from ..training.loop import Trainer
from .cells import Cell, Parametrisation, check_grid
from .custom import Batches, custom_task
from .probes import activations
from .runner import Watcher, run_cells
from .store import Row, Store
from .task import Task

STUDY = "coord-check"
SLOPE = 0.10
"""Power of width with which a statistic may grow or shrink."""
SPREAD = 1.35
"""Largest over smallest, over the widths."""
STATISTIC = "mean_abs"
_DIGITS = 7


@dataclass(frozen=True, slots=True)
class Growth:
    """How one module's statistic follows the width, at the update where it does so most.

    Args:
        module: Its path, or what else was looked at.
        at: ``y`` or ``x``.
        slope: Power of width; infinite where a value is 0 at one width and not at another, or no number.
        spread: Largest over smallest.
        update: The update with the largest slope.
    """

    module: str
    at: str
    slope: float
    spread: float
    update: int

    @property
    def passed(self) -> bool:
        """Whether both gates are met."""
        return abs(self.slope) <= SLOPE and self.spread <= SPREAD


@dataclass(frozen=True, kw_only=True)
class CoordCheck:
    """A finished check.

    Args:
        rows: One for each width, seed, module, update and point: ``width seed module update statistic at value``.
        parametrisation: What was checked: ``mup``, ``sp``, or the name of a change to the scales.
    """

    rows: Sequence[Row]
    parametrisation: str = "mup"

    @property
    def modules(self) -> list[str]:
        """What was looked at, in the order of the forward pass."""
        return list(dict.fromkeys(row["module"] for row in self.rows))

    @property
    def points(self) -> list[str]:
        """``y``, and ``x`` where the optimizer has an average."""
        return list(dict.fromkeys(row["at"] for row in self.rows))

    @property
    def updates(self) -> int:
        """The last update."""
        return int(max(row["update"] for row in self.rows))

    def means(self, module: str, update: int, at: str) -> dict[int, float]:
        """The statistic by width, geometric mean over the seeds; 0 or NaN where a seed's is."""
        values: dict[int, list[float]] = {}
        for row in self.rows:
            if (row["module"], row["update"], row["at"]) == (module, update, at):
                values.setdefault(row["width"], []).append(row["value"])
        return {width: _geometric(found) for width, found in sorted(values.items())}

    @property
    def growth(self) -> list[Growth]:
        """One entry for each module and point: the worst of all updates after the start."""
        by_place: dict[tuple[str, str, int], dict[int, list[float]]] = {}
        for row in self.rows:
            if row["update"] > 0:
                place = by_place.setdefault((row["module"], row["at"], row["update"]), {})
                place.setdefault(row["width"], []).append(row["value"])
        found: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
        for (module, at, update), values in by_place.items():
            means = {width: _geometric(seeds) for width, seeds in values.items()}
            found.setdefault((module, at), []).append((*_trend(means), update))
        return [_worst(module, at, trends) for (module, at), trends in found.items()]

    @property
    def passed(self) -> bool:
        """Whether nothing grows or shrinks with width."""
        return bool(self.rows) and all(growth.passed for growth in self.growth)

    @property
    def verdict(self) -> str:
        """The verdict in a sentence, with the module that follows the width most."""
        found = self.growth
        steep = max(found, key=lambda growth: abs(growth.slope))
        wide = max(found, key=lambda growth: growth.spread)
        widths = sorted({row["width"] for row in self.rows})
        measured = (
            f"from width {widths[0]} to {widths[-1]} the steepest, {steep.module} at {steep.at} after update "
            f"{steep.update}, goes as width^{steep.slope:.2f} (allowed ±{SLOPE:g}); the widest spread is "
            f"{wide.spread:.2f}, of {wide.module} at {wide.at} (allowed {SPREAD:g})"
        )
        if self.passed:
            return f"Passed: {measured}."
        return f"Did not pass: {sum(not g.passed for g in found)} of {len(found)} follow the width; {measured}."

    def plot(self, path: str | Path) -> Path:
        """Every module's statistic against width, at ``y`` and at ``x``.

        Raises:
            Refused: If matplotlib is not installed.
        """
        from .plots import plot_coordinates

        return plot_coordinates(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write everything as one JSON file, from which :meth:`load` makes it again."""
        names = ("width", "seed", "module", "update", "statistic", "at", "value")
        content = {
            "study": STUDY,
            "parametrisation": self.parametrisation,
            "passed": self.passed,
            "verdict": self.verdict,
            "columns": names,
            "rows": [[row[name] for name in names] for row in self.rows],
        }
        write_json(Path(path), content)

    @classmethod
    def load(cls, path: str | Path) -> CoordCheck:
        """Read what :meth:`save` wrote.

        Raises:
            Refused: If it is something else.
        """
        content = read_json(Path(path))
        if content.get("study") != STUDY:
            refuse("contradiction", str(path), f"holds a {content.get('study')} study, not {STUDY}")
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
        return cls(rows=rows, parametrisation=content["parametrisation"])


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
    kept = run_cells(Store(folder, STUDY, task.settings), cells, lambda cell: check_cell(task, cell), watcher)
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
    return CoordCheck(rows=rows, parametrisation=name or parametrisation)


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
        base_width: The base model's width.
        widths: At least two; five octaves make a check worth its name.
        optimizer: A plan, or ``optimizer(scales)``; scales are None without μP. Rather a larger rate than in training.
        seeds: How many.
        updates: After each of which the model is looked into.
        scales: ``mup``; ``sp``, the control, which should not pass; or a function of μP's scales, to see that a
            mistake is found.
        folder: Keeps finished cells; without one nothing is kept.
        watcher: Hears how it goes on.
        **as_parametrize: Further arguments of :func:`mufree.parametrize`. Zero readouts and queries belong to the
            check: logits of random ones shrink with width before the first update.

    Raises:
        Refused: For fewer than two widths, unknown scales, or a folder of something else.
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
        task = replace(task, adjust=scales, settings={**task.settings, "scales": name})
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
    means = {name: float(mx.mean(mx.abs(array.astype(mx.float32))).item()) for name, array in found.items()}  # type: ignore[arg-type]
    return [
        [name, update, at, float(f"{mean:.{_DIGITS}g}") if math.isfinite(mean) else None]
        for name, mean in means.items()
    ]


def _check(**values: Any) -> None:
    check_grid(**values)


def _geometric(values: Sequence[float]) -> float:
    if any(not math.isfinite(value) for value in values):
        return math.nan
    return 0.0 if min(values) == 0 else statistics.geometric_mean(values)


def _trend(means: Mapping[int, float]) -> tuple[float, float]:
    """Slope and spread; of values that are 0 at every width there is none."""
    if all(value == 0 for value in means.values()):
        return 0.0, 1.0
    if any(not value > 0 for value in means.values()):
        return math.inf, math.inf
    return slope(list(means), list(means.values())), spread(list(means.values()))


def _worst(module: str, at: str, trends: Sequence[tuple[float, float, int]]) -> Growth:
    steepest, _, update = max(trends, key=lambda trend: abs(trend[0]))
    return Growth(module, at, steepest, max(trend[1] for trend in trends), update)
