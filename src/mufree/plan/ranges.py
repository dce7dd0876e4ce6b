"""Which numbers a setting may have: checked once, at the door, with every problem kept."""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of finite numbers; ``open_low`` and ``open_high`` leave an end out."""

    low: float = 0.0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'>' if self.open_low else '≥'} {self.low:g}"
        return f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"


NON_NEGATIVE = Interval()
POSITIVE = Interval(open_low=True)
SHARE = Interval(0.0, 1.0)
BELOW_ONE = Interval(0.0, 1.0, open_high=True)
MOST = 10**9  # of anything counted: a table of rates holds four bytes an update


def as_float32(value: float) -> float:
    """The float32 number nearest to ``value``; infinite where that overflows."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def is_number(value: Any) -> bool:
    """Whether a value is a real number and not a bool."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def _as_float(value: Any) -> float:
    """The value as a float, without the sign of a zero; infinite where it is too large."""
    try:
        return float(value) + 0.0
    except OverflowError:
        return math.inf


def real(reasons: Reasons, field: str, value: Any, allowed: Interval = NON_NEGATIVE) -> float | None:
    """A finite float32-representable number in ``allowed``, or ``None`` with the problem kept."""
    if not is_number(value):
        reasons.add("not_a_number", field, f"{value!r} is not a number; give a finite number {allowed}")
        return None
    number = _as_float(value)
    if not math.isfinite(number):
        reasons.add("not_finite", field, f"{value!r} is not finite; give a finite number {allowed}")
    elif number not in allowed:
        reasons.add("out_of_range", field, f"{value!r} is out of range; give a finite number {allowed}")
    elif not math.isfinite(as_float32(number)) or (number != 0 and as_float32(number) == 0):
        reasons.add(
            "not_float32", field, f"{value!r} is {as_float32(number):g} in float32; give one that float32 holds"
        )
    else:
        return number
    return None


def whole(reasons: Reasons, field: str, value: Any, *, low: int = 0) -> int | None:
    """A whole number from ``low`` to :data:`MOST`, or ``None`` with the problem kept."""
    allowed = f"an integer in [{low}, {MOST}]"
    if not is_number(value) or (math.isfinite(_as_float(value)) and value != int(value)) or value != value:
        reasons.add("not_whole", field, f"{value!r} is not a whole number; give {allowed}")
    elif not low <= value <= MOST:
        reasons.add("out_of_range", field, f"{value!r} is out of range; give {allowed}")
    else:
        return int(value)
    return None


def flag(reasons: Reasons, field: str, value: Any) -> bool:
    """True or False, or ``False`` with the problem kept."""
    if isinstance(value, bool):
        return value
    reasons.add("not_a_flag", field, f"{value!r} is neither True nor False; give one of them")
    return False


def choice(reasons: Reasons, field: str, value: Any, allowed: Collection[str]) -> str | None:
    """One of a closed set of words, or ``None`` with the problem kept."""
    if isinstance(value, str) and value in allowed:
        return value
    reasons.add("unknown_value", field, f"{value!r} is not known; give one of {', '.join(map(repr, allowed))}")
    return None
