"""Cells of a study: one training run each, named by what tells it from the others. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..errors import Reasons

Parametrisation = Literal["mup", "sp"]
Schedule = Literal["schedule_free", "cosine"]
PARAMETRISATIONS: tuple[Parametrisation, ...] = get_args(Parametrisation)
NAMES = {
    "mup": "μP",
    "sp": "SP (MLX's own initialisation, one rate for every parameter)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run of a grid.

    Args:
        width: The model's width.
        rate: Peak learning rate at the base width.
        updates: How long it trains: the horizon.
        seed: Of the initialisation and of the order of the data.
        parametrisation: ``mup``, or ``sp``: MLX's own initialisation and one rate for all.
        schedule: ``schedule_free``, or ``cosine``: AdamW with a cosine schedule that ends at the horizon.
    """

    width: int
    rate: float
    updates: int
    seed: int = 0
    parametrisation: Parametrisation = "mup"
    schedule: Schedule = "schedule_free"

    @property
    def name(self) -> str:
        """A file name, the same for the same cell."""
        kind = self.parametrisation if self.schedule == "schedule_free" else f"{self.parametrisation}-{self.schedule}"
        return f"{kind}-w{self.width}-lr{self.rate:.6g}-s{self.seed}-u{self.updates}"

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON."""
        return asdict(self)


def grid(
    *,
    widths: Sequence[int],
    rates: Sequence[float],
    seeds: Iterable[int],
    updates: int,
    parametrisations: Sequence[Parametrisation] = PARAMETRISATIONS,
) -> list[Cell]:
    """Every combination, in the order that answers soonest.

    A whole picture with one seed comes first; in it the narrow, cheap widths, and at each of them the rates from the
    middle outwards.
    """
    middle = sum(map(math.log, rates)) / max(1, len(rates))
    cells = [
        Cell(width=width, rate=rate, seed=seed, updates=updates, parametrisation=kind)
        for width in widths
        for rate in rates
        for seed in seeds
        for kind in parametrisations
    ]
    return sorted(cells, key=lambda cell: (cell.seed, cell.width, abs(math.log(cell.rate) - middle), cell.name))


def check_grid(*, widths: Sequence[int], rates: Sequence[float], seeds: int, updates: int) -> None:
    """Refuse a grid that cannot be trained.

    Raises:
        Refused: With every reason.
    """
    reasons = Reasons()
    for name, values, kind in (("widths", widths, int), ("rates", rates, (int, float))):
        if not values:
            reasons.add("missing", name, "are none; give at least one")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                allowed = "a positive whole number" if kind is int else "a finite number > 0"
                reasons.add("out_of_range", name, f"{value!r} is not {allowed}")
            elif list(values).count(value) > 1:
                reasons.add("repeated", name, f"{value!r} is there more than once; leave it out")
    for name, count in (("seeds", seeds), ("updates", updates)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            reasons.add("out_of_range", name, f"{count!r} is not a whole number ≥ 1")
    reasons.refuse_if_any()
