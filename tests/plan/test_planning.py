"""Plans: what is decided, what is refused, and the way to JSON and back."""

from __future__ import annotations

import pytest

from mufree import OptimizerPlan, Refused, plan_optimizer, resolve_optimizer_name


def codes(**settings: object) -> list[tuple[str, str]]:
    """The (field, code) of every reason for refusing some settings."""
    base: dict[str, object] = {"optimizer": "adamw_torch", "lr": 1e-3}
    with pytest.raises(Refused) as caught:
        plan_optimizer(**{**base, **settings})
    return [(reason.field, reason.code) for reason in caught.value.reasons]


def test_a_name_is_stripped_and_lower_cased() -> None:
    """Blanks and capitals do not matter."""
    assert resolve_optimizer_name(" AdamW_Torch ") == "AdamW"


@pytest.mark.parametrize("lr", [-1e-3, float("nan"), float("inf"), True, "1e-3", [1e-3], None, 1e60, 1e-60])
def test_a_rate_that_is_no_finite_number_is_refused(lr: object) -> None:
    """MLX takes most of these without a word."""
    assert [field for field, _ in codes(lr=lr)] == ["lr"]


def test_all_problems_are_named_at_once() -> None:
    """One refusal, every reason."""
    fields = [field for field, _ in codes(lr=-1, weight_decay=-1, betas=(0.9, 0.99999999), total_updates=0)]
    assert fields == ["lr", "weight_decay", "total_updates", "betas[1]"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"warmup_steps": 11, "total_updates": 10}, "warmup_steps"),
        ({"total_updates": 0}, "total_updates"),
        ({"total_updates": 12.5}, "total_updates"),
        ({"warmup_ratio": 1.5, "total_updates": 10}, "warmup_ratio"),
        ({"warmup_ratio": 0.1}, "warmup_ratio"),
        ({"scheduler": "cosine"}, "total_updates"),
        ({"iters": 3, "grad_accumulation_steps": 4}, "iters"),
    ],
)
def test_warmup_and_total_must_fit(settings: dict[str, object], field: str) -> None:
    """Counts that make no run are refused by name."""
    assert [name for name, _ in codes(**settings)] == [field]


def test_the_ceiling_of_a_ratio_is_taken_in_floats() -> None:
    """100 × 0.07 is a little more than 7 in floats, so that transformers makes 8 of it."""
    plan = plan_optimizer(optimizer="adamw", lr=1e-3, warmup_ratio=0.07, total_updates=100, scheduler="linear")
    assert plan.warmup_updates == 8


def test_iterations_and_accumulation_give_updates() -> None:
    """40 micro-batches, 4 an update: 10 updates; what is left over is named."""
    plan = plan_optimizer(optimizer="adamw", lr=1e-3, iters=42, grad_accumulation_steps=4)
    assert (plan.total_updates, plan.leftover_micro_batches) == (10, 2)
    assert "2 of 42 micro-batches" in plan.warnings[0]


@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_schedule_free_takes_no_schedule(scheduler: str) -> None:
    """transformers multiplies the two."""
    assert codes(optimizer="schedule_free_adamw", scheduler=scheduler, total_updates=9) == [("scheduler", "conflict")]


def test_schedule_free_warms_up_by_itself() -> None:
    """A ratio becomes whole updates, and constant_with_warmup the optimizer's own warmup."""
    plan = plan_optimizer(
        optimizer="schedule_free_adamw", lr=1e-3, warmup_ratio=0.03, total_updates=100, scheduler="constant_with_warmup"
    )
    assert plan.optimizer_name == "AdamWScheduleFree"
    assert plan.warmup_updates == 3
    assert any("own warmup" in text for text in plan.warnings)


def test_a_plan_goes_to_json_and_back() -> None:
    """The same value, with its warnings."""
    plan = plan_optimizer(
        optimizer="adamw_torch",
        lr=1e-3,
        scheduler="cosine_with_min_lr",
        scheduler_kwargs={"min_lr_rate": 0.1},
        iters=401,
        grad_accumulation_steps=4,
        warmup_ratio=0.1,
        weight_decay=0.1,
        betas=(0.8, 0.95),
        max_grad_norm=1.0,
        decay_mask="hf",
    )
    assert OptimizerPlan.from_json(plan.to_json()) == plan


def test_the_metadata_holds_the_names_relied_upon() -> None:
    """As the run's record reads them."""
    metadata = plan_optimizer(optimizer="adamw", lr=1e-3, weight_decay=0.1).as_metadata()
    expected = {"optimizer": "AdamW", "scheduler": "constant", "warmup_updates": 0, "total_updates": None}
    assert {**expected, "weight_decay": 0.1, "peak_lr": 1e-3}.items() <= metadata.items()
