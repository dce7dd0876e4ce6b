"""Every learning-rate schedule by name, as a table of rates in Python floats.

Each name means what transformers' ``get_scheduler`` means by it: the factor of update ``k`` (counted from 0) is
computed in the same order of float64 operations, so that the float32 value of every rate is the same bit for bit.
Two departures, both on purpose: ``constant`` keeps a warmup that was asked for, and nothing is defined past the end.

Options are checked where a plan is made; the functions here trust what they are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Factor = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What every schedule is told.

    Args:
        lr: The peak rate.
        warmup: Updates of warmup.
        total: Updates of the whole run, the last one being ``total - 1``.
    """

    lr: float
    warmup: int
    total: int

    def ramp(self, update: int) -> float:
        """The linear warmup's factor, 0 at the first update."""
        return update / max(1, self.warmup)

    def progress(self, update: int) -> float:
        """How much of the time after the warmup has passed, from 0 to just under 1."""
        return (update - self.warmup) / max(1, self.total - self.warmup)


def _warmed(span: Span, after: Factor) -> Factor:
    """A linear warmup, then ``after``."""
    return lambda update: span.ramp(update) if update < span.warmup else after(update)


def _constant(span: Span) -> Factor:
    return _warmed(span, lambda _update: 1.0)


def _linear(span: Span) -> Factor:
    rest = max(1, span.total - span.warmup)
    return _warmed(span, lambda update: max(0.0, (span.total - update) / rest))


def _cosine(span: Span, *, num_cycles: float = 0.5) -> Factor:
    return _warmed(span, lambda update: max(0.0, _wave(num_cycles, span.progress(update))))


def _wave(num_cycles: float, progress: float) -> float:
    """A cosine from 1, ``num_cycles`` whole waves long."""
    return 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))


def _cosine_with_restarts(span: Span, *, num_cycles: float = 1) -> Factor:
    def after(update: int) -> float:
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * span.progress(update)) % 1.0))))

    return _warmed(span, after)


def _polynomial(span: Span, *, lr_end: float = 1e-7, power: float = 1.0) -> Factor:
    def after(update: int) -> float:
        remaining = 1 - (update - span.warmup) / (span.total - span.warmup)
        return ((span.lr - lr_end) * remaining**power + lr_end) / span.lr

    return _warmed(span, after)


def _inverse_sqrt(span: Span, *, timescale: float | None = None) -> Factor:
    scale = (span.warmup or 10_000) if timescale is None else timescale
    shift = scale - span.warmup
    return _warmed(span, lambda update: 1.0 / math.sqrt((update + shift) / scale))


def _floored(factor: float, floor: float) -> float:
    """A factor in [0, 1] mapped to [floor, 1]."""
    return factor * (1 - floor) + floor


def _floor(span: Span, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr_rate is not None:
        return min_lr_rate
    return min_lr / span.lr if min_lr is not None else 0.0


def _cosine_with_min_lr(
    span: Span, *, num_cycles: float = 0.5, min_lr: float | None = None, min_lr_rate: float | None = None
) -> Factor:
    floor = _floor(span, min_lr, min_lr_rate)
    return _warmed(span, lambda update: max(0.0, _floored(_wave(num_cycles, span.progress(update)), floor)))


def _cosine_warmup_with_min_lr(
    span: Span,
    *,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> Factor:
    floor = _floor(span, min_lr, min_lr_rate)

    def factor(update: int) -> float:
        if update < span.warmup:
            if warmup_lr_rate is None:
                return (update + 1.0) / max(1.0, span.warmup)
            return warmup_lr_rate + (1.0 - warmup_lr_rate) * update / max(1, span.warmup - 1)
        progress = (update - span.warmup + 1.0) / max(1.0, span.total - span.warmup)
        return max(0.0, _floored(_wave(num_cycles, progress), floor))

    return factor


def _warmup_stable_decay(
    span: Span,
    *,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> Factor:
    stable = span.total - span.warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    rising: dict[str, Callable[[float], float]] = {
        "linear": lambda progress: progress,
        "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
        "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
    }
    falling: dict[str, Callable[[float], float]] = {
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: _wave(num_cycles, progress),
        "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
    }

    def factor(update: int) -> float:
        if update < span.warmup:
            return max(0.0, _floored(rising[warmup_type](span.ramp(update)), min_lr_ratio))
        if update < span.warmup + stable:
            return 1.0
        if update < span.warmup + stable + num_decay_steps:
            progress = (update - span.warmup - stable) / max(1, num_decay_steps)
            return max(0.0, _floored(falling[decay_type](progress), min_lr_ratio))
        return min_lr_ratio

    return factor


SCHEDULES: Mapping[str, Callable[..., Factor]] = {
    "constant": _constant,
    "constant_with_warmup": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "cosine_warmup_with_min_lr": _cosine_warmup_with_min_lr,
    "warmup_stable_decay": _warmup_stable_decay,
}
NEEDS_NO_TOTAL = frozenset({"constant", "constant_with_warmup"})


def rate_function(
    name: str, *, lr: float, warmup: int, total: int | None, options: Mapping[str, Any] | None = None
) -> Factor:
    """The rate of update ``k`` as a Python float, for 0 ≤ k < ``total``.

    Args:
        name: One of :data:`SCHEDULES`.
        lr: The peak rate.
        warmup: Updates of warmup.
        total: Updates of the run; ``None`` only for the names in :data:`NEEDS_NO_TOTAL`.
        options: The schedule's own options, as transformers names them.

    Example:
        >>> [rate_function("linear", lr=0.1, warmup=2, total=4)(k) for k in range(4)]
        [0.0, 0.05, 0.1, 0.05]
    """
    span = Span(lr=lr, warmup=warmup, total=warmup + 1 if total is None else total)
    factor = SCHEDULES[name](span, **(options or {}))
    return lambda update: lr * factor(update)


def rate_table(
    name: str, *, lr: float, warmup: int, total: int | None, options: Mapping[str, Any] | None = None
) -> list[float]:
    """The rate of every update, first to last.

    Without a total the table ends with the first update after the warmup, whose rate then holds for ever.
    """
    rate = rate_function(name, lr=lr, warmup=warmup, total=total, options=options)
    return [rate(update) for update in range(warmup + 1 if total is None else total)]
