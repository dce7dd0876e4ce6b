"""What a coordinate check found: rows, the growth of each module with width, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import shown
from ..mup.verdict import slope, spread
from .kept import read_study, write_study

Row = dict[str, Any]
STUDY = "coord-check"
SLOPE = 0.10
"""Power of width with which a statistic may grow or shrink."""
SPREAD = 1.35
"""Largest over smallest, over the widths."""
WIDTHS, SEEDS = 3, 3
"""Fewer widths than this show no slope that chance could not make; so many seeds hold a verdict near the gates."""
SETTLED = 10
"""Updates until which logits that could not start at zero may shrink with width, as random ones do."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How one module's statistic follows the width, at the update where it does so most.

    Args:
        module: Its path, or what else was looked at.
        at: ``y`` or ``x``.
        slope: Power of width; infinite where a value is 0 at one width and not at another, or no number.
        spread: Largest over smallest.
        update: The update with the largest slope.
        one_sided: Whether it may shrink with width, and only must not grow.
    """

    module: str
    at: str
    slope: float
    spread: float
    update: int
    one_sided: bool = False

    @property
    def steepness(self) -> float:
        """The slope that counts: either way, or upwards only."""
        return self.slope if self.one_sided else abs(self.slope)

    @property
    def passed(self) -> bool:
        """Whether the gates are met, both of them where it may not shrink either."""
        return self.steepness <= SLOPE and (self.one_sided or self.spread <= SPREAD)


@dataclass(frozen=True, kw_only=True)
class CoordCheck:
    """A finished check.

    Args:
        rows: One for each width, seed, module, update and point: ``width seed module update statistic at value``.
        parametrisation: What was checked: ``mup``, ``sp``, or the name of a change to the scales.
        random_start: Modules that start at random because they cannot start at zero: the logits of a tied head. Until
            update 10 they must not grow with width; afterwards they are gated like the others.
    """

    rows: Sequence[Row]
    parametrisation: str = "mup"
    random_start: tuple[str, ...] = ()

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
        """The statistic by width, geometric mean over the seeds; 0 or NaN where a seed's is.

        Args:
            module: One of :attr:`modules`.
            update: How many updates had been made.
            at: ``y`` or ``x``.
        """
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
        return [_worst(module, at, trends, module in self.random_start) for (module, at), trends in found.items()]

    @property
    def passed(self) -> bool:
        """Whether nothing grows or shrinks with width."""
        return bool(self.rows) and all(growth.passed for growth in self.growth)

    @property
    def verdict(self) -> str:
        """The verdict in a sentence, with the module that follows the width most."""
        found = self.growth
        steep = max(found, key=lambda growth: growth.steepness)
        wide = max(found, key=lambda growth: 0.0 if growth.one_sided else growth.spread)
        widths = sorted({row["width"] for row in self.rows})
        follow = shown(f"{growth.module} at {growth.at}" for growth in found if not growth.passed)
        start = f"{follow}; from" if follow else "from"
        measured = (
            f"{start} width {widths[0]} to {widths[-1]} the steepest, {steep.module} at {steep.at} after update "
            f"{steep.update}, goes as width^{steep.slope:.2f} (allowed ±{SLOPE:g}); the widest spread is "
            f"{wide.spread:.2f}, of {wide.module} at {wide.at} (allowed {SPREAD:g})"
        )
        if self.passed:
            return f"Passed: {measured}.{self._caution}"
        failed = sum(not g.passed for g in found)
        return f"Did not pass: {failed} of {len(found)} follow the width; {measured}.{self._caution}"

    @property
    def _caution(self) -> str:
        """A sentence where the widths or the seeds are too few for the gates, which were set for five and three."""
        enough = {"width": WIDTHS, "seed": 2}
        found = {name: len({row[name] for row in self.rows}) for name in enough}
        few = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in found.items() if n < enough[name]]
        if not few:
            return ""
        return (
            f" But {' and '.join(few)} cannot decide: chance turns the verdict of so few. Take {WIDTHS} widths or more "
            f"and {SEEDS} seeds, as mufree coord-check does without --quick, --widths and --seeds."
        )

    def plot(self, path: str | Path) -> Path:
        """Every module's statistic against width, at ``y`` and at ``x``.

        Raises:
            Refused: If matplotlib is not installed.
        """
        from .plots import plot_coordinates

        return plot_coordinates(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write everything as one JSON file, from which :meth:`load` makes it again.

        Raises:
            OSError: It cannot be written.
        """
        names = ("width", "seed", "module", "update", "statistic", "at", "value")
        head = {
            "study": STUDY,
            "parametrisation": self.parametrisation,
            "random_start": list(self.random_start),
            "passed": self.passed,
            "verdict": self.verdict,
            "columns": names,
        }
        write_study(Path(path), head, [[row[name] for name in names] for row in self.rows])

    @classmethod
    def load(cls, path: str | Path) -> CoordCheck:
        """Read what :meth:`save` wrote.

        Raises:
            Refused: If it is something else.
        """
        content = read_study(Path(path), STUDY)
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
        return cls(
            rows=rows,
            parametrisation=content["parametrisation"],
            random_start=tuple(content.get("random_start", ())),
        )


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


def _worst(module: str, at: str, trends: Sequence[tuple[float, float, int]], random_start: bool) -> Growth:
    early = [trend for trend in trends if random_start and trend[2] <= SETTLED]
    settled = [trend for trend in trends if trend not in early]
    if early and (not settled or max(early)[0] > SLOPE):
        steepest, _, update = max(early)
        return Growth(module, at, steepest, max(trend[1] for trend in early), update, one_sided=True)
    steepest, _, update = max(settled, key=lambda trend: abs(trend[0]))
    return Growth(module, at, steepest, max(trend[1] for trend in settled), update)
