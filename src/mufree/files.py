"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
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
    folder = folder.resolve()  # a link to a folder stays one, to the new content
    recover(folder)
    beside, old = _new(folder), _old(folder)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.rglob("*"), beside]:
            flush(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    flush(folder.parent)
    _remove(old)


def recover(folder: Path) -> None:
    """Put back what :func:`whole_folder` was replacing when it was cut short, and remove what was never finished.

    Only for whoever writes the folder: what looks unfinished may be another process's work.
    """
    folder = folder.resolve()
    old = _old(folder)
    if folder.exists():
        _remove(old)
    elif old.exists():
        old.rename(folder)
    shutil.rmtree(_new(folder), ignore_errors=True)


def _remove(old: Path) -> None:
    """Remove a folder, or the file that was in its place."""
    if old.is_file():
        old.unlink()
    shutil.rmtree(old, ignore_errors=True)


def recover_all(parent: Path) -> None:
    """:func:`recover` every folder in ``parent`` that was being written."""
    for path in [*parent.glob(".*.old"), *parent.glob(".*.new")]:
        recover(parent / path.name[1:-4])


def _new(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.new")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


@contextmanager
def failing_as_os_error(path: Path) -> Iterator[None]:
    """MLX raises RuntimeError where a file cannot be written; inside, that is the OSError that callers expect."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error).rstrip("."), str(path)) from error


def there(path: Path) -> bool:
    """Whether a path exists; no, too, for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 – Path.exists raises for a name that is too long


def within(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it."""
    return path.resolve().is_relative_to(folder.resolve())


def nearest(path: Path) -> Path:
    """The path itself, or the nearest of the folders it lies in that exists."""
    return next((place for place in [path, *path.absolute().parents] if there(place)), path)


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
    """Read a JSON file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no JSON, or nested deeper than Python follows.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def safe_loader() -> Any:
    """PyYAML's safe loader as PyYAML makes it.

    mlx-lm's command adds a rule for numbers to the class itself, for the whole process, after which a name such as
    ``._`` is a number that cannot be read.
    """
    import yaml
    from yaml.resolver import Resolver

    class Loader(yaml.SafeLoader):
        """Safe, with PyYAML's own rules of what a plain word is."""

        yaml_implicit_resolvers = {  # noqa: RUF012 – what PyYAML has there
            first: list(rules) for first, rules in Resolver.yaml_implicit_resolvers.items()
        }

    return Loader


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
