"""Whole documents, packed into sequences: none is cut that fits into one, and what is left of a sequence is padding.

Invariant: sequence ``i`` is a function of (tokens, size, seed, i), as in :class:`~mufree.training.data.TokenStream`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .data import TokenStream, random_order
from .tokens import Tokens

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedStream:
    """The documents of a stream in sequences of their own.

    A sequence takes the next documents as long as they fit whole; a document longer than a sequence is cut. Padding
    is the end token, and is not learned from.

    Args:
        stream: The tokens, each document with its end token.
        end: The end token's id.

    Attributes:
        starts: First token of each sequence, uint64.
        lengths: Tokens of each, uint32; each but the first is a target. With ``starts`` 12 bytes a sequence.
    """

    stream: TokenStream
    end: int
    starts: np.ndarray = field(init=False)
    lengths: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        starts, lengths = _packed(self.stream.ids, self.end, self.stream.seq_length + 1)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "lengths", lengths)

    @property
    def ids(self) -> Tokens:
        """The tokens."""
        return self.stream.ids

    @property
    def digest(self) -> str:
        """A hash of the token ids."""
        return self.stream.digest

    def sequences(self, first: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Training sequences from number ``first`` on: ids (count, seq_length + 1) and the targets of each (count,)."""
        numbers = [divmod(row, len(self.starts)) for row in range(first, first + count)]
        return self._rows([_order(seed, epoch, len(self.starts))(index) for epoch, index in numbers])

    def evenly(self, batches: int, batch_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Validation batches, spread evenly; the last may have fewer rows."""
        wanted = min(len(self.starts), batches * batch_size)
        rows = [n * len(self.starts) // wanted for n in range(wanted)]
        return [self._rows(rows[first : first + batch_size]) for first in range(0, wanted, batch_size)]

    def _rows(self, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.full((len(numbers), self.stream.seq_length + 1), self.end, np.int32)
        for row, number in enumerate(numbers):
            start, length = int(self.starts[number]), int(self.lengths[number])
            ids[row, :length] = self.ids[start : start + length]
        return ids, self.lengths[numbers].astype(np.int32) - 1


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> Any:
    return random_order(np.random.default_rng([seed, epoch]), size)


def _packed(ids: Tokens, end: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    """First token and length of every sequence of at most ``room`` tokens; those of one token are left out."""
    pieces: list[np.ndarray] = []
    start = filled = 0  # the open sequence: where it starts, and where its last whole document ends
    found: list[tuple[int, int]] = []

    def close() -> None:
        nonlocal start
        if filled - start > 1:
            found.append((start, filled - start))
        start = filled

    for chunk in range(0, len(ids), _CHUNK):
        ends = np.flatnonzero(ids[chunk : chunk + _CHUNK] == end) + chunk + 1
        for stop in [*ends.tolist(), *([len(ids)] if chunk + _CHUNK >= len(ids) else [])]:
            if stop - start > room:
                close()
            while stop - start > room:
                filled = start + room
                close()
            filled = stop
        pieces.append(np.array(found, np.uint64).reshape(-1, 2))
        found.clear()
    close()
    rows = np.concatenate([*pieces, np.array(found, np.uint64).reshape(-1, 2)])
    return rows[:, 0].copy(), rows[:, 1].astype(np.uint32)


def packed_loss(model: Any, batch: tuple[mx.array, mx.array]) -> mx.array:
    """Mean cross-entropy of each next token that is one, in nats, float32.

    Args:
        model: Maps token ids (rows, n) to logits (rows, n, vocabulary).
        batch: Token ids (rows, n + 1), and how many targets each row has (rows,).
    """
    ids, targets = batch
    logits = model(ids[:, :-1]).astype(mx.float32)
    real = mx.arange(ids.shape[1] - 1) < targets[:, None]
    return (nn.losses.cross_entropy(logits, ids[:, 1:]) * real).sum() / real.sum()


def targets_of(batch: tuple[mx.array, mx.array]) -> int:
    """Tokens that a packed batch is learned from."""
    return int(batch[1].sum().item())  # type: ignore[arg-type]
