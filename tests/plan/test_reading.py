"""A plan read back says what the file says, or is refused: no value of the file is replaced."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mufree import OptimizerPlan, Refused, plan_optimizer

PLANS = {
    "sgd": plan_optimizer(
        optimizer="sgd",
        lr=0.1,
        momentum=0.9,
        optim_args="nesterov=true",
        scheduler="cosine_with_min_lr",
        scheduler_kwargs={"min_lr": 0.01},
        iters=43,
        grad_accumulation_steps=4,
        warmup_steps=2,
        max_grad_norm=1.0,
        weight_decay=0.1,
        decay_mask="hf",
    ),
    "schedule_free_adamw": plan_optimizer(optimizer="schedule_free_adamw", lr=0.1, warmup_steps=3),
    "lion": plan_optimizer(
        optimizer="lion", lr=1e-4, scheduler={"name": "cosine_decay", "arguments": [1e-4, 10], "warmup": 3}
    ),
}
ODD = [None, True, 0, -1, 1e39, 10**400, float("nan"), "", "x", [], [1], [0.9, 0.99], {}, {"a": 1}, ["a"], "all"]


def refused(metadata: Any, **given: Any) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        OptimizerPlan.from_metadata(metadata, **given)
    return [(reason.field, reason.code) for reason in caught.value.reasons]


@pytest.mark.parametrize("name", PLANS)
def test_every_tampered_field_is_read_as_it_says_or_refused(name: str) -> None:
    """Each field in turn, with each odd value; left out, it is missed."""
    metadata = json.loads(PLANS[name].to_json())
    assert OptimizerPlan.from_metadata(metadata) == PLANS[name]
    for key in metadata:
        for value in ODD:
            changed = {**copy.deepcopy(metadata), key: value}
            try:
                plan = OptimizerPlan.from_metadata(changed)
            except Refused:
                continue
            read = json.loads(plan.to_json())
            assert read[key] == value or key in ("notes", "warnings"), (key, value)
            assert {k for k in read if read[k] != metadata[k]} <= {key, "notes", "warnings"}
        without = {k: v for k, v in metadata.items() if k != key}
        assert refused(without)[0][0] in (key, "plan")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"optimizer": "Lion"}, ("optimizer", "conflict")),
        ({"leftover_micro_batches": 0}, ("leftover_micro_batches", "conflict")),
        ({"total_updates": 11}, ("total_updates", "conflict")),
        ({"iters": "43"}, ("iters", "not_whole")),
        ({"peak_lr": "0.1"}, ("peak_lr", "not_a_number")),
        ({"options": {}}, ("options", "conflict")),
        ({"options": {"nesterov": "true"}}, ("options", "conflict")),
        ({"options": {"alpha": 0.5}}, ("options.alpha", "not_read")),
        ({"scheduler_options": {"min_lr": 0.01, "x": 1}}, ("scheduler_options.x", "not_read")),
        ({"momentum": None}, ("momentum", "conflict")),
        ({"requested_optimizer": "SGD "}, ("requested_optimizer", "conflict")),
        ({"warnings": "all fine"}, ("warnings", "not_text")),
        ({"notes": [1]}, ("notes", "not_text")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_disagrees_is_refused_under_the_plan_s_own_names(change: dict[str, Any], reason: tuple[str, str]) -> None:
    """A default never takes the place of what is written."""
    assert reason in refused({**PLANS["sgd"].as_metadata(), **change})


def test_a_warning_that_was_taken_out_comes_back() -> None:
    """And one that was put in stays."""
    plan = OptimizerPlan.from_metadata({**PLANS["lion"].as_metadata(), "warnings": ["mine"], "notes": []})
    assert plan.warnings == ("mine", *PLANS["lion"].warnings)
    assert plan.notes == PLANS["lion"].notes


def test_a_function_takes_the_place_of_no_other_mask() -> None:
    """It is handed over only where the plan was made with one."""
    assert refused(PLANS["sgd"].as_metadata(), decay_mask=lambda _path, _array: True) == [("decay_mask", "conflict")]


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"format": 1}', "[" * 5_000, None, 3])
def test_what_is_no_plan_is_refused(text: Any) -> None:
    """Whatever it is."""
    with pytest.raises(Refused):
        OptimizerPlan.from_json(text)
