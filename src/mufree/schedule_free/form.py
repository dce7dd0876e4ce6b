"""Which sequence the model holds, and one update of one parameter written so that it becomes one kernel.

``model_holds="y"``: the model trains at ``y`` and the average is ``x = y + (1−β1)/β1 · (y − z)``.
``model_holds="x"``: the model always holds the average and ``y = x + (1−β1) · (z − x)``.

Two properties of ``mx.compile`` shape the arithmetic. It gives several outputs to one kernel only if each lies on
the way to the next, hence moments → ``z`` → held weights; and it fuses at most 11 operations deep, hence the
shorter second forms for half precision, where the casts at both ends take two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from .rule import Coefficients, Rule

Holds = Literal["y", "x"]
Leaf = dict[str, mx.array]
"""One parameter's arrays: ``parameter``, ``gradient``, ``z``, moments, and perhaps a float32 copy under ``holds``."""

HALF = (mx.float16, mx.bfloat16)


def working_dtype(dtype: mx.Dtype) -> mx.Dtype:
    """The precision in which a parameter of ``dtype`` is updated."""
    return mx.float32 if dtype in HALF else dtype


@dataclass(frozen=True, slots=True)
class Form:
    """The sequence that the model holds.

    Args:
        holds: ``"y"`` or ``"x"``.
        beta1: Interpolation β1 between ``z`` (0) and ``x`` (1).
    """

    holds: Holds
    beta1: float

    def average(self, held: mx.array, z: mx.array) -> mx.array:
        """``x`` from what the model holds. Exactly ``held`` where ``held == z``."""
        if self.holds == "x":
            return held
        return held + ((1 - self.beta1) / self.beta1) * (held - z)

    def gradient_point(self, held: mx.array, z: mx.array) -> mx.array:
        """``y`` from what the model holds. Exactly ``held`` where ``held == z``."""
        return held if self.holds == "y" else held + (1 - self.beta1) * (z - held)

    def weights(self, c: mx.array) -> tuple[mx.array, mx.array]:
        """The two scalars with which ``step`` mixes: ``c``, and the second one of the form."""
        return c, (1 - self.beta1 * (1 - c) if self.holds == "y" else 1 - c)

    def step(self, rule: Rule, leaf: Leaf, weights: tuple[mx.array, mx.array], coefficients: Coefficients) -> Leaf:
        """One update of one parameter.

        Args:
            rule: How ``z`` moves.
            leaf: The parameter's arrays, all of one shape.
            weights: From :meth:`weights`, in the working precision.
            coefficients: From ``rule.coefficients``, in the working precision.

        Returns:
            The new arrays under the same keys, without ``gradient``.
        """
        parameter = leaf["parameter"]
        dtype = working_dtype(parameter.dtype)
        held = leaf.get(self.holds, parameter).astype(dtype)
        z = leaf["z"].astype(dtype)
        moments, new_z = rule.descend(
            leaf["gradient"].astype(dtype),
            self.gradient_point(held, z),
            z,
            tuple(leaf[name] for name in rule.moments),
            coefficients,
        )
        c, second = weights
        half = parameter.dtype in HALF
        if self.holds == "y":
            mixed = held + c * (z - held)
            moved = (mixed - second * z) + second * new_z if half else mixed + second * (new_z - z)
        else:
            moved = second * held + c * new_z if half else held + c * (new_z - held)
        new = dict(zip(rule.moments, moments, strict=True))
        new |= {"parameter": moved.astype(parameter.dtype), "z": new_z.astype(leaf["z"].dtype)}
        if self.holds in leaf:
            new[self.holds] = moved
        return new
