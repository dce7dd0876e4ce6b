"""Whether a rule goes together with what was asked for, and what it reads of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons

from . import ranges
from .families import Family
from .names import Built, family_of
from .options import check_betas, check_common, check_options, own_options
from .ranges import NON_NEGATIVE
from .schedule_options import Schedule

WEIGHT_DECADES = 30  # float32 sums averaging weights from 1e-30 to 1e30 without loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Checked settings that not every rule goes together with; ``None`` where one was refused by itself.

    Args:
        name: The optimizer's name, empty if it is unknown.
        schedule: The schedule with its warmup.
        rate: The peak rate.
        decay: λ.
        coupled: Whether L2 was asked for.
        end: What happens past the end.
    """

    name: str
    schedule: Schedule
    rate: float | None
    decay: float | None
    coupled: bool
    end: str | None


def check_rule(
    reasons: Reasons, built: Built | None, common: Mapping[str, Any], option_string: Any, asked: Asked
) -> dict[str, Any]:
    """Betas, eps, momentum and options as the plan holds them, each problem kept."""
    if built is None:
        _check_without_family(reasons, common)
        return {}
    family = family_of(built)
    given = check_options(reasons, family, asked.name, option_string, asked.decay)
    options = own_options(family, given)
    _check_decay(reasons, family, asked)
    values = check_common(reasons, family, asked.name, common, given)
    if built.betas is not None and common["betas"] is None:
        values["betas"] = built.betas
    if family.schedule_free:
        _check_schedule_free(reasons, asked)
        _check_weights(reasons, asked.rate, dict(options)["weight_lr_power"])
        if 0.0 in ((values["betas"] or (1.0,))[0], values["momentum"]):
            field = "betas" if family.betas else "momentum"
            reasons.add("out_of_range", field, "0 leaves no average; give a β1 in (0, 1)")
    return {**values, "options": options}


def _check_without_family(reasons: Reasons, common: Mapping[str, Any]) -> None:
    """Ranges that hold for every optimizer, when the name already failed."""
    if common["betas"] is not None:
        check_betas(reasons, common["betas"])
    for field in ("eps", "momentum"):
        if common[field] is not None:
            ranges.real(reasons, field, common[field], NON_NEGATIVE)


def _check_decay(reasons: Reasons, family: Family, asked: Asked) -> None:
    if asked.coupled and family.decay == "decoupled":
        reasons.add(
            "conflict",
            "coupled_weight_decay",
            f"True, but {asked.name}'s decay is decoupled; leave it out, or take an L2 optimizer",
        )
    if asked.decay and family.decay == "none" and not asked.coupled:
        reasons.add(
            "not_read",
            "weight_decay",
            f"{asked.decay!r} is not taken by MLX's {family.optimizer_name}; give 0, or coupled_weight_decay=True for "
            "L2" + (", or adamw_torch for decoupled decay" if asked.name == "adam" else ""),
        )


def _check_schedule_free(reasons: Reasons, asked: Asked) -> None:
    name, schedule = asked.name, asked.schedule
    if schedule.name not in ("", "constant", "constant_with_warmup"):
        reasons.add(
            "conflict",
            "scheduler",
            f"{schedule.name!r} would multiply into {name}, which has none; give 'constant' or 'constant_with_warmup'",
        )
    if schedule.warmup and name == "schedule_free_radam":
        reasons.add("not_read", "warmup_steps", f"{schedule.warmup} is not read by {name}, which has no warmup; give 0")
    if asked.end == "refuse":
        reasons.add("conflict", "past_end", f"'refuse', but {name} has no end to keep to; give 'hold'")


def _check_weights(reasons: Reasons, rate: float | None, power: float) -> None:
    """The averaging weight of an update is the rate to this power, summed in float32."""
    if rate and not -WEIGHT_DECADES < power * math.log10(rate) < WEIGHT_DECADES:
        reasons.add(
            "out_of_range",
            "optim_args.weight_lr_power",
            f"{power!r}: lr ** weight_lr_power is 1e{power * math.log10(rate):.0f}, which float32 cannot sum; give a "
            "smaller power (2 is usual, 0 ignores the rate)",
        )
