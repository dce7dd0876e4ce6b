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


def warned(**settings: object) -> str:
    """The warnings of a plan."""
    return "\n".join(plan_optimizer(**{"optimizer": "adamw_torch", "lr": 1e-3, **settings}).warnings)


def test_constant_with_a_warmup_is_built_and_said() -> None:
    """transformers would drop the warmup."""
    plan = plan_optimizer(optimizer="adamw", lr=1.0, warmup_steps=2)
    assert [plan.rate(k) for k in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert "transformers would drop" in plan.warnings[0]


@pytest.mark.parametrize(
    ("rounding", "updates", "text"), [("ceil", 1, "whose rate is 0"), ("floor", 0, "rounds to no update")]
)
def test_a_warmup_that_is_next_to_nothing_is_said(rounding: str, updates: int, text: str) -> None:
    """A ratio of 0.03 over 12 updates."""
    settings = {"scheduler": "linear", "warmup_ratio": 0.03, "total_updates": 12, "warmup_rounding": rounding}
    assert plan_optimizer(optimizer="adamw", lr=1e-3, **settings).warmup_updates == updates
    assert text in warned(**settings)


@pytest.mark.parametrize("name", ["adamw", "schedule_free_adamw"])
def test_a_rate_that_never_leaves_warmup_is_said(name: str) -> None:
    """All updates are warmup."""
    assert "never leaves warmup" in warned(optimizer=name, warmup_steps=5, total_updates=5)
    assert "never leaves warmup" not in warned(optimizer=name, warmup_steps=4, total_updates=5)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_a_beta2_that_float32_blurs_is_said(name: str) -> None:
    """1.4e-5 at 0.9999, and nothing at 0.999; ours, and the forms with their own correction, are exact."""
    assert "costs 1.4e-05 of the weights" in warned(optimizer=name, betas=(0.9, 0.9999))
    assert warned(optimizer=name, betas=(0.9, 0.999)) == ""
    assert warned(optimizer="schedule_free_adamw", betas=(0.9, 0.9999)) == ""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optim_args": "momentun=0.9", "optimizer": "sgd"}, ("optim_args.momentun", "not_read")),
        ({"optim_args": "momentum=0.9"}, ("optim_args.momentum", "not_read")),
        ({"optim_args": "momentum"}, ("optim_args", "not_an_option")),
        ({"optim_args": "eps=1,eps=2", "optimizer": "adagrad"}, ("optim_args", "given_twice")),
        ({"optim_args": "dampening=0.5", "optimizer": "sgd", "momentum": 0.9}, ("optim_args.dampening", "not_built")),
        ({"optim_args": "centered=true", "optimizer": "rmsprop"}, ("optim_args.centered", "not_built")),
        ({"optim_args": "lr_decay=0.1", "optimizer": "adagrad"}, ("optim_args.lr_decay", "not_built")),
        ({"optim_args": "alpha=1.5", "optimizer": "rmsprop"}, ("optim_args.alpha", "out_of_range")),
        ({"optim_args": "weight_decay=0.5", "optimizer": "sgd"}, ("optim_args.weight_decay", "not_read")),
        ({"optim_args": "momentum=0.9", "optimizer": "sgd", "momentum": 0.8}, ("momentum", "conflict")),
        ({"betas": (0.9, 0.99), "optimizer": "sgd"}, ("betas", "not_read")),
        ({"eps": 1e-6, "optimizer": "lion"}, ("eps", "not_read")),
        ({"momentum": 0.9}, ("momentum", "not_read")),
        ({"momentum": 1.5, "optimizer": "muon"}, ("momentum", "out_of_range")),
        ({"weight_decay": 0.1, "optimizer": "adam"}, ("weight_decay", "not_read")),
        ({"weight_decay": 0.1, "coupled_weight_decay": True}, ("coupled_weight_decay", "conflict")),
        ({"scheduler": "greedy"}, ("scheduler", "needs_metric")),
        ({"scheduler": "reduce_lr_on_plateau"}, ("scheduler", "needs_metric")),
        ({"scheduler": "cosin"}, ("scheduler", "unknown_value")),
        ({"scheduler_kwargs": {"num_cycles": 1}}, ("scheduler_kwargs.num_cycles", "not_read")),
        ({"warmup_steps": 2, "warmup_ratio": 0.1, "total_updates": 9}, ("warmup_ratio", "conflict")),
        ({"total_updates": 9, "iters": 40, "grad_accumulation_steps": 4}, ("total_updates", "conflict")),
        ({"max_grad_norm": 0}, ("max_grad_norm", "out_of_range")),
        ({"decay_mask": "no_bias"}, ("decay_mask", "unknown_value")),
        ({"optimizer": "schedule_free_radam", "warmup_steps": 3}, ("warmup_steps", "not_read")),
        ({"optimizer": "schedule_free_adamw", "betas": (0.0, 0.9)}, ("betas", "out_of_range")),
        ({"optimizer": "schedule_free_adamw", "past_end": "refuse", "total_updates": 9}, ("past_end", "conflict")),
        ({"past_end": "refuse"}, ("past_end", "needs_total")),
        ({"optimizer": "schedule_free_adamw", "optim_args": "r=5"}, ("optim_args.r", "out_of_range")),
        (
            {"optimizer": "schedule_free_sgd", "optim_args": "weight_lr_power=11"},
            ("optim_args.weight_lr_power", "out_of_range"),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, object], reason: tuple[str, str]) -> None:
    """transformers and MLX drop most of these without a word."""
    assert codes(**settings) == [reason]


COSINE = {"name": "cosine_decay", "warmup": 4, "warmup_init": 0.0, "arguments": [1e-4, 16]}


def test_mlx_lm_s_schedule_is_read_as_mlx_lm_means_it() -> None:
    """Joined one update late, with the peak twice, and said."""
    plan = plan_optimizer(optimizer="adamw", lr=1e-4, scheduler=COSINE)
    rates = [round(plan.rate(k) * 1e5, 3) for k in range(7)]
    assert rates == [0.0, 2.5, 5.0, 7.5, 10.0, 10.0, 9.904]
    assert "one update late" in plan.warnings[0]
    assert OptimizerPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "cosine"}, "scheduler.name"),
        ({"warmpu": 3}, "scheduler.warmpu"),
        ({"arguments": [1e-4]}, "scheduler.arguments"),
        ({"arguments": [1e-4, 90.5]}, "scheduler.arguments.decay_steps"),
        ({"arguments": [1e-3, 16]}, "lr"),
        ({"warmup": -1}, "scheduler.warmup"),
    ],
)
def test_a_wrong_mlx_lm_schedule_is_refused(change: dict[str, object], field: str) -> None:
    """Where mlx-lm fails late or not at all."""
    assert [name for name, _ in codes(lr=1e-4, scheduler={**COSINE, **change})] == [field]


def test_a_plan_past_its_end() -> None:
    """Held or refused, as planned."""
    settings = {"optimizer": "sgd", "lr": 1.0, "scheduler": "linear", "total_updates": 4}
    assert plan_optimizer(**settings).rate(9) == 0.25
    with pytest.raises(Refused, match="past the declared 4 updates"):
        plan_optimizer(**settings, past_end="refuse").rate(4)


def test_a_plan_with_a_function_needs_it_back() -> None:
    """No file can hold it."""

    def mask(path: str, array: object) -> bool:
        return "bias" not in path

    plan = plan_optimizer(optimizer="adamw", lr=1.0, weight_decay=0.1, decay_mask=mask)
    with pytest.raises(Refused, match="hand it over as decay_mask="):
        OptimizerPlan.from_json(plan.to_json())
    assert OptimizerPlan.from_json(plan.to_json(), decay_mask=mask) == plan


@pytest.mark.parametrize(
    "change", [{"peak_lr": -1}, {"optimizer": "SGD"}, {"extra": 1}, {"format": 2}, {"eps": None, "betas": 3}]
)
def test_a_damaged_plan_is_refused(change: dict[str, object]) -> None:
    """It comes in by the same door as settings."""
    metadata = plan_optimizer(optimizer="adamw", lr=1e-3).as_metadata()
    with pytest.raises(Refused):
        OptimizerPlan.from_metadata({**metadata, **change})
