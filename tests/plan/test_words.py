"""What a plan says: warnings on schedules that do not fit their run, refusals of two settings at odds, the table."""

from __future__ import annotations

from typing import Any

import pytest

from mufree import Refused, plan_optimizer

STABLE = {"optimizer": "sgd", "lr": 1.0, "scheduler": "warmup_stable_decay", "warmup_steps": 2, "total_updates": 10}
MLX_LM = {"name": "cosine_decay", "arguments": [1e-4, 16], "warmup": 3}


def planned(**settings: Any) -> Any:
    return plan_optimizer(**{"optimizer": "adamw", "lr": 1e-3, **settings})


def refused(**settings: Any) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        planned(**settings)
    return [(reason.field, reason.code) for reason in caught.value.reasons]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_decay_steps": 8}, ""),
        ({"num_decay_steps": 9}, "are 11 updates of 10: the rate jumps or is cut off"),
        ({"num_decay_steps": 4, "num_stable_steps": 4}, ""),
        ({"num_decay_steps": 4, "num_stable_steps": 5}, "are 11 updates of 10: the rate jumps or is cut off"),
        ({"num_decay_steps": 4, "num_stable_steps": 3}, "are 9 updates of 10: the rest run at the minimum"),
    ],
)
def test_parts_that_do_not_fill_the_run_are_said(options: dict[str, int], words: str) -> None:
    """Warmup, stable and decay, against the total."""
    warnings = plan_optimizer(**STABLE, scheduler_kwargs=options).warnings
    assert [words in text for text in warnings] == [True] * bool(words)


def test_a_rate_of_zero_is_said() -> None:
    """It is a number like any other, and trains nothing."""
    assert planned(lr=0).warnings == ("the rate is 0: nothing will be trained",)


def test_a_warmup_of_one_update_is_only_said_where_its_rate_is_0() -> None:
    """cosine_warmup_with_min_lr starts above it."""
    settings = {"warmup_steps": 1, "total_updates": 9, "scheduler_kwargs": {"min_lr_rate": 0.1}}
    assert planned(scheduler="cosine_warmup_with_min_lr", **settings).warnings == ()
    assert "whose rate is 0" in planned(scheduler="cosine_with_min_lr", **settings).warnings[0]


def test_a_form_with_a_correction_of_its_own_has_no_beta2_warning() -> None:
    """adam with L2, adamax, adamw_hf."""
    for settings in (
        {"optimizer": "adam", "weight_decay": 0.1, "coupled_weight_decay": True},
        {"optimizer": "adamax"},
        {"optimizer": "adamw_hf"},
    ):
        assert planned(betas=(0.9, 0.9999), **settings).warnings == ()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"scheduler": MLX_LM, "warmup_steps": 2}, ("warmup_steps", "conflict")),
        ({"scheduler": MLX_LM, "scheduler_kwargs": {"warmup": 3}}, ("scheduler_kwargs", "conflict")),
        ({"scheduler": {**MLX_LM, "warmup": 0, "warmup_init": 1e-5}}, ("scheduler.warmup_init", "not_read")),
        ({"scheduler": {**MLX_LM, "arguments": [1e-4, 0]}}, ("scheduler.arguments.decay_steps", "out_of_range")),
        (
            {"scheduler": "cosine_with_min_lr", "scheduler_kwargs": {"min_lr": 1e-3}},
            ("scheduler_kwargs.min_lr", "out_of_range"),
        ),
        ({"scheduler": "cosine_with_min_lr", "scheduler_kwargs": {"min_lr": 0}, "lr": 0}, ("lr", "out_of_range")),
        ({"scheduler": "polynomial", "lr": 1e-7}, ("lr", "out_of_range")),
        ({"scheduler": "polynomial", "warmup_steps": 9}, ("warmup_steps", "out_of_range")),
        ({"optimizer": "no_such", "betas": (0.9, 2)}, ("betas[1]", "out_of_range")),
        ({"optimizer": "no_such", "eps": -1}, ("eps", "out_of_range")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_two_settings_at_odds_are_refused(settings: dict[str, Any], reason: tuple[str, str]) -> None:
    """By the one to change."""
    assert reason in refused(**{"lr": 1e-4, "total_updates": 9, **settings})


def test_an_option_that_was_a_whole_number_stays_one() -> None:
    """In the plan as given, and in its JSON."""
    plan = planned(scheduler="cosine_with_restarts", total_updates=9, scheduler_kwargs={"num_cycles": 3})
    assert repr(plan.scheduler_kwargs) == "{'num_cycles': 3}"


def test_a_schedule_free_rate_is_its_peak() -> None:
    """Its warmup is the optimizer's own."""
    assert planned(optimizer="schedule_free_adamw", warmup_steps=5).rate(0) == 1e-3


def test_the_table_says_everything() -> None:
    """Row by row; what a plan does not have is left out."""
    table = plan_optimizer(
        optimizer="sgd",
        lr=0.5,
        momentum=0.9,
        optim_args="nesterov=true",
        scheduler="polynomial",
        scheduler_kwargs={"power": 2.0},
        iters=43,
        grad_accumulation_steps=4,
        warmup_steps=2,
        weight_decay=0.1,
        decay_mask=lambda path, _array: path != "x",
        max_grad_norm=1.0,
        past_end="refuse",
    ).table()
    rows = {line[:14].strip(): line[14:].strip() for line in table.splitlines()}
    assert rows == {
        "optimizer": "SGD (asked for as sgd)",
        "peak rate": "0.5",
        "scheduler": "polynomial(power=2.0)",
        "warmup": "2 updates",
        "total": "10 updates",
        "past the end": "updates are refused",
        "micro-batches": "4 an update, 3 left over",
        "momentum": "0.9",
        "options": "nesterov=True",
        "weight decay": "0.1, coupled (L2), where the function says so",
        "gradient clip": "global norm 1",
        "warning: 3 of": rows["warning: 3 of"],
    }
    plain = planned(weight_decay=0.1, decay_mask="hf", total_updates=9).table()
    for words in ("0.1, decoupled, all but biases and norms", "holds the last rate", "(0.9, 0.999)", "1e-08", "none"):
        assert words in plain
    assert "no declared end" in planned().table()


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"optimizer": "sgd", "optim_args": "momentum=0.5"}, "momentum", 0.5),
        ({"optimizer": "muon", "optim_args": {"momentum": 0.5}}, "momentum", 0.5),
        ({"optimizer": "muon"}, "momentum", 0.95),
        ({"optimizer": "adagrad", "optim_args": "eps=1e-4"}, "eps", 1e-4),
        ({"optimizer": "adagrad"}, "eps", 1e-10),
        ({"optimizer": "lion_32bit", "betas": (0.8, 0.95)}, "betas", (0.8, 0.95)),
        ({"optimizer": "lion_32bit"}, "betas", (0.9, 0.999)),
        ({"optimizer": "lion"}, "betas", (0.9, 0.99)),
    ],
)
def test_what_was_given_comes_before_any_default(settings: dict[str, Any], field: str, value: Any) -> None:
    """By itself or in the option string; then the name's default, then the rule's."""
    assert getattr(planned(**settings), field) == value
