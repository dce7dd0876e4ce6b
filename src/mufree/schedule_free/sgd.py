"""Gradient descent without a schedule (Defazio et al. 2024, arXiv 2405.15682, equations 3 to 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .averaging import Averaging, warmed_up
from .base import RateLike, ScheduleFree
from .checks import Settings
from .form import Holds
from .rule import Coefficients, Multipliers, Rule
from .scales import ScaleMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent(Rule):
    """A plain step along the gradient at ``y``, with decay at ``y``: ``z ← z − γ·(g + λ·y)``."""

    number: ClassVar[int] = 3
    family: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ()

    weight_decay: float
    warmup_steps: int = 0

    def rate(self, k1: mx.array, learning_rate: mx.array) -> mx.array:
        return warmed_up(k1, learning_rate, self.warmup_steps)

    def coefficients(self, k1: mx.array, rate: mx.array, multipliers: Multipliers) -> Coefficients:
        decay = multipliers.lr * multipliers.weight_decay * self.weight_decay
        return (rate * multipliers.lr, rate * decay) if decay else (rate * multipliers.lr,)

    def descend(
        self, gradient: mx.array, y: mx.array, z: mx.array, moments: tuple[mx.array, ...], coefficients: Coefficients
    ) -> tuple[tuple[mx.array, ...], mx.array]:
        step, *decay = coefficients
        return moments, (z - decay[0] * y if decay else z) - step * gradient

    def late_moments(self, gradient: mx.array, k: mx.array) -> tuple[mx.array, ...]:
        return ()


class SGDScheduleFree(ScheduleFree):
    """Gradient descent that needs neither a learning-rate schedule nor a stopping time.

    With ``γ`` the warmed-up rate, ``c`` the averaging weight and β the momentum::

        z ← z − γ·(g + λ·y)            x ← (1−c)·x + c·z          y = β·x + (1−β)·z

    Args:
        learning_rate: Peak rate γ, a number or a schedule of the update's number; usually larger than that of
            gradient descent with a schedule, by 10 to 50 times.
        momentum: β, the interpolation between ``z`` and ``x`` in ``(0, 1]``, with
            ``model_holds="x"`` in ``[0, 1]``; there is no velocity.
        weight_decay: λ. Each update takes ``γ·λ·y`` from ``z``: multiplied by the learning rate, taken at ``y``.
        warmup_steps: Updates of linear warmup, a whole number.
        r: Power of the update's number in the averaging weight, 0 to 4.
        weight_lr_power: Power of the largest rate so far in the averaging weight.
        scales: Multipliers of learning rate and weight decay by parameter path, made for the ``"sgd"`` family.
        model_holds: ``"y"`` or ``"x"``, as for :class:`AdamWScheduleFree`.
        master_weights: Keep float32 copies of bfloat16 and float16 weights and of ``z`` in the state. False saves 6 of
            the state's 8 bytes a parameter, and small updates are lost to rounding.

    Raises:
        Refused: With every setting that is out of its range, or scales of another family.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import SGDScheduleFree
        >>> optimizer = SGDScheduleFree(learning_rate=0.5)
        >>> held = {"w": mx.array([1.0, -2.0])}
        >>> for _ in range(200):
        ...     held = optimizer.apply_gradients({"w": held["w"] - 3}, held)
        >>> optimizer.average(held)["w"].round(1).tolist()
        [3.0, 3.0]

    References:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682, equations 3 to 5.
    """

    def __init__(
        self,
        learning_rate: RateLike = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        scales: ScaleMapping | None = None,
        model_holds: Holds = "y",
        master_weights: bool = True,
    ) -> None:
        settings = Settings(learning_rate, model_holds, r, weight_lr_power, weight_decay, scales, Descent.family)
        beta1 = settings.interpolation("momentum", momentum)
        settings.whole("warmup_steps", warmup_steps)
        settings.refuse_if_any()
        super().__init__(
            Descent(weight_decay=float(weight_decay), warmup_steps=int(warmup_steps)),
            learning_rate=learning_rate,
            beta1=beta1,
            averaging=Averaging(r=float(r), weight_lr_power=float(weight_lr_power)),
            scales=scales,
            model_holds=model_holds,
            master_weights=master_weights,
        )
