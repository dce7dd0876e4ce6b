"""The plan: everything that will be built, as one frozen value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from mufree.errors import refuse
from mufree.schedules import rate_function

from . import mlx_lm
from .families import Family
from .names import BUILT, family_of

DecayMask = Literal["all", "hf"] | Callable[[str, Any], bool]
PastEnd = Literal["hold", "refuse"]
FORMAT = 1
_RENAMED = {"optimizer_name": "optimizer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPlan:
    """What will be built, decided from plain settings. Made by :func:`~mufree.plan.plan_optimizer` only.

    Args:
        requested_optimizer: The name asked for, stripped and lower-cased.
        optimizer_name: The class that is built.
        peak_lr: The peak rate.
        scheduler: The schedule's name.
        scheduler_options: Its options as given, pairs sorted by name.
        warmup_updates: Updates of warmup.
        total_updates: Updates of the run; ``None`` if it has no declared end.
        past_end: What happens to updates past the end: they keep the last rate, or are refused.
        weight_decay: λ; what it multiplies is the optimizer's affair (``family.decay``).
        decay_mask: Which parameters decay: all, transformers' choice, or ``f(path, array) -> bool``.
        coupled_weight_decay: Whether the decay is added to the gradient (L2) by a rule of ours.
        betas: β1 and β2, if the optimizer has them.
        eps: ε, if the optimizer has it.
        momentum: Momentum, if the optimizer has it.
        options: The optimizer's further options, pairs sorted by name.
        max_grad_norm: The global gradient norm above which the built object clips; ``None`` never.
        iters: Micro-batches of the run, if that is what was given.
        grad_accumulation_steps: Micro-batches an update.
        leftover_micro_batches: Micro-batches at the end that make no full update.
        notes: What the names mean here.
        warnings: What one should look at before training.

    Example:
        >>> from mufree import OptimizerPlan, plan_optimizer
        >>> plan = plan_optimizer(optimizer="adamw", lr=0.5, scheduler="linear", total_updates=4)
        >>> plan.optimizer_name, plan.family.decay, [plan.rate(update) for update in range(4)]
        ('AdamW', 'decoupled', [0.5, 0.375, 0.25, 0.125])
        >>> OptimizerPlan.from_json(plan.to_json()) == plan
        True
    """

    requested_optimizer: str
    optimizer_name: str
    peak_lr: float
    scheduler: str
    scheduler_options: tuple[tuple[str, Any], ...]
    warmup_updates: int
    total_updates: int | None
    past_end: PastEnd
    weight_decay: float
    decay_mask: DecayMask
    coupled_weight_decay: bool
    betas: tuple[float, float] | None
    eps: float | None
    momentum: float | None
    options: tuple[tuple[str, Any], ...]
    max_grad_norm: float | None
    iters: int | None
    grad_accumulation_steps: int
    leftover_micro_batches: int
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def family(self) -> Family:
        """The update rule's entry in the table of families."""
        return family_of(BUILT[self.requested_optimizer])

    @property
    def form(self) -> str:
        """The update rule's key in the table of families."""
        return BUILT[self.requested_optimizer].family

    @property
    def scheduler_kwargs(self) -> dict[str, Any]:
        """The schedule's options as a fresh dict."""
        return dict(self.scheduler_options)

    @property
    def has_constant_rate(self) -> bool:
        """Whether one number is the rate of every update (schedule-free optimizers warm up by themselves)."""
        flat = self.scheduler in ("constant", "constant_with_warmup")
        return self.family.schedule_free or (flat and self.warmup_updates == 0)

    @property
    def needs_model(self) -> bool:
        """Whether building it takes the model: the mask asks for module types and paths."""
        return self.weight_decay > 0 and self.decay_mask != "all"

    def rate(self, update: int) -> float:
        """The rate of an update counted from 0, in Python floats; past the end as planned.

        For schedule-free optimizers it is the peak: their own warmup is not part of it.

        Raises:
            Refused: The update lies past the end, and the plan refuses such updates.
        """
        if self.family.schedule_free:
            return self.peak_lr
        last = update
        if self.total_updates is not None and update >= self.total_updates:
            if self.past_end == "refuse":
                refuse(
                    "past_end", "update", f"{update} is past the declared {self.total_updates} updates; plan for more"
                )
            last = self.total_updates - 1
        if self.scheduler == mlx_lm.NAME:
            return mlx_lm.rate_function(self.scheduler_kwargs)(last)
        return rate_function(
            self.scheduler,
            lr=self.peak_lr,
            warmup=self.warmup_updates,
            total=self.total_updates,
            options=self.scheduler_kwargs,
        )(last)

    def as_metadata(self) -> dict[str, Any]:
        """The plan as a dict that JSON can hold; :meth:`from_metadata` reads it back."""
        data: dict[str, Any] = {"format": FORMAT}
        for item in fields(self):
            data[_RENAMED.get(item.name, item.name)] = _jsonable(getattr(self, item.name))
        data["scheduler_options"] = self.scheduler_kwargs
        data["options"] = dict(self.options)
        return data

    @classmethod
    def from_metadata(
        cls, data: Mapping[str, Any], *, decay_mask: Callable[[str, Any], bool] | None = None
    ) -> OptimizerPlan:
        """Read :meth:`as_metadata`'s dict, checking it as if its settings had just been given.

        Args:
            data: The dict.
            decay_mask: The function, if the plan had one: no file can hold it.

        Raises:
            Refused: The dict is not a plan of this format, or its settings would not be accepted.
        """
        from .reading import read_metadata

        return read_metadata(data, decay_mask)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(self.as_metadata(), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, decay_mask: Callable[[str, Any], bool] | None = None) -> OptimizerPlan:
        """Read :meth:`to_json`'s text.

        Args:
            text: The text.
            decay_mask: As for :meth:`from_metadata`.

        Raises:
            Refused: The text is not JSON, or as :meth:`from_metadata` says.
        """
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            refuse("not_json", "plan", f"the text is not JSON ({error}); give what to_json wrote")
        return cls.from_metadata(data, decay_mask=decay_mask)

    def table(self) -> str:
        """The plan as a table for people, with its notes and warnings."""
        from .table import plan_table

        return plan_table(self)

    def __str__(self) -> str:
        return self.table()


def _jsonable(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if callable(value):
        return f"function {getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', repr(value))}"
    return value
