"""What each optimizer that can be built reads, with the defaults that are passed on explicitly.

Data only. A setting that a family does not list is refused when it is given: nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .ranges import BELOW_ONE, NON_NEGATIVE, POSITIVE, SHARE, Interval

Decay = Literal["decoupled", "coupled", "none"]
Kind = Literal["real", "whole", "flag", "choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of an optimizer beyond the common settings, as it is written in an option string.

    Args:
        kind: What its value is.
        default: What is built when it is not given.
        allowed: Where a number must lie.
        choices: The words allowed.
        only: If set, the values that can be honoured; such an option is checked and not passed on.
        why: The reason for ``only``.
    """

    kind: Kind
    default: Any
    allowed: Interval = NON_NEGATIVE
    choices: tuple[str, ...] = ()
    only: tuple[Any, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One update rule.

    Args:
        optimizer_name: The class that is built, MLX's or ours.
        decay: How MLX's class decays: decoupled, coupled (added to the gradient), or not at all.
        betas: Default betas, or ``None`` if it has none.
        eps: Default eps, or ``None`` if it takes none.
        momentum: Default momentum, or ``None`` if it takes none.
        positive_eps: Whether eps = 0 is refused.
        options: What an option string may hold.
        mup: Which family of μP scales fits, if any.
        schedule_free: Whether it is one of ours that need no schedule.
    """

    optimizer_name: str
    decay: Decay
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    positive_eps: bool = False
    options: Mapping[str, Option] = field(default_factory=lambda: MappingProxyType({}))
    mup: Literal["adam", "sgd"] | None = "adam"
    schedule_free: bool = False


def _pinned(kind: Kind, value: Any, why: str) -> Option:
    return Option(kind=kind, default=value, only=(value,), why=why)


ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
_AVERAGING = {
    "r": Option(kind="real", default=0.0, allowed=Interval(0.0, 4.0)),  # (k+1)^r is summed in float32
    "weight_lr_power": Option(kind="real", default=2.0),
}
_ANYPRECISION = {
    "use_kahan_summation": _pinned("flag", False, "MLX has no compensated sum"),
    "momentum_dtype": Option(kind="choice", default="float32", only=("float32",), why="moments are float32"),
    "variance_dtype": Option(kind="choice", default="float32", only=("float32",), why="moments are float32"),
}

FAMILIES: Mapping[str, Family] = {
    "adamw": Family(optimizer_name="AdamW", decay="decoupled", betas=ADAM_BETAS, eps=ADAM_EPS),
    "adamw_anyprecision": Family(
        optimizer_name="AdamW", decay="decoupled", betas=ADAM_BETAS, eps=ADAM_EPS, options=_ANYPRECISION
    ),
    "adamw_hf": Family(optimizer_name="AdamW", decay="decoupled", betas=ADAM_BETAS, eps=ADAM_EPS),
    "adam": Family(optimizer_name="Adam", decay="none", betas=ADAM_BETAS, eps=ADAM_EPS),
    "sgd": Family(
        optimizer_name="SGD",
        decay="coupled",
        momentum=0.0,
        mup="sgd",
        options={
            "momentum": Option(kind="real", default=0.0, allowed=BELOW_ONE),
            "nesterov": Option(kind="flag", default=False),
            "dampening": _pinned("real", 0.0, "MLX dampens the first gradient too, torch does not"),
        },
    ),
    "lion": Family(optimizer_name="Lion", decay="decoupled", betas=(0.9, 0.99)),
    "adafactor": Family(optimizer_name="Adafactor", decay="decoupled", mup=None),
    "adagrad": Family(
        optimizer_name="Adagrad",
        decay="none",
        eps=1e-10,
        positive_eps=True,
        options={
            "eps": Option(kind="real", default=1e-10, allowed=POSITIVE),
            "lr_decay": _pinned("real", 0.0, "MLX's Adagrad has no rate decay of its own; use a scheduler"),
        },
    ),
    "adamax": Family(optimizer_name="Adamax", decay="none", betas=ADAM_BETAS, eps=ADAM_EPS),
    "rmsprop": Family(
        optimizer_name="RMSprop",
        decay="none",
        eps=1e-8,
        positive_eps=True,
        options={
            "alpha": Option(kind="real", default=0.99, allowed=SHARE),
            "eps": Option(kind="real", default=1e-8, allowed=POSITIVE),
            "momentum": _pinned("real", 0.0, "MLX's RMSprop has no momentum"),
            "centered": _pinned("flag", False, "MLX's RMSprop has no centred form"),
        },
    ),
    "adadelta": Family(
        optimizer_name="AdaDelta",
        decay="none",
        eps=1e-6,
        positive_eps=True,
        mup=None,
        options={
            "rho": Option(kind="real", default=0.9, allowed=SHARE),
            "eps": Option(kind="real", default=1e-6, allowed=POSITIVE),
        },
    ),
    "muon": Family(
        optimizer_name="Muon",
        decay="decoupled",
        momentum=0.95,
        mup=None,
        options={
            "momentum": Option(kind="real", default=0.95, allowed=BELOW_ONE),
            "nesterov": Option(kind="flag", default=True),
            "ns_steps": Option(kind="whole", default=5, allowed=Interval(1, 99)),
        },
    ),
    "schedule_free_adamw": Family(
        optimizer_name="AdamWScheduleFree",
        decay="decoupled",
        betas=ADAM_BETAS,
        eps=ADAM_EPS,
        options=_AVERAGING,
        schedule_free=True,
    ),
    "schedule_free_radam": Family(
        optimizer_name="RAdamScheduleFree",
        decay="decoupled",
        betas=ADAM_BETAS,
        eps=ADAM_EPS,
        options={**_AVERAGING, "silent_sgd_phase": Option(kind="flag", default=True)},
        schedule_free=True,
    ),
    "schedule_free_sgd": Family(
        optimizer_name="SGDScheduleFree",
        decay="decoupled",
        momentum=0.9,
        options=_AVERAGING,
        mup="sgd",
        schedule_free=True,
    ),
}
COMMON = ("betas", "eps", "momentum")
