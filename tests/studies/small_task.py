"""A small regression that studies are tried on: seconds of training, any width."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mufree import AdamWScheduleFree
from mufree.studies.custom import custom_task
from mufree.studies.task import Task

IN, OUT = 8, 4


class MLP(nn.Module):
    """Two hidden layers between finite sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(IN, width), nn.Linear(width, width)]
        self.head = nn.Linear(width, OUT)

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = nn.relu(layer(x))
        return self.head(x)


def batches(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and what a fixed network makes of them."""
    random = np.random.default_rng(number)
    x = random.normal(size=(16, IN)).astype(np.float32)
    teacher = np.random.default_rng(99).normal(size=(IN, OUT)).astype(np.float32)
    return x, np.tanh(x @ teacher)


def loss(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
    """Mean squared error."""
    return nn.losses.mse_loss(model(x), y)


def optimizer(rate: float, scales: object) -> AdamWScheduleFree:
    """Ours, with a short warmup."""
    return AdamWScheduleFree(rate, warmup_steps=2, scales=scales)  # type: ignore[arg-type]


def small_task(updates: int = 3) -> Task:
    """The task of a grid at base width 8."""
    return custom_task(MLP, batches, loss, base_width=8, optimizer=optimizer, updates=updates)
