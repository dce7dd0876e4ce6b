"""The one runner of every study: trains what is missing of a list of cells, and keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from ..random_state import random_state_kept
from ..training.machine import arithmetic
from .cells import Cell
from .store import Row, Store, row_cell

_WAIT = 0.5
"""Seconds between two looks at cells that another process is training."""


class Watcher(Protocol):
    """Hears how a grid goes on."""

    def start(self, cells: Sequence[Cell], rows: Sequence[Row]) -> None:
        """The grid starts, or goes on with these rows finished already."""

    def row(self, row: Row) -> None:
        """One more cell is finished."""

    def stop(self) -> None:
        """The grid has ended, or was interrupted."""


class Quiet:
    """Says nothing."""

    def start(self, cells: Sequence[Cell], rows: Sequence[Row]) -> None:
        """See :class:`Watcher`."""

    def row(self, row: Row) -> None:
        """See :class:`Watcher`."""

    def stop(self) -> None:
        """See :class:`Watcher`."""


def run_cells(
    store: Store, cells: Sequence[Cell], train: Callable[[Cell], Mapping[str, Any]], watcher: Watcher | None = None
) -> list[Row]:
    """Every cell's row, in the order given; cells that are kept already are not trained again.

    Several processes may do this in one folder at once: each takes cells that nobody is at, and waits for the others'
    last ones. The global random state is as before afterwards.

    Args:
        store: Where they are kept.
        cells: The cells, in the order in which they are wanted.
        train: Trains one cell.
        watcher: Hears how it goes on.

    Raises:
        KeyboardInterrupt: Somebody pressed Ctrl-C; its text says how many cells are kept.
    """
    watcher = watcher or Quiet()
    done = {row_name(row): row for row in store.rows(cells)}
    watcher.start(cells, list(done.values()))
    try:
        with random_state_kept():
            while len(done) < len(cells):
                if not _pass(store, [cell for cell in cells if cell.name not in done], train, watcher, done):
                    time.sleep(_WAIT)
    except KeyboardInterrupt:
        kept = f"{len(store.rows(cells))} of {len(cells)} cells are kept in {store.folder}"
        raise KeyboardInterrupt(f"stopped; {kept}, and the same command goes on from there") from None
    finally:
        watcher.stop()
    return [done[cell.name] for cell in cells]


def _pass(
    store: Store,
    missing: Sequence[Cell],
    train: Callable[[Cell], Mapping[str, Any]],
    watcher: Watcher,
    done: dict[str, Row],
) -> bool:
    """Go through the missing cells once; whether any of them was finished, here or elsewhere."""
    before = len(done)
    passed: list[Cell] = []  # looked at after every cell, so that others' cells are told as they are finished
    for cell in missing:
        if store.row(cell) is None:
            with store.claim(cell) as mine:
                if mine:
                    store.keep(cell, train(cell), made_by())
        passed = [other for other in (*passed, cell) if not _finished(store, other, watcher, done)]
    return len(done) > before


def _finished(store: Store, cell: Cell, watcher: Watcher, done: dict[str, Row]) -> bool:
    """Whether a cell is finished, by whomever; it is told then."""
    row = store.row(cell)
    if row is not None:
        done[cell.name] = row
        watcher.row(row)
    return row is not None


def row_name(row: Row) -> str:
    """The name of the cell that a row is of."""
    return row_cell(row).name


def made_by() -> dict[str, Any]:
    """What made a cell besides its settings: versions, device, BLAS."""
    try:
        own = version("mufree")
    except PackageNotFoundError:
        own = "not installed"
    return {"mufree": own, **arithmetic()}
