"""Every field of a plan reaches what is built: a build that drops it is caught, field by field and rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest

from mufree import OptimizerPlan, Refused, build_optimizer, plan_optimizer
from mufree.plan.families import FAMILIES

EXACT = 1e-6  # a handful of float32 updates of size 1
NOTHING = {
    "peak_lr": 1e-3,
    "scheduler": "constant",
    "scheduler_options": (),
    "warmup_updates": 0,
    "total_updates": None,
    "past_end": "hold",
    "weight_decay": 0.0,
    "decay_mask": "all",
    "coupled_weight_decay": False,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "momentum": 0.0,
    "options": (),
    "max_grad_norm": None,
    "requested_optimizer": "adamw",
}
SAID_ONLY = {  # what a plan says about the run and itself; nothing is built from it
    "optimizer_name",
    "iters",
    "grad_accumulation_steps",
    "leftover_micro_batches",
    "notes",
    "warnings",
}


@dataclass(frozen=True)
class Case:
    """A setting, gradients of a weight that starts at ``start``, and where it must end, worked out by hand."""

    field: str
    settings: dict[str, Any]
    gradients: tuple[float, ...]
    end: float
    start: float = 0.0


LINEAR = {"optimizer": "sgd", "lr": 1.0, "scheduler": "linear", "total_updates": 4}
POLYNOMIAL = {"scheduler": "polynomial", "scheduler_kwargs": {"power": 2.0, "lr_end": 0.0}}
L2_ADAM = {"optimizer": "adam", "lr": 0.1, "weight_decay": 0.5, "coupled_weight_decay": True}
NESTEROV = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.5, "optim_args": "nesterov=true"}
SECOND_STEP = (1.25 / 0.75) / (4.75 / 0.75) ** 0.5  # m = 0.25 − 1.5 and v = 0.25 + 4.5, both over 1 − 0.5²
CASES = [
    Case("requested_optimizer", {"optimizer": "sgd", "lr": 0.5}, (4.0,), -2.0),
    Case("peak_lr", {"optimizer": "sgd", "lr": 0.25}, (1.0,), -0.25),
    Case("peak_lr", {"optimizer": "schedule_free_sgd", "lr": 0.25}, (1.0,), -0.25),
    Case("scheduler", LINEAR, (1.0,) * 4, -(1 + 0.75 + 0.5 + 0.25)),
    Case("total_updates", LINEAR, (1.0,) * 4, -(1 + 0.75 + 0.5 + 0.25)),
    Case("scheduler_options", {**LINEAR, **POLYNOMIAL}, (1.0,) * 4, -(16 + 9 + 4 + 1) / 16),
    Case("warmup_updates", {"optimizer": "sgd", "lr": 1.0, "warmup_steps": 2}, (1.0,) * 4, -(0 + 0.5 + 1 + 1)),
    Case("warmup_updates", {"optimizer": "schedule_free_sgd", "lr": 1.0, "warmup_steps": 2}, (1.0,), -0.5),
    Case("weight_decay", {"optimizer": "adamw", "lr": 0.5, "weight_decay": 0.5}, (0.0,), 0.75, start=1.0),
    Case("weight_decay", {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.5}, (0.0,), 0.75, start=1.0),
    Case("weight_decay", {"optimizer": "schedule_free_sgd", "lr": 0.5, "weight_decay": 0.5}, (0.0,), 0.75, start=1.0),
    Case("coupled_weight_decay", L2_ADAM, (0.0,), 0.9, start=1.0),
    Case("betas", {"optimizer": "adamw", "lr": 1.0, "betas": (0.5, 0.5)}, (1.0, -3.0), -1 + SECOND_STEP),
    Case("eps", {"optimizer": "adamw", "lr": 1.0, "eps": 1.0, "betas": (0.5, 0.5)}, (1.0,), -0.5),
    Case("momentum", {"optimizer": "sgd", "lr": 1.0, "momentum": 0.5}, (1.0, 1.0), -(1 + 1.5)),
    Case("options", NESTEROV, (1.0, 1.0), -(1.5 + 1.75)),
    Case("max_grad_norm", {"optimizer": "sgd", "lr": 1.0, "max_grad_norm": 0.5}, (3.0,), -0.5),
]


def end(plan: OptimizerPlan, gradients: tuple[float, ...], start: float) -> float:
    """Where the weight ends."""
    optimizer = build_optimizer(plan)
    params = {"w": mx.array([start])}
    for gradient in gradients:
        params = optimizer.apply_gradients({"w": mx.array([gradient])}, params)
    return params["w"].item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.field}-{case.settings['optimizer']}")
def test_a_build_that_drops_the_field_is_caught(case: Case) -> None:
    """The built object ends where the plan says; built without the field it does not."""
    plan = plan_optimizer(**case.settings)
    assert end(plan, case.gradients, case.start) == pytest.approx(case.end, abs=EXACT)
    mutant = replace(plan, **{case.field: NOTHING[case.field]})
    try:
        found = end(mutant, case.gradients, case.start)
    except (Refused, TypeError, ZeroDivisionError):
        return
    assert found != pytest.approx(case.end, abs=100 * EXACT)


def moved_bias(plan: OptimizerPlan) -> bool:
    """Whether a bias decays."""
    model = nn.Linear(2, 2)
    model.bias = mx.ones(2)
    zero = {"weight": mx.zeros((2, 2)), "bias": mx.zeros(2)}
    after = build_optimizer(plan, model).apply_gradients(zero, model.parameters())
    return not mx.array_equal(after["bias"], model.bias)


def survives_the_end(plan: OptimizerPlan) -> bool:
    """Whether an update past the end is made."""
    optimizer, one = build_optimizer(plan), {"w": mx.ones(1)}
    optimizer.apply_gradients(one, one)
    try:
        optimizer.apply_gradients(one, one)
    except Refused:
        return False
    return True


QUESTIONS: dict[str, tuple[dict[str, Any], Callable[[OptimizerPlan], bool]]] = {
    "decay_mask": ({"weight_decay": 0.5, "decay_mask": "hf"}, moved_bias),
    "past_end": ({"total_updates": 1, "past_end": "refuse"}, survives_the_end),
}


@pytest.mark.parametrize("field", QUESTIONS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_build_that_drops_the_mask_or_the_end_is_caught(field: str, optimizer: str) -> None:
    """With the field: no. Without it: yes."""
    settings, happens = QUESTIONS[field]
    plan = plan_optimizer(optimizer=optimizer, lr=0.5, **settings)
    assert not happens(plan)
    assert happens(replace(plan, **{field: NOTHING[field]}))


def test_every_field_is_here() -> None:
    """A new field of the plan must be dropped in a test, or only say something."""
    caught = {case.field for case in CASES} | set(QUESTIONS)
    assert caught | SAID_ONLY == {item.name for item in fields(OptimizerPlan)}


@pytest.mark.parametrize("field", sorted(SAID_ONLY))
def test_what_is_only_said_is_said(field: str) -> None:
    """In the metadata."""
    plan = plan_optimizer(optimizer="sgd", lr=0.5)
    other = {"optimizer_name": "x", "notes": ("x",), "warnings": ("x",)}.get(field, 7)
    assert replace(plan, **{field: other}).as_metadata() != plan.as_metadata()


RATED = ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd")


def readings() -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Every (rule, setting) there is, with settings that differ in it alone."""
    found = []
    for form, family in FAMILIES.items():
        base: dict[str, Any] = {"optimizer": form, "lr": 1.0 if form in ("adadelta", *RATED) else 0.1}
        if form in RATED[1:]:
            base["warmup_steps"] = 6  # the averaging weights follow the rate: it must change
        if family.betas is not None:
            found.append((form, "betas[0]", base, {**base, "betas": (0.5, family.betas[1])}))
            found.append((form, "betas[1]", base, {**base, "betas": (family.betas[0], 0.8)}))
        if family.eps is not None:
            found.append((form, "eps", base, {**base, "eps": 0.3}))
        if family.momentum is not None:
            found.append((form, "momentum", base, {**base, "momentum": 0.5}))
        coupled = {"coupled_weight_decay": True} if family.decay == "none" else {}
        found.append((form, "weight_decay", base, {**base, "weight_decay": 0.5, **coupled}))
        for key, option in family.options.items():
            if not option.only:
                value = (not option.default) if option.kind == "flag" else 3 if option.kind == "whole" else 0.55
                start = {**base, "momentum": 0.5} if (form, key) == ("sgd", "nesterov") else base
                found.append((form, key, start, {**start, "optim_args": f"{key}={value}"}))
    return found


@pytest.mark.parametrize(
    ("form", "setting", "without", "given"), readings(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_setting_that_a_rule_reads_changes_what_it_does(
    form: str, setting: str, without: dict[str, Any], given: dict[str, Any]
) -> None:
    """So that no constructor call can leave it out."""

    def trained(settings: dict[str, Any]) -> mx.array:
        optimizer: optim.Optimizer = build_optimizer(plan_optimizer(**settings))
        params = {"w": mx.array([[1.0, -0.5], [0.25, 2.0], [0.1, 0.2]])}
        for k in range(12):
            params = optimizer.apply_gradients({"w": mx.sin(2.3 * k + mx.arange(6).reshape(3, 2))}, params)
        return params["w"]

    assert mx.abs(trained(without) - trained(given)).max().item() > 100 * EXACT
