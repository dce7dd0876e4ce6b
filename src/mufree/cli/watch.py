"""One line for each finished cell of a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ..studies.cells import Cell


class SecondsWatcher:
    """Says which cells are done and how long each took.

    Args:
        console: Where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = self._all = 0

    def start(self, cells: Sequence[Cell], rows: Sequence[dict[str, Any]]) -> None:
        """The check starts."""
        self._done, self._all = len(rows), len(cells)
        kept = f", {len(rows)} of them kept from before" if rows else ""
        self._console.print(f"{len(cells)} models{kept}", highlight=False)

    def row(self, row: dict[str, Any]) -> None:
        """One more model is done."""
        self._done += 1
        self._console.print(
            f"{self._done:>3}/{self._all}  width {row['width']:>5}  seed {row['seed']}  {row['seconds']:.1f} s",
            highlight=False,
        )

    def stop(self) -> None:
        """The check has ended."""
