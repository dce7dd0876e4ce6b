"""What one update promises: by how much each tensor's first step lowers the loss must not depend on width.

An Adam-like first step is rate × sign(gradient), so a tensor's share of the decrease is rate × Σ|g|; an SGD-like one
gives rate × Σg². Every rule has to be right for it: the start, the forward multiplier, the kind and the rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mup_families import build as family_at

from mufree import MuReadout, MuSharedReadout, Scales, make_base_shapes, parametrize

BASE, WIDE, SEEDS = 64, 512, 2
# Slopes of log(share) against log(width) over three octaves. The noise of two random starts is up to 0.12 for Adam's
# sums, 0.22 for SGD's squares; a wrong power of m shows as 0.5 or more.
SLOPE = 0.25
WRONG = 0.4
# A gain that all heads share sums over a number of heads that grows; at a random start their gradients cancel.
CANCELS = re.compile(r"[qk]_norm\.")
CLASSES, LENGTH = 7, 6

Loss = Callable[[nn.Module], mx.array]


def shares(make: Callable[[int], nn.Module], width: int, loss: Loss, family: str, change: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    shapes = make_base_shapes(make, base_width=BASE)
    for seed in range(SEEDS):
        mx.random.seed(seed)
        model = make(width)
        scales = parametrize(model, shapes, family=family)  # type: ignore[arg-type]
        if change is not None:
            scales = change(model, scales)
        mx.random.seed(100 + seed)
        gradients = nn.value_and_grad(model, loss)(model)[1]
        for path, g in tree_flatten(gradients):
            size = mx.abs(g).sum() if family == "adam" else (g * g).sum()
            found[path] = found.get(path, 0.0) + size.item() * scales[path].lr
    return found


def slopes(make: Callable[[int], nn.Module], loss: Loss, family: str = "adam", change: Any = None) -> dict[str, float]:
    narrow, wide = (shares(make, width, loss, family, change) for width in (BASE, WIDE))
    octaves = math.log2(WIDE / BASE)
    return {path: math.log2(wide[path] / narrow[path]) / octaves for path in narrow if narrow[path] > 0}


def token_loss(model: nn.Module) -> mx.array:
    tokens = mx.random.randint(0, 32, (2, LENGTH + 1))
    logits = model(tokens[:, :-1]).astype(mx.float32)
    return nn.losses.cross_entropy(logits, tokens[:, 1:]).mean()


def class_loss(*shape: int) -> Loss:
    def loss(model: nn.Module) -> mx.array:
        x, labels = mx.random.normal((4, *shape)), mx.random.randint(0, CLASSES, (4,))
        return nn.losses.cross_entropy(model(x), labels).mean()

    return loss


class Pooled(nn.Module):
    """Layers with an activation between them, a mean over places, a head."""

    def __init__(self, *layers: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = list(layers), head

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
            x = nn.gelu(x[0] if isinstance(x, tuple) else x)
        return self.head(x.reshape(x.shape[0], -1, x.shape[-1]).mean(1))


class Mixed(nn.Module):
    """Attention and a product of two features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(5, width)
        self.attention = nn.MultiHeadAttention(width, width // 16, bias=True)
        self.norm = nn.LayerNorm(width)
        self.product = nn.Bilinear(width, 3, width)
        self.head = nn.Linear(width, CLASSES)

    def __call__(self, x: mx.array) -> mx.array:
        h = self.inner(x)
        h = self.norm(h + self.attention(h, h, h))
        return self.head(self.product(h, x[..., :3]).mean(1))


class Tied(nn.Module):
    """One's own tied language model, its head through a norm's gain or a layer with a multiplier."""

    def __init__(self, width: int, shared: bool) -> None:
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(32, width), [nn.Linear(width, width)], nn.LayerNorm(width)
        if shared:
            self.head = MuSharedReadout(self.embed, base_dims=BASE)

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.embed(tokens)
        h = self.norm(h + self.layers[0](nn.gelu(h)))
        return self.head(h) if "head" in self else self.embed.as_linear(h)


def head(width: int) -> nn.Module:
    return nn.Linear(width, CLASSES)


OWN: dict[str, tuple[Callable[[int], nn.Module], Loss]] = {
    "mlp": (lambda w: Pooled(nn.Linear(9, w), nn.Linear(w, 2 * w), head=head(2 * w)), class_loss(3, 9)),
    "mlp with a MuReadout": (
        lambda w: Pooled(nn.Linear(9, w), nn.Linear(w, w), head=MuReadout(w, CLASSES, base_dims=BASE)),
        class_loss(3, 9),
    ),
    "conv": (lambda w: Pooled(nn.Conv2d(3, w, 3), nn.Conv2d(w, w, 3), head=head(w)), class_loss(6, 6, 3)),
    "transposed conv": (
        lambda w: Pooled(nn.ConvTranspose1d(3, w, 3), nn.ConvTranspose1d(w, w, 3), head=head(w)),
        class_loss(5, 3),
    ),
    "rnn": (lambda w: Pooled(nn.RNN(5, w), nn.RNN(w, w), head=head(w)), class_loss(LENGTH, 5)),
    "gru": (lambda w: Pooled(nn.GRU(5, w), nn.GRU(w, w), head=head(w)), class_loss(LENGTH, 5)),
    "lstm": (lambda w: Pooled(nn.LSTM(5, w), nn.LSTM(w, w), head=head(w)), class_loss(LENGTH, 5)),
    "attention and bilinear": (Mixed, class_loss(LENGTH, 5)),
    "tied": (lambda w: Tied(w, False), token_loss),
    "tied with a MuSharedReadout": (lambda w: Tied(w, True), token_loss),
}


@pytest.mark.parametrize("family", ["adam", "sgd"])
@pytest.mark.parametrize("name", OWN)
def test_every_tensor_of_ones_own_model_promises_the_same(name: str, family: str) -> None:
    """Dense, convolutional, recurrent, attention and tied ones, whatever their layers' initialisers are."""
    found = slopes(*OWN[name], family=family)
    assert {path: slope for path, slope in found.items() if abs(slope) > SLOPE} == {}


@pytest.mark.parametrize("family", ["llama", "qwen3", "granite", "gemma", "cohere", "minicpm", "gpt2"])
def test_every_tensor_of_a_language_model_promises_the_same(family: str) -> None:
    """With an untied head, a tied one through a gain, and multipliers of the model's own."""
    found = slopes(partial(family_at, family), token_loss)
    assert {path: slope for path, slope in found.items() if abs(slope) > SLOPE and not CANCELS.search(path)} == {}


def the_whole_of_1_over_m(model: nn.Module, scales: Scales) -> Scales:
    """Gemma's final gain as that of a norm before an embedding that is not multiplied by √d."""
    m = scales["model.norm.weight"].m_out
    model.model.norm.weight = mx.full(model.model.norm.weight.shape, 2 / m - 1)
    return with_rate("model.norm.weight", -0.5)(model, scales)


def with_rate(path: str, power: float) -> Any:
    """A rate that is wrong by a power of m."""

    def change(_: nn.Module, scales: Scales) -> Scales:
        right = scales[path]
        wrong = right.lr * max(right.m_in, right.m_out) ** power
        return replace(scales, by_path={**scales, path: replace(right, lr=wrong)})

    return change


@pytest.mark.parametrize(
    ("make", "loss", "change", "path"),
    [
        (partial(family_at, "gemma"), token_loss, the_whole_of_1_over_m, "model.embed_tokens.weight"),
        (partial(family_at, "llama"), token_loss, with_rate("lm_head.weight", 1), "lm_head.weight"),
        (*OWN["gru"], with_rate("layers.1.Wh", 1), "layers.1.Wh"),
        (*OWN["conv"], with_rate("layers.0.weight", -1), "layers.0.weight"),
    ],
)
def test_a_wrong_multiplier_or_rate_is_seen(make: Any, loss: Loss, change: Any, path: str) -> None:
    """Planted: 1/m in Gemma's gain, where 1/√m is left; a rate that is not divided, one that should not have been."""
    assert abs(slopes(make, loss, change=change)[path]) > WRONG
