"""The language-model task: ``mufree pretrain``'s own data, model and optimizer, cell by cell.

Invariant: a cell makes the updates that ``mufree pretrain`` makes with the same settings, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..build import build_optimizer
from ..errors import Reasons
from ..lm.building import base_shapes, build
from ..lm.configs import at_width
from ..mup import Scales
from ..plan import plan_optimizer
from ..recipe import FIXED, TUNED
from ..training.config import PRETRAIN_ONLY, PretrainConfig, defaults
from ..training.prepare import Prepared, plan_run, prepare
from ..training.step import next_token_loss
from .cells import Cell
from .task import Task

KEPT = (
    "zero_readout",
    "zero_query",
    "decay_rule",
    "seq_length",
    "batch_size",
    "accumulation",
    "eval_batches",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "warmup",
)
"""Settings that change a cell's result and are no field of the cell."""


def language_task(
    config: PretrainConfig, widths: Sequence[int], *, measured: Sequence[int] = ()
) -> tuple[Task, Prepared]:
    """The task of a study on language models, and what was prepared for it at the base width.

    Losses are nats a token at ``x``: ``loss`` on batches of the training text, spread evenly over it, ``valid_loss`` on
    the validation text. What the tokenizer is matters to a cell only through the token ids and their number, which are
    among the settings.

    Args:
        config: Settings as for pretraining; width, rate, seed and length come from the cells.
        widths: Every width that will be asked for.
        measured: Updates after which a cell is evaluated besides the last.

    Raises:
        Refused: With every reason that the settings, the data and the widths give.
    """
    reasons = Reasons()
    for name in PRETRAIN_ONLY:
        if getattr(config, name) != defaults()[name]:
            reasons.add("unknown", name, f"{getattr(config, name)!r} is no setting of a study; leave it out")
    prepared = reasons.attempt(prepare, replace(config, width=config.base_width))
    if prepared is not None:
        for width in widths:
            reasons.attempt(at_width, prepared.model_config, width)
    found = reasons.settled(prepared)
    task = Task(
        make=lambda width: build(at_width(found.model_config, width)),
        batch=lambda number, seed: found.train.sequences(number * config.batch_size, config.batch_size, seed),
        loss=next_token_loss,
        shapes=base_shapes(found.model_config, config.base_width),
        optimizer=lambda cell, model, scales: cell_optimizer(config, cell, model, scales),
        evaluation={
            "loss": found.train.evenly(config.eval_batches, config.batch_size),
            "valid_loss": found.valid.evenly(config.eval_batches, config.batch_size),
        },
        parametrize={
            "zero_readout": config.zero_readout,
            "zero_query": config.zero_query,
            "weight_decay": config.decay_rule,
        },
        accumulation=config.accumulation,
        measured=tuple(measured),
        settings={
            **{name: value for name, value in found.identity().items() if name != "tokenizer"},
            "base_width": config.base_width,
            **{name: getattr(config, name) for name in KEPT},
            "data": found.corpus.name,
            "measured": list(measured),
        },
    )
    return task, found


def cell_optimizer(config: PretrainConfig, cell: Cell, model: Any, scales: Scales | None) -> Any:
    """The optimizer of a cell: pretraining's own, or AdamW with a cosine that ends at the cell's horizon."""
    settings = replace(config, width=cell.width, lr=cell.rate)
    if cell.schedule == "schedule_free":
        return build_optimizer(plan_run(settings), model, scales=scales)
    plan = plan_optimizer(
        optimizer="adamw_torch",
        lr=cell.rate,
        scheduler="cosine",
        warmup_steps=config.warmup,
        total_updates=cell.updates,
        weight_decay=config.weight_decay,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        grad_accumulation_steps=config.accumulation,
    )
    return build_optimizer(plan, model, scales=scales)


def recipe_context(config: PretrainConfig, task: Task, prepared: Prepared) -> dict[str, Any]:
    """What a recipe of a study keeps besides the rate."""
    return {
        "settings": {name: getattr(config, name) for name in (*FIXED, *TUNED) if name != "lr"},
        "model_config": prepared.model_config,
        "base_shapes": {path: list(shape) for path, shape in task.shapes.items()},
        "tokenizer_hash": prepared.identity()["tokenizer"],
    }
