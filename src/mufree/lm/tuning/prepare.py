"""Everything that a fine-tune decides before its first update, or refuses. Nothing is written here.

The random states are used in mlx-lm's own order: NumPy's seed first, MLX's before the adapters are made.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.lora import CONFIG_DEFAULTS
from mlx_lm.tuner import callbacks
from mlx_lm.utils import load

from ...errors import Reasons, refuse
from ...mup import Scales
from ..memory_plan import MemoryPlan
from .adapters import attach, load_trained, start_from, validation_notes
from .base_weights import tokenizer_digest, weights_digest
from .choice import Choice, choose
from .data import Readable, check_folder, load_sets
from .data_notes import data_notes
from .folder import AdapterFolder
from .memory import plan_memory
from .nested import size_of
from .optimizers import build
from .scaling import as_metadata, scales_of
from .scaling import identity as scales_identity
from .settings import FinetuneConfig


@dataclass(frozen=True, slots=True)
class Prepared:
    """A fine-tune, ready to start.

    Args:
        config: Its settings.
        args: The same as mlx-lm's functions take them.
        model: The model, its adapters attached.
        model_config: The base model's config.
        train: Rows to learn from.
        valid: Rows to validate on.
        test: Rows to test on.
        choice: The optimizer, as decided; None where nothing is trained.
        optimizer: The optimizer; None where nothing is trained.
        scales: The multipliers of everything trained; None where the rate is used as it is.
        memory: What the run will take of the memory; None where nothing is trained.
        notes: What is to be said before the run, a sentence each.
    """

    config: FinetuneConfig
    args: SimpleNamespace
    model: Any
    model_config: dict[str, Any]
    train: Readable
    valid: Readable
    test: Readable
    choice: Choice | None
    optimizer: Any
    scales: Scales | None
    memory: MemoryPlan | None
    notes: tuple[str, ...]

    def identity(self) -> dict[str, Any]:
        """What a run must share with the one that it goes on from, beside its settings."""
        rows = {"train_rows": self.train.digest, "valid_rows": self.valid.digest}
        model = self.config.model
        base = {"model_config": self.model_config, "base_weights": weights_digest(model)}
        base |= {"tokenizer": tokenizer_digest(model)}
        return {**base, **rows, "scaling": scales_identity(self.scales)}

    def plan(self) -> dict[str, Any]:
        """The optimizer's plan, as JSON can hold it."""
        if self.choice is None:
            return {}
        return {**self.choice.as_metadata(self.config), "scales": as_metadata(self.config, self.scales)}


def prepare(config: FinetuneConfig, *, lazy: bool = False, going_on: bool = False) -> Prepared:
    """Decide everything from the settings: optimizer, data, model, adapters.

    Args:
        config: The settings.
        lazy: Leave the model's weights on the disk until they are used, for a look at the plan.
        going_on: A checkpoint replaces the adapters, so that what they would start from is not read.

    Raises:
        Refused: With every reason that settings, data, model and adapters give.
    """
    reasons = Reasons()
    replaced = AdapterFolder(Path(config.adapter_path)).replaced() if config.train else ()
    choice = reasons.attempt(choose, config) if config.train else None
    reasons.attempt(check_folder, config)
    reasons.attempt(_check_reporters, config)
    args = namespace(config, choice)
    np.random.seed(config.seed)
    loaded = reasons.attempt(_load, config, lazy=lazy)
    sets = None
    scales: Scales | None = None
    notes: tuple[str, ...] = ()
    if loaded is not None:
        model, tokenizer, model_config = loaded
        sets = reasons.attempt(load_sets, config, args, tokenizer) if not reasons.found else None
        attached = reasons.attempt(_attach, config, args, model, going_on=going_on)
        notes = attached or ()
        if choice is not None and attached is not None:
            scales = reasons.attempt(scales_of, config, model, model_config)
    train, valid, test = reasons.settled(sets)
    optimizer = memory = None
    used = {"train": train, "valid": valid} if config.train else {}
    said = data_notes(config, used | ({"test": test} if config.test else {}))
    if choice is None:
        notes = (*notes, *said)
    else:
        optimizer, told = build(choice, config, model, scales)
        notes = (*choice.lines, *told, *replaced, *notes, *validation_notes(config, valid), *said)
        memory = plan_memory(config, model, optimizer, train)
    mx.eval(model.trainable_parameters())
    return Prepared(config, args, model, model_config, train, valid, test, choice, optimizer, scales, memory, notes)


def namespace(config: FinetuneConfig, choice: Choice | None) -> SimpleNamespace:
    """The settings as mlx-lm's functions take them: its own defaults, and under them everything given."""
    given = deepcopy(config.given())
    warmup = given.pop("warmup", None)
    args = {**deepcopy(CONFIG_DEFAULTS), **given}
    args["clear_cache_threshold"] = size_of(config.clear_cache_threshold)
    if choice is not None:
        args |= {"optimizer": choice.name, "learning_rate": choice.rate}
    if warmup is not None:
        args["warmup"] = warmup
    return SimpleNamespace(**args)


def _load(config: FinetuneConfig, *, lazy: bool) -> tuple[Any, Any, dict[str, Any]]:
    trust = config.trust_remote_code
    try:
        model, tokenizer, model_config = load(
            config.model,
            tokenizer_config={"trust_remote_code": trust},
            lazy=lazy,
            return_config=True,
            trust_remote_code=trust,
        )
    except Exception as error:  # mlx-lm, transformers and the hub raise what they like
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        hint = "" if Path(config.model).exists() else "; there is no such folder, so the hub was asked"
        refuse("unreadable", "model", f"{config.model!r} cannot be loaded, {told}{hint}")
    return model, tokenizer, dict(model_config)


def _attach(config: FinetuneConfig, args: SimpleNamespace, model: Any, *, going_on: bool) -> tuple[str, ...]:
    if not config.train:
        return load_trained(config, args, model)
    said = attach(config, args, model)
    return (*said, *start_from(config, model)) if config.resume_adapter_file and not going_on else said


def _check_reporters(config: FinetuneConfig) -> None:
    reasons = Reasons()
    names = [part.strip().lower() for part in (config.report_to or "").split(",")]
    if config.report_to and not any(names):
        reasons.add("empty", "report_to", f"{config.report_to!r} names nothing; give a name, or leave it out")
    for name in filter(None, names):
        if name not in callbacks.SUPPORT_CALLBACK:
            known = ", ".join(callbacks.SUPPORT_CALLBACK)
            reasons.add("unknown", "report_to", f"{name!r}; mlx-lm knows {known}")
        elif getattr(callbacks, name, None) is None:
            reasons.add("missing", "report_to", f"{name} is not installed; pip install {name}, or leave it out")
    reasons.refuse_if_any()
