"""Rectified Adam without a schedule or a warmup (Liu et al. 2020, arXiv 1908.03265; Defazio et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .adamw import Adam
from .averaging import Averaging
from .base import RateLike, ScheduleFree
from .checks import Settings, beta_pair
from .form import Holds
from .rule import Coefficients, Multipliers, Rule
from .scales import ScaleMapping

THRESHOLD = 4.0
"""Length of the moving average from which its variance is tractable (Liu et al., section 3.3)."""
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)
"""Coefficients of ``t/(e^t − 1) − 1 + t/2`` in t², t⁴, …: 1e-14 of it at t = 0.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RectifiedAdam(Rule):
    """Adam whose rate grows as its second moment becomes trustworthy.

    With ``ρ∞ = 2/(1−β2) − 1`` and ``ρ = ρ∞ − 2(k+1)·β2^(k+1)/(1−β2^(k+1))`` the rate is multiplied by
    ``√((ρ−4)(ρ−2)ρ∞ / ((ρ∞−4)(ρ∞−2)ρ))`` once ``ρ > 4``. Before, it is 0 (``silent``) or the step is a plain one along
    the gradient.

    Args:
        adam: The step once ``ρ > 4``.
        silent: Whether weights rest until then.
    """

    number: ClassVar[int] = 2
    family: ClassVar[str] = "adam"
    moments: ClassVar[tuple[str, ...]] = ("v",)

    adam: Adam
    silent: bool

    @property
    def longest(self) -> float:
        """ρ∞."""
        return 2 / (1 - self.adam.beta2) - 1

    def length(self, k1: mx.array) -> mx.array:
        """ρ after ``k1`` updates.

        With ``a = −log β2`` and ``t = (k+1)·a`` it is ``ρ∞ − (2/a)·t/(e^t − 1)``. For small t float32 would cancel 2000
        against 2000 at β2 = 0.999; there it is ``(k+1) + ρ∞ − 2/a − (2/a)·B(t)``, where
        ``B(t) = t/(e^t − 1) − 1 + t/2`` is small. In float64 the cancellation is harmless, and the plain formula agrees
        with PyTorch to the last bit.
        """
        if k1.dtype == mx.float64:
            power = mx.power(self.adam.beta2, k1)
            return self.longest - 2 * k1 * power / (1 - power)
        a = -math.log(max(self.adam.beta2, 1e-300))
        t = k1 * a
        squared = t * t
        series = mx.zeros_like(t)
        for coefficient in reversed(BERNOULLI):
            series = (series + coefficient) * squared
        early = (k1 + (self.longest - 2 / a)) - series * (2 / a)
        return mx.where(t < 0.5, early, self.longest - t / mx.expm1(mx.maximum(t, 0.25)) * (2 / a))

    def rate(self, k1: mx.array, learning_rate: mx.array) -> mx.array:
        longest, length = self.longest, self.length(k1)
        if longest <= THRESHOLD:
            return learning_rate * (0.0 if self.silent else 1.0)
        valid = mx.maximum(length, THRESHOLD)
        ratio = (valid - 4) * (valid - 2) * (longest / ((longest - 4) * (longest - 2))) / valid
        return learning_rate * mx.where(length > THRESHOLD, mx.sqrt(ratio), 0.0 if self.silent else 1.0)

    def coefficients(self, k1: mx.array, rate: mx.array, multipliers: Multipliers) -> Coefficients:
        step, eps, *decay = self.adam.coefficients(k1, rate, multipliers)
        if self.silent:
            return (step, eps, *decay)
        # The denominator is √v + eps, or 1 in the first phase: blend·√v + floor.
        adaptive = self.length(k1) > THRESHOLD
        blend = mx.where(adaptive, mx.ones_like(rate), 0.0)
        return (mx.where(adaptive, step, rate), mx.where(adaptive, eps, 1.0), blend, *decay)

    def descend(
        self, gradient: mx.array, y: mx.array, z: mx.array, moments: tuple[mx.array, ...], coefficients: Coefficients
    ) -> tuple[tuple[mx.array, ...], mx.array]:
        if self.silent:
            return self.adam.descend(gradient, y, z, moments, coefficients)
        step, floor, blend, *decay = coefficients
        v = self.adam.second_moment(moments[0], gradient)
        decayed = z - decay[0] * y if decay else z
        return (v,), decayed - (step * gradient) / (blend * mx.sqrt(v) + floor)

    def late_moments(self, gradient: mx.array, k: mx.array) -> tuple[mx.array, ...]:
        return self.adam.late_moments(gradient, k)


class RAdamScheduleFree(ScheduleFree):
    """Rectified Adam that needs neither schedule, stopping time nor warmup.

    As :class:`AdamWScheduleFree`, with a rate that grows by itself: ``γ = learning_rate · √((ρ−4)(ρ−2)ρ∞ /
    ((ρ∞−4)(ρ∞−2)ρ))``, where ρ is the length of the second moment's average. For the first updates (4 at β2 = 0.999)
    ρ ≤ 4 and no rate can be had.

    Args:
        learning_rate: Peak rate, a number or a schedule of the update's number.
        betas: ``(β1, β2)``: interpolation between ``z`` and ``x`` in ``(0, 1]``, with ``model_holds="x"`` in
            ``[0, 1]``, and decay of the second moment in ``[0, 1)``; above 0.6 with the silent
            phase, below which ρ never exceeds 4.
        eps: ε, added to the root of the corrected second moment.
        weight_decay: λ. Each update takes ``γ·λ·y`` from ``z``: multiplied by the rate used, taken at ``y``.
        r: Power of the update's number in the averaging weight, 0 to 4.
        weight_lr_power: Power of the largest rate so far in the averaging weight.
        silent_sgd_phase: While ρ ≤ 4 leave the weights alone. False: take plain gradient steps ``γ·g`` there.
        scales: Multipliers made for the ``"adam"`` family; not with ``silent_sgd_phase=False``, whose plain steps would
            need others.
        model_holds: ``"y"`` or ``"x"``, as for :class:`AdamWScheduleFree`.
        master_weights: As for :class:`AdamWScheduleFree`.

    Raises:
        Refused: With every setting that is out of its range, or scales of another family.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import RAdamScheduleFree
        >>> optimizer = RAdamScheduleFree(learning_rate=0.1)
        >>> held, rates = {"w": mx.array([1.0])}, []
        >>> for _ in range(7):
        ...     held = optimizer.apply_gradients({"w": held["w"]}, held)
        ...     rates.append(round(optimizer.scheduled_lr.item(), 4))
        >>> rates
        [0.0, 0.0, 0.0, 0.0, 0.0017, 0.0026, 0.0033]

    References:
        Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond", arXiv 1908.03265, Algorithm 2.
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682.
    """

    def __init__(
        self,
        learning_rate: RateLike = 0.0025,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        silent_sgd_phase: bool = True,
        scales: ScaleMapping | None = None,
        model_holds: Holds = "y",
        master_weights: bool = True,
    ) -> None:
        settings = Settings(learning_rate, model_holds, r, weight_lr_power, weight_decay, scales, Adam.family)
        beta1, beta2 = beta_pair(settings, betas)
        settings.non_negative("eps", eps)
        if scales is not None and not silent_sgd_phase:
            settings.add(
                "conflict",
                "silent_sgd_phase",
                "False takes plain gradient steps first, for which scales for 'adam' are wrong; leave it True",
            )
        settings.refuse_if_any()
        if silent_sgd_phase and 2 / (1 - beta2) - 1 <= THRESHOLD:
            message = f"{beta2!r}; up to 0.6 the silent phase never ends; give more, or silent_sgd_phase=False"
            settings.add("out_of_range", "betas[1]", message)
        settings.refuse_if_any()
        super().__init__(
            RectifiedAdam(
                adam=Adam(beta2=beta2, eps=float(eps), weight_decay=float(weight_decay)), silent=bool(silent_sgd_phase)
            ),
            learning_rate=learning_rate,
            beta1=beta1,
            averaging=Averaging(r=float(r), weight_lr_power=float(weight_lr_power)),
            scales=scales,
            model_holds=model_holds,
            master_weights=master_weights,
        )
