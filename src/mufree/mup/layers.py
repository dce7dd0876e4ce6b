"""Readouts with a multiplier of their own, for models one writes oneself (Table 8 of Tensor Programs V).

Invariant: the multiplier is known from construction on, from the base model's size, so that no order of calls, reload
or copy can leave it unset.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import Reasons


class MuReadout(nn.Linear):
    """A linear readout of ``output_mult · x / m``, with m = input_dims / base_dims.

    Its weight starts with the base model's std at every width (after :func:`~mufree.mup.parametrize`) and keeps the
    base model's rate.

    Args:
        input_dims: Size of its input, a width.
        output_dims: Size of its output, finite: classes, vocabulary.
        bias: Whether it adds a bias, which is not multiplied.
        base_dims: ``input_dims`` of the base model.
        output_mult: A constant to tune, the same at every width.

    Raises:
        Refused: A size below 1, or a multiplier that is no finite number.

    Example:
        >>> from mufree import MuReadout
        >>> MuReadout(512, 10, base_dims=64).width_mult
        8.0

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, table 8.
    """

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, *, base_dims: int, output_mult: float = 1.0
    ) -> None:
        _check(input_dims=input_dims, output_dims=output_dims, base_dims=base_dims, output_mult=output_mult)
        super().__init__(input_dims, output_dims, bias)
        self.base_dims = base_dims
        self.output_mult = output_mult

    @property
    def width_mult(self) -> float:
        """m, the input's size over the base model's."""
        return self.weight.shape[-1] / self.base_dims

    def __call__(self, x: mx.array) -> mx.array:
        """Logits of shape (…, output_dims) for an input of shape (…, input_dims)."""
        return super().__call__(x * (self.output_mult / self.width_mult))

    def folded(self) -> nn.Linear:
        """A plain ``nn.Linear`` that computes the same, for export: the multiplier is in its weight."""
        plain = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias="bias" in self)
        plain.weight = self.weight * (self.output_mult / self.width_mult)
        if "bias" in self:
            plain.bias = self.bias
        return plain

    def to_quantized(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The quantized layer of :meth:`folded`.

        Args:
            *args: As ``nn.Linear.to_quantized`` takes them.
            **kwargs: Likewise.
        """
        return self.folded().to_quantized(*args, **kwargs)


class MuSharedReadout(nn.Module):
    """A readout through an embedding's own weight: ``output_mult · x / m · Wᵀ``, tied for good.

    The embedding is referred to, not held: its weight is one parameter, under the embedding's path.

    Args:
        embedding: The ``nn.Embedding`` that the model also embeds with.
        bias: Whether it adds a bias of its own, which is not multiplied.
        base_dims: The embedding's ``dims`` in the base model.
        output_mult: A constant to tune, the same at every width.

    Raises:
        Refused: A size below 1, or a multiplier that is no finite number.

    Example:
        >>> import mlx.core as mx, mlx.nn as nn
        >>> from mufree import MuSharedReadout
        >>> embedding = nn.Embedding(100, 512)
        >>> head = MuSharedReadout(embedding, base_dims=64)
        >>> head.width_mult, head(embedding(mx.array([1, 2, 3]))).shape
        (8.0, (3, 100))

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, table 8.
    """

    def __init__(self, embedding: nn.Embedding, bias: bool = True, *, base_dims: int, output_mult: float = 1.0) -> None:
        super().__init__()
        _check(base_dims=base_dims, output_mult=output_mult)
        self._embedding = embedding
        self.base_dims = base_dims
        self.output_mult = output_mult
        if bias:
            self.bias = mx.zeros((embedding.weight.shape[0],))

    @property
    def shared(self) -> nn.Embedding:
        """The embedding whose weight it reads out with."""
        return self._embedding

    @property
    def width_mult(self) -> float:
        """m, the embedding's width over the base model's."""
        return self._embedding.weight.shape[-1] / self.base_dims

    def __call__(self, x: mx.array) -> mx.array:
        """Logits of shape (…, vocabulary) for an input of shape (…, dims)."""
        logits = self._embedding.as_linear(x * (self.output_mult / self.width_mult))
        return logits + self.bias if "bias" in self else logits


def attention_scale(head_dim: int, base_head_dim: int, *, alpha: float = 1.0) -> float:
    """The factor on q·k that μP wants: α·√(base head size)/(head size), 1/√d at the base model's.

    Args:
        head_dim: Size of a head.
        base_head_dim: Size of a head in the base model.
        alpha: A constant to tune.

    Returns:
        What q·k is multiplied by, for the ``scale`` of ``mx.fast.scaled_dot_product_attention``.

    Raises:
        Refused: A size below 1, or α that is no finite number.

    Example:
        >>> from mufree import attention_scale
        >>> attention_scale(64, 64), attention_scale(256, 64)
        (0.125, 0.03125)

    References:
        Tensor Programs V, arXiv 2203.03466v2, Definition 4.1.
    """
    _check(head_dim=head_dim, base_head_dim=base_head_dim, alpha=alpha)
    return alpha * math.sqrt(base_head_dim) / head_dim


def _check(**settings: float) -> None:
    problems = Reasons()
    for name, value in settings.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name.endswith(("dims", "dim")):
            if not number or value < 1 or value != int(value):
                problems.add("out_of_range", name, f"{value!r} is no size; give a whole number above 0")
        elif not number:
            problems.add("out_of_range", name, f"{value!r} is no finite number")
    problems.refuse_if_any()
