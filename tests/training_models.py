"""Models small enough for tests of training."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class Embedded(nn.Module):
    """Logits of the next of 7 tokens, through a dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 7)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.head(self.dropout(self.embedding(tokens)))
