"""A finished study as one JSON file, with a line for each row, from which its verdict and plots are made again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from ..errors import Refused, refuse
from ..files import read_json, write_text


class Saved(Protocol):
    """A finished study."""

    def save(self, path: str | Path) -> None:
        """Write everything as one JSON file."""


def write_study(path: Path, head: Mapping[str, Any], rows: Sequence[Any]) -> None:
    """Write ``head``, which has a ``study``, and the rows; the file keeps its old content until it is whole."""
    start = json.dumps(dict(head), indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    write_text(path, f'{start},\n "rows": [\n{lines}\n ]\n}}\n')


def save_result(result: Saved, study: str, path: Path) -> Path | None:
    """Write a study's result; an earlier one that holds rows which this one has not is kept under another name.

    Args:
        result: The finished study.
        study: Which it is.
        path: Where to write it.

    Returns:
        Where the earlier one is now; None where there was none, or nothing of it would be lost.
    """
    new = path.with_name(f"{path.name}.new")
    result.save(new)
    aside = None
    if _rows(path, study) - _rows(new, study):
        numbers = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
        aside = next(name for name in numbers if not name.exists())
        path.replace(aside)
    new.replace(path)
    return aside


def _rows(path: Path, study: str) -> set[str]:
    """The rows of a finished study, as text; none of a file that is no such study."""
    try:
        return {json.dumps(row, sort_keys=True) for row in read_study(path, study)["rows"]}
    except (Refused, KeyError, TypeError):
        return set()


def read_study(path: Path, study: str) -> dict[str, Any]:
    """What :func:`write_study` wrote.

    Raises:
        Refused: If it is not there, no such file, or of another study.
    """
    try:
        content = read_json(path)
        found = content["study"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse("unreadable", str(path), f"is no file of a finished {study} study: {error!r}")
    if found != study:
        refuse("contradiction", str(path), f"holds a {found} study, not {study}")
    return dict(content)
