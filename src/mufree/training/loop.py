"""The training loop's one owner of position and numbering: how many updates were made, and on which batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import NonFiniteLoss
from ..schedule_free.averaging import RESERVED
from .agreement import check_whole
from .ranks import ALONE, Ranks
from .step import Loss, TrainStep, next_token_loss

_TINY = 1e-30
"""Keeps the ratio of a model of zeros at 0."""


@dataclass(slots=True)
class Position:
    """Where a run is.

    Args:
        update: Updates made.
        micro_batches: Micro-batches used, which is the number of the next one.
        tokens: Tokens learned from.
        offset: Tokens of the data gone through: more than ``tokens`` where sequences are padded.
        seconds: Time spent in training, over all its parts.
    """

    update: int = 0
    micro_batches: int = 0
    tokens: int = 0
    offset: int = 0
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
        accumulation_weight: What a micro-batch counts by: every one alike (``"batch"``), or by its tokens
            (``"tokens"``), which makes the update that of one large batch where they differ.
        count: Tokens that some rows are learned from, where ``loss`` is a mean over these; those of several ranks add
            up to the micro-batch's. None for those of their shape.

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
        accumulation_weight: Literal["batch", "tokens"] = "batch",
        count: Callable[[Any], int] | None = None,
    ) -> None:
        check_whole(model)
        optimizer.init(model.trainable_parameters())
        self.model = model
        self.optimizer = optimizer
        self.position = Position()
        self._batch = batch
        self._accumulation = accumulation
        self._weighted = accumulation_weight == "tokens"
        self._count = count
        self._ranks = ranks
        self._step = TrainStep(model, optimizer, loss, ranks)
        self._evaluation = mx.compile(lambda rows: loss(model, rows), inputs=model.state)

    def advance(self) -> float:
        """Make the next update and return its mean loss.

        Raises:
            NonFiniteLoss: If the loss or the gradient is infinite or not a number. The update has been made by then;
                go back to the last checkpoint.
        """
        first = self.position.micro_batches
        numbers = range(first, first + self._accumulation)
        batches = [_arrays(self._batch(number)) for number in numbers]
        self.model.train()
        counts = list(map(self._count or _tokens, batches))
        parts = list(map(self._ranks.part, batches))
        loss = self._step(parts, self._weights(parts, counts))
        self.position.update += 1
        self.position.micro_batches += self._accumulation
        self.position.tokens += sum(counts)
        self.position.offset += sum(map(_size, batches))
        for name, value in (("loss", loss), ("gradient's norm", self._step.gradient_norm)):
            if not math.isfinite(value):
                raise NonFiniteLoss(f"the {name} of update {self.position.update} is {value}")
        return loss

    def _weights(self, parts: Sequence[Any], counts: Sequence[int]) -> list[float] | None:
        """What this rank's part of each micro-batch counts by; None if all alike.

        Args:
            parts: This rank's rows of every micro-batch.
            counts: Tokens of every whole one.
        """
        if not self._weighted and (self._count is None or self._ranks.size == 1):
            return None
        # Where micro-batches count alike, their parts may not: each rank's loss is a mean over its own tokens only.
        wholes = [sum(counts)] * len(counts) if self._weighted else [n * len(counts) for n in counts]
        own = map(self._count or _tokens, parts)
        return [self._ranks.size * n / whole for n, whole in zip(own, wholes, strict=True)]

    def measures(self) -> dict[str, float]:
        """What the last update was like; weights and state are only looked at.

        Returns:
            ``gradient_norm`` (before clipping), and for a schedule-free optimizer ``c`` (the averaging weight) and
            ``x_to_y``, ‖x − y‖ / ‖x‖ over all trained parameters.
        """
        found = {"gradient_norm": self._step.gradient_norm}
        if hasattr(self.optimizer, "average") and RESERVED in self.optimizer.state:
            y = self.model.trainable_parameters()
            x = dict(tree_flatten(self.optimizer.average(y)))
            apart = mx.stack([_squares(x[path] - array) for path, array in tree_flatten(y)]).sum()
            size = mx.stack([_squares(array) for array in x.values()]).sum()
            found["c"] = self.optimizer.state[RESERVED]["c"].item()
            found["x_to_y"] = float(mx.sqrt(apart / mx.maximum(size, _TINY)).item())  # type: ignore[arg-type]
        return found

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
        arrays = list(map(_arrays, batches))
        losses = self._ranks.spread(lambda one: float(self._evaluation(one).item()), arrays)  # type: ignore[arg-type]
        self.model.train()
        sizes = [self._count(one) if self._count else len(one[0] if isinstance(one, tuple) else one) for one in arrays]
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


def _squares(array: mx.array) -> mx.array:
    return mx.square(array.astype(mx.float32)).sum()


def _size(batch: Any) -> int:
    """Tokens of the data that a batch is, padding among them."""
    return _tokens(batch[0]) if isinstance(batch, tuple) else _tokens(batch)


def _tokens(batch: Any) -> int:
    """Tokens learned from; rows of a batch that is no token ids."""
    if isinstance(batch, tuple):
        return len(batch[0])
    return batch.shape[0] * (batch.shape[1] - 1) if batch.ndim == 2 else batch.shape[0]
