"""The verdict on a transfer, in words, for every way in which it can fail."""

from __future__ import annotations

import pytest

from mufree.mup.verdict import Sweep
from mufree.studies.judgement import judge_transfer

RATES = [2.0**power for power in range(-9, -2)]


def sweep(width: int, best: int, level: float = 1.0, steep: float = 0.1) -> Sweep:
    """A parabola in log rate with its minimum at 2^best."""
    return Sweep(width, {2.0**p: level + steep * (p - best) ** 2 for p in range(-9, -2)})


GOOD = [sweep(64, -6, 1.2), sweep(128, -6, 1.1), sweep(256, -6, 1.0)]
CONTROL = [sweep(64, -6, 1.2), sweep(128, -7, 1.1), sweep(256, -8, 1.05)]


def failed(mup: list[Sweep], sp: list[Sweep] | None = None) -> set[str]:
    return {check.name for check in judge_transfer(mup, sp or []).checks if not check.passed}


def test_a_transfer_that_holds() -> None:
    """Passes, and the sentence has every number."""
    judged = judge_transfer(GOOD, CONTROL)
    assert judged.passed
    assert judged.sentence.startswith("Passed: ")
    for piece in ("2^-6", "costs 0 %", "0 steps apart", "moves 2 steps", "costs 38 %", "μP 1.0000, SP 1.0500"):
        assert piece in judged.sentence


def test_regret_is_the_primary_gate() -> None:
    """Half a percent at any width: a step of a flat curve is allowed, one of a steep curve is not."""
    assert failed([GOOD[0], sweep(128, -7, 1.0, steep=0.004)]) == set()
    assert failed([GOOD[0], sweep(128, -7, 1.0, steep=0.006)]) == {"regret"}


def test_two_steps_are_a_drift() -> None:
    """Even where they cost nothing."""
    assert failed([GOOD[0], sweep(128, -8, 1.0, steep=0.001)]) == {"drift"}


@pytest.mark.parametrize(("best", "word"), [(-9, "add lower rates"), (-3, "add higher rates")])
def test_a_minimum_on_the_edge_is_no_minimum(best: int, word: str) -> None:
    """At any width, and with advice."""
    judged = judge_transfer([sweep(64, best), sweep(128, best)])
    assert not judged.passed
    assert word in judged.sentence
    assert "width 128" in judged.sentence


def test_everything_diverged() -> None:
    """No best rate: said so, and nothing passes."""
    lost = Sweep(128, dict.fromkeys(RATES))
    judged = judge_transfer([GOOD[0], lost])
    assert not judged.passed
    assert "diverged at every rate at width 128" in judged.sentence


def test_a_transferred_rate_that_diverges() -> None:
    """Costs everything."""
    losses = dict(sweep(128, -7).losses) | {2.0**-6: None}
    judged = judge_transfer([GOOD[0], Sweep(128, losses)])
    assert not judged.passed
    assert "everything (it diverges)" in judged.sentence


def test_a_control_that_transfers_too_is_no_control() -> None:
    """The task does not tell μP from SP then."""
    judged = judge_transfer(GOOD, [sweep(64, -6, 1.2), sweep(128, -6, 1.1), sweep(256, -7, 1.1, steep=0.01)])
    assert failed(GOOD, [sweep(64, -6, 1.2), sweep(128, -6, 1.1), sweep(256, -7, 1.1, steep=0.01)]) == {"control"}
    assert "does not tell the two apart" in judged.sentence


def test_control_by_regret_alone() -> None:
    """One step that costs two percent is enough."""
    assert failed(GOOD, [sweep(64, -6, 1.2), sweep(128, -6, 1.1), sweep(256, -7, 1.1, steep=0.03)]) == set()


def test_a_control_on_the_edge_or_better_than_mup() -> None:
    """Is not hidden."""
    assert failed(GOOD, [*CONTROL[:2], sweep(256, -9, 1.05)]) == {"interior"}
    assert failed(GOOD, [*CONTROL[:2], sweep(256, -8, 0.95)]) == {"best"}


def test_only_the_base_width() -> None:
    """Gives a rate and claims nothing."""
    judged = judge_transfer([GOOD[0]])
    assert judged.passed
    assert "transfer was not checked" in judged.sentence
    assert not judge_transfer([sweep(64, -9)]).passed
