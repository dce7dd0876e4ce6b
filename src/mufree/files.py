"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` to write into, which takes its place when the block ends without an exception.

    What is written is flushed to the disk before it is renamed. A process killed at any moment leaves the old folder,
    the new one, or in between the old one under ``.NAME.old``, which :func:`recover` puts back.
    """
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.rglob("*"), beside]:
            flush(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(parent: Path) -> None:
    """Put back folders whose replacement was cut short, and remove what was never finished."""
    for old in parent.glob(".*.old"):
        place = parent / old.name[1:].removesuffix(".old")
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(place)
    for new in parent.glob(".*.new"):
        shutil.rmtree(new, ignore_errors=True) if new.is_dir() else new.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a file, which keeps its old content until the new one is on the disk."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text to a file, which keeps its old content until the new one is on the disk."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    flush(beside)
    beside.replace(path)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
