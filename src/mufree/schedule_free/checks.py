"""Settings of the schedule-free optimizers, checked at the door and refused together."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..errors import Reasons
from .scales import ScaleMapping, check_scales

MAX_R = 4.0
"""(k+1)^r is summed in float32: at r = 4 and ten million updates 1e35, next to the largest there is."""
LEAST_WEIGHT = -30
"""Smallest learning_rate ** weight_lr_power that float32 sums without loss after a warmup, as a power of ten."""
LARGEST_SUM, LONG_RUN = 38, 7
"""Powers of ten: what float32 can hold, and the updates of a run for which the weight sum must stay below it."""
MOST_UPDATES = 2**31 - 1
"""Longest warmup that can be asked for."""


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite real number; True and False are not."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


class Settings(Reasons):
    """Collects what is wrong with one optimizer's settings.

    Args:
        learning_rate: A number ≥ 0, a scalar array or a callable.
        model_holds: ``"y"`` or ``"x"``.
        r: 0 to 4.
        weight_lr_power: A number ≥ 0.
        weight_decay: A number ≥ 0.
        scales: Scales, or None.
        family: The family that scales must be made for.
    """

    def __init__(
        self,
        learning_rate: Any,
        model_holds: Any,
        r: Any,
        weight_lr_power: Any,
        weight_decay: Any,
        scales: ScaleMapping | None,
        family: str,
    ) -> None:
        super().__init__()
        self.model_holds = model_holds
        if model_holds not in ("y", "x"):
            self.add("unknown", "model_holds", f"{model_holds!r}; give 'y' or 'x'")
        if not callable(learning_rate):
            check_rate(self, learning_rate)
        self.non_negative("weight_decay", weight_decay)
        self.non_negative("weight_lr_power", weight_lr_power)
        if self.non_negative("r", r) and float(r) > MAX_R:
            self.add("out_of_range", "r", f"{r!r}; float32 cannot sum (k+1)^r beyond r = {MAX_R:g}")
        self._check_weight(learning_rate, weight_lr_power, r)
        if scales is not None:
            check_scales(self, scales, family)

    def _check_weight(self, rate: Any, power: Any, r: Any) -> None:
        if callable(rate) or not all(map(is_number, (rate, power, r))):
            return
        if float(rate) <= 0 or float(power) < 0 or not 0 <= float(r) <= MAX_R:
            return
        exponent = float(power) * math.log10(float(rate))
        if not LEAST_WEIGHT < exponent < LARGEST_SUM - LONG_RUN * (1 + float(r)):
            self.add(
                "out_of_range",
                "weight_lr_power",
                f"{power!r}: learning_rate ** weight_lr_power = 1e{exponent:.0f} is outside what float32 can sum; "
                "give a smaller power (2 is usual, 0 ignores the rate)",
            )

    def non_negative(self, name: str, value: Any) -> bool:
        """Note ``value`` unless it is a finite number ≥ 0."""
        good = is_number(value) and float(value) >= 0
        if not good:
            self.add("out_of_range", name, f"{value!r}; give a finite number ≥ 0")
        return good

    def whole(self, name: str, value: Any) -> None:
        """Note ``value`` unless it is a whole number ≥ 0."""
        try:
            good = not isinstance(value, bool) and 0 <= operator.index(value) <= MOST_UPDATES
        except TypeError:
            good = False
        if not good:
            self.add("out_of_range", name, f"{value!r}; give a whole number of updates from 0 to {MOST_UPDATES}")

    def interpolation(self, name: str, value: Any) -> float:
        """β1 as a float, noted unless it is in (0, 1], or in [0, 1] where the model holds ``x``."""
        zero = self.model_holds == "x"
        if is_number(value) and (0 < float(value) <= 1 or (zero and float(value) == 0)):
            return float(value)
        allowed = "[0, 1]" if zero else "(0, 1] (x = (y − (1−β1)·z)/β1 is lost at 0; with model_holds='x' 0 is fine)"
        self.add("out_of_range", name, f"{value!r}; give a number in {allowed}")
        return 1.0


def beta_pair(settings: Settings, betas: Any) -> tuple[float, float]:
    """β1 and β2, with what is wrong noted in ``settings``."""
    if isinstance(betas, str) or not isinstance(betas, Sequence) or len(betas) != 2:
        settings.add("out_of_range", "betas", f"{betas!r}; give a pair of numbers (β1, β2)")
        return 1.0, 0.0
    beta1 = settings.interpolation("betas[0]", betas[0])
    beta2 = betas[1]
    if not (is_number(beta2) and 0 <= float(beta2) < 1):
        settings.add("out_of_range", "betas[1]", f"{beta2!r}; give a number in [0, 1)")
        return beta1, 0.0
    if struct.unpack("f", struct.pack("f", float(beta2)))[0] >= 1:
        settings.add(
            "out_of_range",
            "betas[1]",
            f"{beta2!r}; float32 rounds it to 1 and the second moment would never forget; give at most 0.9999999",
        )
    return beta1, float(beta2)


def check_rate(reasons: Reasons, value: Any) -> None:
    """Note a learning rate that is no finite number ≥ 0. An array inside a trace has no value yet and passes."""
    if isinstance(value, mx.array):
        if value.size != 1:
            reasons.add("out_of_range", "learning_rate", f"an array of shape {value.shape}; give a scalar")
            return
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            return
    if not (is_number(value) and float(value) >= 0):
        reasons.add("out_of_range", "learning_rate", f"{value!r}; give a finite number ≥ 0, or a schedule")
