"""Sums that keep their digits: MLX's CPU adds a whole array up in one float32."""

from __future__ import annotations

import mlx.core as mx

BLOCK = 256


def total(values: mx.array) -> mx.array:
    """The sum of all entries, in blocks of blocks: one running float32 sum over 16 million entries ends 7 % off."""
    values = values.flatten()
    while values.size > BLOCK:
        whole = values.size // BLOCK * BLOCK
        values = mx.concatenate([values[:whole].reshape(-1, BLOCK).sum(axis=1), values[whole:].sum(keepdims=True)])
    return values.sum()
