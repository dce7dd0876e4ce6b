"""What a state says of the optimizer that it is of, and what of an optimizer cannot be set after it was made.

``x = (y − (1−β1)·z)/β1`` is right only with the β1 that ``y`` was trained with, and a second moment means the same only
to the same rule. So both lie in the state, among its scalars, and a state of another optimizer is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..errors import Reasons
from .averaging import Scalars, initial_scalars
from .form import Form
from .rule import Rule

BETA1, RULE = "beta1", "rule"
"""Keys among the reserved scalars: β1, and the number of the rule."""

_NAMES = {1: "AdamWScheduleFree", 2: "RAdamScheduleFree", 3: "SGDScheduleFree"}
_FIXED = frozenset(
    (
        *("betas", "momentum", "eps", "weight_decay", "warmup_steps", "r", "weight_lr_power", "silent_sgd_phase"),
        *("scales", "master_weights"),
    )
)


class Identity:
    """Settings stay as they were when the optimizer was made: setting one later would be heard by nobody."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "model_holds":
            raise AttributeError("model_holds cannot be set; convert(model, holds) changes it, and the weights with it")
        if name in _FIXED:
            raise AttributeError(
                f"{name} is fixed when a schedule-free optimizer is made, and {value!r} would be ignored; make a new "
                "optimizer with it, and load the state (new.state = old.state), which is refused for another β1"
            )
        super().__setattr__(name, value)


def starting_scalars(form: Form, rule: Rule) -> Scalars:
    """All reserved scalars before the first update."""
    marks = {BETA1: mx.array(form.beta1, mx.float32), RULE: mx.array(rule.number, mx.int32)}
    return initial_scalars(holds_x=form.holds == "x") | marks


def check_identity(reasons: Reasons, scalars: Mapping[str, mx.array], form: Form, rule: Rule) -> None:
    """Note if a state, whose scalars are whole, is of another rule or another β1. Inside a trace nothing is known."""
    try:
        number, beta1 = int(scalars[RULE].item()), float(scalars[BETA1].item())  # type: ignore[arg-type]
    except (ValueError, RuntimeError):
        return
    if number != rule.number:
        here, there = (_NAMES.get(n, "another schedule-free optimizer") for n in (rule.number, number))
        reasons.add("other_rule", RULE, f"the state is one of {there}, this is {here}; load it into that one")
    elif _float32(beta1) != _float32(form.beta1):
        message = (
            f"{_short(form.beta1)}, but the state was trained with {_short(beta1)}, and x = (y − (1−β1)·z)/β1 is wrong "
            f"with another; make the optimizer with β1 = {_short(beta1)}, or begin a new run from the average x"
        )
        reasons.add("other_beta1", BETA1, message)


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _short(value: float) -> str:
    return f"{value:.6g}"
