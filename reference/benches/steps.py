"""Whole training steps of the default model: ours beside the same step with other optimizers, and in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from training_sides import SIDES, Step, batch, torch_missing

from .harness import Options, Row, paired

DESCRIPTION = "whole training steps"
AIM = 1.02
"""Of a step with MLX AdamW: what schedule-free may cost."""


def peak_memory(step: Step) -> float:
    """MB in use at most during a step, weights and state included."""
    step()
    mx.clear_cache()
    mx.reset_peak_memory()
    step()
    return mx.get_peak_memory() / 1e6


def rows(options: Options) -> Iterator[Row]:
    """Time, tokens a second and memory; PyTorch's where it is installed."""
    rounds = 3 * options.rounds  # a step is short, and its time scatters more than an update's
    tokens = batch()[:, 1:].size
    for other, limit in (("MLX AdamW", AIM), ("PyTorch schedulefree", None), ("PyTorch AdamW", None)):
        name, rate = f"training step / {other}", f"tokens a second / {other}"
        if not (options.wants(name) or options.wants(rate)):
            continue
        missing = torch_missing(options.device) if "PyTorch" in other else None
        if missing:
            print(f"{name}: left out, {missing}")
            continue
        ours, theirs = paired(SIDES["mufree"](options.device), SIDES[other](options.device), rounds)
        yield Row(name=name, ours=ours, theirs=theirs, limit=limit)
        yield Row(name=rate, ours=1e3 * tokens / ours, theirs=1e3 * tokens / theirs, unit="tokens/s")
    name = "peak memory of a training step / MLX AdamW"
    if options.wants(name):
        # One after the other, each alone: what the first holds would count for the second.
        ours, theirs = (peak_memory(SIDES[side](options.device)) for side in ("mufree", "MLX AdamW"))
        yield Row(name=name, ours=ours, theirs=theirs, unit="MB")
