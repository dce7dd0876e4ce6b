"""End to end against transformers' real Trainer, recorded: its arguments in, its weights out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mufree import build_optimizer, plan_optimizer
from mufree.plan.sources import from_training_arguments

DATA = np.load(Path(__file__).parent.parent / "data" / "standard_trainer.npz")
ABOUT = json.loads(str(DATA["about"]))
RUNS: list[dict[str, Any]] = ABOUT["runs"]
TRAVELLED = 2e-5  # of the distance from the first weights: two float32 implementations of forward, backward and update
CAUGHT = 100 * TRAVELLED  # what a dropped setting must exceed


class Model(nn.Module):
    """The recorded model."""

    def __init__(self) -> None:
        super().__init__()
        width, features = DATA["first/inner.weight"].shape
        self.inner = nn.Linear(features, width)
        self.ln = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.final_norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, DATA["y"].shape[1], bias=False)
        paths = [path for path, _ in tree_flatten(self.parameters())]
        self.update(tree_unflatten([(path, mx.array(DATA[f"first/{path}"])) for path in paths]))

    def __call__(self, x: mx.array) -> mx.array:
        h = mx.tanh(self.ln(self.inner(x)))
        return self.head(self.final_norm(mx.tanh(self.hidden(h))))


def loss(model: Model, x: mx.array, y: mx.array) -> mx.array:
    return mx.square(model(x) - y).mean()


def distance(index: int, **changes: Any) -> float:
    """How far from the Trainer's weights our loop ends, over how far the Trainer went."""
    arguments = RUNS[index]
    accumulation, batch = arguments["gradient_accumulation_steps"], ABOUT["batch"]
    model = Model()
    optimizer = build_optimizer(plan_optimizer(**{**from_training_arguments(arguments), **changes}), model)
    x, y = mx.array(DATA["x"]), mx.array(DATA["y"])
    gradient = nn.value_and_grad(model, loss)
    start = 0
    for _ in range(arguments["max_steps"]):
        total = None
        for _ in range(accumulation):
            _, found = gradient(model, x[start : start + batch], y[start : start + batch])
            total = found if total is None else tree_map(mx.add, total, found)
            start += batch
        optimizer.update(model, tree_map(lambda g: g / accumulation, total))
        mx.eval(model.parameters(), optimizer.state)
    gap = travelled = 0.0
    for path, value in tree_flatten(model.parameters()):
        theirs = DATA[f"{index}/{path}"].astype(np.float64)
        gap += float(((np.array(value) - theirs) ** 2).sum())
        travelled += float(((DATA[f"first/{path}"] - theirs) ** 2).sum())
    return (gap / travelled) ** 0.5


@pytest.mark.parametrize(
    "index", range(4), ids=[f"accumulation{r['gradient_accumulation_steps']}-clip{r['max_grad_norm']}" for r in RUNS]
)
def test_forty_updates_end_where_the_trainer_s_do(index: int) -> None:
    """Biases and norms spared, schedule, accumulation, clipping, all from its own arguments."""
    assert distance(index) <= TRAVELLED


@pytest.mark.parametrize(
    "changes",
    [
        {"max_grad_norm": None},
        {"decay_mask": "all"},
        {"scheduler": "cosine"},
        {"betas": (0.9, 0.99)},
        {"warmup_ratio": 0.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_dropped_setting_ends_elsewhere(changes: dict[str, Any]) -> None:
    """The bound would catch it a hundred times over."""
    assert distance(0, **changes) > CAUGHT
