"""What a training run will take of the memory, from shapes, dtypes and the optimizer, before anything takes it.

The model is called once, as lazily as arrays are, and what its modules return is added up. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..mup.walk import modules
from ..random_state import random_state_kept

FACTOR = 1.3
"""How far the peak of a run may lie from the plan, either way: measured on MLX's CPU backend, in mlx-lm's own trainer,
on LoRA, DoRA and full fine-tunes of llama, qwen3 and gemma, with and without gradient checkpointing."""

_SAVED = 2
"""A backward pass keeps a module's output, and about as much again of what lies between modules."""
_SCORES = 2
"""Attention's scores and their softmax, which MLX's training keeps."""
_LOGITS = 4
"""The logits, their shifted exponentials, and the gradients of both."""
_BLOCKS_AT_ONCE = 2
"""Checkpointed blocks that are held at a time: the one computed again and the one before it."""
_DORA = 1
"""Further copies that a DoRA layer keeps of its output, which is divided by the norm of the adapted weight."""
_REMEDY = "give a smaller batch and accumulation, shorter rows, checkpointing, fewer layers or a quantised base"
_ADAPTED = ("linear", "embedding", "dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes that a run takes at its peak.

    Args:
        weights: Every parameter, frozen ones too.
        gradients: Those of the trained parameters, twice if they are accumulated.
        state: The optimizer's.
        temporaries: What forward, backward and update need besides, whichever is more.
        recommended: MLX's recommended working set, None where the device names none.
    """

    weights: int
    gradients: int
    state: int
    temporaries: int
    recommended: int | None = None

    @property
    def total(self) -> int:
        """The peak, within :data:`FACTOR`."""
        return self.weights + self.gradients + self.state + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether the peak lies within what the device recommends; None where it recommends nothing."""
        return None if self.recommended is None else self.total <= self.recommended

    def lines(self) -> tuple[str, ...]:
        """The plan in sentences."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer state": self.state,
            "activations and temporaries": self.temporaries,
        }
        told = ", ".join(f"{name} {size_text(value)}" for name, value in parts.items())
        first = f"about {size_text(self.total)} at the peak ({told})"
        if self.recommended is None:
            return (first,)
        limit = f"the device recommends at most {size_text(self.recommended)}"
        if self.fits:
            return (f"{first}; {limit}",)
        return (
            f"{first}; {limit}",
            f"more than the device recommends, so the run may swap or fail; {_REMEDY}",
        )

    def as_dict(self) -> dict[str, int | None]:
        """The numbers, as JSON."""
        names = ("weights", "gradients", "state", "temporaries", "total", "recommended")
        return {name: getattr(self, name) for name in names}


def memory_plan(
    model: Any,
    optimizer: Any,
    *,
    batch_size: int,
    seq_length: int,
    accumulation: int = 1,
    checkpointing: bool = False,
) -> MemoryPlan:
    """Work out what training will take; model, optimizer and random state are as before.

    Args:
        model: Maps token ids to logits, with what is not to be trained frozen and adapters attached.
        optimizer: The optimizer, started or not.
        batch_size: Rows of a micro-batch.
        seq_length: Tokens of its longest row.
        accumulation: Micro-batches an update.
        checkpointing: Whether each block is computed again in the backward pass.

    Returns:
        The bytes by what takes them; their sum is within :data:`FACTOR` of the peak.
    """
    trained = _nbytes(model.trainable_parameters())
    state = _state(model, optimizer)
    seen = _look(model, batch_size, seq_length)
    activations = _SAVED * (seen.outputs - seen.logits) + _SCORES * seen.scores
    if checkpointing and seen.blocks:
        share = min(1.0, _BLOCKS_AT_ONCE / seen.blocks)
        inside = _SAVED * seen.inside + _SCORES * seen.scores
        activations = round(activations - inside * (1 - share)) + seen.boundaries
    activations += _LOGITS * seen.logits + _dora(model) // max(1, seen.blocks)
    if getattr(optimizer, "model_holds", "y") == "x":
        activations += trained  # the model holds y for the time of the loss
    gradients = trained * (2 if accumulation > 1 else 1)
    # A compiled update gives new arrays for the parameters, in the room of the new gradients, and for all state; by
    # then the activations are gone.
    update = state
    return MemoryPlan(
        weights=_nbytes(model.parameters()),
        gradients=gradients,
        state=state,
        temporaries=max(activations, update),
        recommended=recommended_working_set(),
    )


def recommended_working_set() -> int | None:
    """Bytes that MLX's device recommends to stay below, or None where it names no such number (a CPU)."""
    value = mx.device_info().get("max_recommended_working_set_size")
    return int(value) if value else None


@dataclass(slots=True)
class _Seen:
    """Sizes of what a forward pass returns, in bytes."""

    outputs: int = 0
    logits: int = 0
    scores: int = 0
    blocks: int = 0
    inside: int = 0
    boundaries: int = 0
    arrays: dict[int, mx.array] = field(default_factory=dict)  # kept, so that no id is used again


def _look(model: Any, rows: int, tokens: int) -> _Seen:
    seen = _Seen()
    blocks = [block for block in getattr(model, "layers", []) if hasattr(block, "named_modules")]
    adapters = [module for _, module in modules(model) if hasattr(module, "fuse")]
    inner = {id(module[name]) for module in adapters for name in _ADAPTED if name in module}
    inside = {id(module) for block in blocks for _, module in modules(block)} - {id(block) for block in blocks}
    ends = {id(block) for block in blocks}
    seen.blocks = len(blocks)

    def hear(module: Any, result: Any) -> None:
        for array in result if isinstance(result, tuple | list) else (result,):
            if not isinstance(array, mx.array) or id(array) in seen.arrays:
                continue
            seen.arrays[id(array)] = array
            # Factors of a wider dtype than the base's make what goes through them as wide.
            nbytes = array.size * max(array.itemsize, getattr(module.get("lora_a"), "itemsize", 0))
            nbytes += nbytes * _DORA // _SAVED if "lora_a" in module and "m" in module else 0
            seen.outputs += nbytes
            seen.inside += nbytes if id(module) in inside else 0
            seen.boundaries += nbytes if id(module) in ends else 0

    watched = [module for _, module in modules(model) if hasattr(module, "named_modules") and id(module) not in inner]
    with random_state_kept(), _listening(watched, hear), _attention(seen):
        logits = model(mx.zeros((rows, tokens), dtype=mx.int32))
    seen.logits = logits.nbytes
    return seen


@contextmanager
def _listening(watched: list[Any], hear: Any) -> Iterator[None]:
    """For the time of the block, every call of these modules is heard with what it returned."""
    before = [(module, type(module)) for module in watched]
    try:
        for module, kind in before:
            object.__setattr__(module, "__class__", _heard(kind, hear))
        yield
    finally:
        for module, kind in before:
            object.__setattr__(module, "__class__", kind)


def _heard(kind: type, hear: Any) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = kind.__call__(self, *args, **kwargs)
        hear(self, result)
        return result

    return type(kind.__name__, (kind,), {"__call__": call})


@contextmanager
def _attention(seen: _Seen) -> Iterator[None]:
    fused = mx.fast.scaled_dot_product_attention

    def attention(q: mx.array, k: mx.array, v: mx.array, **more: Any) -> Any:
        seen.scores += q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * q.itemsize
        return fused(q, k, v, **more)

    mx.fast.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = fused


def _state(model: Any, optimizer: Any) -> int:
    """Bytes of the state for what is trained, worked out on a copy: nothing is computed."""
    copy = deepcopy(optimizer)
    copy.init(model.trainable_parameters())
    return _nbytes(copy.state)


def _dora(model: Any) -> int:
    """Bytes of the weights that DoRA layers adapt, which are put together anew block by block."""
    found = [module for _, module in modules(model) if "lora_a" in module and "m" in module]
    return sum(m["lora_a"].shape[0] * m["lora_b"].shape[1] * m["lora_a"].itemsize for m in found)


def _nbytes(tree: Mapping[str, Any]) -> int:
    return sum(array.nbytes for _, array in tree_flatten(tree))


def size_text(value: int) -> str:
    """Bytes as people read them.

    Example:
        >>> size_text(12_345_678), size_text(345_678), size_text(12_345), size_text(12_345_678_901)
        ('12 MB', '0.3 MB', '12.3 kB', '12.3 GB')
    """
    if value < 1e5:
        return f"{value / 1e3:.3g} kB"
    if value >= 1e9:
        return f"{value / 1e9:.1f} GB"
    return f"{value / 1e6:.{0 if value >= 1e7 else 1}f} MB"
