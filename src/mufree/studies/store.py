"""A study's folder: what it is, one file for each finished cell, and who is working on which.

Invariants: a cell's file is whole or not there, so a study killed at any moment has lost only the cells that were
being trained; several processes may work in one folder, for a claim is a lock that the system drops with its process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import Reasons, refuse
from ..files import read_json, write_json
from .cells import Cell
from .references import CHANGES

FORMAT = 1
CODE = "code"
"""The setting that holds functions and what they refer to, by name."""
_STUDY, _CELLS, _LOCKS = "study.json", "cells", "locks"
Row = dict[str, Any]


class Store:
    """The finished cells of one study.

    Args:
        folder: Where they are kept; made if it is not there.
        study: Which study: ``transfer``, ``coord-check``, ``horizon``.
        settings: Everything that changes a cell's result and is no field of the cell, as JSON.

    Raises:
        Refused: If the folder holds something else, another study, or this one with other settings.
    """

    def __init__(self, folder: str | Path, study: str, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.study = study
        self.settings = json.loads(json.dumps(dict(settings)))
        self._digest = _digest(self.settings)
        self._check_free()
        (self.folder / _LOCKS).mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCKS / _STUDY).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (self.folder / _STUDY).is_file():
                self._digest = _digest(self._check_same())
            else:
                write_json(self.folder / _STUDY, {"format": FORMAT, "study": study, "settings": self.settings})
        (self.folder / _CELLS).mkdir(exist_ok=True)

    def row(self, cell: Cell) -> Row | None:
        """A finished cell with its result and what made it, or None.

        Raises:
            Refused: If its file was made with other settings, or cannot be read.
        """
        path = self._path(cell)
        try:
            found = read_json(path)
            produced, row = found["made_by"], {**found["cell"], **found["result"], "made_by": found["made_by"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            refuse("damaged", str(path), "is no finished cell; remove the file, and it is trained again")
        if produced["settings"] != self._digest:
            refuse("contradiction", str(path), "was made with other settings; remove the file or give another folder")
        return row

    def rows(self, cells: Iterable[Cell]) -> list[Row]:
        """Those of the cells that are finished."""
        return [row for row in map(self.row, cells) if row is not None]

    def keep(self, cell: Cell, result: Mapping[str, Any], made_by: Mapping[str, Any]) -> Row:
        """Write a finished cell, with what produced it."""
        produced = {"settings": self._digest, **made_by}
        write_json(self._path(cell), {"cell": cell.as_dict(), "result": dict(result), "made_by": produced})
        return {**cell.as_dict(), **result, "made_by": produced}

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Whether this process may train the cell: nobody else is at it, and it is not finished."""
        with (self.folder / _LOCKS / cell.name).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield self.row(cell) is None

    def _path(self, cell: Cell) -> Path:
        return self.folder / _CELLS / f"{cell.name}.json"

    def _check_free(self) -> None:
        """Refuse a folder that holds something else; one with locks is being made into a study by another process."""
        ours = (self.folder / _STUDY, self.folder / _LOCKS)
        if not self.folder.exists() or any(path.exists() for path in ours):
            return
        if not self.folder.is_dir() or any(self.folder.iterdir()):
            refuse("occupied", "out", f"{self.folder} exists and holds no study of mufree's; give another folder")

    def _check_same(self) -> Mapping[str, Any]:
        """The settings that the folder was begun with, which are the same but for what changes by itself."""
        try:
            found = read_json(self.folder / _STUDY)
            study, settings = found["study"], found["settings"]
        except (ValueError, KeyError, TypeError):
            refuse("damaged", "out", f"{self.folder / _STUDY} does not say which study it is; give another folder")
        if (study, found.get("format")) != (self.study, FORMAT):
            refuse(
                "contradiction", "out", f"{self.folder} holds a {study} study, not {self.study}; give another folder"
            )
        if CODE in self.settings and CODE not in settings:
            message = (
                f"{self.folder} was begun by a version that did not keep what functions refer to, so its cells "
                "may be of others; give another folder"
            )
            refuse("contradiction", "out", message)
        reasons = Reasons()
        for name, before, now in _differences(settings, self.settings):
            reasons.add(
                "contradiction",
                name,
                f"{now!r} contradicts {before!r} of the study in {self.folder}; give the same or another folder",
            )
        reasons.refuse_if_any()
        return dict(settings)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ, by name; of functions and what they refer to each by its own."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if name == CODE and old and new:
            yield from _differences(old, new)
        elif old != new and CHANGES not in (old, new):
            yield name, old, new


def row_cell(row: Row) -> Cell:
    """The cell that a row is of."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
