"""The plan of a run as text: what a person checks before a long one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..recipe import Recipe
from .layout import named_lines, table_lines

if TYPE_CHECKING:
    from .config import PretrainConfig
    from .folder import RunFolder
    from .prepare import Prepared
_CHECKPOINT, _EXPORT = 16, 4
"""Bytes a parameter: float32 y, x, z and v (bfloat16 y and x, and y once more in float32); and x alone."""
_HEAD = ("kind", "m_in", "tensors", "parameters", "std", "factor", "rate", "eps", "decay")
_LEGEND = (
    ("kind", "input-like: embedding, gain; hidden: width to width; output-like: head"),
    ("m_in", "a tensor's input size over the base model's, 1 if it does not scale"),
    ("std", "of the fresh weights: one, or the tensors' lowest–highest"),
    ("factor", "μP's, on the base model's std; rate, eps and decay have theirs in them"),
)


def overview(prepared: Prepared, folder: RunFolder, width: int | None = None) -> str:
    """The width-multiplier groups, what their columns are, and the totals with what will be written where.

    Args:
        prepared: What was decided.
        folder: Where the run writes.
        width: Of the terminal; None where lines may have any length.
    """
    rows = [_shown(row) for row in group_rows(prepared)]
    groups = ["μP groups", *table_lines(_HEAD, rows, width), "", *named_lines(_LEGEND, width)]
    return "\n".join([*groups, "", *named_lines(_totals(prepared, folder), width)])


def group_rows(prepared: Prepared) -> list[dict[str, Any]]:
    """One row for each set of parameters with the same kind, multipliers and decay.

    Each has ``kind``, ``m_in``, ``tensors``, ``parameters``, ``init_std`` (lowest and highest std of its fresh
    tensors), ``init`` (factor on the base model's std), ``lr``, ``eps``, ``weight_decay``.
    """
    plan = prepared.plan
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path, array in tree_flatten(prepared.model.trainable_parameters()):
        scale = prepared.scales[path]
        key = (scale.kind, scale.m_in, scale.init, scale.lr, scale.eps, scale.weight_decay)
        row = rows.setdefault(
            key,
            {
                "kind": scale.kind,
                "m_in": scale.m_in,
                "tensors": 0,
                "parameters": 0,
                "init": scale.init,
                "lr": plan.peak_lr * scale.lr,
                "eps": (plan.eps or 0.0) * scale.eps,
                "weight_decay": plan.weight_decay * scale.weight_decay,
                "stds": [],
            },
        )
        row["tensors"] += 1
        row["parameters"] += array.size
        row["stds"].append(mx.std(array).item())
    return [{**row, "init_std": (min(row["stds"]), max(row["stds"]))} | {"stds": None} for row in rows.values()]


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["init_std"]
    return (
        row["kind"],
        f"{row['m_in']:.3g}",
        f"{row['tensors']}",
        f"{row['parameters']:,}",
        f"{low:.3g}" if high - low <= 0.1 * high else f"{low:.2g}–{high:.2g}",
        f"{row['init']:.3g}",
        *(f"{row[name]:.3g}" for name in ("lr", "eps", "weight_decay")),
    )


def _totals(prepared: Prepared, folder: RunFolder) -> list[tuple[str, str]]:
    config, plan = prepared.config, prepared.plan
    parameters = sum(array.size for _, array in tree_flatten(prepared.model.trainable_parameters()))
    notes = (*plan.notes, *plan.warnings, *([prepared.corpus.note] if prepared.corpus.note else []))
    return [
        ("model", f"{config.model_type}, width {config.width}, {config.layers} layers, {parameters:,} {_type(config)}"),
        ("μP", f"base width {config.base_width}: {_multiplier(prepared)}; {prepared.scales.readout.way}"),
        ("optimizer", f"{plan.optimizer_name}, rate {plan.peak_lr:g} at the base width, β {plan.betas}"),
        *([("recipe", Recipe.from_mapping(config.recipe).summary())] if config.recipe else []),
        ("warmup", f"{plan.warmup_updates} updates, then constant"),
        ("stops", _stops(prepared)),
        ("an update", f"{config.accumulation} × {config.batch_size} sequences × {config.seq_length} tokens"),
        ("data", f"{prepared.corpus.name}: {_documents(prepared)}"),
        ("writes", f"{folder.metrics}, {folder.checkpoints} (every {config.save_every} updates), {folder.export}"),
        ("", _sizes(config, parameters)),
        *(("note", text) for text in notes),
    ]


def _type(config: PretrainConfig) -> str:
    blocks = ", blocks computed again for their gradients" if config.grad_checkpoint else ""
    return ("parameters" if config.dtype == "float32" else f"parameters in {config.dtype}") + blocks


def _multiplier(prepared: Prepared) -> str:
    ratio = prepared.config.width / prepared.config.base_width
    if ratio == 1:
        return "every multiplier is 1, this is standard parametrisation"
    return f"width multiplier {ratio:.3g}"


def _stops(prepared: Prepared) -> str:
    config = prepared.config
    limits = [f"after {config.update_limit} updates"] if config.update_limit is not None else []
    limits += [f"after {config.max_time:g} minutes"] if config.max_time is not None else []
    return " or ".join(limits) + ", or at Ctrl-C; nothing depends on the end"


def _documents(prepared: Prepared) -> str:
    corpus = prepared.corpus
    parts = (("training", prepared.train, corpus.train), ("validation", prepared.valid, corpus.valid))
    return ", ".join(
        f"{name} {_counted(len(tokens.ids), 'token')}{_of(documents)}" for name, tokens, documents in parts
    )


def _of(documents: Sequence[Any]) -> str:
    """What tokens are of; files of tokens have no documents."""
    return f" of {_counted(len(documents), 'document')}" if documents else ""


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _sizes(config: PretrainConfig, parameters: int) -> str:
    export = _EXPORT * parameters if config.dtype == "float32" else _EXPORT * parameters // 2
    each = _size(_CHECKPOINT * parameters)
    return f"{config.keep} checkpoints and the best, of {each} each; an export of {_size(export)}"


def _size(count: float) -> str:
    units = ["B", "kB", "MB", "GB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"
