"""Slopes, spreads, best rates and what a transferred one costs."""

from __future__ import annotations

import math

import pytest

from mufree.mup.verdict import Sweep, drift, slope, spread

# Sums of a few float64 terms.
EXACT = 1e-12


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.37])
def test_the_slope_of_a_power_of_width_is_the_power(power: float) -> None:
    """Whatever the constant before it."""
    widths = [64, 128, 512]
    assert slope(widths, [3 * width**power for width in widths]) == pytest.approx(power, abs=EXACT)


def test_the_slope_is_the_least_squares_one() -> None:
    """Of log₂ 1, 4, 4 on log₂ 1, 2, 4, in steps of one: (0·−1 + 2·0 + 2·1)/2."""
    assert slope([1, 2, 4], [1, 4, 4]) == pytest.approx(1.0, abs=EXACT)
    assert spread([1, 4, 2]) == 4


def test_a_best_rate_inside_the_grid() -> None:
    """The lowest loss; the regret of another is relative to it."""
    sweep = Sweep(64, {0.1: 2.0, 0.2: 1.0, 0.4: 1.5})
    assert (sweep.best, sweep.edge, sweep.interior, sweep.best_loss) == (0.2, None, True, 1.0)
    assert sweep.regret(0.4) == 0.5
    assert sweep.regret(0.2) == 0


@pytest.mark.parametrize(("losses", "edge"), [({0.1: 1.0, 0.2: 2.0}, "lowest"), ({0.1: 3.0, 0.2: 2.0}, "highest")])
def test_a_best_rate_on_the_edge(losses: dict[float, float | None], edge: str) -> None:
    """Is named, for a better one may lie beyond."""
    assert Sweep(64, losses).edge == edge
    assert not Sweep(64, losses).interior


def test_a_neighbour_that_diverged_bounds_the_minimum() -> None:
    """Beyond a rate that diverges nothing is better."""
    sweep = Sweep(64, {0.1: 2.0, 0.2: 1.0, 0.4: None})
    assert sweep.interior
    assert sweep.regret(0.4) == math.inf


def test_a_width_at_which_everything_diverged() -> None:
    """Has no best rate, infinite regret, and makes the drift infinite."""
    lost = Sweep(128, {0.1: None, 0.2: None})
    assert lost.best is None
    assert not lost.interior
    assert lost.best_loss == math.inf
    assert drift([Sweep(64, {0.1: 2.0, 0.2: 1.0}), lost]) == math.inf


def test_drift_counts_steps_of_the_grid() -> None:
    """Between the lowest and the highest best rate."""
    grid = (0.1, 0.2, 0.4, 0.8)
    sweeps = [Sweep(width, {r: abs(r - best) for r in grid}) for width, best in ((64, 0.4), (128, 0.1), (256, 0.2))]
    assert drift(sweeps) == 2
    part = Sweep(512, {0.2: 1.0, 0.4: 0.5, 0.8: 1.0})
    assert drift([sweeps[0], part]) == 0, "a width may have a part of the grid"
