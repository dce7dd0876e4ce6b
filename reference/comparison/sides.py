"""Running a case on both sides, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten

from schedule_free_problems import distance, error
from torch_side import sequences as schedule_free_sequences

from .rows import Row, Scale, Tick

torch.set_num_threads(1)  # small products: more threads only wait for each other

Sequences = dict[str, dict[str, np.ndarray]]
Precision = Literal["float32", "float64"]
TORCH = {"float32": torch.float32, "float64": torch.float64}
MLX = {"float32": mx.float32, "float64": mx.float64}

# Some thousand roundings of 1e-16; every planted mistake of the tests is off by 1e-6 or more.
FLOAT64 = 1e-12
# MLX's stock Adam computes its rate and bias correction in float32, relative 1e-7 an update, whatever the weights are.
FLOAT32_SCALARS = 1e-4
# float32's distance from float64 over PyTorch float32's own: the same operations in another order.
RATIOS = {"x": 1.75, "y": 1.75, "z": 2.25}


@dataclass(slots=True)
class Run:
    """What one side gives.

    Args:
        at: The sequences (x, y and z; w for an optimizer that keeps no average) after some updates.
        losses: The training loss of every update, where there is one.
        final: Losses after the last update by name.
    """

    at: dict[int, Sequences] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    final: dict[str, float] = field(default_factory=dict)


Side = Callable[[Precision, int, Sequence[int]], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An optimizer's two sides, each called with a precision, a seed and the updates to look at.

    Args:
        name: The optimizer.
        torch: PyTorch's side.
        mlx: MLX's.
        float64: Bound of the relative distance in float64; None if MLX cannot be asked for it.
        ratios: Bounds of the float32 ratio by sequence; others are only reported.
    """

    name: str
    torch: Side
    mlx: Side
    float64: float | None = FLOAT64
    ratios: Mapping[str, float] = field(default_factory=lambda: RATIOS)


def torch_sequences(optimizer: Any, parameters: Mapping[str, Any]) -> Sequences:
    """x, y and z, or w, of a PyTorch optimizer, as float64 copies."""
    if "z" in next(iter(optimizer.state.values())):
        found = schedule_free_sequences(optimizer, parameters)
        return {name: found[name] for name in "xyz"}
    return {"w": {name: p.detach().double().numpy().copy() for name, p in parameters.items()}}


def mlx_sequences(optimizer: Any, model: Any) -> Sequences:
    """The same of an MLX optimizer and the model that holds ``y``."""
    held = model.trainable_parameters()
    if not hasattr(optimizer, "average"):
        return {"w": _numpy(held)}
    state = dict(tree_flatten(optimizer.state))
    z = {path: state[f"{path}.z"] for path, _ in tree_flatten(held)}
    return {"x": _numpy(optimizer.average(held)), "y": _numpy(held), "z": _numpy(z)}


def marks(updates: int) -> list[int]:
    """After which updates both sides are looked at: about three in each factor of ten, and the last."""
    found = {round(10 ** (third / 3)) for third in range(3, 40)}
    return sorted({1, *(mark for mark in found if mark < updates), updates})


def rows(problem: str, case: Case, scale: Scale, tick: Tick, updates: int) -> Iterator[Row]:
    """Every figure of a case."""
    looked = marks(updates)
    exact = [case.torch("float64", seed, looked) for seed in range(scale.seeds)]
    tick(f"{problem}, {case.name}: PyTorch float64")
    if case.float64 is not None:
        yield from _exact(problem, case, exact[0], case.mlx("float64", 0, looked))
        tick(f"{problem}, {case.name}: MLX float64")
    theirs = [case.torch("float32", seed, looked) for seed in range(scale.seeds)]
    ours = [case.mlx("float32", seed, looked) for seed in range(scale.seeds)]
    tick(f"{problem}, {case.name}: float32")
    yield from _rounded(problem, case, exact, theirs, ours)


def _exact(problem: str, case: Case, exact: Run, ours: Run) -> Iterator[Row]:
    last = max(exact.at)
    for what in exact.at[last]:
        curve = {mark: distance(ours.at[mark][what], exact.at[mark][what]) for mark in exact.at}
        yield Row(
            problem=problem,
            case=case.name,
            precision="float64",
            what=what,
            updates=last,
            ours=max(curve.values()),
            limit=case.float64,
            curves={"MLX": curve},
        )
    if exact.losses:
        found = np.abs(np.array(ours.losses) / np.array(exact.losses) - 1).max()
        yield Row(
            problem=problem, case=case.name, precision="float64", what="loss", updates=last, ours=float(found),
            limit=case.float64,
        )  # fmt: skip


def _rounded(
    problem: str, case: Case, exact: Sequence[Run], theirs: Sequence[Run], ours: Sequence[Run]
) -> Iterator[Row]:
    last = max(exact[0].at)
    for what in exact[0].at[last]:
        curves = [
            {name: {m: _relative(run.at[m][what], one.at[m][what]) for m in one.at} for name, run in sides}
            for one, sides in (
                (one, (("MLX", our), ("PyTorch", their))) for one, their, our in zip(exact, theirs, ours, strict=True)
            )
        ]
        worst = max(curves, key=lambda curve: curve["MLX"][last] / curve["PyTorch"][last])
        yield Row(
            problem=problem,
            case=case.name,
            precision="float32",
            what=what,
            updates=last,
            ours=worst["MLX"][last],
            theirs=worst["PyTorch"][last],
            by="ratio",
            limit=case.ratios.get(what),
            curves=worst,
        )


def _relative(values: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> float:
    """Root of the summed squares of the difference over that of the values."""
    zero = {name: np.zeros_like(a) for name, a in exact.items()}
    return error(values, exact) / error(zero, exact)


def _numpy(tree: Any) -> dict[str, np.ndarray]:
    wide = {path: a.astype(mx.float64) for path, a in tree_flatten(tree)}
    mx.eval(wide)
    return {path: np.array(a, dtype=np.float64) for path, a in wide.items()}
