"""The time that a grid still takes, as it is told while it fills."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from mufree.cli.watch import SecondsWatcher
from mufree.studies.cells import Cell, grid
from mufree.studies.console import ConsoleWatcher
from mufree.studies.remaining import seconds_left

UPDATES = 10
COST = {64: 5.0, 128: 14.0, 256: 40.0, 512: 140.0}
"""Seconds a cell as a sweep on two cores had them, whose first cell took four times as long as the next."""
CELLS = grid(widths=list(COST), rates=[0.01, 0.02, 0.04], seeds=[0], updates=UPDATES)
ALL = sum(COST[cell.width] for cell in CELLS)
FACTOR = 1.5
"""What an estimate may be off by, from its first one on. By the square of the width it was off by 2.1, or 8.6."""


def row(cell: Cell, seconds: float | None = None) -> dict[str, Any]:
    return {**cell.as_dict(), "seconds": COST[cell.width] if seconds is None else seconds, "losses": {"loss": 1.0}}


def test_an_estimate_is_near_from_the_first_one_on() -> None:
    """Though only the narrowest width was measured then, and its first cell was slow."""
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(CELLS[:-1]):
        rows.append(row(cell, 4 * COST[cell.width] if number == 0 else None))
        true = ALL - sum(COST[each.width] for each in CELLS[: number + 1])
        told = seconds_left(CELLS, rows)
        if number > 0:
            assert told is not None
            assert true / FACTOR < told < true * FACTOR, number
    assert seconds_left(CELLS, [*rows, row(CELLS[-1])]) is None


def test_there_is_none_before_there_is_a_basis() -> None:
    """The first cell of every process is slow; cells that were kept from before are a basis."""
    rows = [row(cell) for cell in CELLS[:3]]
    assert [seconds_left(CELLS, rows[:count]) is None for count in (0, 1, 2)] == [True, True, False]
    assert [seconds_left(CELLS, rows[:count], jobs=2) is None for count in (2, 3)] == [True, False]


def test_processes_side_by_side_halve_it_and_a_cell_in_flight_is_half_done() -> None:
    """Two cells of 64 and 512 left: with two processes the first is half done, and both end together at best."""
    rows = [row(cell) for cell in CELLS if cell not in (CELLS[0], CELLS[-1])] + [row(CELLS[-2])]
    assert seconds_left(CELLS, rows) == pytest.approx(5 + 140)
    assert seconds_left(CELLS, rows, jobs=2) == pytest.approx((2.5 + 140) / 2)
    assert seconds_left(CELLS, [*rows, row(CELLS[0])], jobs=2) == pytest.approx(70)


def test_cells_of_other_lengths_cost_what_their_updates_do() -> None:
    """As in a study of horizons."""
    long = Cell(width=64, rate=0.01, updates=5 * UPDATES)
    assert seconds_left([*CELLS[:3], long], [row(cell) for cell in CELLS[:3]]) == pytest.approx(25)


@pytest.mark.parametrize("kind", ["transfer", "coord-check"])
def test_both_studies_tell_it(kind: str) -> None:
    """A line a cell, the estimate at its end, and no blanks where there is none."""
    file = io.StringIO()
    console = Console(file=file)
    watcher: Any = SecondsWatcher(console) if kind == "coord-check" else ConsoleWatcher(console, lambda _: 1.0)
    watcher.start(CELLS[:3], [])
    for cell in CELLS[:3]:
        watcher.row(row(cell))
    lines = file.getvalue().splitlines()[1:]
    assert [line.endswith("  about 5 s left") for line in lines] == [False, True, False]
    assert all(line == line.rstrip() for line in lines)
