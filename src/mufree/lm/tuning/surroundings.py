"""What surrounds mlx-lm's trainer: its table kept quiet, its patch undone, its measure of a loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlx_lm.cli_ui import make_console
from mlx_lm.tuner.datasets import CacheDataset
from mlx_lm.tuner.trainer import evaluate

from .prepare import Prepared


class Trained:
    """A model seen as what is trained of it, so that checkpoints hold no frozen base."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def parameters(self) -> Any:
        """The trained arrays."""
        return self._model.trainable_parameters()

    def update(self, arrays: Any) -> None:
        """Put arrays in."""
        self._model.update(arrays)


def mean_loss(prepared: Prepared, rows: Any, batches: int) -> float:
    """The mean loss of a set, nats a token, as mlx-lm measures it, at what the model holds."""
    config = prepared.config
    return evaluate(prepared.model, CacheDataset(rows), config.batch_size, batches, config.max_seq_length)


@contextmanager
def left_as_it_was(model: Any) -> Iterator[None]:
    """mlx-lm's trainer draws its own table, and patches the layers' class for gradient checkpoints: not after this."""
    console, layer = make_console(), type(model.layers[0])
    quiet, own = console.quiet, vars(layer).get("__call__")
    console.quiet = True
    try:
        yield
    finally:
        console.quiet = quiet
        if own is not None:
            layer.__call__ = own
        elif "__call__" in vars(layer):
            del layer.__call__
