"""How many updates a run has, and how many of them are warmup.

The unit is the optimizer's update. An iteration is a micro-batch, ``grad_accumulation_steps`` of which make one update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons

from . import ranges
from .ranges import SHARE

ROUNDINGS = ("ceil", "floor")


@dataclass(frozen=True, slots=True)
class Updates:
    """The number of updates, if known, and the micro-batches that make no full one."""

    total: int | None
    leftover: int = 0


def count_updates(reasons: Reasons, total_updates: Any, iters: Any, accumulation: Any) -> Updates:
    """Updates from their number, or from micro-batches and how many make an update."""
    total = None if total_updates is None else ranges.whole(reasons, "total_updates", total_updates, low=1)
    per_update = ranges.whole(reasons, "grad_accumulation_steps", accumulation, low=1)
    batches = None if iters is None else ranges.whole(reasons, "iters", iters, low=1)
    if batches is None or per_update is None:
        return Updates(total)
    counted, leftover = divmod(batches, per_update)
    if counted == 0:
        reasons.add(
            "no_update",
            "iters",
            f"{iters!r} micro-batches of {accumulation!r} an update make none; give at least {accumulation!r}",
        )
    elif total is not None and total != counted:
        reasons.add(
            "conflict",
            "total_updates",
            f"{total_updates!r}, but iters={iters!r} with {accumulation!r} an update make {counted}; give one of them",
        )
    return Updates(counted if total is None else total, leftover)


def count_warmup(reasons: Reasons, ratio: Any, steps: Any, rounding: Any, total: int | None) -> int:
    """Warmup in whole updates. A ratio is rounded as transformers does it: of the product in floats."""
    share = ranges.real(reasons, "warmup_ratio", ratio, SHARE)
    fixed = None if steps is None else ranges.whole(reasons, "warmup_steps", steps)
    how = ranges.choice(reasons, "warmup_rounding", rounding, ROUNDINGS)
    if fixed is not None and share:
        reasons.add("conflict", "warmup_ratio", f"{ratio!r} beside warmup_steps={steps!r}; give one of them")
        return fixed
    if fixed is None and share:
        if total is None:
            reasons.add(
                "needs_total", "warmup_ratio", f"{ratio!r} of an unknown number of updates; give total_updates or iters"
            )
            return 0
        fixed = math.floor(total * share) if how == "floor" else math.ceil(total * share)
    if fixed is not None and total is not None and fixed > total:
        reasons.add(
            "out_of_range", "warmup_steps", f"{fixed} is more than the {total} updates of the run; give at most {total}"
        )
    return fixed or 0
