"""One line for each finished cell of a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..studies.remaining import left_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..studies.cells import Cell


class SecondsWatcher:
    """Says which cells are done, how long each took, and about how long the rest takes.

    Args:
        console: Where.
        jobs: Processes that work on the check.
    """

    def __init__(self, console: Console, *, jobs: int = 1) -> None:
        self._console = console
        self._jobs = jobs
        self._cells: Sequence[Cell] = ()
        self._rows: list[dict[str, Any]] = []

    def start(self, cells: Sequence[Cell], rows: Sequence[dict[str, Any]]) -> None:
        """The check starts."""
        self._cells, self._rows = cells, list(rows)
        kept = f", {len(rows)} of them kept from before" if rows else ""
        self._say(f"{len(cells)} models{kept}")

    def row(self, row: dict[str, Any]) -> None:
        """One more model is done."""
        self._rows.append(row)
        left = left_text(self._cells, self._rows, self._jobs)
        self._say(
            f"{len(self._rows):>3}/{len(self._cells)}  width {row['width']:>5}  seed {row['seed']}  "
            f"{row['seconds']:>5.1f} s  {left}".rstrip()
        )

    def stop(self) -> None:
        """The check has ended."""

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
