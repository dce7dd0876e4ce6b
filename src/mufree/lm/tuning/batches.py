"""mlx-lm's own batches, with a position that can be saved and returned to.

mlx-lm shuffles with NumPy's global state, from which validations draw too. A position is therefore that state before
the current epoch was shuffled, the batches taken since, and the state now; MLX's key beside it is for dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.trainer import iterate_batches

from ...random_state import random_key, set_random_key


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run is, between two iterations.

    Args:
        iteration: Micro-batches used.
        tokens: Tokens learned from.
        epoch: NumPy's random state before the current epoch was shuffled.
        taken: Batches taken of this epoch.
        numpy: NumPy's random state now.
        key: MLX's random key.
    """

    iteration: int
    tokens: int
    epoch: list[Any]
    taken: int
    numpy: list[Any]
    key: list[int]

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def restore_random_state(self) -> None:
        """NumPy's and MLX's, as they were there."""
        np.random.set_state(_state(self.numpy))
        set_random_key(mx.array(self.key, mx.uint32))


class Batches:
    """The trainer's ``iterate_batches``.

    Args:
        due: Whether a validation belongs to an iteration however long the run is, by its number.
        between: Called with the number of iterations made before the next one; False ends the run.
        start: Where to go on, or None for the beginning.
    """

    def __init__(
        self, due: Callable[[int], bool], between: Callable[[int], bool], start: Position | None = None
    ) -> None:
        self.iteration = start.iteration if start else 0
        self.tokens = start.tokens if start else 0
        self._due, self._between, self._start = due, between, start
        self._epoch: Any = None
        self._taken = 0
        self._undrawn: Any = None

    def __call__(self, dataset: Any, batch_size: int, max_seq_length: int, **options: Any) -> Iterator[Any]:
        """mlx-lm's batches: for training those of this run, for a validation all."""
        if options.get("loop"):
            return self._training(dataset, batch_size, max_seq_length, options)
        if not self._due(self.iteration):
            # A longer run has no validation here, and so does not draw: its order must not depend on this one's end.
            self._undrawn = np.random.get_state()
        return iter(iterate_batches(dataset, batch_size, max_seq_length, **options))

    def position(self) -> Position:
        """Where the run is, to be asked between iterations."""
        now = np.random.get_state() if self._undrawn is None else self._undrawn
        key = [int(half) for half in random_key().tolist()]  # type: ignore[union-attr, arg-type]
        return Position(self.iteration, self.tokens, _plain(self._epoch or now), self._taken, _plain(now), key)

    def _training(self, dataset: Any, size: int, length: int, options: dict[str, Any]) -> Iterator[Any]:
        an_epoch = len(dataset) // size
        batches = iterate_batches(dataset, size, length, **options)
        if self._start is not None:
            self._return_to(self._start, batches)
        while True:
            if self._epoch is None or self._taken == an_epoch:
                self._epoch, self._taken = np.random.get_state(), 0
            if not self._between(self.iteration):
                return
            batch, lengths = next(batches)
            self._taken += 1
            self.iteration += 1
            self.tokens += _learned(batch, np.array(lengths))
            yield batch, lengths

    def _return_to(self, start: Position, batches: Iterator[Any]) -> None:
        self._epoch, self._taken = _state(start.epoch), start.taken
        np.random.set_state(self._epoch)
        for _ in range(start.taken):
            next(batches)
        start.restore_random_state()


def _learned(batch: mx.array, lengths: Any) -> int:
    """Tokens that mlx-lm's loss counts in a batch: targets number ``offset`` to ``length``, from 1."""
    last = np.minimum(lengths[:, 1], batch.shape[1] - 1)
    return int(np.maximum(last - np.maximum(lengths[:, 0], 1) + 1, 0).sum())


def _plain(state: Any) -> list[Any]:
    name, keys, *rest = state
    return [name, [int(key) for key in keys], *rest]


def _state(plain: list[Any]) -> Any:
    name, keys, *rest = plain
    return (name, np.array(keys, np.uint32), *rest)
