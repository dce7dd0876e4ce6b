"""The settings of a fine-tune: mlx-lm's own keys with mlx-lm's meaning, and a few of ours. Pure Python.

A key that is missing or null has mlx-lm's default, except ``optimizer`` and ``lr_schedule``: where both are missing the
run is schedule-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...errors import Reasons
from ...training.options import check, number_of, option
from .nested import (
    as_numbers,
    check_hf_dataset,
    check_lora_parameters,
    check_lr_schedule,
    check_optimizer_config,
    check_size,
)

TYPES = ("lora", "dora", "full")
WARMUP = 20
LORA_DEFAULTS = {"rank": 8, "dropout": 0.0, "scale": 20.0}
"""mlx-lm's ``lora_parameters`` where none are given."""
BASES = ("tuned_on", "base_width")
"""Settings that name the model on which the rate was tuned."""
SCALING = (*BASES, "lora_ratio")
"""Settings that ask for scales: other rates for A than for B."""
_MOST_SEED = 2**32 - 1
"""NumPy's, which mlx-lm seeds too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """What ``mufree lora`` tunes, on what, how and where it writes.

    Every field but ``warmup`` and those in :data:`SCALING` is a key of mlx-lm's YAML, with its meaning; those of a
    number, a text or a switch are options of the command line too.

    Raises:
        Refused: For values outside their range, all at once.
    """

    model: str = option(
        "Qwen/Qwen3-0.6b", "folder of the model, or its Hugging Face name", group="model", metavar="MODEL"
    )
    trust_remote_code: bool = option(False, "allow code that comes with the model", group="model")
    fine_tune_type: str = option("lora", "lora, dora, or full (the last num_layers)", group="model", choices=TYPES)
    num_layers: int = option(16, "blocks to tune, from the last one; -1 for all", group="model")
    lora_parameters: Mapping[str, Any] | None = option(None, "rank, dropout, scale, keys (YAML only)", group="model")

    train: bool = option(False, "tune", group="run")
    test: bool = option(False, "measure the loss on the test set, after tuning or of adapter_path", group="run")
    seed: int = option(0, "seed of adapters, data order and dropout", group="run", low=0, high=_MOST_SEED)
    iters: int = option(1000, "micro-batches of the run", group="run", low=1)
    adapter_path: str = option("adapters", "folder that the run writes", group="run", metavar="FOLDER")
    resume_adapter_file: str | None = option(
        None, "start from these weights, and nothing else", group="run", metavar="FILE"
    )
    config: str | None = option(None, "a YAML file of more settings; those beside it win", group="run")

    data: str = option(
        "mlx-community/WikiSQL", "folder of {train, valid, test}.jsonl, or its hub name", group="data", metavar="FOLDER"
    )
    hf_dataset: Mapping[str, Any] | tuple[Any, ...] | None = option(
        None, "one mapping or a list of them, as in mlx-lm (YAML only)", group="data"
    )
    batch_size: int = option(4, "rows of a micro-batch", group="data", low=1)
    max_seq_length: int = option(2048, "tokens of a row; the rest is cut off", group="data", low=2)
    mask_prompt: bool = option(False, "learn from the completion alone", group="data")
    prompt_feature: str | None = option(None, "name of the prompt in a row (default: prompt)", group="data")
    completion_feature: str | None = option(None, "name of the completion (default: completion)", group="data")
    chat_feature: str | None = option(None, "name of the messages (default: messages)", group="data")
    text_feature: str | None = option(None, "name of the text (default: text)", group="data")

    optimizer: str | None = option(
        None,
        "mlx-lm's adam, adamw, muon, sgd or adafactor as mlx-lm has them, or a name of mufree plan "
        "(default: schedule-free AdamW; with an lr_schedule, mlx-lm's adam)",
        group="optimizer",
    )
    optimizer_config: Mapping[str, Any] | None = option(None, "settings by optimizer (YAML only)", group="optimizer")
    learning_rate: float | None = option(
        None, "the rate (default: mlx-lm's 1e-5; ten times that where schedule-free)", group="optimizer"
    )
    lr_schedule: Mapping[str, Any] | None = option(None, "mlx-lm's schedule (YAML only)", group="optimizer")
    warmup: int | None = option(
        None, f"updates of schedule-free warmup (default: {WARMUP})", group="optimizer", low=0, example=WARMUP
    )
    grad_accumulation_steps: int = option(1, "micro-batches an update", group="optimizer", low=1)

    tuned_on: str | None = option(
        None,
        "what learning_rate was tuned on: a folder of such a model at another width, its config.json, a recipe or a "
        ".bsh file; A's rate then falls with width, B's stays",
        group="scales",
        metavar="PATH",
    )
    base_width: int | None = option(
        None, "the same by its hidden_size, for this very model at that width", group="scales", low=1
    )
    lora_ratio: float | None = option(
        None, "LoRA+: B's rate over A's on the model that learning_rate was tuned on", group="scales", above=0
    )

    val_batches: int = option(25, "validation batches, -1 for all; 0 to train without", group="reports", low=-1)
    test_batches: int = option(500, "test batches, -1 for all", group="reports", low=-1)
    steps_per_report: int = option(10, "micro-batches between reports of the loss", group="reports", low=1)
    steps_per_eval: int = option(200, "micro-batches between validations", group="reports", low=1)
    save_every: int = option(100, "micro-batches between saves", group="reports", low=1)
    report_to: str | None = option(None, "wandb, swanlab, or both with a comma", group="reports")
    project_name: str | None = option(None, "the project's name there", group="reports")

    grad_checkpoint: bool = option(False, "compute activations twice to save memory", group="memory")
    clear_cache_threshold: str | None = option(
        None, "size of MLX's cache above which it is cleared, such as 2GB (default: 0)", group="memory"
    )

    def __post_init__(self) -> None:
        for name in _NUMERIC:
            object.__setattr__(self, name, as_numbers(getattr(self, name)))
        for name in ("learning_rate", "lora_ratio"):
            value = getattr(self, name)
            number = number_of(value) if isinstance(value, str) else None
            object.__setattr__(self, name, value if number is None else number)
        reasons = Reasons()
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _NESTED:
                if value is not None:
                    _NESTED[item.name](reasons, value)
            elif not (item.name in ("adapter_path", "report_to") and value == ""):
                check(reasons, item, value)
        _check_together(reasons, self)
        reasons.refuse_if_any()

    def given(self) -> dict[str, Any]:
        """The settings without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


_NUMERIC = ("lora_parameters", "optimizer_config", "lr_schedule")
"""Mappings in which text that is a number is one."""
_NESTED: Mapping[str, Any] = {
    "lora_parameters": check_lora_parameters,
    "hf_dataset": check_hf_dataset,
    "optimizer_config": check_optimizer_config,
    "lr_schedule": check_lr_schedule,
    "clear_cache_threshold": check_size,
}


def _check_together(reasons: Reasons, config: FinetuneConfig) -> None:
    """What is wrong with settings that are right one by one."""
    if not (config.train or config.test):
        reasons.add("missing", "train", "neither train nor test is asked for; give --train, --test or both")
    if config.train and not config.adapter_path:
        reasons.add("empty", "adapter_path", "is empty, but the run writes there; give a folder")
    if config.test_batches == 0 and config.test:
        reasons.add("out_of_range", "test_batches", "0 measures nothing; give a number ≥ 1, or -1 for all")
    iters, accumulation = config.iters, config.grad_accumulation_steps
    if config.train and isinstance(iters, int) and isinstance(accumulation, int) and 0 < iters < accumulation:
        message = f"{iters} micro-batches make no update, since {accumulation} make one; give at least {accumulation}"
        reasons.add("out_of_range", "iters", message)
    _check_base(reasons, config)
    if config.config is not None:
        message = f"{config.config!r} is read where settings are a mapping or a file; give its settings themselves"
        reasons.add("not_read", "config", message)
    rate = config.learning_rate
    if isinstance(rate, (int, float)) and rate < 0:
        reasons.add("out_of_range", "learning_rate", f"{rate!r} is negative; give a finite number ≥ 0")


def _check_base(reasons: Reasons, config: FinetuneConfig) -> None:
    """A rate that was tuned on one model, and is given."""
    named = [name for name in BASES if getattr(config, name) is not None]
    if len(named) > 1:
        message = f"{config.base_width!r} is given beside tuned_on {config.tuned_on!r}, which has a width; give one"
        reasons.add("conflict", "base_width", message)
    if named and config.learning_rate is None and not config.lr_schedule:
        message = f"is missing, and {named[0]} says on what it was tuned; give the rate that was found there"
        reasons.add("missing", "learning_rate", message)
