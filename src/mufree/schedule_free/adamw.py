"""AdamW without a schedule (Defazio et al. 2024, arXiv 2405.15682, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .averaging import Averaging, warmed_up
from .base import RateLike, ScheduleFree
from .checks import Settings, beta_pair
from .form import Holds
from .rule import Coefficients, Multipliers, Rule
from .scales import ScaleMapping

SMALLEST = {mx.float32: 2.0**-100, mx.float64: 2.0**-900}
"""Least denominator: with eps = 0 a zero gradient then gives 0, not 0/0, and no other result changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Rule):
    """Adam's step from the gradient at ``y``, without first moment, with decoupled decay at ``y``.

    With ``s = √(1−β2^(k+1))``, folded into two scalars so that the parameter-sized work is one kernel::

        v ← β2·v + (1−β2)·g²        z ← (z − γ·λ·y) − γ·s·g / (√v + ε·s)
    """

    number: ClassVar[int] = 1
    family: ClassVar[str] = "adam"
    moments: ClassVar[tuple[str, ...]] = ("v",)

    beta2: float
    eps: float
    weight_decay: float
    warmup_steps: int = 0

    def rate(self, k1: mx.array, learning_rate: mx.array) -> mx.array:
        return warmed_up(k1, learning_rate, self.warmup_steps)

    def bias_correction(self, k: mx.array) -> mx.array:
        """``1 − β2^k``. Written so, float32 would be wrong by 1e-3 at β2 = 0.99999."""
        return -mx.expm1(k * math.log(max(self.beta2, 1e-300)))

    def second_moment(self, v: mx.array, gradient: mx.array) -> mx.array:
        """``β2·v + (1−β2)·g²``."""
        return self.beta2 * v + (1 - self.beta2) * (gradient * gradient)

    def coefficients(self, k1: mx.array, rate: mx.array, multipliers: Multipliers) -> Coefficients:
        root = mx.sqrt(self.bias_correction(k1))
        decay = multipliers.lr * multipliers.weight_decay * self.weight_decay
        eps = mx.maximum(root * (self.eps * multipliers.eps), SMALLEST[rate.dtype])
        step = rate * root * multipliers.lr
        return (step, eps, rate * decay) if decay else (step, eps)

    def descend(
        self, gradient: mx.array, y: mx.array, z: mx.array, moments: tuple[mx.array, ...], coefficients: Coefficients
    ) -> tuple[tuple[mx.array, ...], mx.array]:
        (v,) = moments
        step, eps, *decay = coefficients
        v = self.second_moment(v, gradient)
        decayed = z - decay[0] * y if decay else z
        return (v,), decayed - (step * gradient) / (mx.sqrt(v) + eps)

    def late_moments(self, gradient: mx.array, k: mx.array) -> tuple[mx.array, ...]:
        return (self.bias_correction(k) * (gradient * gradient),)


class AdamWScheduleFree(ScheduleFree):
    """AdamW that needs neither a learning-rate schedule nor a stopping time.

    With ``k = 0, 1, …`` the updates so far, ``γ`` the warmed-up rate and ``c`` the averaging weight::

        v ← β2·v + (1−β2)·g²           u = g / (√(v / (1−β2^(k+1))) + ε) + λ·y
        z ← z − γ·u                    x ← (1−c)·x + c·z          y = β1·x + (1−β1)·z

    Args:
        learning_rate: Peak rate γ, a number or a schedule of the update's number. Constant after the warmup;
            1 to 10 times that of a scheduled AdamW is usual.
        betas: ``(β1, β2)``: interpolation between ``z`` and ``x`` in ``(0, 1]``, with ``model_holds="x"`` in
            ``[0, 1]``, and decay of the second moment in ``[0, 1)``. For long runs β1 of 0.95 to 0.98 may be better.
        eps: ε, added to the root of the corrected second moment.
        weight_decay: λ. Each update takes ``γ·λ·y`` from ``z``: the decay is multiplied by the learning rate and
            taken at ``y``.
        warmup_steps: Updates of linear warmup, a whole number.
        r: Power of the update's number in the averaging weight, 0 to 4.
        weight_lr_power: Power of the largest rate so far in the averaging weight.
        scales: Multipliers of learning rate, eps and weight decay by parameter path, made for the ``"adam"``
            family. None: all are 1.
        model_holds: ``"y"``: the model trains at ``y``, the leanest form, and :meth:`averaged` puts ``x`` in.
            ``"x"``: the model always holds ``x``, and gradients come from :meth:`at_y`.
        master_weights: Keep a float32 copy of bfloat16 and float16 weights in the state, with a float32 ``z``.
            False saves 6 of the state's 12 bytes a parameter, and small updates are lost to rounding: a small language
            model in bfloat16 ended 300 updates with a 5.6 % higher loss than in float32, against 0.01 % with them.

    Raises:
        Refused: With every setting that is out of its range, or scales of another family.

    Example:
        >>> import mlx.core as mx, mlx.nn as nn
        >>> from mufree import AdamWScheduleFree
        >>> model = nn.Linear(2, 1)
        >>> optimizer = AdamWScheduleFree(learning_rate=0.1, warmup_steps=5)
        >>> optimizer.init(model.trainable_parameters())
        >>> inputs, targets = mx.random.normal((16, 2)), mx.ones((16, 1))
        >>> loss = lambda model: nn.losses.mse_loss(model(inputs), targets)
        >>> before = loss(model).item()
        >>> for _ in range(50):
        ...     optimizer.update(model, nn.value_and_grad(model, loss)(model)[1])
        >>> with optimizer.averaged(model):
        ...     bool(loss(model).item() < before)
        True

    References:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682, Algorithm 1.
    """

    def __init__(
        self,
        learning_rate: RateLike = 0.0025,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        scales: ScaleMapping | None = None,
        model_holds: Holds = "y",
        master_weights: bool = True,
    ) -> None:
        settings = Settings(learning_rate, model_holds, r, weight_lr_power, weight_decay, scales, Adam.family)
        beta1, beta2 = beta_pair(settings, betas)
        settings.non_negative("eps", eps)
        settings.whole("warmup_steps", warmup_steps)
        settings.refuse_if_any()
        super().__init__(
            Adam(beta2=beta2, eps=float(eps), weight_decay=float(weight_decay), warmup_steps=int(warmup_steps)),
            learning_rate=learning_rate,
            beta1=beta1,
            averaging=Averaging(r=float(r), weight_lr_power=float(weight_lr_power)),
            scales=scales,
            model_holds=model_holds,
            master_weights=master_weights,
        )
