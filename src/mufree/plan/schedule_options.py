"""Which options each schedule takes, and the refusal of what transformers refuses, or would drop, or gets wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons
from mufree.schedules import NEEDS_NO_TOTAL, SCHEDULES

from . import mlx_lm, ranges
from .ranges import NON_NEGATIVE, POSITIVE, SHARE, Interval

METRIC_DRIVEN = ("reduce_lr_on_plateau", "greedy")
SHAPES = ("linear", "cosine", "1-sqrt")
_FLOOR = {"num_cycles": NON_NEGATIVE, "min_lr": NON_NEGATIVE, "min_lr_rate": SHARE}

OPTIONS: Mapping[str, Mapping[str, Interval | tuple[str, ...] | type[int]]] = {
    "constant": {},
    "constant_with_warmup": {},
    "linear": {},
    "cosine": {"num_cycles": NON_NEGATIVE},
    "cosine_with_restarts": {"num_cycles": NON_NEGATIVE},
    "polynomial": {"lr_end": NON_NEGATIVE, "power": NON_NEGATIVE},
    "inverse_sqrt": {"timescale": POSITIVE},
    "cosine_with_min_lr": _FLOOR,
    "cosine_warmup_with_min_lr": {**_FLOOR, "warmup_lr_rate": SHARE},
    "warmup_stable_decay": {
        "num_decay_steps": int,
        "num_stable_steps": int,
        "warmup_type": SHAPES,
        "decay_type": SHAPES,
        "min_lr_ratio": SHARE,
        "num_cycles": NON_NEGATIVE,
    },
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A checked schedule; its name is empty if it was refused."""

    name: str
    options: Mapping[str, Any]
    warmup: int


def check_schedule(
    reasons: Reasons, scheduler: Any, options: Any, *, lr: float | None, warmup: int, total: int | None
) -> Schedule:
    """A schedule in transformers' or in mlx-lm's way, each problem kept."""
    mapping = scheduler if isinstance(scheduler, Mapping) else options if _is(scheduler, mlx_lm.NAME) else None
    if isinstance(mapping, Mapping):
        if options is not None and mapping is scheduler:
            reasons.add(
                "conflict", "scheduler_kwargs", f"{options!r} beside mlx-lm's mapping; put all into the mapping"
            )
        found = mlx_lm.check_mapping(reasons, mapping, lr)
        if warmup and warmup != found["warmup"]:
            reasons.add(
                "conflict", "warmup_steps", f"{warmup}, but mlx-lm's mapping says {found['warmup']}; give it there only"
            )
        return Schedule(mlx_lm.NAME, found, found["warmup"])
    name = check_schedule_name(reasons, scheduler)
    if name is None:
        return Schedule("", {}, warmup)
    return Schedule(name, check_schedule_options(reasons, name, options, lr=lr, warmup=warmup, total=total), warmup)


def _is(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


def check_schedule_name(reasons: Reasons, name: Any) -> str | None:
    """A schedule's name, stripped and lower-cased, or ``None`` with the problem kept."""
    key = name.strip().lower() if isinstance(name, str) else name
    if _is(key, *METRIC_DRIVEN):
        reasons.add(
            "needs_metric",
            "scheduler",
            f"{name!r} follows a metric that no plan knows; take 'constant' and set optimizer.learning_rate yourself",
        )
        return None
    return ranges.choice(reasons, "scheduler", key, tuple(SCHEDULES))


def check_schedule_options(
    reasons: Reasons, name: str, given: Any, *, lr: float | None, warmup: int, total: int | None
) -> dict[str, Any]:
    """A schedule's options, each checked by itself and then together."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        reasons.add("not_a_mapping", "scheduler_kwargs", f"{given!r} is not a mapping of option to value")
        return {}
    values: dict[str, Any] = {}
    for key, raw in given.items():
        value = _check_option(reasons, name, str(key), raw)
        if value is not None:
            values[str(key)] = value
    if total is None and name not in NEEDS_NO_TOTAL:
        reasons.add(
            "needs_total",
            "total_updates",
            f"None, but {name} needs an end for its table of rates; give total_updates or iters",
        )
    _check_together(reasons, name, values, lr=lr, warmup=warmup, total=total)
    return values


def _check_option(reasons: Reasons, name: str, key: str, raw: Any) -> Any:
    field = f"scheduler_kwargs.{key}"
    if key not in OPTIONS[name]:
        known = ", ".join(OPTIONS[name]) or "none"
        reasons.add("not_read", field, f"{raw!r} is not an option of {name}, whose options are: {known}; take it out")
        return None
    allowed = OPTIONS[name][key]
    if isinstance(allowed, Interval):
        value = ranges.real(reasons, field, raw, allowed)
        return int(raw) if value is not None and isinstance(raw, int) else value
    if isinstance(allowed, tuple):
        return ranges.choice(reasons, field, raw, allowed)
    return ranges.whole(reasons, field, raw)


def _check_together(
    reasons: Reasons, name: str, values: Mapping[str, Any], *, lr: float | None, warmup: int, total: int | None
) -> None:
    if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr"):
        both = [key for key in ("min_lr", "min_lr_rate") if key in values]
        if len(both) != 1:
            reasons.add(
                "conflict", "scheduler_kwargs", f"{name} needs exactly one of min_lr and min_lr_rate, not {both}"
            )
        elif lr is not None and values.get("min_lr", 0.0) > lr:
            reasons.add(
                "out_of_range",
                "scheduler_kwargs.min_lr",
                f"{values['min_lr']!r} is above the peak {lr!r}, the rate would rise; give at most the peak",
            )
        elif lr == 0 and "min_lr" in values:
            reasons.add("out_of_range", "lr", f"{lr!r} leaves min_lr without a ratio; give a rate > 0")
    if name == "polynomial" and lr is not None:
        end = values.get("lr_end", 1e-7)
        if not lr > end:
            reasons.add("out_of_range", "lr", f"{lr!r} is not above polynomial's lr_end {end!r}; give a higher peak")
        if total is not None and warmup == total:
            reasons.add(
                "out_of_range",
                "warmup_steps",
                f"{warmup} of {total} updates leaves polynomial nothing to decay over; give less",
            )
    if name == "warmup_stable_decay" and "num_decay_steps" not in values:
        reasons.add("missing", "scheduler_kwargs.num_decay_steps", "is not given, but warmup_stable_decay needs it")
