"""What a fine-tune will take of the memory: the plan for its longest micro-batch."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx

from ..memory_plan import MemoryPlan, memory_plan
from .settings import FinetuneConfig

_PAD = 32
"""mlx-lm fills rows up to one more than a multiple of this, of which the model sees all but the last."""
_LOOKED_AT = 16
"""Rows with the most characters, among which the one with the most tokens is taken to be."""


def plan_memory(config: FinetuneConfig, model: Any, optimizer: Any, rows: Any) -> MemoryPlan:
    """The plan for the longest rows that there are, cut off where the settings say; nothing is computed.

    Args:
        config: The settings.
        model: The model, its adapters attached.
        optimizer: Its optimizer.
        rows: mlx-lm's training set.
    """
    return memory_plan(
        model,
        optimizer,
        batch_size=max(1, config.batch_size // mx.distributed.init().size()),
        seq_length=min(_PAD * -(-longest(rows) // _PAD), config.max_seq_length - 1),
        accumulation=config.grad_accumulation_steps,
        checkpointing=config.grad_checkpoint,
    )


def longest(rows: Any) -> int:
    """Tokens of the longest row of a set, as far as characters tell which rows are long."""
    sizes = [len(json.dumps(rows[number], default=str, ensure_ascii=False)) for number in range(len(rows))]
    chosen = sorted(range(len(rows)), key=sizes.__getitem__)[-_LOOKED_AT:]
    return max(len(rows.process(rows[number])[0]) for number in chosen)
