"""mlx-lm's ``lr_schedule`` mapping, read as mlx-lm means it.

``{"name": "cosine_decay", "warmup": 10, "warmup_init": 0.0, "arguments": [1e-4, 990]}``: the named MLX schedule with
those arguments, after a linear warmup to the first argument. mlx-lm joins the two one update late, at ``warmup + 1``:
the peak is used twice and the schedule ends one update later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons

from . import ranges
from .ranges import NON_NEGATIVE, Interval

NAME = "mlx_lm"
KEYS = ("name", "arguments", "warmup", "warmup_init")


@dataclass(frozen=True, slots=True)
class Argument:
    """One positional argument of an MLX schedule; ``allowed`` is ``int`` for a number of updates ≥ 1."""

    name: str
    allowed: Interval | type[int]
    required: bool = True


_START = Argument("init", NON_NEGATIVE)
ARGUMENTS: Mapping[str, tuple[Argument, ...]] = {
    "cosine_decay": (_START, Argument("decay_steps", int), Argument("end", NON_NEGATIVE, required=False)),
    "linear_schedule": (_START, Argument("end", NON_NEGATIVE), Argument("steps", int)),
    "exponential_decay": (_START, Argument("decay_rate", Interval(0.0, 1.0))),
    "step_decay": (_START, Argument("decay_rate", Interval(0.0, 1.0)), Argument("step_size", int)),
}


def check_mapping(reasons: Reasons, mapping: Mapping[str, Any], lr: float | None) -> dict[str, Any]:
    """The mapping with its defaults, each problem kept."""
    where = "scheduler"
    for key in mapping:
        if key not in KEYS:
            reasons.add(
                "not_read", f"{where}.{key}", f"{mapping[key]!r} is not read by mlx-lm, which takes {', '.join(KEYS)}"
            )
    name = ranges.choice(reasons, f"{where}.name", mapping.get("name"), tuple(ARGUMENTS))
    warmup = ranges.whole(reasons, f"{where}.warmup", mapping.get("warmup", 0)) or 0
    start = ranges.real(reasons, f"{where}.warmup_init", mapping.get("warmup_init", 0.0))
    if "warmup_init" in mapping and not warmup and start:
        reasons.add("not_read", f"{where}.warmup_init", f"{start!r} is not read without a warmup; take it out")
    arguments = _check_arguments(reasons, name, mapping.get("arguments")) if name else ()
    if arguments and lr is not None and arguments[0] != lr:
        reasons.add(
            "conflict", "lr", f"{lr!r}, but mlx-lm takes the rate from arguments[0] = {arguments[0]!r}; give that"
        )
    return {"name": name, "arguments": arguments, "warmup": warmup, "warmup_init": start}


def _check_arguments(reasons: Reasons, name: str, given: Any) -> tuple[Any, ...]:
    spec = ARGUMENTS[name]
    least = sum(argument.required for argument in spec)
    if not isinstance(given, list | tuple) or not least <= len(given) <= len(spec):
        names = ", ".join(argument.name for argument in spec)
        reasons.add(
            "wrong_arguments", "scheduler.arguments", f"{given!r} are not {name}'s ({names}); give {least} or more"
        )
        return ()
    values = []
    for argument, value in zip(spec, given, strict=False):
        field = f"scheduler.arguments.{argument.name}"
        if isinstance(argument.allowed, Interval):
            values.append(ranges.real(reasons, field, value, argument.allowed))
        else:
            values.append(ranges.whole(reasons, field, value, low=1))
    return tuple(values)


def rate_function(options: Mapping[str, Any]) -> Callable[[int], float]:
    """The rate of update ``k``, counted from 0, in Python floats."""
    arguments, warmup = options["arguments"], options["warmup"]
    named = _SCHEDULES[options["name"]](*arguments)
    if not warmup:
        return named
    rising = _linear(options["warmup_init"], arguments[0], warmup)
    return lambda update: rising(update) if update <= warmup else named(update - warmup - 1)


def _cosine(init: float, decay_steps: int, end: float = 0.0) -> Callable[[int], float]:
    return lambda k: end + 0.5 * (1.0 + math.cos(math.pi / decay_steps * min(k, decay_steps))) * (init - end)


def _linear(init: float, end: float, steps: int) -> Callable[[int], float]:
    return lambda k: max(0.0, min(k, steps) * ((end - init) / steps) + init)


def _exponential(init: float, decay_rate: float) -> Callable[[int], float]:
    return lambda k: init * decay_rate**k


def _steps(init: float, decay_rate: float, step_size: int) -> Callable[[int], float]:
    return lambda k: float(init * decay_rate ** (k // step_size))


_SCHEDULES: Mapping[str, Callable[..., Callable[[int], float]]] = {
    "cosine_decay": _cosine,
    "linear_schedule": _linear,
    "exponential_decay": _exponential,
    "step_decay": _steps,
}
