"""MLX's global random state, read and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx


def random_key() -> mx.array:
    """The global key: two uint32, shape (2,)."""
    return mx.random.state[0]  # type: ignore[index]


def set_random_key(key: mx.array) -> None:
    """Make ``key`` the global key: MLX's seed is the key's two halves as one number."""
    high, low = (int(key[half].item()) for half in range(2))  # type: ignore[arg-type]
    mx.random.seed((high << 32) | low)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """The global random state is the same after the block as before it."""
    before = random_key()
    try:
        yield
    finally:
        set_random_key(before)
