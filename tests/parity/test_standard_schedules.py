"""Every schedule against transformers' ``get_scheduler``: the same float32 numbers, or a refusal where it raises."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mufree import OptimizerPlan, Refused, build_lr_schedule, build_optimizer, plan_optimizer

DATA = np.load(Path(__file__).parent.parent / "data" / "standard_schedules.npz")
ABOUT = json.loads(str(DATA["about"]))
CASES: list[tuple[int, dict[str, Any]]] = list(enumerate(ABOUT["cases"]))
RAISES = [case for case in CASES if "error" in case[1]]
SHORT = [case for case in CASES if str(case[0]) in DATA]
LONG = [case for case in CASES if "sha256" in case[1]]


def label(case: tuple[int, dict[str, Any]]) -> str:
    settings = case[1]
    options = ",".join(f"{key}={value}" for key, value in settings["options"].items())
    return f"{settings['scheduler']}({options})-{settings['warmup']}-{settings['total']}"


def planned(case: dict[str, Any]) -> OptimizerPlan:
    return plan_optimizer(
        optimizer="sgd",
        lr=ABOUT["lr"],
        scheduler=case["scheduler"],
        scheduler_kwargs=case["options"],
        warmup_steps=case["warmup"],
        total_updates=case["total"],
    )


def rates(plan: OptimizerPlan, *, compiled: bool) -> np.ndarray:
    """The rate of every update, all steps looked up at once."""
    schedule = build_lr_schedule(plan)
    if not callable(schedule):
        return np.full(plan.total_updates, schedule, np.float32)
    look_up = mx.compile(schedule) if compiled else schedule
    return np.array(look_up(mx.arange(plan.total_updates, dtype=mx.uint64)))


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", SHORT, ids=label)
def test_every_rate_is_transformers_bit_for_bit(case: tuple[int, dict[str, Any]], compiled: bool) -> None:
    """In float32, first update to last."""
    index, settings = case
    assert np.array_equal(rates(planned(settings), compiled=compiled), DATA[str(index)])


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", LONG, ids=label)
def test_long_runs_too(case: tuple[int, dict[str, Any]], compiled: bool) -> None:
    """100,000 updates, compared by their hash."""
    sequence = rates(planned(case[1]), compiled=compiled)
    assert hashlib.sha256(sequence.tobytes()).hexdigest() == case[1]["sha256"]


@pytest.mark.parametrize("case", RAISES, ids=label)
def test_where_transformers_raises_we_refuse(case: tuple[int, dict[str, Any]]) -> None:
    """An option that is missing, unknown, contradictory or out of range."""
    with pytest.raises(Refused):
        planned(case[1])


def test_the_ten_names_are_all_here() -> None:
    """And some of their cases raise."""
    assert len({case["scheduler"] for _, case in CASES}) == 10
    assert len(SHORT) > 100
    assert len(RAISES) > 20


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_the_rate_used_is_the_schedule_s(compiled: bool) -> None:
    """As an optimizer sees it, update by update, inside a compiled step too; and past the end it holds."""
    case = next(c for c in SHORT if c[1] == {"scheduler": "linear", "options": {}, "warmup": 10, "total": 100})
    optimizer = build_optimizer(planned(case[1]))
    params = {"w": mx.zeros(1)}
    optimizer.init(params)

    def update(params: dict) -> dict:
        return optimizer.apply_gradients({"w": mx.ones(1)}, params)

    step = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state) if compiled else update
    used = []
    for _ in range(103):
        params = step(params)
        used.append(optimizer.learning_rate.item())
    expected = DATA[str(case[0])]
    assert used[:100] == expected.tolist()
    assert used[100:] == [float(expected[-1])] * 3
