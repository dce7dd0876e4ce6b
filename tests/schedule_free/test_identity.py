"""A state says whose it is: of which rule and which β1; and settings are fixed."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from mufree.errors import CheckpointError
from mufree.training.checkpoint import load_state

W = {"w": mx.array([1.0, -2.0])}


def trained(optimizer):
    held = dict(W)
    for _ in range(3):
        held = optimizer.apply_gradients(held, held)
    return held


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64])
def test_a_state_of_another_beta1(started, dtype) -> None:
    """x would be another; both are said, and the state is as it was."""
    saved, other = AdamWScheduleFree(betas=(0.9, 0.999)), AdamWScheduleFree(betas=(0.95, 0.999))
    held = {"w": W["w"].astype(dtype)}
    saved.apply_gradients(held, held)
    if started:
        other.init(held)
    before = [(path, a.tolist()) for path, a in tree_flatten(other.state)]
    with pytest.raises(CheckpointError, match=r"beta1: 0\.95, but the state was trained with 0\.9, (.|\n)*β1 = 0\.9"):
        other.state = saved.state
    assert [(path, a.tolist()) for path, a in tree_flatten(other.state)] == before
    same = AdamWScheduleFree(betas=(0.9, 0.99), weight_decay=0.1)
    same.state = tree_unflatten(tree_flatten(saved.state))
    same.apply_gradients(held, held)


def test_a_momentum_is_a_beta1() -> None:
    """Of plain descent."""
    saved = SGDScheduleFree(momentum=0.8)
    trained(saved)
    with pytest.raises(CheckpointError, match=r"0\.9, but the state was trained with 0\.8"):
        SGDScheduleFree().state = saved.state


@pytest.mark.parametrize("saved", [AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree])
@pytest.mark.parametrize("other", [AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree])
def test_a_state_of_another_rule(saved, other) -> None:
    """By name."""
    before = saved()
    trained(before)
    now = other()
    if saved is other:
        now.state = before.state
        return
    with pytest.raises(CheckpointError, match=rf"one of {saved.__name__}, this is {other.__name__}"):
        now.state = before.state


def test_a_child_of_a_multi_optimizer() -> None:
    """Through MLX's own setter, and through a checkpoint's loading; no child has changed then."""

    def both(beta1: float):
        children = [optim.SGD(0.1, momentum=0.5), AdamWScheduleFree(betas=(beta1, 0.999))]
        optimizer = optim.MultiOptimizer(children, [lambda path, _: "bias" in path])
        model = nn.Linear(2, 2)
        optimizer.init(model.trainable_parameters())
        optimizer.update(model, model.trainable_parameters())
        return optimizer

    saved, other = both(0.9), both(0.95)
    arrays = dict(tree_flatten(saved.state))
    before = [(path, a.tolist()) for path, a in tree_flatten(other.state)]
    with pytest.raises(CheckpointError, match="beta1"):
        load_state(other, arrays)
    assert [(path, a.tolist()) for path, a in tree_flatten(other.state)] == before
    with pytest.raises(CheckpointError, match="beta1"):
        other.state = saved.state
    load_state(both(0.9), arrays)


@pytest.mark.parametrize("holds", ["y", "x"])
def test_beta1_stays_through_compiled_steps_and_conversions(holds) -> None:
    """It is an array like the others, and no update touches it."""
    optimizer, held = AdamWScheduleFree(betas=(0.8, 0.999), model_holds=holds), dict(W)
    optimizer.init(held)
    state = optimizer.state
    step = mx.compile(lambda p: optimizer.apply_gradients(optimizer.gradient_point(p), p), inputs=state, outputs=state)
    for _ in range(3):
        held = step(held)
    optimizer.convert(held, "x" if holds == "y" else "y")
    assert optimizer.state["schedule_free"]["beta1"].item() == mx.array(0.8).item()
    assert optimizer.state["schedule_free"]["rule"].item() == 1


@pytest.mark.parametrize("name", ["betas", "eps", "weight_decay", "warmup_steps", "r", "scales", "master_weights"])
def test_a_setting_cannot_be_set_later(name) -> None:
    """It would be ignored."""
    with pytest.raises(AttributeError, match=f"{name} is fixed .* make a new"):
        setattr(AdamWScheduleFree(), name, 0.5)


def test_nor_can_a_momentum_or_the_form() -> None:
    """The form has a method of its own."""
    with pytest.raises(AttributeError, match="momentum is fixed"):
        SGDScheduleFree().momentum = 0.5
    with pytest.raises(AttributeError, match=r"convert\(model, holds\)"):
        AdamWScheduleFree().model_holds = "x"
