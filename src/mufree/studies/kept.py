"""A finished study as one JSON file, with a line for each row, from which its verdict and plots are made again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import refuse
from ..files import read_json, write_text


def write_study(path: Path, head: Mapping[str, Any], rows: Sequence[Any]) -> None:
    """Write ``head``, which has a ``study``, and the rows; the file keeps its old content until it is whole."""
    start = json.dumps(dict(head), indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    write_text(path, f'{start},\n "rows": [\n{lines}\n ]\n}}\n')


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
