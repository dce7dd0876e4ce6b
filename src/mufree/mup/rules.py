"""The μP rules, as data: what is multiplied, by kind of parameter and family of optimizer.

Every factor is A^a · m_in^i · m_out^o, with A the forward multiplier that the model has relative to its base, and
m_in, m_out the width multipliers of the tensor's own fan-in and fan-out (1 where it does not scale). With A = 1/m at
the readout and 1 elsewhere the Adam table is Table 8 of Tensor Programs V (arXiv 2203.03466v2), with A = 1 everywhere
Table 3; Lemma J.1 joins them. At base width every factor is exactly 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["input-like", "hidden", "output-like", "scalar-like"]
Family = Literal["adam", "sgd"]
Decay = Literal["independent", "standard", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FAMILIES: tuple[Family, ...] = get_args(Family)
DECAYS: tuple[Decay, ...] = get_args(Decay)


def is_multiplier(value: object) -> bool:
    """Whether something can multiply a forward pass: a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, slots=True)
class Power:
    """One factor of the table: the powers of A, m_in and m_out."""

    a: float = 0.0
    m_in: float = 0.0
    m_out: float = 0.0

    def __call__(self, a: float, m_in: float, m_out: float) -> float:
        """The factor's value."""
        return float(a**self.a * m_in**self.m_in * m_out**self.m_out)

    def inverse(self) -> Power:
        """One over it."""
        return Power(-self.a, -self.m_in, -self.m_out)


@dataclass(frozen=True, slots=True)
class Row:
    """What one kind multiplies: init std, learning rate and eps. The decay follows from the rate."""

    init: Power
    lr: Power
    eps: Power


_ONE = Power()
_INIT = {
    "input-like": Power(a=-1.0),
    "hidden": Power(a=-1.0, m_in=-0.5),
    "output-like": Power(a=-1.0, m_in=-1.0),
    "scalar-like": _ONE,
}
_SGD = Power(a=-2.0, m_in=-1.0, m_out=1.0)

RULES: dict[Family, dict[Kind, Row]] = {
    "adam": {
        "input-like": Row(_INIT["input-like"], Power(a=-1.0), Power(a=1.0, m_out=-1.0)),
        "hidden": Row(_INIT["hidden"], Power(a=-1.0, m_in=-1.0), Power(a=1.0, m_out=-1.0)),
        "output-like": Row(_INIT["output-like"], Power(a=-1.0, m_in=-1.0), Power(a=1.0)),
        "scalar-like": Row(_ONE, _ONE, _ONE),
    },
    "sgd": {
        "input-like": Row(_INIT["input-like"], _SGD, _ONE),
        "hidden": Row(_INIT["hidden"], _SGD, _ONE),
        "output-like": Row(_INIT["output-like"], _SGD, _ONE),
        "scalar-like": Row(_ONE, _ONE, _ONE),
    },
}


@dataclass(frozen=True, slots=True)
class Factors:
    """The numbers of one parameter: factors on the base's init std, learning rate, eps and weight decay."""

    init: float
    lr: float
    eps: float
    weight_decay: float


def factors(
    kind: Kind,
    *,
    m_in: float,
    m_out: float,
    multiplier: float,
    family: Family,
    weight_decay: Decay,
    scale_eps: bool,
) -> Factors:
    """Look one parameter up in the table.

    Args:
        kind: The parameter's kind.
        m_in: Width multiplier of its fan-in.
        m_out: Width multiplier of its fan-out.
        multiplier: A, the forward multiplier relative to the base model's.
        family: ``adam`` for optimizers that divide by the gradient's size, ``sgd`` for those that do not.
        weight_decay: ``independent`` keeps rate × decay as in the base model, ``standard`` keeps the decay,
            ``none`` switches it off (0).
        scale_eps: Whether Adam's eps follows the gradients' size (1 for all if not).
    """
    row = RULES[family][kind]
    decay = {"independent": row.lr.inverse(), "standard": _ONE, "none": _ONE}[weight_decay](multiplier, m_in, m_out)
    return Factors(
        init=row.init(multiplier, m_in, m_out),
        lr=row.lr(multiplier, m_in, m_out),
        eps=row.eps(multiplier, m_in, m_out) if scale_eps else 1.0,
        weight_decay=decay if weight_decay != "none" else 0.0,
    )
