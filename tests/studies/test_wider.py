"""Wider is better: paired by seed, beyond chance, after the warmup."""

from __future__ import annotations

from typing import Any

import pytest

from mufree.studies.wider import judge_wider, steps


def rows(level: dict[int, float], kind: str = "mup", noise: float = 0.0) -> list[dict[str, Any]]:
    """Curves of 40 updates; seeds differ by a constant that pairs cancel, and by a little that they do not."""
    return [
        {
            "width": width,
            "rate": 0.25,
            "seed": seed,
            "parametrisation": kind,
            "curve": [3.0 + seed + value + noise * seed * (width == 128)] * 40,
        }
        for width, value in level.items()
        for seed in range(3)
    ]


def test_a_falling_loss_passes_and_a_rising_control_violates() -> None:
    """Three reports after the warmup, two pairs of widths."""
    good, bad = rows({64: 0.3, 128: 0.2, 256: 0.1}), rows({64: 0.3, 128: 0.4, 256: 0.5}, "sp")
    judged = judge_wider(good + bad, rate=0.25, after=10)
    assert judged.passed
    assert "rises with width in 0 of 6" in judged.sentence
    assert "without μP it rises in 6 of 6" in judged.sentence
    assert not judge_wider(good + rows({64: 0.3, 128: 0.2}, "sp"), rate=0.25, after=10).passed


def test_a_rise_is_named() -> None:
    """By how much, from where to where, and when."""
    judged = judge_wider(rows({64: 0.3, 128: 0.2, 256: 0.25}), rate=0.25, after=10)
    assert not judged.passed
    assert "most by 0.050 from 128 to 256 after update 20" in judged.sentence


@pytest.mark.parametrize(("noise", "rises"), [(0.01, True), (0.2, False)])
def test_within_two_deviations_of_the_paired_difference_is_chance(noise: float, rises: bool) -> None:
    """A mean of 0.06 + noise against a deviation of noise."""
    found = steps(rows({64: 0.0, 128: 0.06}, noise=noise), parametrisation="mup", rate=0.25, after=20)
    assert [step.update for step in found] == [30, 40]
    assert found[0].difference == pytest.approx(0.06 + noise)
    assert found[0].deviation == pytest.approx(noise)
    assert {step.rises for step in found} == {rises}


def test_only_seeds_that_every_width_has_are_compared() -> None:
    """And one alone says nothing."""
    some = [row for row in rows({64: 0.0, 128: 0.1}) if row["width"] == 64 or row["seed"] == 0]
    assert not steps(some, parametrisation="mup", rate=0.25, after=0)
    assert "nothing to compare" in judge_wider(some, rate=0.25, after=0).sentence
