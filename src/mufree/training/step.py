"""One compiled training step: gradients, accumulation, update.

Invariant: everything that an update changes (model, optimizer, random state) is captured by the compiled function, and
an exception inside its trace, which leaves dead tracers in all of it, puts the last good arrays back. They are held
only while the trace runs, not while arrays are computed, so that they cost no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from ..random_state import random_key, set_random_key
from .ranks import ALONE, Ranks

Loss = Callable[[Any, Any], mx.array]


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
        ranks: The processes that train together, each on its own rows of every micro-batch.

    Attributes:
        gradient_norm: Global norm of the last update's averaged gradient, before any clipping; of all ranks.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Loss = next_token_loss, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._containers = (model, optimizer.state)
        self.gradient_norm = 0.0
        self._state = [model.state, optimizer.state, mx.random.state]
        value_and_grad = nn.value_and_grad(model, loss)

        def step(batch: Any, before: Any, share: Any, update: bool) -> tuple[mx.array, Any, Any]:
            value, gradients = value_and_grad(model, batch)
            weighted, norm = isinstance(share, mx.array), None
            # A sum of several in half precision would lose the small ones.
            if weighted or share != 1 or ranks.size > 1:
                gradients = tree_map(lambda g: g.astype(mx.float32) if g.dtype.size < 4 else g, gradients)
            if weighted:
                gradients = tree_map(lambda g: g * share, gradients)
            if before is not None:
                gradients = tree_map(mx.add, gradients, before)
            if update:
                if not weighted and share != 1:
                    gradients = tree_map(lambda g: g * share, gradients)
                gradients = ranks.mean_tree(gradients)
                norm = _global_norm(gradients)
                optimizer.update(model, gradients)
                gradients = None
            return value, gradients, norm

        self._compiled = mx.compile(step, inputs=self._state, outputs=self._state)

    def __call__(self, batches: Iterable[Any], weights: Sequence[float] | None = None) -> float:
        """Make one update from micro-batches; their mean loss, over all ranks.

        Args:
            batches: This rank's rows of the micro-batches. One of another size is traced anew, which changes nothing
                else.
            weights: What each counts by, adding up to 1, of several ranks in the mean; None for alike. All ranks give
                some, or none does.
        """
        batches = list(batches)
        shares = [1 / len(batches)] * len(batches) if weights is None else [mx.array(w) for w in weights]
        losses, gradients = [], None
        for number, batch in enumerate(batches, 1):
            with _last_good(self._containers):
                value, gradients, norm = self._compiled(batch, gradients, shares[number - 1], number == len(batches))
            losses.append(value)
            mx.eval(value, gradients if gradients is not None else (norm, self._state))
        self.gradient_norm = norm.item()
        values: list[Any] = [value.item() for value in losses]
        if weights is not None:
            return self._ranks.mean(math.fsum(weight * value for weight, value in zip(weights, values, strict=True)))
        return self._ranks.mean(float(sum(values) / len(values)))


def _global_norm(gradients: Any) -> mx.array:
    squares = [mx.square(array.astype(mx.float32)).sum() for _, array in tree_flatten(gradients)]
    return mx.sqrt(mx.stack(squares).sum())


@contextmanager
def _last_good(containers: Any) -> Iterator[None]:
    """After an exception inside, every dict and list in ``containers`` holds what it held before."""
    held = [(one, one.copy() if isinstance(one, list) else dict(one)) for one in _nested(containers)]
    key = random_key()
    try:
        yield
    except BaseException:
        for container, content in held:
            if isinstance(container, list):
                container[:] = content
            else:  # as a dict: a module's own ``update`` is another thing
                dict.clear(container)
                dict.update(container, content)
        set_random_key(key)
        raise


def _nested(value: Any) -> Iterator[Any]:
    """Every dict (modules are dicts) and list in a value, inner ones too."""
    if isinstance(value, dict | list):
        yield value
    if isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _nested(child)
