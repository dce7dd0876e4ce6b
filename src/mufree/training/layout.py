"""Tables and named values as lines of text. Pure Python.

Invariant: nothing is ever cut. Where a line is too long for a terminal it goes on in the next one, between two words;
without a width (a pipe, a file) a line is a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_LEAST = 40
"""Columns below which wrapped text is no longer readable: a narrower terminal breaks the lines itself."""


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Columns under their heads, the first aligned to the left and the others to the right.

    Args:
        head: The heads of the columns.
        rows: One text a column.
        width: Of the terminal, where columns move together if they do not fit otherwise; None for no limit.
    """
    sizes = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    gap = 2 if width is None or sum(sizes) + 2 * (len(sizes) - 1) <= width else 1
    lines = []
    for row in (head, *rows):
        first, *others = (text.rjust(size) for text, size in zip(row, sizes, strict=True))
        lines.append((" " * gap).join([first.strip().ljust(sizes[0]), *others]).rstrip())
    return lines


def named_lines(rows: Sequence[tuple[str, str]], width: int | None = None) -> list[str]:
    """Names in a column, and what belongs to each beside it.

    Args:
        rows: Names and texts.
        width: Of the terminal, where longer lines go on under the text's own start; None for no limit.
    """
    indent = max((len(name) for name, _ in rows), default=0) + 2
    room = None if width is None else max(width, _LEAST + indent)
    lines: list[str] = []
    for name, text in rows:
        start = name.ljust(indent)
        lines += [(start + text).rstrip()] if room is None else _wrapped(start, text, room)
    return lines


def _wrapped(start: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]
