"""A grid as people watch it: a live table on a terminal, one line a cell elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..recipe import rate_text
from .cells import NAMES, Cell
from .remaining import left_text
from .store import Row

LABELS = {"mup": "μP", "sp": "SP"}


class ConsoleWatcher:
    """Shows a grid of rates by widths as it fills.

    Args:
        console: Where.
        measure: What a row shows as its number; None for a cell that diverged.
        jobs: Processes that work on the grid, for the time that it still takes.
    """

    def __init__(self, console: Console, measure: Callable[[Row], float | None], *, jobs: int = 1) -> None:
        self._console = console
        self._jobs = jobs
        self._measure = measure
        self._cells: Sequence[Cell] = ()
        self._rows: list[Row] = []
        self._live: Live | None = None

    def start(self, cells: Sequence[Cell], rows: Sequence[Row]) -> None:
        """See :class:`~mufree.studies.runner.Watcher`."""
        self._cells, self._rows = cells, list(rows)
        if self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, auto_refresh=False)
            self._live.start()
        else:
            kept = f", {len(rows)} of them kept from before" if rows else ""
            self._say(f"{len(cells)} cells{kept}")

    def row(self, row: Row) -> None:
        """See :class:`~mufree.studies.runner.Watcher`."""
        self._rows.append(row)
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
            return
        value = self._measure(row)
        self._say(
            f"{len(self._rows):>4}/{len(self._cells)}  {LABELS[row['parametrisation']]}  width {row['width']:>5}  "
            f"rate {rate_text(row['rate']):<6}  seed {row['seed']}  {_number(value)}  {self._left()}".rstrip()
        )

    def stop(self) -> None:
        """See :class:`~mufree.studies.runner.Watcher`."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _view(self) -> Group:
        kinds = list(dict.fromkeys(cell.parametrisation for cell in self._cells))
        done = f"{len(self._rows)} of {len(self._cells)} cells  {self._left()}"
        return Group(*map(self._table, kinds), Text(done))

    def _table(self, kind: Any) -> Table:
        table = Table(title=NAMES[kind], title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("rate", justify="right")
        widths = sorted({cell.width for cell in self._cells})
        for width in widths:
            table.add_column(f"{width}", justify="right")
        for rate in sorted({cell.rate for cell in self._cells}):
            shown = (self._shown(kind, width, rate) for width in widths)
            table.add_row(rate_text(rate), *shown)
        return table

    def _shown(self, kind: str, width: int, rate: float) -> str:
        found = [
            self._measure(row)
            for row in self._rows
            if (row["parametrisation"], row["width"], row["rate"]) == (kind, width, rate)
        ]
        if not found:
            return "·"
        return _number(None if None in found else statistics.fmean(value for value in found if value is not None))

    def _left(self) -> str:
        return left_text(self._cells, self._rows, self._jobs)


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"
