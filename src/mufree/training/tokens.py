"""Rows of token ids, in memory or mapped from files.

Invariant: what is mapped costs no resident memory beyond the pages of one read, whatever the size of the files.
"""

from __future__ import annotations

import hashlib
import mmap
import tokenize
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import Reasons, refuse

_CHUNK = 1 << 20
KINDS = {"uint16": "<u2", "uint32": "<u4"}
"""Of the ids in a ``.bin`` file, as its name has them, and as NumPy writes them."""

_NPY = ("|u1", "<u2", "<u4", "<u8", "<i2", "<i4", "<i8")
ENDINGS = (".bin", ".npy")
"""Of the files that hold token ids."""


class Tokens(Protocol):
    """A row of token ids."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, part: slice) -> np.ndarray:
        """Some of them, in order."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the token ids of one file lie.

    Args:
        path: The file.
        dtype: Of an id, as NumPy writes it.
        skip: Bytes before the first.
        count: How many.
    """

    path: Path
    dtype: str
    skip: int
    count: int


def kind_for(vocab_size: int) -> str:
    """The narrower kind that holds every id of so many."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def bin_file(path: Path, vocab_size: int) -> TokenFile:
    """A file of nothing but ids, little-endian: ``.uint16.bin``, ``.uint32.bin``, or by the vocabulary's size.

    Raises:
        Refused: If its length is no whole number of ids.
    """
    named = path.name.lower().removesuffix(".bin").rpartition(".")[2]
    dtype = KINDS.get(named, KINDS[kind_for(vocab_size)])
    size = path.stat().st_size
    if size % int(dtype[-1]):
        message = f"{path} has {size} bytes, which are no whole number of {dtype[-1]}-byte ids; it was cut short"
        refuse("damaged", "data", message)
    return TokenFile(path, dtype, 0, size // int(dtype[-1]))


def npy_file(path: Path) -> TokenFile:
    """A one-dimensional NumPy array of whole numbers. Its header is read, nothing in it is run.

    Raises:
        Refused: If it is none, or cut short.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            skip = file.tell()
    except (ValueError, TypeError, OSError, RecursionError, MemoryError, tokenize.TokenError) as error:
        # NumPy parses the header as Python text, and lets through what its parsers raise.
        refuse("unreadable", "data", f"{path} is no .npy file: {' '.join(str(error).split())[:200]}")
    if len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0 or dtype.str not in _NPY:
        message = f"{path} holds {dtype} of shape {shape}; give one row of whole numbers ({', '.join(_NPY)})"
        refuse("unreadable", "data", message)
    if path.stat().st_size < skip + shape[0] * dtype.itemsize:
        refuse("damaged", "data", f"{path} is shorter than its header says; it was cut short")
    return TokenFile(path, dtype.str, skip, shape[0])


class MappedTokens:
    """Token ids of files, one after the other, read as they are asked for.

    Args:
        files: In order.
        start: First id of them all that belongs to it.
        stop: The id after the last one; None for all.
    """

    def __init__(self, files: Sequence[TokenFile], start: int = 0, stop: int | None = None) -> None:
        self._files = tuple(file for file in files if file.count)
        self._ends = list(accumulate(file.count for file in self._files))
        self._maps = [_mapped(file) for file in self._files]
        total = self._ends[-1] if self._ends else 0
        self._start, self._stop = start, total if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    def part(self, start: int, stop: int) -> MappedTokens:
        """Ids ``start:stop``, mapped too; all of them are these very ones."""
        if (start, stop) == (0, len(self)):
            return self
        return MappedTokens(self._files, self._start + start, self._start + stop)

    @cached_property
    def digest_and_range(self) -> tuple[str, int, int]:
        """See :func:`digest_and_range`; read through once, however often it is asked for."""
        return _digest_and_range(self)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Ids ``start:stop``, int32, in memory of their own."""
        first, last, _ = part.indices(len(self))
        first, last = first + self._start, max(first, last) + self._start
        pieces = []
        number = bisect_right(self._ends, first)
        while first < last:
            file, begin = self._files[number], self._ends[number] - self._files[number].count
            end = min(last, self._ends[number])
            pieces.append(self._read(number, file, first - begin, end - begin))
            first, number = end, number + 1
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def _read(self, number: int, file: TokenFile, first: int, last: int) -> np.ndarray:
        view = np.frombuffer(self._maps[number], file.dtype, last - first, file.skip + first * int(file.dtype[-1]))
        limits = np.iinfo(np.int32)
        for wrong in (view.min(initial=0), view.max(initial=0)) if int(file.dtype[-1]) > 2 else ():
            if not limits.min <= wrong <= limits.max:
                refuse("out_of_range", "data", f"{file.path} holds the id {wrong}, which no tokenizer has")
        ids = view.astype(np.int32)
        if hasattr(mmap, "MADV_DONTNEED"):
            self._maps[number].madvise(mmap.MADV_DONTNEED)  # the pages stay in the system's cache, not in this process
        return ids


def _mapped(file: TokenFile) -> mmap.mmap:
    with file.path.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def digest_and_range(ids: Tokens) -> tuple[str, int, int]:
    """A hash of token ids (16 hex digits) that says nothing of how they are stored, the least and the greatest."""
    return ids.digest_and_range if isinstance(ids, MappedTokens) else _digest_and_range(ids)


def _digest_and_range(ids: Tokens) -> tuple[str, int, int]:
    found, low, high = hashlib.sha256(), 0, 0
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        low, high = min(low, int(chunk.min())), max(high, int(chunk.max()))
        found.update(chunk.astype("<i4").tobytes())
    return found.hexdigest()[:16], low, high


def token_files(path: Path, vocab_size: int) -> tuple[list[TokenFile], list[TokenFile]]:
    """The token files at a path: those to train on, and those to validate on (named ``val…``), which may be none.

    Args:
        path: A file, or a folder of them, which are taken in the order of their names.
        vocab_size: Of the tokenizer that made them.

    Raises:
        Refused: With every file that is none.
    """
    paths = token_paths(path)
    reasons = Reasons()
    sides: tuple[list[TokenFile], list[TokenFile]] = ([], [])
    for one in paths:
        read = (
            reasons.attempt(npy_file, one)
            if one.suffix.lower() == ".npy"
            else reasons.attempt(bin_file, one, vocab_size)
        )
        if read is not None:
            sides[one.name.startswith("val") and len(paths) > 1].append(read)
    reasons.refuse_if_any()
    return sides


def holds_tokens(path: Path) -> bool:
    """Whether a path is a token file or a folder that holds some."""
    return bool(token_paths(path)) if path.is_dir() else _is_token_file(path)


def token_paths(path: Path) -> list[Path]:
    """A file, or the token files of a folder in the order of their names."""
    return [path] if path.is_file() else sorted(p for p in path.iterdir() if _is_token_file(p))


def _is_token_file(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and path.is_file()
