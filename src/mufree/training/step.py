"""One compiled training step: gradients, accumulation, update.

Invariant: everything that an update changes (model, optimizer, random state) is captured by the compiled function, and
its last good arrays are kept in Python until the next step has been evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

Loss = Callable[[Any, mx.array], mx.array]


def next_token_loss(model: Any, batch: mx.array) -> mx.array:
    """Mean cross-entropy of each next token, in nats, float32.

    Args:
        model: Maps token ids (rows, n) to logits (rows, n, vocabulary).
        batch: Token ids, shape (rows, n + 1).
    """
    logits = model(batch[:, :-1]).astype(mx.float32)
    return nn.losses.cross_entropy(logits, batch[:, 1:], reduction="mean")


class TrainStep:
    """An update from one or more micro-batches, compiled.

    Args:
        model: The model, holding ``y`` (or ``x`` with an optimizer of that form and a loss wrapped by ``at_y``).
        optimizer: Any MLX optimizer, its state started for the model.
        loss: Mean loss of one micro-batch, ``loss(model, batch)``.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Loss = next_token_loss) -> None:
        self._state = [model.state, optimizer.state, mx.random.state]
        value_and_grad = nn.value_and_grad(model, loss)

        def step(batch: mx.array, before: Any, share: float, update: bool) -> tuple[mx.array, Any]:
            value, gradients = value_and_grad(model, batch)
            if before is not None:
                gradients = tree_map(mx.add, gradients, before)
            if update:
                if share != 1:
                    gradients = tree_map(lambda g: g * share, gradients)
                optimizer.update(model, gradients)
                gradients = None
            return value, gradients

        self._compiled = mx.compile(step, inputs=self._state, outputs=self._state)

    def __call__(self, batches: Iterable[mx.array]) -> float:
        """Make one update from micro-batches of equal size; their mean loss."""
        batches = list(batches)
        losses, gradients = [], None
        for number, batch in enumerate(batches, 1):
            value, gradients = self._compiled(batch, gradients, 1 / len(batches), number == len(batches))
            losses.append(value)
            mx.eval(value, gradients if gradients is not None else self._state)
        return float(sum(value.item() for value in losses) / len(losses))  # type: ignore[arg-type]
