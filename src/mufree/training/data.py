"""Documents, their split, and batches that depend on nothing but their number.

Invariant: sequence ``i`` is a function of (tokens, size, seed, i), so that a data position is one number and a run that
goes on sees exactly what it would have seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..errors import Reasons, refuse
from .permutation import Permutation
from .tokens import Tokens, digest_and_range

EMBEDDED = "pydoc_data.topics"
"""The corpus that every Python ships: the language reference's help topics, about 466 KB of English."""

VALIDATION_SHARE = 10
"""One document in this many is for validation."""

DRAWN = 1 << 20
"""Sequences up to which an epoch's order is drawn at once; a longer one is worked out, so that it takes no memory."""

_LEAST_SHARE, _GREATEST_SHARE = 0.05, 0.2
"""Of the text that one document in ten may be, to be what is validated on."""

_SPLIT_SEED = 1405
_MOST_PROBLEMS = 10
_TEXT_ENDINGS = (".txt", ".md", ".text", ".rst")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents split for training and validation.

    Args:
        name: What they are, for people.
        train: Documents to train on.
        valid: Documents to validate on.
        note: How they were split, where that needs saying.
    """

    name: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    note: str = ""


def read_corpus(source: str | Path | None) -> Corpus:
    """Documents from a text file, a folder of them, a ``.jsonl`` file, or the embedded corpus.

    A text file is one document, a line of a ``.jsonl`` file one too. One document in ten is for validation, the same
    ones for every seed. Where that would be no share of the text to speak of, or too much of it, as with few documents
    or very unequal ones, it is the last tenth of each. A text that occurs twice is on one side only.

    Args:
        source: A path, or None for the embedded corpus.

    Raises:
        Refused: If there is nothing to read, with every file or line that is at fault.
    """
    if source is None:
        from pydoc_data.topics import topics

        return _split(EMBEDDED, [text for _, text in sorted(topics.items())])
    path = Path(source)
    reasons = Reasons()
    documents = [document for file in text_files(path) for document in _documents(file, reasons)]
    if not documents and not reasons.found:
        reasons.add("empty", "data", f"{path} is empty; give a text of at least one sequence")
    _shorten(reasons)
    reasons.refuse_if_any()
    return _split(str(path), documents)


def text_files(path: Path) -> list[Path]:
    """The text files at a path, in order.

    Raises:
        Refused: If there is none.
    """
    try:
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if is_text(p))
            fault = f"holds no text; give a folder of {', '.join(_TEXT_ENDINGS)} or .jsonl files"
        else:
            files = [path] if path.is_file() else []
            here = "" if path.is_absolute() else f" in {Path.cwd()}"
            fault = "is neither a file nor a folder" if path.exists() else f"does not exist{here}"
            fault += "; give a text file, a folder of them, a .jsonl file, or token files"
    except OSError as error:
        refuse("unreadable", "data", f"{str(path)[:80]} cannot be read: {error.strerror}")
    if not files:
        refuse("missing", "data", f"{path} {fault}")
    return files


def is_text(path: Path) -> bool:
    """Whether a file of a folder is read as text."""
    return path.suffix.lower() in (*_TEXT_ENDINGS, ".jsonl") and path.is_file()


def _documents(path: Path, reasons: Reasons) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        reasons.add("unreadable", "data", f"{path} is not UTF-8 text (byte {error.start}); convert it first")
        return []
    except OSError as error:
        reasons.add("unreadable", "data", f"{path} cannot be read: {error.strerror}")
        return []
    if path.suffix.lower() != ".jsonl":
        return [text] if text.strip() else []
    documents = []
    # Not splitlines: JSON text may hold U+2028 and U+0085 as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        document = _document(line)
        if document is None:
            reasons.add("unreadable", "data", f'{path}:{number} is not an object with a "text"; write {{"text": "…"}}')
        elif document.strip():
            documents.append(document)
    return documents


def _document(line: str) -> str | None:
    """The text of a JSON line, or None if it is none, or holds half of a surrogate pair, which is not Unicode text."""
    try:
        document = json.loads(line)["text"]
        document.encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return document if isinstance(document, str) else None


def _shorten(reasons: Reasons) -> None:
    """Keep the first problems of a big file, and say how many more there are."""
    more = len(reasons.found) - _MOST_PROBLEMS
    if more > 0:
        del reasons.found[_MOST_PROBLEMS:]
        reasons.add("unreadable", "data", f"and {more} more like these")


def _split(name: str, documents: Sequence[str]) -> Corpus:
    unique = list(dict.fromkeys(documents))
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(unique))
    chosen = set(order[: max(1, len(unique) // VALIDATION_SHARE)].tolist())
    valid = {text: None for number, text in enumerate(unique) if number in chosen}
    train = tuple(text for text in documents if text not in valid)
    share = sum(map(len, valid)) / sum(map(len, unique))
    if _LEAST_SHARE <= share <= _GREATEST_SHARE:
        return Corpus(name, train, tuple(valid))
    cuts = [len(text) - max(1, len(text) // VALIDATION_SHARE) for text in unique]
    heads = dict(zip(unique, (text[:cut] for text, cut in zip(unique, cuts, strict=True)), strict=True))
    tails = tuple(text[cut:] for text, cut in zip(unique, cuts, strict=True))
    note = "a single document: its" if len(unique) == 1 else "few or unequal documents: of each the"
    train = tuple(heads[text] for text in documents if heads[text])
    return Corpus(name, train, tails, f"{note} last tenth is for validation")


@dataclass(frozen=True, slots=True)
class TokenStream:
    """One long row of token ids, cut into sequences.

    Args:
        ids: Token ids, shape (tokens,), in memory or mapped.
        seq_length: Tokens a sequence; each comes with the one after it, which is its last target.
        name: What it is, for the errors.

    Attributes:
        digest: A hash of the token ids (16 hex digits).
        lowest: The least id.
        highest: The greatest id.

    Raises:
        Refused: If it is shorter than one sequence and its last target.
    """

    ids: Tokens
    seq_length: int
    name: str
    digest: str = field(init=False)
    lowest: int = field(init=False)
    highest: int = field(init=False)

    def __post_init__(self) -> None:
        if len(self.ids) <= self.seq_length:
            refuse(
                "too_short",
                "data",
                f"the {self.name} part has {len(self.ids)} tokens, a sequence takes {self.seq_length + 1}; "
                "give more text or a smaller seq_length",
            )

        for name, value in zip(("digest", "lowest", "highest"), digest_and_range(self.ids), strict=True):
            object.__setattr__(self, name, value)

    def shuffled(self, number: int, batch_size: int, seed: int) -> np.ndarray:
        """Training batch ``number`` of equal ones, counted from 0: shape (batch_size, seq_length + 1), int32."""
        return self.sequences(number * batch_size, batch_size, seed)

    def sequences(self, first: int, count: int, seed: int) -> np.ndarray:
        """Training sequences from number ``first`` on, counted from 0: shape (count, seq_length + 1), int32.

        The stream is gone through epoch after epoch; each epoch cuts it at another offset and in another order.
        """
        slack = min(self.seq_length - 1, len(self.ids) - self.seq_length - 1)
        per_epoch = (len(self.ids) - 1 - slack) // self.seq_length
        rows = []
        for row in range(first, first + count):
            epoch, index = divmod(row, per_epoch)
            offset, order = _epoch(seed, epoch, slack, per_epoch)
            rows.append(self._sequence(offset + order(index) * self.seq_length))
        return np.stack(rows)

    def evenly(self, batches: int, batch_size: int) -> list[np.ndarray]:
        """Validation batches, spread evenly over the stream; fewer where it has fewer sequences.

        Each has shape (batch_size, seq_length + 1) but the last, which may have fewer rows.
        """
        whole = (len(self.ids) - 1) // self.seq_length
        wanted = min(whole, batches * batch_size)
        starts = [n * whole // wanted * self.seq_length for n in range(wanted)]
        return [
            np.stack([self._sequence(start) for start in starts[first : first + batch_size]])
            for first in range(0, wanted, batch_size)
        ]

    def _sequence(self, start: int) -> np.ndarray:
        return self.ids[start : start + self.seq_length + 1]


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, slack: int, per_epoch: int) -> tuple[int, Callable[[int], int]]:
    """Offset and order of one epoch."""
    random = np.random.default_rng([seed, epoch])
    return int(random.integers(slack + 1)), random_order(random, per_epoch)


def random_order(random: np.random.Generator, size: int) -> Callable[[int], int]:
    """A random order of so many: the entry at each place."""
    if size > DRAWN:
        return Permutation(size, tuple(map(int, random.integers(2**63, size=4))))
    order = random.permutation(size)
    return lambda index: int(order[index])


def token_stream(
    documents: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]], seq_length: int, name: str
) -> TokenStream:
    """Documents, encoded and laid one after the other."""
    rows = encode(documents)
    ids = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]) if rows else np.zeros(0, np.int32)
    return TokenStream(ids, seq_length, name)
