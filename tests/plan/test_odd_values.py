"""Whatever Python can hand over as a setting: taken for what it is, or refused, and nothing else is ever raised."""

from __future__ import annotations

import inspect
from fractions import Fraction

import numpy as np
import pytest

from mufree import OptimizerPlan, Refused, plan_optimizer
from mufree.plan.ranges import MOST

NUMBERS = [0, -0.0, -1, 2**63, 10**400, 1e39, 1e-46, float("nan"), float("inf"), Fraction(1, 10), np.float32(0.1)]
NO_NUMBERS = [None, True, np.bool_(True), "", " ", "x", "1e-3", b"x", [], [1], (), {}, {"a": 1}, set(), range(2)]
OBJECTS = [object(), type, 1 + 2j, np.array(0.1), np.array([0.1, 0.2]), ValueError("x"), lambda _path, _array: True]
SETTINGS = sorted(inspect.signature(plan_optimizer).parameters)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", ["adamw_torch", "rmsprop", "schedule_free_adamw", "no_such"])
@pytest.mark.parametrize("scheduler", ["constant", "cosine_with_min_lr", "mlx_lm"])
def test_nothing_but_a_refusal_is_raised(setting: str, optimizer: str, scheduler: str) -> None:
    """And what is planned prints, and goes to JSON and back."""
    usual = {"optimizer": optimizer, "lr": 1e-3, "total_updates": 10, "scheduler": scheduler}
    for value in [*NUMBERS, *NO_NUMBERS, *OBJECTS]:
        try:
            plan = plan_optimizer(**{**usual, setting: value})
        except Refused as refused:
            if not all(reason.field and reason.code and reason.message for reason in refused.reasons):
                raise
            continue
        assert plan.optimizer_name in plan.table()
        if not callable(plan.decay_mask):
            assert OptimizerPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("setting", ["lr", "weight_decay", "eps", "max_grad_norm", "total_updates", "warmup_steps"])
def test_a_number_too_large_for_a_float_is_refused_by_name(setting: str) -> None:
    """Python's integers have no end."""
    with pytest.raises(Refused) as caught:
        plan_optimizer(**{"optimizer": "adamw", "lr": 1e-3, setting: 10**400})
    assert [reason.field for reason in caught.value.reasons] == [setting]


def test_what_is_counted_has_an_end() -> None:
    """A table of rates must fit a machine."""
    assert plan_optimizer(optimizer="adamw", lr=1e-3, total_updates=MOST).total_updates == MOST
    with pytest.raises(Refused, match="total_updates: 1000000001 is out of range"):
        plan_optimizer(optimizer="adamw", lr=1e-3, total_updates=MOST + 1)


def test_a_negative_zero_is_zero() -> None:
    """It prints as one, and divides as one."""
    plan = plan_optimizer(optimizer="adamw", lr=-0.0, eps=-0.0, weight_decay=-0.0)
    assert [str(value) for value in (plan.peak_lr, plan.eps, plan.weight_decay)] == ["0.0"] * 3


def test_eps_of_zero_is_said() -> None:
    """Where it gives 0/0; ours guards against it, and where it cannot be honoured it is refused."""
    assert any("eps = 0" in text for text in plan_optimizer(optimizer="adamw", lr=1.0, eps=0).warnings)
    assert plan_optimizer(optimizer="schedule_free_adamw", lr=1.0, eps=0).warnings == ()
    with pytest.raises(Refused, match="eps: 0 is out of range"):
        plan_optimizer(optimizer="rmsprop", lr=1.0, eps=0)


def test_an_option_that_only_has_one_value_is_not_passed_on() -> None:
    """rmsprop's momentum of 0 is what is built, and no argument of the class."""
    plan = plan_optimizer(optimizer="rmsprop", lr=1.0, optim_args="momentum=0,centered=false")
    assert plan.momentum is None
    assert dict(plan.options) == {"alpha": 0.99}
    assert OptimizerPlan.from_json(plan.to_json()) == plan
