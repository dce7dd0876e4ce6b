"""Schedules join at the warmup and count updates, where mlx-lm's join one later and count what it iterates."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mufree import OptimizerPlan, build_lr_schedule, build_optimizer, plan_optimizer

ROUNDING = 2e-7  # float32 rates around 1
PEAK = 1e-4


def used(plan: OptimizerPlan, updates: int) -> list[float]:
    """The rates of a built optimizer, read off what plain SGD moves under a gradient of one."""
    optimizer = build_optimizer(plan)
    rates = []
    for _ in range(updates):
        after = optimizer.apply_gradients({"w": mx.ones((1,))}, {"w": mx.zeros((1,))})
        rates.append(-after["w"].item())
    return rates


def test_the_cosine_begins_where_the_warmup_ends() -> None:
    """Warmup 4, peak 1e-4, cosine 16: the peak is used once; mlx-lm's own mapping keeps its meaning."""
    settings: dict[str, Any] = {"optimizer": "sgd", "lr": PEAK}
    ours = plan_optimizer(**settings, scheduler="cosine", warmup_steps=4, total_updates=20)
    expected = [0.0, 2.5, 5.0, 7.5, 10.0, 9.904]
    assert [round(rate / PEAK * 10, 3) for rate in used(ours, 6)] == expected
    assert [round(ours.rate(k) / PEAK * 10, 3) for k in range(6)] == expected
    mapping = {"name": "cosine_decay", "warmup": 4, "warmup_init": 0.0, "arguments": [PEAK, 16]}
    theirs = plan_optimizer(**settings, scheduler=mapping)
    assert [round(rate / PEAK * 10, 3) for rate in used(theirs, 7)] == [*expected[:5], 10.0, 9.904]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_iterations_are_counted_in_updates(accumulation: int) -> None:
    """40 iterations in windows of four are ten updates, and the schedule ends after the tenth."""
    plan = plan_optimizer(
        optimizer="sgd", lr=1.0, scheduler="linear", iters=10 * accumulation, grad_accumulation_steps=accumulation
    )
    assert plan.total_updates == 10
    assert used(plan, 10) == pytest.approx([1 - k / 10 for k in range(10)], abs=ROUNDING)
    schedule = build_lr_schedule(plan)
    assert not isinstance(schedule, float)
    assert schedule(mx.array(5)).item() == pytest.approx(0.5, abs=ROUNDING)
