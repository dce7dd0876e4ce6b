"""Every rule against the class its name means: 200 updates on the same gradients, recorded by ``reference/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mufree import build_optimizer, plan_optimizer
from mufree.build.rules import stock_rule
from mufree.plan.cautions import BETA2_ERROR, BETA2_MOVEMENT
from mufree.plan.names import BUILT, family_of

DATA = np.load(Path(__file__).parent.parent / "data" / "standard_optimizers.npz")
ABOUT = json.loads(str(DATA["about"]))
PLANS: list[dict[str, Any]] = ABOUT["plans"]
FLOAT32 = 2e-6  # of the largest weight after 200 updates, both sides in float32: their roundings add up
FLOAT32_OWN = {
    "adamw_hf": 5e-6,  # against the update as published, in float64
    "adafactor": 1e-6,
}
FLOAT32_LION = 1e-5  # against the update as published, in float64: measured 7.2e-6, as NumPy's own float32 is
FLOAT32_MUON = 4e-3  # torch's class orthogonalises in bfloat16: measured 1.8e-3, the whole difference
MUON_EXACT = 1e-6  # our float32 against torch's algorithm with Newton–Schulz in float64
FLOAT64 = 1e-13  # the formula: float64 roundings of 200 updates
THIRTEEN = [
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw",
    "adam",
    "sgd",
    "lion",
    "adafactor",
    "adagrad",
    "adamax",
    "rmsprop",
    "adadelta",
    "muon",
]
QUOTED = 1.3  # a warning's figure is the measured one to this factor: it depends on the draws


def draws(names: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Start and gradients, drawn as the recording drew them."""
    shapes = {name: tuple(shape) for name, shape in ABOUT["shapes"].items()}
    random = np.random.RandomState(ABOUT["seed"])
    start = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    drift = {name: random.normal(0, 0.5e-2, shape) for name, shape in shapes.items()}
    gradients = []
    for _ in range(ABOUT["updates"]):
        noisy = {name: (drift[name] + random.normal(0, 1e-2, s)).astype(np.float32) for name, s in shapes.items()}
        gradients.append({name: noisy[name] for name in names})
    return {name: start[name] for name in names}, gradients


def trained(plan: dict[str, Any], dtype: mx.Dtype) -> dict[int, dict[str, np.ndarray]]:
    """Our parameters after the recorded updates."""
    names = [name for name, shape in ABOUT["shapes"].items() if plan["optimizer"] != "muon" or len(shape) == 2]
    start, gradients = draws(names)
    kept = {}
    with mx.stream(mx.cpu):
        optimizer = build_optimizer(plan_optimizer(**plan))
        params = {name: mx.array(value, dtype=dtype) for name, value in start.items()}
        if dtype == mx.float64:
            optimizer.state["step"] = mx.array(0, mx.float64)
            optimizer.state["learning_rate"] = mx.array(plan["lr"], mx.float64)
        for update, gradient in enumerate(gradients, 1):
            params = optimizer.apply_gradients({k: mx.array(g, dtype=dtype) for k, g in gradient.items()}, params)
            mx.eval(params, optimizer.state)
            if update in ABOUT["kept"]:
                kept[update] = {name: np.array(value) for name, value in params.items()}
    return kept


def worst(index: int, kept: dict[int, dict[str, np.ndarray]], kind: str, update: int) -> float:
    """The largest difference over the largest weight, in the worst tensor."""
    found = []
    for name, value in kept[update].items():
        recorded = DATA[f"{index}/{update}/{name}/{kind}"].astype(np.float64)
        found.append(np.abs(value.astype(np.float64) - recorded).max() / np.abs(recorded).max())
    return max(found)


def label(plan: dict[str, Any]) -> str:
    return "-".join(str(value) for key, value in plan.items() if key not in ("lr", "coupled_weight_decay"))


CASES = pytest.mark.parametrize(("index", "plan"), list(enumerate(PLANS)), ids=[label(plan) for plan in PLANS])


@CASES
def test_float32_is_the_class_to_a_rounding(index: int, plan: dict[str, Any]) -> None:
    """After 1, 10 and 200 updates."""
    kept = trained(plan, mx.float32)
    bound = FLOAT32_MUON if plan["optimizer"] == "muon" else FLOAT32_OWN.get(plan["optimizer"], FLOAT32)
    assert max(worst(index, kept, "float32", update) for update in ABOUT["kept"]) <= bound


@CASES
def test_float64_is_the_formula(index: int, plan: dict[str, Any]) -> None:
    """With rate and step handed in as float64, muon's Newton–Schulz in float64 on both sides."""
    kept = trained(plan, mx.float64)
    assert worst(index, kept, "float64", ABOUT["updates"]) <= FLOAT64


@pytest.mark.parametrize(("index", "plan"), [case for case in enumerate(PLANS) if case[1]["optimizer"] == "muon"])
def test_muon_in_float32_is_torch_s_algorithm(index: int, plan: dict[str, Any]) -> None:
    """Much nearer to what torch means than torch's own bfloat16 iteration is."""
    assert worst(index, trained(plan, mx.float32), "float64", ABOUT["updates"]) <= MUON_EXACT


@pytest.mark.parametrize(("index", "plan"), [case for case in enumerate(PLANS) if "lion" in case[1]["optimizer"]])
def test_lion_in_float32_is_the_published_update(index: int, plan: dict[str, Any]) -> None:
    """No sign differs from float64's: one that did would be two rates, 1e-4, apart."""
    assert worst(index, trained(plan, mx.float32), "float64", ABOUT["updates"]) <= FLOAT32_LION


@pytest.mark.parametrize("beta2", [0.9999, 0.99999])
def test_what_a_large_beta2_costs_is_what_the_warning_says(beta2: float) -> None:
    """Float32 against float64 after 200 updates, in the worst tensor."""
    plan = {"optimizer": "adamw_torch", "lr": 1e-3, "betas": (0.9, beta2)}
    start = draws(list(ABOUT["shapes"]))[0]
    single, double = (trained(plan, dtype)[ABOUT["updates"]] for dtype in (mx.float32, mx.float64))
    error = max(np.abs(single[n] - double[n]).max() / np.abs(double[n]).max() for n in double)
    moved = max(np.linalg.norm(single[n] - double[n]) / np.linalg.norm(double[n] - start[n]) for n in double)
    times = 1e-4 / (1 - beta2)
    assert 1 / QUOTED < error / (BETA2_ERROR * times) < QUOTED
    assert 1 / QUOTED < moved / (BETA2_MOVEMENT * times) < QUOTED


def test_the_thirteen_are_all_here() -> None:
    """Each of the names that are always built is built as a recorded case is, and so are the others."""
    recorded = [plan_optimizer(**{**plan, "lr": 1.0}) for plan in PLANS]
    rules = [stock_rule(plan, 1.0) for plan in recorded]
    assert set(THIRTEEN) <= set(BUILT)
    for name in (name for name, built in BUILT.items() if not family_of(built).schedule_free):
        coupled = family_of(BUILT[name]).decay == "none"
        plan = plan_optimizer(optimizer=name, lr=1.0, weight_decay=0.1, coupled_weight_decay=coupled)
        assert stock_rule(plan, 1.0) in rules, name
