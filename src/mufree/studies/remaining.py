"""How long the rest of a grid takes, from the cells that are finished. Pure Python.

A cell's cost an update is the middle one of those measured at its width. At a width where none is finished it follows
the widths beside it as a power of width, or, where one width alone is finished, the power that whole sweeps showed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ..recipe import seconds_text
from .cells import Cell
from .store import Row, row_cell

POWER = 1.5
"""Of width that a cell's cost follows: measured from 64 to 512, between 1.4 and 1.8 a doubling."""
_LEAST, _MOST = 1.0, 2.0
"""Powers that two measured widths may lead to: a product of matrices follows the width's square at most."""


def seconds_left(cells: Sequence[Cell], rows: Sequence[Row], jobs: int = 1) -> float | None:
    """Seconds until the grid is finished, or None while too little is known, or nothing is missing.

    Args:
        cells: All of them, in the order in which they are trained.
        rows: The finished ones. The first of each process are slower than the rest, so one more than ``jobs`` is
            asked for.
        jobs: Processes side by side. Every one but that which asks is taken to be half through a cell.
    """
    finished = {row_cell(row).name for row in rows}
    missing = [cell for cell in cells if cell.name not in finished]
    if not missing or len(rows) <= jobs:
        return None
    measured: dict[int, list[float]] = {}
    for row in rows:
        measured.setdefault(row["width"], []).append(row["seconds"] / row["updates"])
    costs = {width: max(statistics.median_low(found), 1e-9) for width, found in measured.items()}
    each = [cell.updates * _cost(cell.width, costs) for cell in missing]
    return (sum(each) - sum(each[: jobs - 1]) / 2) / min(jobs, len(each))


def left_text(cells: Sequence[Cell], rows: Sequence[Row], jobs: int = 1) -> str:
    """:func:`seconds_left` in words, or nothing."""
    seconds = seconds_left(cells, rows, jobs)
    return "" if seconds is None else f"about {seconds_text(seconds)} left"


def _cost(width: int, costs: Mapping[int, float]) -> float:
    if width in costs:
        return costs[width]
    near = sorted(costs, key=lambda known: abs(math.log(known / width)))[:2]
    power = POWER
    if len(near) == 2:
        power = math.log(costs[near[0]] / costs[near[1]]) / math.log(near[0] / near[1])
        power = min(max(power, _LEAST), _MOST)
    return float(costs[near[0]] * (width / near[0]) ** power)
