"""The same three networks in PyTorch with microsoft/mup and in MLX with ours, weights copied from the former."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx.utils import tree_unflatten

import mup
from mufree import MuReadout

torch.set_num_threads(1)  # small products: more threads only wait for each other
CLASSES, TOKENS, LENGTH, HEAD = 5, 11, 6, 8


# MLX's exponential, convolution and layer norm are float32's at heart: of float64 they keep 1e-8 to 1e-6. These are the
# same functions of the same layers, exact to 1e-15.


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis, by way of tanh."""
    half = mx.tanh(x / 2)
    weights = (1 + half) / (1 - half)
    return weights / weights.sum(-1, keepdims=True)


def convolve(layer: nn.Conv2d, x: mx.array) -> mx.array:
    """A 3 × 3 convolution without padding, as a sum of nine products."""
    rows, columns = x.shape[1] - 2, x.shape[2] - 2
    parts = [
        x[:, i : i + rows, j : j + columns] @ layer.weight[:, i, j].T for i in range(3) for j in range(3)
    ]  # fmt: skip
    return sum(parts, layer.bias)


def normalize(layer: nn.LayerNorm, x: mx.array) -> mx.array:
    """A layer norm."""
    centred = x - x.sum(-1, keepdims=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdims=True) / x.shape[-1]
    return centred / mx.sqrt(variance + layer.eps) * layer.weight + layer.bias


class TorchMLP(torch.nn.Module):
    def __init__(self, one: int, two: int) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(7, one), torch.nn.Linear(one, two)
        self.readout = mup.MuReadout(two, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.readout(torch.tanh(self.b(torch.tanh(self.a(x)))))


class MLP(nn.Module):
    def __init__(self, one: int, two: int, base: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, one), nn.Linear(one, two)
        self.readout = MuReadout(two, CLASSES, base_dims=base)

    def __call__(self, x: mx.array) -> mx.array:
        return self.readout(mx.tanh(self.b(mx.tanh(self.a(x)))))


class TorchConv(torch.nn.Module):
    def __init__(self, one: int, two: int) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(3, one, 3), torch.nn.Conv2d(one, two, 3)
        self.readout = mup.MuReadout(two, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.b(torch.tanh(self.a(x.permute(0, 3, 1, 2)))))
        return self.readout(x.mean((2, 3)))


class Conv(nn.Module):
    def __init__(self, one: int, two: int, base: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, one, 3), nn.Conv2d(one, two, 3)
        self.readout = MuReadout(two, CLASSES, base_dims=base)

    def __call__(self, x: mx.array) -> mx.array:
        x = mx.tanh(convolve(self.b, mx.tanh(convolve(self.a, x))))
        return self.readout(x.sum((1, 2)) / (x.shape[1] * x.shape[2]))


class TorchBlock(torch.nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(HEAD), -1) @ v
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


class TorchTransformer(torch.nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(TOKENS, width)
        self.blocks = torch.nn.ModuleList([TorchBlock(width, inner) for _ in range(2)])
        self.readout = mup.MuReadout(width, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(h).flatten(0, 1)


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def __call__(self, x: mx.array) -> mx.array:
        h = normalize(self.norm, x)
        q, k, v = (mx.unflatten(f(h), -1, (-1, HEAD)).swapaxes(1, 2) for f in (self.q, self.k, self.v))
        mixed = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(HEAD)) @ v
        x = x + self.o(mixed.swapaxes(1, 2).flatten(2))
        return x + self.down(mx.tanh(self.up(normalize(self.norm2, x))))


class Transformer(nn.Module):
    def __init__(self, width: int, inner: int, base: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.blocks = [Block(width, inner) for _ in range(2)]
        self.readout = MuReadout(width, TOKENS, base_dims=base)

    def __call__(self, x: mx.array) -> mx.array:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(h).flatten(0, 1)


# Name -> the two classes, the base's two widths, the delta's, the target's (8 and 2 or 4 times), which feeds the head.
NETWORKS = {
    "mlp": (TorchMLP, MLP, (16, 24), (32, 36), (128, 48), 1),
    "conv": (TorchConv, Conv, (4, 6), (8, 12), (32, 24), 1),
    "transformer": (TorchTransformer, Transformer, (16, 24), (32, 36), (128, 48), 0),
}


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a network."""
    generator = np.random.default_rng(1)
    if name == "transformer":
        return generator.integers(0, TOKENS, (3, LENGTH)), generator.integers(0, TOKENS, (3 * LENGTH,))
    shape = {"mlp": (9, 7), "conv": (3, 7, 7, 3)}[name]
    return generator.normal(size=shape), generator.integers(0, CLASSES, (shape[0],))


def torch_network(name: str) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]:
    """The target with its base shapes set, the base and the delta, in float64."""
    torch.manual_seed(0)
    kind, _, *sizes, _ = NETWORKS[name]
    base, delta, target = (kind(*size).double() for size in sizes)
    mup.set_base_shapes(target, base, delta=delta)
    return target, base, delta


def mlx_network(name: str, which: int = 2) -> nn.Module:
    """Ours at the base's, the delta's or the target's widths."""
    _, kind, *sizes, head = NETWORKS[name]
    return kind(*sizes[which], sizes[0][head])


def copied(name: str, source: torch.nn.Module) -> nn.Module:
    """Ours with PyTorch's weights, in float64; convolutions change their axes."""
    model = mlx_network(name)
    model.update(tree_unflatten([(path, from_torch(p)) for path, p in source.named_parameters()]))
    return model


def from_torch(value: torch.Tensor) -> mx.array:
    """An array with a convolution's axes in MLX's order."""
    array = value.detach().numpy()
    return mx.array(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array, mx.float64)


def torch_loss(model: torch.nn.Module, name: str) -> torch.Tensor:
    """Squared error against one-hot labels."""
    inputs, labels = data(name)
    logits = model(torch.tensor(inputs))
    return ((logits - torch.tensor(np.eye(logits.shape[-1])[labels])) ** 2).sum() / len(labels)


def mlx_loss(model: nn.Module, name: str) -> mx.array:
    """The same."""
    inputs, labels = data(name)
    logits = model(mx.array(inputs) if name == "transformer" else mx.array(inputs, mx.float64))
    return ((logits - mx.array(np.eye(logits.shape[-1])[labels], mx.float64)) ** 2).sum() / len(labels)
