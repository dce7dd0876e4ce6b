"""bfloat16 and float16 parameters, trained through float32 state."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree

HALF = [mx.bfloat16, mx.float16]


@pytest.mark.parametrize("holds", ["y", "x"])
@pytest.mark.parametrize("dtype", HALF)
def test_small_updates_are_not_lost(holds, dtype) -> None:
    """Weight 1, constant gradient, rate 1e-3, 100 updates: z = 0.900, x = 0.9495 before rounding."""
    optimizer = AdamWScheduleFree(learning_rate=1e-3, model_holds=holds)
    held = {"w": mx.ones((1,), dtype)}
    for _ in range(100):
        held = optimizer.apply_gradients({"w": mx.ones((1,), dtype)}, held)
    leaf = optimizer.state["w"]
    z = leaf["z"].item()
    x = leaf["x"].item() if holds == "x" else (leaf["y"].item() - 0.1 * z) / 0.9
    assert z == pytest.approx(0.900, abs=2e-6)  # 100 roundings of 3e-8
    assert x == pytest.approx(0.9495, abs=2e-6)
    assert {name: a.dtype for name, a in leaf.items()} == dict.fromkeys(("z", "v", holds), mx.float32)
    assert held["w"].dtype == optimizer.average(held)["w"].dtype == dtype
    assert optimizer.average(held)["w"].item() == mx.array(x).astype(dtype).item()


def test_at_y_starts_from_the_float32_weights() -> None:
    """y is x + (1−β1)·(z − x) of the state, rounded once; from the model's bfloat16 x it would be rounded twice."""
    optimizer = AdamWScheduleFree(learning_rate=0.05, betas=(0.6, 0.999), model_holds="x")
    held = {"w": mx.linspace(-2, 2, 500).astype(mx.bfloat16)}
    for k in range(4):
        held = optimizer.apply_gradients({"w": mx.random.normal((500,), key=mx.random.key(k))}, held)
    seen = []
    optimizer.at_y(seen.append)(held)
    x, z = (optimizer.state["w"][name] for name in "xz")
    y, twice = (a + 0.4 * (z - a) for a in (x, held["w"].astype(mx.float32)))
    assert seen[0]["w"].tolist() == y.astype(mx.bfloat16).tolist()
    assert seen[0]["w"].tolist() != twice.astype(mx.bfloat16).tolist()


@pytest.mark.parametrize("scale", [0.0, 1e-7, 1e-4, 1.0, 6e4])
@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("eps", [1e-8, 0.0])
@pytest.mark.parametrize("cls", [AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree])
def test_never_nan(cls, eps, dtype, masters, scale) -> None:
    """Zero, tiny and huge gradients; a move of Adam's is about the rate, never more than a few."""
    settings = {} if cls is SGDScheduleFree else {"eps": eps}
    optimizer = cls(learning_rate=1e-3 if cls is not SGDScheduleFree else 1e-6, master_weights=masters, **settings)
    held = {"w": mx.zeros((3,), dtype)}
    for _ in range(10):
        held = optimizer.apply_gradients({"w": mx.array([scale, -scale, 0.0]).astype(dtype)}, held)
    for tree in (held, optimizer.state, optimizer.average(held)):
        assert all(bool(mx.isfinite(a).all().item()) for _, a in tree_flatten(tree))
    assert held["w"][2].item() == 0
    if cls is not SGDScheduleFree:
        assert np.abs(np.array(held["w"].astype(mx.float32))).max() <= 0.0105


class Language(nn.Module):
    """Predicts the next of 32 symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.norm = nn.RMSNorm(24)
        self.up, self.down = nn.Linear(24, 32), nn.Linear(32, 32)

    def __call__(self, tokens):
        return self.down(nn.silu(self.up(self.norm(self.embed(tokens)))))


def symbols(k: int) -> mx.array:
    """Text of a fixed noisy rule: three times the symbol before, plus 0 to 3."""
    generator = np.random.default_rng(k)
    text = generator.integers(0, 32, size=(16, 17))
    noise = generator.integers(0, 4, size=text.shape)
    for i in range(1, 17):
        text[:, i] = (3 * text[:, i - 1] + noise[:, i]) % 32
    return mx.array(text)


def cross_entropy(model, tokens):
    logits = model(tokens[:, :-1]).astype(mx.float32)
    return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")


def loss_at_x(dtype, **settings) -> float:
    """Validation loss at x of 300 updates."""
    mx.random.seed(11)
    model = Language()
    model.set_dtype(dtype)
    optimizer = AdamWScheduleFree(learning_rate=2e-3, warmup_steps=10, **settings)
    optimizer.init(model.trainable_parameters())
    gradient = nn.value_and_grad(model, cross_entropy)
    state = [model.state, optimizer.state]

    def step(tokens):
        optimizer.update(model, gradient(model, tokens)[1])

    step = mx.compile(step, inputs=state, outputs=state)
    for k in range(300):
        step(symbols(k))
        mx.eval(state)
    with optimizer.averaged(model):
        model.set_dtype(mx.float32)
        value = float(np.mean([cross_entropy(model, symbols(10**6 + k)).item() for k in range(8)]))
        model.set_dtype(dtype)
        return value


def test_a_language_model_in_bfloat16() -> None:
    """Within 1 % of float32's loss at x with master weights; without, the control, it is not."""
    exact = loss_at_x(mx.float32)
    half = loss_at_x(mx.bfloat16)
    without = loss_at_x(mx.bfloat16, master_weights=False)
    print(f"float32 {exact:.4f}, bfloat16 {half:.4f}, without master weights {without:.4f}")
    assert abs(half / exact - 1) < 0.01
    assert without / exact - 1 > 0.01
