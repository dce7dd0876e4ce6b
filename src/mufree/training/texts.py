"""Documents of large text files, one piece after the other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import refuse
from .data import VALIDATION_SHARE

PIECE = 1 << 20
"""Characters that are held at a time; a longer text file is cut there at a line's end."""


@dataclass(frozen=True, slots=True)
class Text:
    """A document, or a piece of one.

    Args:
        content: What it says.
        valid: Whether it is for validation.
        last: Whether its document ends here.
    """

    content: str
    valid: bool
    last: bool = True


def read_texts(files: Sequence[Path]) -> Iterator[Text]:
    """Every document in order, long text files in pieces.

    Raises:
        Refused: At a line that cannot be read.
    """
    for path in files:
        if path.suffix.lower() == ".jsonl":
            yield from (Text(text, _for_validation(text.encode())) for text in _json_texts(path))
        else:
            yield from _pieces(path)


def _json_texts(path: Path) -> Iterator[str]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            refuse("unreadable", "data", f'{path}:{number} is not an object with a "text"; write {{"text": "…"}}')
        if text.strip():
            yield text


def _pieces(path: Path) -> Iterator[Text]:
    with path.open("rb") as file:
        valid = _for_validation(hashlib.file_digest(file, "sha256").digest())
    held: list[str] = []
    size = 0
    for _, line in _lines(path):
        if size >= PIECE:
            yield Text("".join(held), valid, last=False)
            held, size = [], 0
        held.append(line)
        size += len(line)
    if size:
        yield Text("".join(held), valid)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").decode()
            except UnicodeDecodeError as error:
                message = f"{path}:{number} is not UTF-8 text (byte {error.start} of the line); convert it first"
                refuse("unreadable", "data", message)


def _for_validation(content: bytes) -> bool:
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) % VALIDATION_SHARE == 0
