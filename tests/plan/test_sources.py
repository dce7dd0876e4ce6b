"""What a transformers run's settings mean."""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from mufree import OptimizerPlan, Refused, plan_optimizer
from mufree.plan.files import read_file
from mufree.plan.names import BUILT, UNBUILT
from mufree.plan.sources import from_training_arguments


def planned(total: int | None = 100, **arguments: object) -> OptimizerPlan:
    return plan_optimizer(**from_training_arguments(arguments, total_updates=total))


def test_an_empty_file_means_transformers_defaults() -> None:
    """AdamW at 5e-5, linear, clipped at 1, biases and norms spared."""
    plan = planned()
    assert (plan.optimizer_name, plan.peak_lr, plan.scheduler) == ("AdamW", 5e-5, "linear")
    assert (plan.max_grad_norm, plan.decay_mask, plan.weight_decay) == (1.0, "hf", 0.0)
    assert (plan.betas, plan.eps) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize(
    ("arguments", "updates"),
    [
        ({"warmup_steps": 10.7}, 10),
        ({"warmup_steps": 1.0}, 1),
        ({"warmup_steps": 0.07}, 8),
        ({"warmup_steps": 0.999}, 100),
        ({"warmup_steps": 5, "warmup_ratio": 0.5}, 5),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, 10),
        ({"warmup_ratio": None}, 0),
    ],
)
def test_warmup_as_either_version_of_transformers_counts_it(arguments: dict[str, object], updates: int) -> None:
    """Steps win over a ratio; below 1 they are one; above they are cut."""
    assert planned(**arguments).warmup_updates == updates


def test_settings_reach_the_optimizers_that_transformers_hands_them_to() -> None:
    """Adam's betas and eps reach AdamW, the betas reach lion, and neither reaches sgd."""
    adam = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    assert planned(optim="adamw_torch", **adam).betas == (0.8, 0.95)
    assert planned(optim="adamw_torch", **adam).eps == 1e-6
    assert planned(optim="lion_32bit", **adam).betas == (0.8, 0.95)
    assert planned(optim="sgd", **adam).betas is None
    assert planned(optim="adagrad", **adam).eps == 1e-10


def test_coupled_decay_where_torch_couples_it() -> None:
    """adagrad and rmsprop take it through their groups."""
    assert planned(optim="adagrad", weight_decay=0.1).coupled_weight_decay
    assert not planned(optim="adamw_torch", weight_decay=0.1).coupled_weight_decay


def test_what_older_versions_and_the_object_itself_hold_is_read() -> None:
    """The flag that transformers 4 had for adafactor, and enumeration members where JSON has their values."""
    assert planned(optim="sgd", adafactor=True).optimizer_name == "Adafactor"
    assert planned(optim="sgd", adafactor=False).optimizer_name == "SGD"
    names = Enum("Names", {"SGD": "sgd", "COSINE": "cosine"})
    plan = planned(optim=names.SGD, lr_scheduler_type=names.COSINE)
    assert (plan.optimizer_name, plan.scheduler) == ("SGD", "cosine")


def test_no_clipping_is_zero_there() -> None:
    """And None here."""
    assert planned(max_grad_norm=0).max_grad_norm is None
    assert planned(max_grad_norm=0.0).max_grad_norm is None


def test_max_steps_is_the_total() -> None:
    """If it says anything; another total beside it is refused."""
    assert planned(total=None, max_steps=40, gradient_accumulation_steps=4).total_updates == 40
    assert planned(total=7, max_steps=-1).total_updates == 7
    with pytest.raises(Refused, match="max_steps is 40"):
        planned(total=7, max_steps=40)
    with pytest.raises(Refused, match="linear needs an end"):
        planned(total=None)


def test_options_of_the_schedule_may_be_json_text() -> None:
    """As transformers writes them."""
    plan = planned(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs='{"min_lr_rate": 0.1}')
    assert plan.scheduler_kwargs == {"min_lr_rate": 0.1}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"optim": "galore_adamw", "optim_target_modules": ["attn"]}, "optim_target_modules"),
        ({"optim": "adamw_bnb_8bit"}, "optimizer"),
        ({"learning_rate": float("nan")}, "lr"),
        ({"warmup_steps": float("nan")}, "warmup_steps"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"lr_scheduler_type": "greedy"}, "scheduler"),
        ({"lr_scheduler_kwargs": "{"}, "lr_scheduler_kwargs"),
        ({"max_steps": "40"}, "max_steps"),
        ({"max_steps": float("nan")}, "total_updates"),
        ({"learning_rat": 1e-3}, "learning_rat"),
        ({"max_grad_norms": 0.5}, "max_grad_norms"),
        ({"deepspeed": {"optimizer": {"type": "Adam"}}}, "deepspeed"),
        ({"deepspeed": "ds.json"}, "deepspeed"),
    ],
)
def test_what_a_plan_cannot_hold_is_refused(arguments: dict[str, object], field: str) -> None:
    """transformers accepts NaN, among others."""
    with pytest.raises(Refused) as caught:
        planned(**arguments)
    assert [reason.field for reason in caught.value.reasons] == [field]


def real_arguments() -> Any:
    """The class itself."""
    for package in ("torch", "accelerate"):
        pytest.importorskip(package)
    return pytest.importorskip("transformers").TrainingArguments


def test_a_real_training_arguments_file_is_read(tmp_path: Path) -> None:
    """What transformers itself writes."""
    arguments = real_arguments()(
        output_dir=str(tmp_path), max_steps=40, warmup_steps=0.25, weight_decay=0.1, optim="adamw_torch", use_cpu=True
    )
    path = tmp_path / "arguments.json"
    path.write_text(arguments.to_json_string(), encoding="utf-8")
    plan = plan_optimizer(**from_training_arguments(read_file(path)))
    assert (plan.total_updates, plan.warmup_updates, plan.weight_decay) == (40, 10, 0.1)


def test_no_real_field_is_taken_for_a_misspelling() -> None:
    """Every field there is, at its default; a DeepSpeed configuration without a say in the optimizer too."""
    real = {field.name: field.default for field in fields(real_arguments()) if field.default is not MISSING}
    assert len(real) > 90
    assert planned(**{**real, "deepspeed": {"zero_optimization": {}}}).optimizer_name == "AdamW"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "polynomial", "inverse_sqrt"])
def test_every_real_name_is_planned_or_refused_for_itself(schedule: str, tmp_path: Path) -> None:
    """All 41, with a decay and Adam's settings beside those that read neither."""
    real = real_arguments()
    names = sorted(item.value for item in pytest.importorskip("transformers.training_args").OptimizerNames)
    settings = {"weight_decay": 0.1, "adam_beta2": 0.98, "warmup_steps": 3, "max_steps": 50, "use_cpu": True}
    base = real(output_dir=str(tmp_path), lr_scheduler_type=schedule, report_to=[], **settings).to_dict()
    for name in names:
        try:
            plan = plan_optimizer(**from_training_arguments({**base, "optim": name}))
        except Refused as refused:
            fields_ = {reason.field for reason in refused.reasons}
            assert fields_ <= {"optimizer", "scheduler", "warmup_steps"}, name
            assert name in UNBUILT or BUILT[name].family.startswith("schedule_free"), name
            continue
        assert (plan.weight_decay, plan.warmup_updates, plan.max_grad_norm, plan.decay_mask) == (0.1, 3, 1.0, "hf")
        assert plan.betas in (None, (0.9, 0.98))
