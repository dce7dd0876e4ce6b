from __future__ import annotations

import pytest

from mufree.mup.rules import FAMILIES, KINDS, Factors, factors

M = 8.0


def adam(kind: str, m_in: float, m_out: float, a: float = 1.0, **changes: object) -> Factors:
    settings = {"family": "adam", "weight_decay": "independent", "scale_eps": True, **changes}
    return factors(kind, m_in=m_in, m_out=m_out, multiplier=a, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "m_in", "m_out", "a", "expected"),
    [
        ("input-like", 1, M, 1, Factors(1, 1, 1 / M, 1)),
        ("hidden", M, M, 1, Factors(M**-0.5, 1 / M, 1 / M, M)),
        ("hidden", 2, M, 1, Factors(2**-0.5, 1 / 2, 1 / M, 2)),
        ("output-like", M, 1, 1, Factors(1 / M, 1 / M, 1, M)),
        ("scalar-like", 1, 1, 1, Factors(1, 1, 1, 1)),
        ("output-like", M, 1, 1 / M, Factors(1, 1, 1 / M, 1)),
        ("input-like", 1, M, M**0.5, Factors(M**-0.5, M**-0.5, M**-0.5, M**0.5)),
    ],
)
def test_tables_3_8_and_9(kind: str, m_in: float, m_out: float, a: float, expected: Factors) -> None:
    """The table's rows are those of the paper, without a multiplier, with 1/m at the readout, with √m at the input."""
    found = adam(kind, m_in, m_out, a)
    for name in ("init", "lr", "eps", "weight_decay"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-15), name


@pytest.mark.parametrize(
    ("kind", "m_in", "m_out", "a", "lr"),
    [
        ("input-like", 1, M, 1, M),
        ("hidden", M, 2, 1, 2 / M),
        ("output-like", M, 1, 1 / M, M),
        ("output-like", M, 1, 1, 1 / M),
    ],
)
def test_sgd_follows_fan_out_over_fan_in(kind: str, m_in: float, m_out: float, a: float, lr: float) -> None:
    """Rates are those of Table 3 and Table 8; the decay is the inverse; eps does not exist."""
    found = adam(kind, m_in, m_out, a, family="sgd")
    assert (found.lr, found.weight_decay, found.eps) == (lr, 1 / lr, 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [1 / 8, 8.0])
def test_lemma_j1_holds_between_any_two_multipliers(kind: str, family: str, theta: float) -> None:
    """A·θ goes with init/θ, rate/θ (θ² for SGD), and rate·decay stays."""
    one, other = adam(kind, 4, 2, 1, family=family), adam(kind, 4, 2, theta, family=family)
    if kind == "scalar-like":
        assert one == other
        return
    assert other.init * theta == one.init
    assert other.lr * theta ** (1 if family == "adam" else 2) == one.lr
    assert other.lr * other.weight_decay == one.lr * one.weight_decay
    assert other.eps == (one.eps * theta if family == "adam" else 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_at_base_width_every_factor_is_exactly_one(kind: str, family: str) -> None:
    """Nothing is scaled where nothing is wider."""
    assert adam(kind, 1, 1, family=family) == Factors(1, 1, 1, 1)


def test_decay_and_eps_can_be_left_alone() -> None:
    """``standard`` keeps the decay, ``none`` has none, unscaled eps stays."""
    assert adam("hidden", M, M, weight_decay="standard").weight_decay == 1
    assert adam("hidden", M, M, weight_decay="none").weight_decay == 0
    assert adam("hidden", M, M, scale_eps=False).eps == 1
