"""Lemma J.1's problem: a network whose readout is multiplied by A; shared with ``reference/compare.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

from mufree import make_base_shapes, mup_scales

UPDATES = 30


class Net(nn.Module):
    """Two hidden layers and a readout that the code multiplies by A."""

    def __init__(self, width: int, a: float = 1.0) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.a = a

    def __call__(self, x: mx.array) -> mx.array:
        return self.head.bias + (mx.tanh(self.two(mx.tanh(self.one(x)))) @ self.head.weight.T) * self.a


def losses(net: Net, optimizer: optim.Optimizer) -> list[float]:
    mx.random.seed(1)
    x, y = mx.random.normal((5, 6)).astype(mx.float64), mx.random.normal((5, 3)).astype(mx.float64)

    def loss(net: nn.Module) -> mx.array:
        return ((net(x) - y) ** 2).sum() / 5

    optimizer.init(net.trainable_parameters())
    found = []
    for _ in range(UPDATES):
        value, gradients = nn.value_and_grad(net, loss)(net)
        optimizer.update(net, gradients)
        mx.eval(net.parameters(), optimizer.state)
        found.append(value.item())
    return found


def lemma_losses(theta: float, make: Callable[..., optim.Optimizer], **rules: Any) -> list[float]:
    """Train with A = θ in front of the readout, whose start, rate, eps and decay follow the rules."""
    net = Net(32, theta)
    mx.random.seed(0)
    net.update(tree_map(lambda a: mx.random.normal(a.shape).astype(mx.float64), net.parameters()))
    net.head.weight = net.head.weight / theta
    scales = mup_scales(net, make_base_shapes(Net(8), Net(16)), multipliers={"head.weight": theta}, **rules)
    return losses(net, make(net, scales))
