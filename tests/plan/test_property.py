"""Whatever is given: it is in the plan as given, or the plan is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufree import OptimizerPlan, Refused, plan_optimizer
from mufree.plan.names import BUILT, UNBUILT
from mufree.plan.schedule_options import OPTIONS

ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-2, 200), st.booleans(), st.text(max_size=3)
)
COUNTS = st.integers(1, 300)


def settings_of(number: Any, names: Any) -> Any:
    """Settings whose numbers come from ``number``, a function of what is usual."""
    share, rate = number(st.floats(0.01, 0.9)), number(st.floats(1e-6, 1))
    return st.fixed_dictionaries(
        {"optimizer": names, "lr": rate},
        optional={
            "scheduler": st.sampled_from(["constant", "constant_with_warmup", *OPTIONS, "greedy"]),
            "warmup_steps": number(st.integers(0, 3)),
            "warmup_ratio": share,
            "weight_decay": rate,
            "total_updates": number(COUNTS),
            "iters": number(COUNTS),
            "grad_accumulation_steps": number(st.integers(1, 5)),
            "betas": st.one_of(st.none(), number(st.tuples(st.floats(0.1, 0.99), st.floats(0.7, 0.99)))),
            "eps": st.one_of(st.none(), rate),
            "momentum": st.one_of(st.none(), share),
            "max_grad_norm": st.one_of(st.none(), rate),
            "decay_mask": st.sampled_from(["all", "hf"]),
            "coupled_weight_decay": st.booleans(),
            "past_end": st.sampled_from(["hold", "refuse"]),
            "optim_args": st.sampled_from([None, "", "momentum=0.5", "r=1", "alpha=0.5,eps=0.1", "nesterov=yes", "x"]),
        },
    )


SETTINGS = st.one_of(
    *[settings_of(lambda usual: usual, st.sampled_from(sorted(BUILT)))] * 3,
    settings_of(lambda usual: st.one_of(usual, ANYTHING), st.sampled_from([*BUILT, *UNBUILT, "no_such"])),
)
FIELDS = {"lr": "peak_lr", "warmup_steps": "warmup_updates"}


@settings(max_examples=400, deadline=None, derandomize=True)
@given(SETTINGS)
def test_what_is_given_is_planned_as_given_or_refused(given_settings: dict[str, Any]) -> None:
    """Never a default over an explicit value, and nothing but a refusal is ever raised."""
    try:
        plan = plan_optimizer(**given_settings)
    except Refused as refused:
        unsaid = [reason for reason in refused.reasons if not (reason.field and reason.code and reason.message)]
        if unsaid:
            raise
        return
    for key, value in given_settings.items():
        if value is None or key in ("optimizer", "warmup_ratio", "optim_args"):
            continue
        planned = getattr(plan, FIELDS.get(key, key))
        assert planned == (tuple(value) if isinstance(value, list) else value), key
    if given_settings.get("warmup_ratio"):
        assert plan.warmup_updates >= 1
    for piece in filter(None, (given_settings.get("optim_args") or "").split(",")):
        key, _, value = piece.partition("=")
        said = {**dict(plan.options), "momentum": plan.momentum, "eps": plan.eps}
        assert said[key] == (value == "yes" if key == "nesterov" else float(value))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SETTINGS)
def test_every_plan_survives_json(given_settings: dict[str, Any]) -> None:
    """The same plan comes back, through the same checks."""
    try:
        plan = plan_optimizer(**given_settings)
    except Refused:
        return
    assert OptimizerPlan.from_metadata(json.loads(json.dumps(plan.as_metadata()))) == plan
    assert plan.optimizer_name in plan.table()


@pytest.mark.parametrize("field", ["lr", "weight_decay", "eps", "momentum", "max_grad_norm", "warmup_ratio"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, True, "0.1", [0.1]])
def test_no_number_is_taken_that_is_none(field: str, value: object) -> None:
    """Refused by name, whatever else is right."""
    base: dict[str, Any] = {
        "optimizer": "schedule_free_sgd" if field == "momentum" else "adamw",
        "lr": 0.1,
        "total_updates": 9,
    }
    with pytest.raises(Refused) as caught:
        plan_optimizer(**{**base, field: value})
    assert [reason.field for reason in caught.value.reasons] == [field]
