"""Lemma J.1 for schedule-free: a forward multiplier at the readout can be moved into start, rate, eps and decay.

With the readout multiplied by θ, its start and rate divided by θ and its eps and decay multiplied by θ, the losses are
those without a multiplier. Where θ is a power of two no bit differs, since nothing is rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mup_lemma import UPDATES, lemma_losses

from mufree import AdamWScheduleFree

from .rows import Row, Scale, Tick

THETAS = (1 / 64, 1 / 8, 8.0, 64.0)
CONTROLS = {"eps left behind": {"scale_eps": False}, "decay left behind": {"weight_decay": "standard"}}


def rows(_: Scale, tick: Tick) -> Iterator[Row]:
    """The largest difference of a loss, at every θ, and at θ = 1/8 with one of the rules left out."""
    for theta in THETAS:
        yield _row(f"θ = {theta:g}", theta, 0.0)
        tick(f"Lemma J.1, θ = {theta:g}")
    for name, rule in CONTROLS.items():
        yield _row(f"θ = {1 / 8:g}, {name}", 1 / 8, None, **rule)
        tick(f"Lemma J.1, {name}")


def cases() -> int:
    """How many ticks :func:`rows` makes."""
    return len(THETAS) + len(CONTROLS)


def _row(case: str, theta: float, limit: float | None, **rules: Any) -> Row:
    one, other = (lemma_losses(value, _optimizer, **rules) for value in (1.0, theta))
    return Row(
        problem="Lemma J.1",
        case=case,
        precision="float64",
        what="difference",
        updates=UPDATES,
        ours=max(abs(a - b) for a, b in zip(one, other, strict=True)),
        limit=limit,
    )


def _optimizer(_: Any, scales: Any) -> AdamWScheduleFree:
    return AdamWScheduleFree(0.01, eps=1e-3, weight_decay=0.5, warmup_steps=3, scales=scales)
