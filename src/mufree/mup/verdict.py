"""What the numbers of a μP check say: growth with width, and what a transferred rate costs. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


def slope(widths: Sequence[float], values: Sequence[float]) -> float:
    """The power of width with which a positive statistic grows: least squares of log value on log width.

    Args:
        widths: At least two different widths.
        values: The statistic at each, above 0.

    Example:
        >>> slope([64, 128, 256], [3, 6, 12])
        1.0
    """
    x, y = [math.log2(width) for width in widths], [math.log2(value) for value in values]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def spread(values: Sequence[float]) -> float:
    """The largest of some positive values over the smallest."""
    return max(values) / min(values)


@dataclass(frozen=True)
class Sweep:
    """The losses of one width over a grid of learning rates.

    Args:
        width: The width.
        losses: By rate, the mean over the seeds; None where a cell diverged.

    Example:
        >>> sweep = Sweep(128, {0.25: None, 0.125: 2.0, 0.0625: 1.5, 0.03125: 1.8})
        >>> sweep.best, sweep.edge, round(sweep.regret(0.03125), 3), sweep.regret(0.25)
        (0.0625, None, 0.2, inf)
    """

    width: int
    losses: Mapping[float, float | None]

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The grid, lowest first."""
        return tuple(sorted(self.losses))

    @cached_property
    def best(self) -> float | None:
        """The rate with the lowest loss; None if every cell diverged."""
        found = [(loss, rate) for rate, loss in sorted(self.losses.items()) if loss is not None]
        return min(found)[1] if found else None

    @property
    def best_loss(self) -> float:
        """The lowest loss, infinite if every cell diverged."""
        return min((loss for loss in self.losses.values() if loss is not None), default=math.inf)

    @property
    def edge(self) -> str | None:
        """``lowest`` or ``highest`` if the best rate is that of the grid, so that a better one may lie beyond it.

        A neighbour that diverged is a neighbour: beyond it nothing is better.
        """
        if self.best is None:
            return None
        return "lowest" if self.best == self.rates[0] else "highest" if self.best == self.rates[-1] else None

    @property
    def interior(self) -> bool:
        """Whether the best rate has a worse one on either side."""
        return self.best is not None and self.edge is None

    def regret(self, rate: float | None) -> float:
        """How much higher the loss at a rate is than the lowest, as a share of the lowest."""
        loss = None if rate is None else self.losses.get(rate)
        return math.inf if loss is None else loss / self.best_loss - 1


def drift(sweeps: Sequence[Sweep]) -> float:
    """Steps between the lowest and the highest best rate, on the grid of all widths; infinite if a width has none."""
    grid = sorted({rate for sweep in sweeps for rate in sweep.rates})
    places = [grid.index(sweep.best) for sweep in sweeps if sweep.best is not None]
    return float(max(places) - min(places)) if places and len(places) == len(sweeps) else math.inf
