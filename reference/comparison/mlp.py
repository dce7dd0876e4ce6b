"""An MLP of two hidden layers, 8 and 2 times as wide as its base, with microsoft/mup's readout and ours.

Each update has a batch of its own with noisy targets: on a fixed one Adam would end up dividing rounding errors by
rounding errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import schedulefree
import torch
from mlx.utils import tree_map
from mup_networks import CLASSES as OUTPUTS
from mup_networks import NETWORKS, copied, mlx_network

import mup
from mu_adamw_schedule_free import MuAdamWScheduleFree as TorchPair
from mufree import AdamWScheduleFree, MuAdam, MuAdamW, MuAdamWScheduleFree, MuSGD, make_base_shapes, mup_scales

from .rows import Row, Scale, Tick
from .sides import FLOAT32_SCALARS, MLX, TORCH, Case, Precision, Run, mlx_sequences, torch_sequences
from .sides import rows as case_rows

ROWS = 32
ADAM = {"eps": 1e-6, "weight_decay": 0.125}
FREE = {"weight_decay": 0.125, "warmup_steps": 20}
RATE = 2.0**-8
SGD = {"momentum": 0.5, "weight_decay": 2.0**-6}
SGD_RATE = 2.0**-6
"""A power of two, as MLX's SGD keeps its rate in float32."""
STOCK = {"float64": FLOAT32_SCALARS, "ratios": {}}
"""MLX's own Adam and AdamW: their scalars are float32, so they have no float32 ratio to keep."""
Make = Callable[[Any], Any]


def scales(model: Any, family: str = "adam") -> Any:
    """microsoft/mup's scales, whose eps is the base's."""
    shapes = make_base_shapes(mlx_network("mlp", 0), mlx_network("mlp", 1))
    return mup_scales(model, shapes, family=family, scale_eps=family != "adam")


def _decoupled(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that rate × decay falls with width, which is meant here
        return MuAdamWScheduleFree(model, scales(model), learning_rate=RATE, decoupled_wd=True, **FREE)


CASES = (
    (
        "AdamW schedule-free",
        lambda net: schedulefree.AdamWScheduleFree(net.parameters(), lr=RATE, **FREE),
        lambda _: AdamWScheduleFree(learning_rate=RATE, **FREE),
        {},
    ),
    (
        "μP SGD",
        lambda net: mup.MuSGD(net.parameters(), lr=SGD_RATE, **SGD),
        lambda net: MuSGD(net, scales(net, "sgd"), learning_rate=SGD_RATE, **SGD),
        {"ratios": {"w": 1.75}},
    ),
    (
        "μP Adam",
        lambda net: mup.MuAdam(net.parameters(), lr=RATE, eps=1e-6),
        lambda net: MuAdam(net, scales(net), learning_rate=RATE, eps=1e-6, bias_correction=True),
        STOCK,
    ),
    (
        "μP AdamW",
        lambda net: mup.MuAdamW(net.parameters(), lr=RATE, **ADAM),
        lambda net: MuAdamW(net, scales(net), learning_rate=RATE, bias_correction=True, **ADAM),
        STOCK,
    ),
    (
        "μP + AdamW schedule-free",
        lambda net: TorchPair(net.parameters(), lr=RATE, **FREE),
        lambda net: MuAdamWScheduleFree(net, scales(net), learning_rate=RATE, **FREE),
        {},
    ),
    (
        "μP + AdamW schedule-free, decoupled decay",
        lambda net: TorchPair(net.parameters(), lr=RATE, decoupled_wd=True, **FREE),
        _decoupled,
        {},
    ),
)


def rows(scale: Scale, tick: Tick) -> Iterator[Row]:
    """All cases."""
    for name, torch_make, mlx_make, bounds in CASES:
        case = Case(name=name, torch=_torch_side(torch_make), mlx=_mlx_side(mlx_make), **bounds)
        yield from case_rows("MLP", case, scale, tick, scale.updates)


def cases() -> int:
    """How many ticks :func:`rows` makes."""
    return 3 * len(CASES)


@lru_cache(maxsize=8192)
def batch(k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and noisy targets of update ``k``, float32 numbers held in float64."""
    generator = np.random.default_rng((seed, k))
    inputs = generator.normal(size=(ROWS, 7)).astype(np.float32)
    targets = np.sin(inputs[:, :OUTPUTS] * 2) + 0.3 * generator.normal(size=(ROWS, OUTPUTS)).astype(np.float32)
    return inputs.astype(np.float64), targets.astype(np.float64)


def network(seed: int) -> Any:
    """PyTorch's target with its base shapes, float32 numbers held in float64."""
    torch.manual_seed(seed)
    kind, _, *sizes, _ = NETWORKS["mlp"]
    base, delta, target = (kind(*size) for size in sizes)
    mup.set_base_shapes(target, base, delta=delta)
    return target.double()


def _torch_side(make: Make) -> Callable[..., Run]:
    def side(precision: Precision, seed: int, marks: Sequence[int]) -> Run:
        model = network(seed).to(TORCH[precision])
        optimizer, found = make(model), Run()
        if hasattr(optimizer, "train"):
            optimizer.train()
        for k in range(max(marks)):
            inputs, targets = (torch.tensor(a, dtype=TORCH[precision]) for a in batch(k, seed))
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().sum() / ROWS
            loss.backward()
            optimizer.step()
            found.losses.append(loss.item())
            if k + 1 in marks:
                found.at[k + 1] = torch_sequences(optimizer, dict(model.named_parameters()))
        return found

    return side


def _mlx_side(make: Make) -> Callable[..., Run]:
    def side(precision: Precision, seed: int, marks: Sequence[int]) -> Run:
        model = copied("mlp", network(seed))
        model.update(tree_map(lambda a: a.astype(MLX[precision]), model.parameters()))
        optimizer, found = make(model), Run()
        optimizer.init(model.trainable_parameters())

        def loss(model: Any, inputs: mx.array, targets: mx.array) -> mx.array:
            return (model(inputs) - targets).square().sum() / ROWS

        gradient = nn.value_and_grad(model, loss)
        for k in range(max(marks)):
            value, gradients = gradient(model, *(mx.array(a, MLX[precision]) for a in batch(k, seed)))
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state, value)
            found.losses.append(value.item())
            if k + 1 in marks:
                found.at[k + 1] = mlx_sequences(optimizer, model)
        return found

    return side
