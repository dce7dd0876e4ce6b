"""The PyTorch implementations on the problems of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import schedulefree
import torch
from schedulefree.adamw_schedulefree_closure import AdamWScheduleFreeClosure

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from schedule_free_problems import Seeds, gradient, start

CLASSES = {
    "adamw": schedulefree.AdamWScheduleFree,
    "sgd": schedulefree.SGDScheduleFree,
    "radam": schedulefree.RAdamScheduleFree,
}
Sequences = dict[str, dict[str, np.ndarray]]


def run(
    kind: str,
    settings: dict[str, Any],
    updates: int,
    *,
    dtype: torch.dtype = torch.float64,
    seed: Seeds = 0,
    scales: dict[str, tuple[float, float, float]] | None = None,
    base: Mapping[str, Sequence[int]] | None = None,
    observe: Callable[[int, Sequences, dict], Any] | None = None,
) -> Sequences:
    """Run on the noisy quartic bowl.

    Args:
        kind: A name in ``CLASSES``.
        settings: Arguments of the optimizer, under PyTorch's names.
        updates: How many.
        dtype: Of the parameters.
        seed: Of the start and the noise.
        scales: Multipliers of rate, eps and decay by parameter, as parameter groups.
        base: Base shapes by parameter; with them the optimizer is the pair of μP and ``kind``.
        observe: Called after each update with its number, the sequences, and the first parameter group.

    Returns:
        x, y and z after the last update, float64, and v if there is one.
    """
    parameters = {name: torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for name, w in start(seed).items()}
    if base is not None:
        from mup.infshape import zip_infshape

        from mu_adamw_schedule_free import MuAdamWScheduleFree

        for name, parameter in parameters.items():
            parameter.infshape = zip_infshape(list(base[name]), list(parameter.shape))
        optimizer = MuAdamWScheduleFree(parameters.values(), CLASSES[kind], **settings)
    else:
        groups = [{"params": [p], **_scaled(settings, (scales or {}).get(name))} for name, p in parameters.items()]
        optimizer = CLASSES[kind](groups, **settings)
    optimizer.train()
    for k in range(updates):
        at = {name: p.detach().double().numpy() for name, p in parameters.items()}
        for name, g in gradient(at, k, seed).items():
            parameters[name].grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
        if observe is not None:
            observe(k, sequences(optimizer, parameters), optimizer.param_groups[0])
    return sequences(optimizer, parameters)


def sequences(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> Sequences:
    """x, y and z of a schedule-free optimizer in train mode, and v if there is one, as float64 copies."""
    group = optimizer.param_groups[0]
    beta1 = group["momentum"] if "momentum" in group else group["betas"][0]
    y = {name: p.detach().clone() for name, p in parameters.items()}
    z = {name: optimizer.state[p]["z"].clone() for name, p in parameters.items()}
    x = {name: torch.lerp(y[name], z[name], 1 - 1 / beta1) for name in y}
    v = {name: optimizer.state[p].get("exp_avg_sq", torch.zeros(1)).clone() for name, p in parameters.items()}
    parts = {"x": x, "y": y, "z": z, "v": v}
    return {key: {name: a.double().numpy() for name, a in part.items()} for key, part in parts.items()}


def run_closure(settings: dict[str, Any], updates: int, seed: int = 0) -> Sequences:
    """The closure form, whose parameters hold x, in float64."""
    parameters = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in start(seed).items()}
    optimizer = AdamWScheduleFreeClosure(parameters.values(), **settings)
    for k in range(updates):

        def closure(k: int = k) -> None:
            at = {name: p.detach().numpy() for name, p in parameters.items()}
            for name, g in gradient(at, k, seed).items():
                parameters[name].grad = torch.tensor(g)

        optimizer.step(closure)
    x = {name: p.detach().numpy() for name, p in parameters.items()}
    return {"x": x, "z": {name: optimizer.state[p]["z"].numpy() for name, p in parameters.items()}}


def _scaled(settings: dict[str, Any], scale: tuple[float, float, float] | None) -> dict[str, Any]:
    if scale is None:
        return {}
    lr, eps, decay = scale
    scaled = {"lr": settings["lr"] * lr, "weight_decay": settings["weight_decay"] * decay}
    return scaled | ({"eps": settings["eps"] * eps} if "eps" in settings else {})
