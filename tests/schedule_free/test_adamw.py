"""AdamWScheduleFree: one update, eager and compiled, saved and loaded."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mufree import AdamWScheduleFree, Refused
from mufree.errors import CheckpointError
from mufree.schedule_free.averaging import RESERVED
from schedule_free_problems import distance

EAGER_COMPILED = 1e-6  # the same kernels, whose inputs the outer trace may fuse differently


def network() -> nn.Module:
    mx.random.seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(k: int) -> mx.array:
    return mx.random.normal((32, 8), key=mx.random.key(k))


def loss(model: nn.Module, inputs: mx.array) -> mx.array:
    return ((model(inputs) - inputs[:, :4]) ** 2).mean()


def make(**settings) -> AdamWScheduleFree:
    return AdamWScheduleFree(**({"learning_rate": 0.01, "warmup_steps": 10, "weight_decay": 0.1} | settings))


def train(model, optimizer, updates, *, compiled: bool, first: int = 0) -> None:
    gradient = nn.value_and_grad(model, optimizer.at_y(loss) if optimizer.model_holds == "x" else loss)
    state = [model.state, optimizer.state, mx.random.state]

    def step(inputs: mx.array) -> mx.array:
        value, gradients = gradient(model, inputs)
        optimizer.update(model, gradients)
        return value

    if compiled:
        step = partial(mx.compile, inputs=state, outputs=state)(step)
    for k in range(first, first + updates):
        step(batch(k))
        mx.eval(state)


def flat(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.trainable_parameters()))


def bits(tree) -> dict[str, bytes]:
    return {path: bytes(memoryview(a)) for path, a in tree_flatten(tree)}


@pytest.mark.parametrize("holds", ["y", "x"])
def test_eager_and_compiled_agree(holds) -> None:
    """Scalars bit for bit, x, y and z within 1e-6 after 100 updates."""
    results = []
    for compiled in (False, True):
        model, optimizer = network(), make(model_holds=holds)
        optimizer.init(model.trainable_parameters())
        train(model, optimizer, 100, compiled=compiled)
        z = {path: optimizer_leaf(optimizer, path)["z"] for path in flat(model)}
        x = dict(tree_flatten(optimizer.average(model.trainable_parameters())))
        arrays = [{p: np.array(a) for p, a in tree.items()} for tree in (x, flat(model), z)]
        results.append((bits(optimizer.state[RESERVED]), optimizer.step.item(), arrays))
    (eager_scalars, eager_step, eager), (compiled_scalars, compiled_step, other) = results
    assert (eager_scalars, eager_step) == (compiled_scalars, compiled_step)
    for ours, theirs in zip(eager, other, strict=True):
        assert distance(ours, theirs) < EAGER_COMPILED


def optimizer_leaf(optimizer, path):
    node = optimizer.state
    for key in path.split("."):
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


def test_both_forms_follow_the_same_average() -> None:
    """100 updates: x held by the model, and x computed from the y held by the other."""
    averages = []
    for holds in ("y", "x"):
        model, optimizer = network(), make(model_holds=holds)
        train(model, optimizer, 100, compiled=True)
        average = optimizer.average(model.trainable_parameters())
        averages.append({path: np.array(a) for path, a in tree_flatten(average)})
    assert distance(*averages) < 1e-5  # float32 trajectories of 100 updates in another order of operations


def test_scheduled_lr_is_the_rate_used() -> None:
    """During the warmup it is not the peak."""
    model, optimizer = network(), make(learning_rate=1.0, warmup_steps=10)
    train(model, optimizer, 3, compiled=False)
    assert optimizer.scheduled_lr.item() == pytest.approx(0.3)
    assert optimizer.learning_rate.item() == 1.0


def test_state_goes_through_a_file_and_continues_bit_for_bit(tmp_path: Path) -> None:
    """10 updates, saved, loaded into a fresh optimizer, 10 more = 20 straight."""
    model, optimizer = network(), make()
    train(model, optimizer, 10, compiled=True)
    mx.save_safetensors(str(tmp_path / "state.safetensors"), dict(tree_flatten(optimizer.state)))
    model.save_weights(str(tmp_path / "weights.safetensors"))
    train(model, optimizer, 10, compiled=True, first=10)

    again, other = network(), make()
    again.load_weights(str(tmp_path / "weights.safetensors"))
    other.state = tree_unflatten(list(mx.load(str(tmp_path / "state.safetensors")).items()))
    other.init(again.trainable_parameters())
    train(again, other, 10, compiled=True, first=10)
    assert bits(again.parameters()) == bits(model.parameters())
    assert bits(other.state) == bits(optimizer.state)


def test_state_loads_in_place_into_a_running_compiled_step() -> None:
    """Setting the state of an optimizer whose step is compiled: the step goes on from what was loaded."""
    model, optimizer = network(), make()
    gradient = nn.value_and_grad(model, loss)
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs: mx.array) -> None:
        optimizer.update(model, gradient(model, inputs)[1])

    optimizer.init(model.trainable_parameters())
    for k in range(5):
        step(batch(k))
    weights, saved = tree_flatten(model.parameters()), tree_flatten(optimizer.state)
    for k in range(5, 10):
        step(batch(k))
    want = bits(model.parameters()), bits(optimizer.state)
    model.update(tree_unflatten(weights))
    optimizer.state = tree_unflatten(saved)
    for k in range(5, 10):
        step(batch(k))
    assert (bits(model.parameters()), bits(optimizer.state)) == want


def test_the_order_of_a_loaded_state_does_not_matter() -> None:
    """A file gives keys in any order; a compiled step takes arrays by position, and would take v for z."""
    results = []
    for order in (1, -1):
        optimizer, params = make(), {"layers": [mx.ones((2,)), mx.zeros((2,))]}
        optimizer.init(params)
        step = mx.compile(
            lambda p, optimizer=optimizer: optimizer.apply_gradients(mx.grad(lambda p: p["layers"][0].sum())(p), p),
            inputs=optimizer.state,
            outputs=optimizer.state,
        )
        params = step(params)
        optimizer.state = tree_unflatten(tree_flatten(optimizer.state)[::order])
        for _ in range(3):
            params = step(params)
        results.append((bits(params), bits(optimizer.state)))
    assert results[0] == results[1]


@pytest.mark.parametrize("known", [False, True], ids=["fresh", "running"])
def test_a_state_without_one_z_is_refused(known) -> None:
    """By path, with the misshapen leaf beside it, before anything has changed."""
    model, optimizer = network(), make()
    train(model, optimizer, 2, compiled=False)
    arrays = dict(tree_flatten(optimizer.state))
    del arrays["layers.0.weight.z"]
    arrays["layers.2.bias.v"] = mx.zeros((5,))
    other = optimizer if known else make()
    before = bits(optimizer.state)
    with pytest.raises(CheckpointError) as refused:  # noqa: PT012 – at the setter or at init
        other.state = tree_unflatten(list(arrays.items()))
        other.init(model.trainable_parameters())
    assert {reason.field for reason in refused.value.reasons} == {"layers.0.weight.z", "layers.2.bias.v"}
    assert not known or bits(optimizer.state) == before


def test_averaged_puts_the_very_same_arrays_back() -> None:
    """Also after an exception, and evaluation inside it is at x."""
    model, optimizer = network(), make()
    train(model, optimizer, 20, compiled=False)
    y = flat(model)
    x = bits(optimizer.average(model.trainable_parameters()))
    with pytest.raises(KeyError), optimizer.averaged(model):  # noqa: PT012
        assert bits(model.trainable_parameters()) == x
        raise KeyError
    assert all(array is y[path] for path, array in flat(model).items())


@pytest.mark.parametrize("verbs", [True, False])
def test_compiled_updates_while_the_model_holds_x_are_undone(verbs) -> None:
    """A compiled step cannot be stopped; everything is put back bit for bit, and said."""
    model, optimizer = network(), make()
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state]
    gradient = nn.value_and_grad(model, loss)

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs: mx.array) -> None:
        optimizer.update(model, gradient(model, inputs)[1])

    step(batch(0))
    before = bits(model.parameters()), bits(optimizer.state)
    with pytest.raises(Refused, match="2 updates ran while the model held x; they were undone"):  # noqa: PT012
        if verbs:
            optimizer.eval(model)
            step(batch(1))
            step(batch(2))
            optimizer.train(model)
        else:
            with optimizer.averaged(model):
                step(batch(1))
                step(batch(2))
    assert (bits(model.parameters()), bits(optimizer.state)) == before
    step(batch(3))
    assert optimizer.step.item() == 2


def test_an_eager_update_while_the_model_holds_x_is_refused() -> None:
    """Nothing has changed, and after train it works."""
    model, optimizer = network(), make()
    train(model, optimizer, 3, compiled=False)
    optimizer.eval(model)
    before = bits(model.parameters()), bits(optimizer.state)
    with pytest.raises(Refused, match="call train"):
        train(model, optimizer, 1, compiled=False)
    assert (bits(model.parameters()), bits(optimizer.state)) == before
    optimizer.train(model)
    train(model, optimizer, 1, compiled=False)
