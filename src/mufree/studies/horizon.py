"""Horizons: one schedule-free run against AdamW with a cosine schedule that is tuned anew for every horizon.

Both see the same batches and are tuned on the same grid of rates. The schedule-free run has no horizon: it is one run,
looked at on its way, with one rate, the best at its end. The cosine has one run, and one best rate, for each.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Reasons
from ..mup.verdict import Sweep
from ..recipe import rate_text
from .cells import Cell, Schedule, check_grid
from .kept import read_study, write_study
from .runner import Watcher, run_cells
from .store import Row, Store
from .task import Task, train_cell

STUDY = "horizon"
LOSS = "valid_loss"
"""The loss that the verdict is on: longer runs go through the training text more than once."""
SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """A finished comparison.

    Args:
        rows: One for each cell.
        horizons: In updates, the longest last.
        loss: Which of the rows' losses is compared.
    """

    rows: Sequence[Row]
    horizons: Sequence[int]
    loss: str = LOSS

    def sweep(self, schedule: str, horizon: int) -> Sweep:
        """Mean loss by rate, over the rates at which every seed was trained."""
        found = self._losses(schedule, horizon)
        seeds = max((len(values) for values in found.values()), default=0)
        whole = {rate: list(values.values()) for rate, values in found.items() if len(values) == seeds}
        means = {rate: None if None in values else _mean(values) for rate, values in whole.items()}
        return Sweep(0, means)

    def best(self, schedule: str) -> dict[int, dict[str, Any]]:
        """By horizon: ``rate``, ``loss`` (mean over the seeds), ``deviation``, ``losses`` by seed, ``interior``.

        Schedule-free keeps one rate, the best at the longest horizon.
        """
        result = {}
        for horizon in self.horizons:
            sweep = self.sweep(schedule, self.horizons[-1] if schedule == "schedule_free" else horizon)
            losses = self._losses(schedule, horizon).get(sweep.best or 0.0, {})
            values = [value for value in losses.values() if value is not None]
            result[horizon] = {
                "rate": sweep.best,
                "loss": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "losses": {str(seed): value for seed, value in losses.items()},
                "interior": sweep.interior,
            }
        return result

    @property
    def passed(self) -> bool:
        """Whether both minima are inside the grid and schedule-free is lower at every horizon."""
        ours, theirs = self.best("schedule_free"), self.best("cosine")
        return all(
            ours[h]["interior"] and theirs[h]["interior"] and ours[h]["loss"] < theirs[h]["loss"] for h in self.horizons
        )

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        ours, theirs = self.best("schedule_free"), self.best("cosine")
        open_ends = sorted(
            {f"{name} at {h}" for name, found in (("schedule-free", ours), ("cosine", theirs)) for h in self.horizons
             if not found[h]["interior"]}
        )  # fmt: skip
        if open_ends:
            return f"Did not pass: the best rate lies on the grid's edge for {', '.join(open_ends)}; widen the grid."
        texts = [
            f"{ours[h]['loss']:.4f} against {theirs[h]['loss']:.4f} (rate {rate_text(theirs[h]['rate'])}) after {h}"
            for h in self.horizons
        ]
        rate = rate_text(ours[self.horizons[-1]]["rate"])
        start = "Passed" if self.passed else "Did not pass"
        return f"{start}: one schedule-free run (rate {rate}) against the tuned cosine: {'; '.join(texts)} updates."

    def plot(self, path: str | Path) -> Path:
        """Loss against horizon for both.

        Raises:
            Refused: If matplotlib is not installed.
        """
        from .plots import plot_horizon

        return plot_horizon(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write everything as one JSON file, from which :meth:`load` makes it again."""
        head = {
            "study": STUDY,
            "loss": self.loss,
            "horizons": list(self.horizons),
            "passed": self.passed,
            "verdict": self.verdict,
            "best": {name: self.best(name) for name in ("schedule_free", "cosine")},
        }
        write_study(Path(path), head, list(self.rows))

    @classmethod
    def load(cls, path: str | Path) -> Horizon:
        """Read what :meth:`save` wrote.

        Raises:
            Refused: If it is something else.
        """
        content = read_study(Path(path), STUDY)
        return cls(rows=content["rows"], horizons=content["horizons"], loss=content["loss"])

    def _losses(self, schedule: str, horizon: int) -> dict[float, dict[int, float | None]]:
        """By rate and seed."""
        found: dict[float, dict[int, float | None]] = {}
        for row in self.rows:
            if row["schedule"] != schedule:
                continue
            if row["updates"] == horizon:
                found.setdefault(row["rate"], {})[row["seed"]] = row["losses"].get(self.loss)
            elif schedule == "schedule_free":
                measured = row["measured"].get(str(horizon), {})
                found.setdefault(row["rate"], {})[row["seed"]] = measured.get(self.loss)
        return found


def horizons_of(updates: int) -> tuple[int, ...]:
    """The horizons of a run: a quarter, half, three quarters and all of it.

    Example:
        >>> horizons_of(800)
        (200, 400, 600, 800)
    """
    return tuple(sorted({max(1, round(share * updates)) for share in SHARES}))


def run_horizon(
    task: Task,
    *,
    width: int,
    rates: Sequence[float],
    updates: int,
    seeds: int,
    folder: str | Path,
    horizons: Sequence[int] | None = None,
    loss: str = LOSS,
    watcher: Watcher | None = None,
) -> Horizon:
    """Train what is missing in ``folder`` and return the whole comparison.

    The first seed is trained on the whole grid; the others at its best rate and outwards from there, until every
    minimum over all seeds lies inside of what was trained or at the grid's end.

    Args:
        task: A task that measures at every horizon but the last.
        width: Of every model.
        rates: The grid for both.
        updates: The longest horizon.
        seeds: How many.
        folder: Keeps finished cells.
        horizons: In updates, the longest the last and ``updates``; by default :func:`horizons_of` these.
        loss: Which of the task's losses is compared.
        watcher: Hears how it goes on.

    Raises:
        Refused: For a grid that cannot be trained, a task that measures elsewhere, or a folder of something else.
    """
    reasons = Reasons()
    reasons.attempt(lambda: check_grid(widths=[width], rates=rates, seeds=seeds, updates=updates))
    horizons = horizons_of(updates) if horizons is None else tuple(horizons)
    if list(horizons) != sorted(set(horizons)) or horizons[-1:] != (updates,):
        reasons.add("out_of_range", "horizons", f"{horizons} do not rise to {updates}, the longest")
    if not set(horizons[:-1]) <= set(task.measured):
        reasons.add("missing", "task", f"measures at {task.measured}, not at {horizons[:-1]}")
    reasons.refuse_if_any()
    store = Store(folder, STUDY, task.settings)
    runs: list[tuple[Schedule, int]] = [("schedule_free", updates), *(("cosine", horizon) for horizon in horizons)]

    def cell(schedule: Schedule, horizon: int, rate: float, seed: int) -> Cell:
        return Cell(width=width, rate=rate, seed=seed, updates=horizon, schedule=schedule)

    def train(cells: Sequence[Cell]) -> list[Row]:
        return run_cells(store, cells, lambda one: train_cell(task, one), watcher)

    cells = [cell(schedule, horizon, rate, 0) for schedule, horizon in runs for rate in rates]
    rows = train(cells)
    wanted: dict[tuple[Schedule, int], set[float]] = {run: set() for run in runs}
    while seeds > 1:
        more = [
            cell(*run, rate, seed)
            for run in runs
            for rate in sorted(_next(Horizon(rows=rows, horizons=horizons, loss=loss), run, rates, wanted[run]))
            for seed in range(1, seeds)
        ]
        if not more:
            break
        cells += more
        rows += train(more)
    return Horizon(rows=rows, horizons=horizons, loss=loss)


def _next(found: Horizon, run: tuple[Schedule, int], rates: Sequence[float], wanted: set[float]) -> set[float]:
    """Rates at which the other seeds are to be trained next; they are added to ``wanted``."""
    best = found.sweep(*run).best
    if best is None:
        return set()
    ordered = sorted(rates)
    place = ordered.index(best)
    more = set(ordered[max(0, place - 1) : place + 2]) - wanted
    wanted |= more
    return more


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)
