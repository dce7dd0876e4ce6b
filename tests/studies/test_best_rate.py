"""The point of it all, with fixed seeds: under μP the best learning rate stays, without it wanders off."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from small_task import MLP, batches, loss, optimizer

from mufree.studies import lr_transfer

# Measured: μP's best is 2^-4, 2^-3, 2^-3 at widths 16, 64, 256, the control's 2^-4, 2^-5, 2^-7.
STAYS, WANDERS = 1, 3


@pytest.mark.slow
def test_mup_keeps_the_best_rate_and_standard_parametrisation_does_not(tmp_path: Path) -> None:
    """Widths over a factor of 16, a factor-2 grid, two seeds: one step of drift against three."""
    found = lr_transfer(
        MLP,
        batches,
        loss,
        base_width=16,
        widths=[64, 256],
        rates=[2.0**power for power in range(-8, -1)],
        optimizer=optimizer,
        updates=40,
        seeds=2,
        folder=tmp_path / "sweep",
    )
    drift = {}
    for parametrisation in ("mup", "sp"):
        best = []
        for width in (16, 64, 256):
            losses: dict[float, list[float]] = {}
            for row in found.rows:
                if (row["parametrisation"], row["width"]) == (parametrisation, width):
                    losses.setdefault(row["rate"], []).append(row["losses"]["loss"])
            best.append(min(losses, key=lambda rate: statistics.mean(losses[rate])))
        drift[parametrisation] = math.log2(max(best) / min(best))
    assert drift["mup"] <= STAYS
    assert drift["sp"] >= WANDERS
