"""The training loop's one owner of position and numbering: how many updates were made, and on which batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import NonFiniteLoss
from .agreement import check_whole
from .ranks import ALONE, Ranks
from .step import Loss, TrainStep, next_token_loss


@dataclass(slots=True)
class Position:
    """Where a run is.

    Args:
        update: Updates made.
        micro_batches: Micro-batches used, which is the number of the next one.
        tokens: Tokens learned from.
        seconds: Time spent in training, over all its parts.
    """

    update: int = 0
    micro_batches: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """Makes updates on numbered batches.

    Args:
        model: The model.
        optimizer: Any MLX optimizer; its state is started here, unless it was.
        batch: Micro-batch by number, counted from 0: token ids, or an array or tuple of arrays that ``loss`` takes.
        accumulation: Micro-batches an update.
        loss: Mean loss of a micro-batch.
        ranks: The processes that train together. Each gives the same whole batches and takes its own rows of them, so
            that their updates are those of one process; layers that draw at random draw the same on each rank's rows.

    Raises:
        Refused: For a model of which this rank holds a part only.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        batch: Callable[[int], Any],
        *,
        accumulation: int = 1,
        loss: Loss = next_token_loss,
        ranks: Ranks = ALONE,
    ) -> None:
        check_whole(model)
        optimizer.init(model.trainable_parameters())
        self.model = model
        self.optimizer = optimizer
        self.position = Position()
        self._batch = batch
        self._accumulation = accumulation
        self._loss = loss
        self._ranks = ranks
        self._step = TrainStep(model, optimizer, loss, ranks)
        self._evaluation = mx.compile(lambda rows: loss(model, rows), inputs=model.state)

    def advance(self) -> float:
        """Make the next update and return its mean loss.

        Raises:
            NonFiniteLoss: If the loss is infinite or not a number. The update has been made by then; go back to the
                last checkpoint.
        """
        first = self.position.micro_batches
        numbers = range(first, first + self._accumulation)
        batches = [_arrays(self._batch(number)) for number in numbers]
        self.model.train()
        loss = self._step([self._ranks.part(batch) for batch in batches])
        self.position.update += 1
        self.position.micro_batches += self._accumulation
        self.position.tokens += sum(map(_tokens, batches))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"the loss of update {self.position.update} is {loss}")
        return loss

    def evaluate(self, batches: Sequence[Any], *, at: str = "x") -> float:
        """Mean loss over batches, at ``x`` or at ``y``; weights, state and mode are as before afterwards.

        Args:
            batches: Batches of any number of rows.
            at: Which weights. ``"x"`` is the average; for an optimizer that keeps none, it is what the model holds.

        Raises:
            NonFiniteLoss: If it is infinite or not a number.
        """
        if at == "x" and hasattr(self.optimizer, "averaged"):
            with self.optimizer.averaged(self.model):
                return self._mean_loss(batches)
        return self._mean_loss(batches)

    def _mean_loss(self, batches: Sequence[Any]) -> float:
        self.model.eval()
        losses = self._ranks.spread(lambda batch: float(self._evaluation(_arrays(batch)).item()), batches)  # type: ignore[arg-type]
        self.model.train()
        sizes = [len(batch[0] if isinstance(batch, tuple | list) else batch) for batch in batches]
        total, rows = sum(loss * size for loss, size in zip(losses, sizes, strict=True)), sum(sizes)
        if not math.isfinite(total):
            raise NonFiniteLoss(f"the validation loss after update {self.position.update} is {total / rows}")
        return total / rows

    def check_finite(self) -> None:
        """Look at every weight and all of the optimizer's state.

        Raises:
            NonFiniteLoss: If one is infinite or not a number: an update can do that whose own loss was finite.
        """
        leaves = [array for _, array in tree_flatten([self.model.parameters(), self.optimizer.state])]
        finite = [mx.all(mx.isfinite(array)) for array in leaves if mx.issubdtype(array.dtype, mx.floating)]
        if not mx.all(mx.stack(finite)).item():
            raise NonFiniteLoss(f"a weight after update {self.position.update} is infinite or not a number")


def _arrays(batch: Any) -> Any:
    """A batch as MLX arrays: one array, or a tuple of them."""
    return tuple(map(mx.array, batch)) if isinstance(batch, tuple | list) else mx.array(batch)


def _tokens(batch: Any) -> int:
    """Tokens learned from; rows of a batch that is no token ids."""
    if isinstance(batch, tuple):
        return len(batch[0])
    return batch.shape[0] * (batch.shape[1] - 1) if batch.ndim == 2 else batch.shape[0]
