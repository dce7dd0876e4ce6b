"""Wider is better: at one rate and on the same batches, a wider model never learns worse. Pure Python."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..recipe import rate_text
from .judgement import Check, Judgement

DEVIATIONS = 2
"""Standard deviations of the paired difference, over the seeds, by which a wider model's loss may lie above."""


@dataclass(frozen=True, slots=True)
class Step:
    """Two neighbouring widths at one report.

    Args:
        update: The report's update.
        narrow: The narrower width.
        wide: The wider one.
        difference: Training loss of the wide minus that of the narrow, mean over the seeds; nats a token.
        deviation: Standard deviation of the difference over the seeds.
    """

    update: int
    narrow: int
    wide: int
    difference: float
    deviation: float

    @property
    def rises(self) -> bool:
        """Whether the loss rises with width beyond chance."""
        return self.difference > DEVIATIONS * self.deviation


def steps(
    rows: Sequence[Mapping[str, Any]], *, parametrisation: str, rate: float, after: int, every: int = 10
) -> list[Step]:
    """Every pair of neighbouring widths at every report after the warmup, over the seeds that all widths have.

    Args:
        rows: Cells of a transfer.
        parametrisation: ``mup`` or ``sp``.
        rate: The rate of all.
        after: The warmup's last update.
        every: Updates between reports.
    """
    curves: dict[int, dict[int, Sequence[float]]] = {}
    for row in rows:
        if row["parametrisation"] == parametrisation and row["rate"] == rate:
            curves.setdefault(row["width"], {})[row["seed"]] = row["curve"]
    widths = sorted(curves)
    seeds = sorted(set.intersection(*(set(found) for found in curves.values()))) if curves else []
    length = min((len(curves[width][seed]) for width in widths for seed in seeds), default=0)
    found = []
    for update in range(every, length + 1, every):
        for narrow, wide in pairwise(widths):
            pairs = [curves[wide][seed][update - 1] - curves[narrow][seed][update - 1] for seed in seeds]
            if update > after and len(pairs) > 1:
                found.append(Step(update, narrow, wide, statistics.fmean(pairs), statistics.stdev(pairs)))
    return found


def judge_wider(rows: Sequence[Mapping[str, Any]], *, rate: float, after: int, every: int = 10) -> Judgement:
    """Whether wider is better under μP, and is not without it, at the transferred rate."""
    mup = steps(rows, parametrisation="mup", rate=rate, after=after, every=every)
    sp = steps(rows, parametrisation="sp", rate=rate, after=after, every=every)
    checks = [_check(mup, "μP", rate)]
    if sp:
        rising = sum(step.rises for step in sp)
        checks.append(Check("control", rising > 0, f"without μP it rises in {rising} of {len(sp)}"))
    return Judgement(tuple(checks))


def _check(found: Sequence[Step], name: str, rate: float) -> Check:
    if not found:
        return Check("wider", False, "fewer than two seeds or widths at the transferred rate: nothing to compare")
    rising = [step for step in found if step.rises]
    text = f"at {rate_text(rate)} the training loss of {name} rises with width in {len(rising)} of {len(found)} reports"
    if rising:
        worst = max(rising, key=lambda step: step.difference)
        text += f", most by {worst.difference:.3f} from {worst.narrow} to {worst.wide} after update {worst.update}"
    return Check("wider", not rising, text)
