"""Which optimizer a fine-tune has, decided from its settings. Pure Python.

Three ways lead to one: mlx-lm's five names mean what they mean in mlx-lm, to the last bit; every other name means what
``mufree plan`` says; and where neither ``optimizer`` nor ``lr_schedule`` is given, the run is schedule-free.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import Reasons, Refused
from ...plan import OptimizerPlan, plan_optimizer
from ...plan import mlx_lm as schedules
from ...plan.names import normalised
from .settings import SCALING, WARMUP, FinetuneConfig

CLASSES = {"adam": "Adam", "adamw": "AdamW", "muon": "Muon", "sgd": "SGD", "adafactor": "Adafactor"}
"""mlx-lm's names and MLX's classes for them."""
DECAYS = {"adamw": 0.01, "muon": 0.01}
"""What those classes decay by where nothing is said."""
SCHEDULE_FREE = "schedule_free_adamw"
MLX_LM_RATE = 1e-5
RATE = 10 * MLX_LM_RATE
"""The rate of a schedule-free run for which none is given: mlx-lm's default is one for its Adam, whose first updates
are 3.16 times as long as they say; schedule-free AdamW, with neither that nor a decay to make up for, takes more."""
_DECIDED = ("optimizer", "lr", "iters", "total_updates", "grad_accumulation_steps")


@dataclass(frozen=True, slots=True)
class Choice:
    """An optimizer, not built yet.

    Args:
        name: By which it was asked for, or the default's.
        rate: The peak rate.
        settings: Its entry of ``optimizer_config``.
        plan: The plan, or None for one of mlx-lm's five, which is built as mlx-lm builds it.
        lines: What the choice means, a sentence each.
    """

    name: str
    rate: float
    settings: Mapping[str, Any]
    plan: OptimizerPlan | None
    lines: tuple[str, ...]

    @property
    def schedule_free(self) -> bool:
        """Whether validation and adapters are at an average."""
        return self.plan is not None and self.plan.family.schedule_free

    def as_metadata(self, config: FinetuneConfig) -> dict[str, Any]:
        """The plan as JSON can hold it, with the same first names whichever way it was decided."""
        updates, left = divmod(config.iters, config.grad_accumulation_steps)
        length = {"iters": config.iters, "total_updates": updates, "leftover_micro_batches": left}
        if self.plan is not None:
            return {**self.plan.as_metadata(), **length, "meaning": "mufree", "lines": list(self.lines)}
        schedule = config.lr_schedule or {}
        return {
            **length,
            "optimizer": CLASSES[self.name],
            "requested_optimizer": self.name,
            "meaning": "mlx-lm",
            "peak_lr": self.rate,
            "scheduler": schedules.NAME if schedule else "constant",
            "scheduler_options": dict(schedule),
            "warmup_updates": schedule.get("warmup", 0),
            "weight_decay": self.settings.get("weight_decay", DECAYS.get(self.name, 0.0)),
            "options": dict(self.settings),
            "grad_accumulation_steps": config.grad_accumulation_steps,
            "lines": list(self.lines),
        }


def choose(config: FinetuneConfig) -> Choice:
    """Decide the optimizer.

    Raises:
        Refused: For a name or settings that cannot be built, all at once.
    """
    name = config.optimizer and normalised(config.optimizer)
    if not name:
        name = "adam" if config.lr_schedule else SCHEDULE_FREE
    given = config.optimizer_config or {}
    # mlx-lm looks its own names up in lower case, and nowhere else.
    keys = (name,) if name in CLASSES else (name, config.optimizer or "")
    read = next((key for key in keys if given.get(key)), name)
    settings = dict(given.get(read) or {})
    choice = _as_in_mlx_lm(config, name, settings) if name in CLASSES else _planned(config, name, settings)
    unread = [str(other) for other, entry in given.items() if entry and other != read]
    lines = (*_not_free_lines(config, choice), *_length_lines(config, choice), *_unread_lines(name, read, unread))
    return replace(choice, lines=(*choice.lines, *lines))


def _unread_lines(name: str, read: str, unread: Sequence[str]) -> list[str]:
    """Which entries of ``optimizer_config`` nobody reads."""
    spelt = [f"optimizer_config.{other}" for other in unread if normalised(other) == name]
    others = [f"optimizer_config.{other}" for other in unread if normalised(other) != name]
    whose = "mlx-lm reads" if name in CLASSES else "read is"
    said = [f"not read: {', '.join(spelt)}; {whose} optimizer_config.{read}"] if spelt else []
    return [*said, f"not read, since the optimizer is {name}: {', '.join(others)}"] if others else said


def _not_free_lines(config: FinetuneConfig, choice: Choice) -> list[str]:
    """Why a run is not schedule-free."""
    named = [name for name in ("optimizer", "lr_schedule") if getattr(config, name)]
    if choice.schedule_free or not named:
        return []
    several = len(named) > 1
    told = f"{' and '.join(named)} {'are' if several else 'is'} named; leave {'both' if several else 'it'} out"
    return [f"not schedule-free, since {told} for a schedule-free run"]


def _length_lines(config: FinetuneConfig, choice: Choice) -> list[str]:
    """What the length of the run leaves out, where the plan does not know it."""
    said = []
    updates, left = divmod(config.iters, config.grad_accumulation_steps)
    planned = choice.plan is not None and choice.plan.iters is not None
    if left and not planned:
        said.append(
            f"{left} of {config.iters} micro-batches are left over: {config.grad_accumulation_steps} make an update, "
            f"and {updates} updates are made"
        )
    if choice.schedule_free and not planned and choice.plan is not None and updates <= choice.plan.warmup_updates:
        said.append(
            f"the rate never leaves its warmup of {choice.plan.warmup_updates} updates in {updates}; set warmup"
        )
    return said


def _peak(config: FinetuneConfig, default: float) -> tuple[float, list[str]]:
    """The peak rate, and what is to be said of it."""
    if config.lr_schedule:
        first = float(config.lr_schedule["arguments"][0])
        other = config.learning_rate not in (None, first)
        said = f"learning_rate {config.learning_rate} is not read: as in mlx-lm, lr_schedule starts from its own"
        return first, [f"{said} {first:g}"] if other else []
    return (default if config.learning_rate is None else float(config.learning_rate)), []


def _as_in_mlx_lm(config: FinetuneConfig, name: str, settings: dict[str, Any]) -> Choice:
    reasons = Reasons()
    if config.warmup is not None:
        message = f"{config.warmup} is for schedule-free runs; here give lr_schedule's warmup"
        reasons.add("not_read", "warmup", message)
    _check_scalable(reasons, config, f"mlx-lm's {name}", None)
    reasons.refuse_if_any()
    rate, lines = _peak(config, MLX_LM_RATE)
    return Choice(name, rate, settings, None, (_meaning(name, settings), *lines))


def _check_scalable(reasons: Reasons, config: FinetuneConfig, optimizer: str, family: str | None) -> None:
    """Keep every setting that asks for scales, if the optimizer does not divide by the gradient's size."""
    for name in SCALING if family != "adam" else ():
        value = getattr(config, name)
        if value is not None:
            message = f"{value!r} asks for scales, which {optimizer} does not take; leave optimizer out for "
            reasons.add("no_rule", name, f"{message}{SCHEDULE_FREE}, or give an Adam-like one such as adamw_torch")


def _meaning(name: str, settings: Mapping[str, Any]) -> str:
    """In one line, what mlx-lm's name of an optimizer means there."""
    said = f"{name} as in mlx-lm, MLX's {CLASSES[name]}: "
    decay = settings.get("weight_decay", DECAYS.get(name, 0.0))
    if name in ("adam", "adamw"):
        decays = f"; decay {decay:g}" if name == "adamw" else ""
        if settings.get("bias_correction"):
            return f"{said}bias-corrected, as optimizer_config says{decays}"
        try:
            first = (1 - settings.get("betas", (0.9,))[0]) / math.sqrt(1 - settings.get("betas", (0, 0.999))[1])
        except (TypeError, IndexError, ValueError, ZeroDivisionError):
            first = math.nan  # the class itself refuses such betas
        return f"{said}no bias correction, first update {first:.3g} times the rate{decays}; torch's is adamw_torch"
    if name == "muon":
        return f"{said}decay {decay:g} joins the gradient before it is orthogonalised"
    if name == "sgd":
        momentum = settings.get("momentum", 0)
        return f"{said}{f'momentum {momentum:g}' if momentum else 'no momentum'}"
    relative = settings.get("relative_step", True)
    own = "sets its own rate from the number of the update and reads no learning_rate"
    return f"{said}{own if relative else 'its rate is that given'}"


def _planned(config: FinetuneConfig, name: str, settings: dict[str, Any]) -> Choice:
    where = f"optimizer_config.{name}"
    free = name.startswith("schedule_free")
    reasons = Reasons()
    known = [key for key in inspect.signature(plan_optimizer).parameters if key not in _DECIDED]
    for key in settings:
        if key not in known:
            reasons.add_unknown(f"{where}.{key}", key, known, "setting")
    warms = name in (SCHEDULE_FREE, "schedule_free_sgd")
    if config.warmup is not None and not warms:
        remedy = "which has none; leave it out" if free else f"give {where}.warmup_steps"
        reasons.add("not_read", "warmup", f"{config.warmup} is not read by {name}{',' if free else ';'} {remedy}")
    if config.lr_schedule and not free and ("scheduler" in settings or "scheduler_kwargs" in settings):
        reasons.add("conflict", f"{where}.scheduler", "is given beside lr_schedule; give one of them")
    arguments = {key: value for key, value in settings.items() if key in known}
    if warms and not {"warmup_steps", "warmup_ratio"} & settings.keys():
        arguments["warmup_steps"] = WARMUP if config.warmup is None else config.warmup
    elif warms and config.warmup is not None:
        reasons.add("conflict", "warmup", f"{config.warmup} is given beside a warmup in {where}; give one of them")
    if config.lr_schedule and free:
        own = config.lr_schedule.get("warmup")
        told = f" (its warmup of {own} is `warmup: {own}`)" if own and warms else ""
        reasons.add("conflict", "lr_schedule", f"a schedule-free optimizer has none; leave lr_schedule out{told}")
    elif config.lr_schedule:
        arguments["scheduler"] = dict(config.lr_schedule)
    rate, lines = _peak(config, RATE if free else MLX_LM_RATE)
    plan = None
    # A schedule-free plan has no end: nothing about the end of a run changes an update.
    ends = "warmup_ratio" in arguments or not str(arguments.get("scheduler", "constant")).startswith("constant")
    length: dict[str, Any] = {"iters": config.iters} if ends or not free else {}
    length["grad_accumulation_steps"] = config.grad_accumulation_steps
    try:
        plan = plan_optimizer(optimizer=name, lr=rate, **length, **arguments)
    except Refused as refused:
        for reason in refused.reasons:
            reasons.found.append(replace(reason, field=_named(reason.field, settings, where, config)))
    if plan is not None:
        _check_scalable(reasons, config, name, plan.family.mup)
    plan = reasons.settled(plan)
    return Choice(name, rate, settings, plan, (*(_average_lines(config, plan) if free else ()), *lines))


def _named(field: str, settings: Mapping[str, Any], where: str, config: FinetuneConfig) -> str:
    """A planned setting as the user knows it."""
    first = field.split(".")[0].split("[")[0]
    if first in settings:
        return f"{where}.{field}"
    if first == "scheduler" and config.lr_schedule:
        return field.replace("scheduler", "lr_schedule", 1)
    return {"lr": "learning_rate", "warmup_steps": "warmup"}.get(field, field)


def _average_lines(config: FinetuneConfig, plan: OptimizerPlan) -> list[str]:
    rate = f"{plan.peak_lr:g}"
    start = f" after {plan.warmup_updates} updates of warmup" if plan.warmup_updates else ""
    if plan.optimizer_name == "RAdamScheduleFree":
        start = ", which RAdam reaches by its own rectification (warmup is not read)"
    said = [f"no schedule: a constant rate of {rate}{start}; validation and adapters are at the average x"]
    if config.learning_rate is None:
        said.append(f"rate {rate}, ten times mlx-lm's default, which is one for its Adam; choose with learning_rate")
    else:
        usual = "schedule-free's best rate is usually 1 to 10 times an Adam's with a schedule"
        tuned = "one that was tuned for mlx-lm's Adam need not be the best one here"
        said.append(f"rate {rate} as given; {tuned}: {usual}")
    return said
