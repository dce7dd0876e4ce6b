"""Scales of another model: refused wherever an optimizer takes scales, before anything has changed."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest

from mufree import (
    AdamWScheduleFree,
    MuAdamW,
    MuAdamWScheduleFree,
    ShapeMismatch,
    build_optimizer,
    make_base_shapes,
    mup_scales,
    param_groups,
    plan_optimizer,
)


class Net(nn.Module):
    """Hidden layers between finite sizes."""

    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(3, width), [nn.Linear(width, width) for _ in range(depth)]
        self.leave = nn.Linear(width, 2)


def scales_of(width: int, depth: int = 2):
    return mup_scales(Net(width, depth), make_base_shapes(lambda n: Net(n, depth), base_width=8))


def schedule_free(model, scales) -> None:
    optimizer = AdamWScheduleFree(learning_rate=0.01, scales=scales)
    optimizer.update(model, model.trainable_parameters())


USES = {
    "init": lambda model, scales: AdamWScheduleFree(scales=scales).init(model.trainable_parameters()),
    "update": schedule_free,
    "MuAdamW": lambda model, scales: MuAdamW(model, scales, learning_rate=0.01),
    "MuAdamWScheduleFree": lambda model, scales: MuAdamWScheduleFree(model, scales, learning_rate=0.01),
    "param_groups": lambda model, scales: param_groups(model, scales, learning_rate=0.01),
    "a stock plan": lambda model, scales: build_optimizer(PLANS[0], model, scales=scales),
    "a schedule-free plan": lambda model, scales: build_optimizer(PLANS[1], model, scales=scales),
}
PLANS = [plan_optimizer(optimizer=name, lr=0.01) for name in ("adamw_torch", "schedule_free_adamw")]


@pytest.mark.parametrize("use", USES)
def test_another_width(use) -> None:
    """Said with the first paths, both sizes and what to do; scales of this very model are taken."""
    model = Net(16)
    USES[use](model, scales_of(16))
    with pytest.raises(ShapeMismatch) as refused:
        USES[use](model, scales_of(32))
    text = str(refused.value)
    assert "\n" not in text
    for part in ("layers.0.weight", "more: of sizes (16, 3), (16,), (16, 16)", "(32, 3)", "mup_scales(model, base_sha"):
        assert part in text


@pytest.mark.parametrize("use", [use for use in USES if use != "init"])
def test_a_deeper_model(use) -> None:
    """Its widths are the same, and it has paths that are not here; init sees trainable parameters only."""
    with pytest.raises(ShapeMismatch, match=r"layers\.2\.weight, layers\.2\.bias: has a scale, but is not in the mod"):
        USES[use](Net(16), scales_of(16, depth=3))


def test_nothing_has_changed_and_the_right_scales_go_on() -> None:
    """The state is that of a fresh optimizer."""
    optimizer, model = AdamWScheduleFree(scales=scales_of(32)), Net(16)
    before = set(optimizer.state)
    with pytest.raises(ShapeMismatch):
        optimizer.init(model.trainable_parameters())
    assert set(optimizer.state) == before
    optimizer.init(Net(32).trainable_parameters())


def test_a_parameter_that_joins_late() -> None:
    """Compared when it does."""
    optimizer = AdamWScheduleFree(scales=scales_of(16))
    optimizer.init({"enter": {"bias": mx.zeros((16,))}})
    tree = {"enter": {"weight": mx.zeros((8, 3))}}
    with pytest.raises(ShapeMismatch, match=r"enter\.weight"):
        optimizer.apply_gradients(tree, tree)


@pytest.mark.parametrize("use", USES)
def test_what_is_fine(use) -> None:
    """A finite axis that differs, a frozen and quantised layer, and scales that do not know of what sizes they are."""
    scales = scales_of(16)
    other = Net(16)
    other.leave = nn.Linear(16, 5)
    USES[use](other, scales)
    USES[use](Net(32), replace(scales, dims={}))
    part = Net(64)
    part.layers[0] = nn.QuantizedLinear.from_linear(part.layers[0], group_size=32)
    USES[use](part, scales_of(64))
