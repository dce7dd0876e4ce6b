"""A corpus of text, tokenised once into token files.

Invariants: the folder is named by a hash of the text and the tokenizer, so that it is never another's; it appears
whole or not at all; no more than a piece of the text is in memory at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, Reasons, Refused, refuse
from ..files import read_json, whole_folder, write_json
from .manifest import plain_name
from .texts import PIECE, Text, read_texts
from .tokens import KINDS, MappedTokens, TokenFile, bin_file, kind_for

FORMAT = 1
SHARD = 1 << 27
"""Tokens of a file at most."""

_MANIFEST = "manifest.json"
_SIDES = ("train", "valid")

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class TokenisedText:
    """What is in the folder.

    Args:
        folder: The folder.
        train: Token files to train on.
        valid: Token files to validate on; empty if the text had too few documents to split.
        documents: How many documents each side has.
        tokens: The tokens of each side, mapped, their hash known.
    """

    folder: Path
    train: tuple[TokenFile, ...]
    valid: tuple[TokenFile, ...]
    documents: tuple[int, int]
    tokens: tuple[MappedTokens, MappedTokens] = field(compare=False)


def tokenised(files: Sequence[Path], cache: Path, encode: Encode, *, tokenizer: str, vocab_size: int) -> TokenisedText:
    """The token files of a text, made if they are not there or not whole.

    One document in ten is for validation, chosen by a hash of its text, so that one that occurs twice is on one side.

    Args:
        files: Text and ``.jsonl`` files, in order.
        cache: Folder in which the folder is.
        encode: Token ids of documents, each with the end token.
        tokenizer: Hash of the tokenizer.
        vocab_size: Its tokens.

    Raises:
        Refused: For text that cannot be read, with the file and line, and a cache that cannot be written to.
    """
    folder = cache / _key(files, tokenizer)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        refuse("unwritable", "cache", f"{cache} cannot be written to: {error.strerror}; give another folder")
    with _alone(descriptor):
        try:
            return read_tokenised(folder, vocab_size)
        except CheckpointError:
            with whole_folder(folder) as beside:
                _write(beside, read_texts(files), encode, vocab_size)
    return read_tokenised(folder, vocab_size)


def read_tokenised(folder: Path, vocab_size: int) -> TokenisedText:
    """What :func:`tokenised` wrote.

    Raises:
        CheckpointError: If it is not whole.
    """
    try:
        manifest = read_json(folder / _MANIFEST)
        if manifest["format"] != FORMAT:
            refuse("format", str(folder), f"has format {manifest['format']!r}, not {FORMAT}", CheckpointError)
        sides = []
        for side in _SIDES:
            part = manifest[side]
            for name in part["files"]:
                plain_name(folder, name)
            found = tuple(bin_file(folder / name, vocab_size) for name in part["files"])
            tokens = MappedTokens(found)
            if tokens.digest_and_range[0] != part["digest"]:
                refuse("damaged", str(folder), "does not have the tokens of its manifest", CheckpointError)
            sides.append((found, tokens))
        documents = tuple(int(manifest[side]["documents"]) for side in _SIDES)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError):  # a refused file is a ValueError
        refuse("damaged", str(folder), f"has no readable {_MANIFEST}, or not its files", CheckpointError)
    (train, train_tokens), (valid, valid_tokens) = sides
    return TokenisedText(folder, train, valid, (documents[0], documents[1]), (train_tokens, valid_tokens))


def _write(folder: Path, texts: Iterable[Text], encode: Encode, vocab_size: int) -> None:
    counts = [0, 0]
    with ExitStack() as stack:
        writers = [stack.enter_context(_Writer(folder, side, vocab_size).open()) for side in _SIDES]
        for batch in _batches(texts):
            for text, ids in zip(batch, encode([text.content for text in batch]), strict=True):
                writers[text.valid].write(ids if text.last else ids[:-1])
                counts[text.valid] += text.last
    manifest: dict[str, Any] = {"format": FORMAT}
    for side, writer, count in zip(_SIDES, writers, counts, strict=True):
        found = MappedTokens([bin_file(folder / name, vocab_size) for name in writer.names])
        manifest[side] = {"files": writer.names, "documents": count, "digest": found.digest_and_range[0]}
    write_json(folder / _MANIFEST, manifest)


class _Writer:
    """One side's files, a new one after every :data:`SHARD` tokens."""

    def __init__(self, folder: Path, side: str, vocab_size: int) -> None:
        self._folder, self._side = folder, side
        self._kind = kind_for(vocab_size)
        self._file: BinaryIO | None = None
        self._room = 0
        self.names: list[str] = []

    @contextmanager
    def open(self) -> Iterator[_Writer]:
        try:
            yield self
        finally:
            if self._file is not None:
                self._file.close()

    def write(self, ids: Sequence[int]) -> None:
        array = np.asarray(ids, KINDS[self._kind])
        while len(array):
            if self._file is None or self._room == 0:
                self._file = self._next()
            part, array = array[: self._room], array[self._room :]
            self._file.write(part.tobytes())
            self._room -= len(part)

    def _next(self) -> BinaryIO:
        if self._file is not None:
            self._file.close()
        self.names.append(f"{self._side}-{len(self.names):05}.{self._kind}.bin")
        self._room = SHARD
        return (self._folder / self.names[-1]).open("wb")


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.content)
        if size >= PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _key(files: Sequence[Path], tokenizer: str) -> str:
    found = hashlib.sha256(f"{FORMAT} {tokenizer}".encode())
    reasons = Reasons()
    for path in files:
        try:
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest() + path.suffix.lower().encode())
        except OSError as error:
            reasons.add("unreadable", "data", f"{path} cannot be read: {error.strerror}")
    reasons.refuse_if_any(Refused)
    return found.hexdigest()[:16]


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Be the only process inside that has the file open; another one waits."""
    try:
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
