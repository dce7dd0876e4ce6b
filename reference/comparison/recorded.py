"""The optimizers alone, on the noisy bowl of the recorded trajectories: both sides get the same gradient function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch_side
import trajectories
from mufree import AdamWScheduleFree, MuAdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree, make_base_shapes
from mufree.mup import mup_scales
from schedule_free_problems import SHAPES, run, sequences

from .rows import Row, Scale, Tick
from .sides import MLX, TORCH, Case, Precision, Run
from .sides import rows as case_rows

BASE, DELTA = trajectories.BASE, trajectories.DELTA
WARM = {"weight_decay": 0.1, "warmup_steps": 100}
CASES = {
    "AdamW schedule-free": ("adamw", {"lr": 0.0025, **WARM}, None),
    "SGD schedule-free": ("sgd", {"lr": 0.05, **WARM}, None),
    "RAdam schedule-free": ("radam", {"lr": 0.0025, "weight_decay": 0.1}, None),
    "μP + AdamW schedule-free": ("adamw", {"lr": 0.0025, **WARM}, BASE),
}
OURS = {"adamw": AdamWScheduleFree, "sgd": SGDScheduleFree, "radam": RAdamScheduleFree}


def rows(scale: Scale, tick: Tick) -> Iterator[Row]:
    """All cases."""
    for name, (kind, settings, base) in CASES.items():
        case = Case(name=name, torch=_torch_side(kind, settings, base), mlx=_mlx_side(kind, settings, base))
        yield from case_rows("recorded problem", case, scale, tick, scale.updates)


def cases() -> int:
    """How many ticks :func:`rows` makes."""
    return 3 * len(CASES)


def _torch_side(kind: str, settings: dict[str, Any], base: Any) -> Any:
    def side(precision: Precision, seed: int, marks: Sequence[int]) -> Run:
        found = Run()

        def keep(k: int, now: dict, _: dict) -> None:
            if k + 1 in marks:
                found.at[k + 1] = {name: now[name] for name in "xyz"}

        torch_side.run(kind, settings, max(marks), dtype=TORCH[precision], seed=seed, base=base, observe=keep)
        return found

    return side


def optimizer(kind: str, settings: dict[str, Any], base: Any) -> Any:
    """Ours, from PyTorch's settings."""
    ours = {("learning_rate" if name == "lr" else name): value for name, value in settings.items()}
    if base is None:
        return OURS[kind](**ours)
    scales = mup_scales(SHAPES, make_base_shapes(base, DELTA), scale_eps=False)
    return MuAdamWScheduleFree(SHAPES, scales, impl=OURS[kind], **ours)


def _mlx_side(kind: str, settings: dict[str, Any], base: Any) -> Any:
    def side(precision: Precision, seed: int, marks: Sequence[int]) -> Run:
        found, ours = Run(), optimizer(kind, settings, base)

        def keep(k: int, held: dict) -> None:
            if k + 1 in marks:
                found.at[k + 1] = sequences(ours, held)

        run(ours, max(marks), MLX[precision], seed, observe=keep)
        return found

    return side
