"""The PyTorch implementations on the problems of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
        observe: Called after each update with its number, the sequences, and the first parameter group.

    Returns:
        x, y and z after the last update, float64, and v if there is one.
    """
    parameters = {name: torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for name, w in start(seed).items()}
    groups = [{"params": [p], **_scaled(settings, (scales or {}).get(name))} for name, p in parameters.items()]
    optimizer = CLASSES[kind](groups, **settings)
    optimizer.train()
    beta1 = settings.get("momentum", settings.get("betas", (0.9, 0.999))[0])

    def now() -> Sequences:
        y = {name: p.detach().clone() for name, p in parameters.items()}
        z = {name: optimizer.state[p]["z"].clone() for name, p in parameters.items()}
        x = {name: torch.lerp(y[name], z[name], 1 - 1 / beta1) for name in y}
        v = {name: optimizer.state[p].get("exp_avg_sq", torch.zeros(1)).clone() for name, p in parameters.items()}
        parts = {"x": x, "y": y, "z": z, "v": v}
        return {key: {name: a.double().numpy() for name, a in part.items()} for key, part in parts.items()}

    for k in range(updates):
        at = {name: p.detach().double().numpy() for name, p in parameters.items()}
        for name, g in gradient(at, k, seed).items():
            parameters[name].grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
        if observe is not None:
            observe(k, now(), optimizer.param_groups[0])
    return now()


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
