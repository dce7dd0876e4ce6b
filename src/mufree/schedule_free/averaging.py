"""The averaging weights: how much each base iterate counts in the average.

One owner of warmup, running maximum, weight sum and averaging weight for every schedule-free optimizer. With
``k = 0, 1, …`` the number of updates made before this one and ``γ`` the rate of this update::

    γ_max ← max(γ_max, γ)      w = (k+1)^r · γ_max^p      W ← W + w      c = w / W

Source: Defazio et al. 2024, arXiv 2405.15682, section 3 and Algorithm 1. A constant learning-rate factor of one
parameter cancels in ``c``, so one set of scalars serves the whole tree.

Invariant: every value here is a scalar ``mx.array``, float32, or float64 if any parameter is.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

RESERVED = "schedule_free"
"""The key of optimizer state under which all of these scalars live."""

HOLDS_X = "holds_x"
"""Present among the scalars if the model holds ``x``: a state says by itself to which form it belongs, and a compiled
step that captured it is traced anew after a conversion."""

Scalars = dict[str, mx.array]


def initial_scalars(*, holds_x: bool = False, dtype: mx.Dtype = mx.float32) -> Scalars:
    """The scalars before the first update.

    Args:
        holds_x: Whether the model holds ``x``; then they are marked so.
        dtype: float32 or float64.

    Returns:
        ``lr_max`` (the largest rate so far), ``weight_sum`` with ``weight_sum_remainder`` (what the sum lost to
        rounding), ``scheduled_lr`` (the rate of the last update) and ``c`` (its averaging weight), all zero.
    """
    names = ("lr_max", "weight_sum", "weight_sum_remainder", "scheduled_lr", "c")
    marker = {HOLDS_X: mx.array(True)} if holds_x else {}
    return {name: mx.array(0.0, dtype) for name in names} | marker


def warmed_up(k1: mx.array, learning_rate: mx.array, warmup_steps: int) -> mx.array:
    """The rate of update ``k1 = k + 1``: a linear warmup that reaches ``learning_rate`` at ``warmup_steps``."""
    if warmup_steps == 0:
        return learning_rate
    return learning_rate * mx.minimum(1.0, k1 / warmup_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How updates are weighted in the average.

    Args:
        r: Power of the update's number; 0 weighs early and late updates alike.
        weight_lr_power: Power ``p`` of the largest rate so far; 0 ignores the rate.
    """

    r: float
    weight_lr_power: float

    def advance(self, k1: mx.array, rate: mx.array, before: Scalars) -> Scalars:
        """The scalars after an update.

        Args:
            k1: Number of this update, counted from 1.
            rate: The rate it uses.
            before: The scalars after the update before it.
        """
        lr_max = mx.maximum(before["lr_max"], rate)
        weight = _power(k1, self.r) * _power(lr_max, self.weight_lr_power)
        total, remainder = _compensated_add(before["weight_sum"], before["weight_sum_remainder"], weight)
        # While every rate so far was 0 nothing has moved, so no weight is due.
        c = mx.where(total > 0, weight / mx.where(total > 0, total, 1.0), 0.0)
        return {
            "lr_max": lr_max,
            "weight_sum": total,
            "weight_sum_remainder": remainder,
            "scheduled_lr": rate,
            "c": c,
        }


def _power(base: mx.array, exponent: float) -> mx.array:
    if exponent == 0:
        return mx.ones_like(base)
    if exponent == 1:
        return base
    return base * base if exponent == 2 else mx.power(base, exponent)


def _compensated_add(total: mx.array, remainder: mx.array, term: mx.array) -> tuple[mx.array, mx.array]:
    """Knuth's two-sum. A plain float32 sum makes ``c`` wrong by 7e-3 after a million updates."""
    term = term + remainder
    new = total + term
    kept = new - total
    return new, (total - (new - kept)) + (term - kept)
