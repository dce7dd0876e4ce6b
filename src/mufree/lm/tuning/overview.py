"""The plan of a fine-tune, as a person reads it before the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlx.utils import tree_flatten
from mlx_lm.utils import get_total_parameters

from ...plan import OptimizerPlan
from ...training.layout import named_lines
from ..memory_plan import size_text
from .folder import KEPT
from .prepare import Prepared
from .scaling import summary, table_lines


def overview(prepared: Prepared, width: int | None = None) -> str:
    """What is trained, on what, for how long and how, with a row for each thing to know; then the scales.

    Args:
        prepared: What was decided.
        width: Of the terminal; None where lines may have any length.
    """
    rows = [(name, value) for name, value in _rows(prepared) if value]
    rows += [("memory", text) for text in memory_lines(prepared)]
    rows += [("disk", text) for text in disk_lines(prepared)]
    rows += [("note", text) for text in prepared.notes]
    return "\n".join([*named_lines(rows, width), *table_lines(prepared.scales)])


def trained_size(prepared: Prepared) -> tuple[int, int]:
    """Numbers trained, and numbers in all."""
    trained = sum(array.size for _, array in tree_flatten(prepared.model.trainable_parameters()))
    return trained, get_total_parameters(prepared.model)


def memory_lines(prepared: Prepared) -> tuple[str, ...]:
    """What the run will take of the memory."""
    return prepared.memory.lines() if prepared.memory else ()


def disk_lines(prepared: Prepared) -> tuple[str, ...]:
    """What the run will take of the disk."""
    if prepared.memory is None:
        return ()
    config = prepared.config
    adapters = sum(array.nbytes for _, array in tree_flatten(prepared.model.trainable_parameters()))
    each = size_text(2 * adapters + prepared.memory.state)  # x and y, the same where nothing is averaged
    numbered = config.iters // config.save_every
    kept = f"the last, the best, and {numbered} numbered" if numbered else "the last and the best"
    return (f"{KEPT} checkpoints of about {each} each; adapters of {size_text(adapters)} each: {kept}",)


def peak_line(prepared: Prepared, peak: int) -> str:
    """What a run took of the memory, in bytes, beside what was planned."""
    planned = f" (planned: {size_text(prepared.memory.total)})" if prepared.memory else ""
    return f"peak memory {size_text(peak)}{planned}"


def _rows(prepared: Prepared) -> Iterable[tuple[str, str]]:
    config = prepared.config
    trained, total = trained_size(prepared)
    yield "model", config.model
    if not config.train:
        yield "adapters", config.adapter_path or "none"
        yield "test", f"{len(prepared.test)} rows"
        return
    yield "tuned", _tuned(prepared)
    yield "parameters", f"{trained:,} of {total:,} trained ({trained / total:.3%})"
    sets = {"train": prepared.train, "valid": prepared.valid, "test": prepared.test if config.test else ()}
    counted = ", ".join(f"{name} {len(rows)}" for name, rows in sets.items() if len(rows))
    masked = "; the prompt is masked" if config.mask_prompt else ""
    yield "data", f"{config.data if not config.hf_dataset else 'hf_dataset'} (rows: {counted}){masked}"
    updates, left = divmod(config.iters, config.grad_accumulation_steps)
    an_update = (
        f"{config.grad_accumulation_steps} an update" if config.grad_accumulation_steps > 1 else "each an update"
    )
    over = f", {left} left over" if left else ""
    yield "length", f"{config.iters} micro-batches of {config.batch_size} rows, {an_update}: {updates} updates{over}"
    yield from _optimizer_rows(prepared)
    yield "adapters", config.adapter_path


def _tuned(prepared: Prepared) -> str:
    config, layers = prepared.config, len(prepared.model.layers)
    chosen = config.num_layers if config.num_layers > 0 else layers
    all_of = f"the last {chosen} of {layers} layers" if chosen < layers else f"all {layers} layers"
    what = f"{config.fine_tune_type}, {all_of if layers > 1 else 'its one layer'}"
    if config.fine_tune_type == "full":
        return what
    lora: dict[str, Any] = prepared.args.lora_parameters
    return f"{what}, rank {lora['rank']}, scale {lora['scale']:g}, dropout {lora['dropout']:g}"


def _optimizer_rows(prepared: Prepared) -> Iterable[tuple[str, str]]:
    plan = prepared.plan()
    asked = f"asked for as {plan['requested_optimizer']}; " if prepared.config.optimizer else ""
    yield "optimizer", f"{plan['optimizer']} ({asked}meaning: {plan['meaning']})"
    options = ", ".join(f"{name}={value}" for name, value in plan["scheduler_options"].items())
    yield "rate", f"{plan['peak_lr']:g}, {plan['scheduler']}{f'({options})' if options else ''}"
    yield "scales", summary(prepared.config, prepared.scales)
    yield "warmup", f"{plan['warmup_updates']} updates" if plan["warmup_updates"] else ""
    if prepared.choice is not None and prepared.choice.plan is not None and prepared.choice.schedule_free:
        yield "settings", _settings(prepared.choice.plan)
        return
    yield "weight decay", f"{plan['weight_decay']:g}" if plan["weight_decay"] else ""


def _settings(plan: OptimizerPlan) -> str:
    """Everything else that decides a schedule-free run, zeros too."""
    parts = [f"betas {plan.betas[0]:g}, {plan.betas[1]:g}"] if plan.betas else []
    parts += [f"momentum {plan.momentum:g}"] if plan.momentum is not None else []
    parts += [f"eps {plan.eps:g}"] if plan.eps is not None else []
    clipped = f"max_grad_norm {plan.max_grad_norm:g}" if plan.max_grad_norm else "no max_grad_norm"
    parts += [
        f"weight decay {plan.weight_decay:g}",
        clipped,
        *(f"{name} {_text(value)}" for name, value in plan.options),
    ]
    return "; ".join(parts)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
