"""Blocks that compute their activations again for the gradient, so that only their inputs are kept."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


def checkpoint_gradients(model: Any) -> None:
    """Make every block of a language model such a one, in place; its parameters and their paths stay.

    Args:
        model: A model with ``layers``.
    """
    made = {kind: _checkpointed(kind) for kind in {type(layer) for layer in model.layers}}
    for layer in model.layers:
        layer.__class__ = made[type(layer)]


def _checkpointed(kind: type[Any]) -> type[Any]:
    """A subclass of its own, so that other models of the class stay as they are."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = self.trainable_parameters()

        def inner(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            self.update(parameters)
            return kind.__call__(self, *args, **kwargs)

        try:
            return mx.checkpoint(inner)(parameters, *args, **kwargs)
        finally:
            self.update(parameters)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
