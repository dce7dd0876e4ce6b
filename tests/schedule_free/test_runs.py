"""Whole runs: frozen layers, dropout, files, a second process."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mufree import AdamWScheduleFree

HERE = Path(__file__)
SECOND_PROCESS = """
import runpy, sys
from pathlib import Path
from mufree.cli.blas import prepare_machine
prepare_machine()  # as conftest does: another BLAS has other bits
runpy.run_path(sys.argv[1])["resume"](Path(sys.argv[2]))
"""


class Net(nn.Module):
    """Dropout, a list of layers of which one has no parameters, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 4)]
        self.fixed = nn.Linear(4, 4)
        self.fixed.freeze()

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.fixed(mx.tanh(x))


def compiled_step(model, optimizer):
    state = [model.state, optimizer.state, mx.random.state]
    gradient = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())

    @partial(mx.compile, inputs=state, outputs=state)
    def step(x):
        value, gradients = gradient(x)
        optimizer.update(model, gradients)
        return value

    return step


def advance(model, optimizer, first, last) -> None:
    step = compiled_step(model, optimizer)
    for k in range(first, last):
        mx.eval(step(mx.array(np.random.default_rng(k).normal(size=(8, 4)), mx.float32)), model.state, optimizer.state)


def new():
    mx.random.seed(5)
    model = Net()
    mx.eval(model.parameters())
    return model, AdamWScheduleFree(learning_rate=0.01, warmup_steps=3, weight_decay=0.1)


def save(model, optimizer, folder: Path) -> None:
    mx.save_safetensors(str(folder / "weights.safetensors"), dict(tree_flatten(model.parameters())))
    state = dict(tree_flatten(optimizer.state)) | {"random": mx.random.state[0]}
    mx.save_safetensors(str(folder / "state.safetensors"), state)


def resume(folder: Path) -> None:
    """What the second process does: load after 10 updates, make 10 more, save."""
    model, optimizer = new()
    model.load_weights(str(folder / "weights.safetensors"))
    state = mx.load(str(folder / "state.safetensors"))
    high, low = state.pop("random").tolist()  # a key is its seed's two halves; the state itself cannot be assigned
    mx.random.seed((high << 32) | low)
    optimizer.state = tree_unflatten(list(state.items()))
    optimizer.init(model.trainable_parameters())
    advance(model, optimizer, 10, 20)
    save(model, optimizer, folder)


def test_a_second_process_goes_on_bit_for_bit(tmp_path) -> None:
    """10 updates, files, 10 more in a new process = 20 straight: weights, state and random numbers."""
    model, optimizer = new()
    advance(model, optimizer, 0, 10)
    save(model, optimizer, tmp_path)
    advance(model, optimizer, 10, 20)
    (tmp_path / "straight").mkdir()
    save(model, optimizer, tmp_path / "straight")
    subprocess.run([sys.executable, "-c", SECOND_PROCESS, str(HERE), str(tmp_path)], check=True)
    for name in ("weights", "state"):
        straight, resumed = (mx.load(str(d / f"{name}.safetensors")) for d in (tmp_path / "straight", tmp_path))
        assert set(straight) == set(resumed)
        assert all(mx.array_equal(straight[path], resumed[path]).item() for path in straight)


def test_the_file_holds_x_and_its_loss(tmp_path) -> None:
    """What is saved inside averaged is x bit for bit; the reloaded model's loss is the one measured inside."""
    model, optimizer = new()
    advance(model, optimizer, 0, 10)
    x = dict(tree_flatten(optimizer.average(model.parameters())))
    inputs = mx.ones((3, 4))
    model.eval()
    with optimizer.averaged(model):
        inside = model(inputs).tolist()
        model.save_weights(str(tmp_path / "x.safetensors"))
    saved = mx.load(str(tmp_path / "x.safetensors"))
    assert all(mx.array_equal(saved[path], x[path]).item() for path in x)
    again = Net()
    again.load_weights(str(tmp_path / "x.safetensors"))
    again.eval()
    assert again(inputs).tolist() == inside


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("init_again", [True, False])
def test_unfreezing_after_the_first_update(compiled, init_again) -> None:
    """The new layer joins: z from the parameter, and its first move is the rate."""
    model, optimizer = new()
    optimizer.init(model.trainable_parameters())
    advance(model, optimizer, 0, 30)
    assert not optimizer.state.get("fixed")
    model.fixed.unfreeze()
    if init_again:
        optimizer.init(model.trainable_parameters())
    before = np.array(model.fixed.weight)
    if compiled:
        advance(model, optimizer, 30, 31)
    else:
        gradient = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())
        optimizer.update(model, gradient(mx.ones((8, 4)))[1])
    assert optimizer.step.item() == 31
    moved = np.array(optimizer.state["fixed"]["weight"]["z"]) - before
    decay = 0.01 * 0.1 * before
    # 1e-3: eps beside the smallest gradient of the sixteen
    assert np.allclose(np.abs(moved + decay), 0.01, rtol=1e-3)


def test_freezing_in_the_middle_keeps_the_state() -> None:
    """A layer frozen for a while stays, and goes on from its state."""
    model, optimizer = new()
    advance(model, optimizer, 0, 5)
    kept = {name: a.tolist() for name, a in optimizer.state["layers"][0]["weight"].items()}
    weight = model.layers[0].weight.tolist()
    model.layers[0].freeze()
    advance(model, optimizer, 5, 8)
    assert {name: a.tolist() for name, a in optimizer.state["layers"][0]["weight"].items()} == kept
    assert model.layers[0].weight.tolist() == weight
    model.layers[0].unfreeze()
    advance(model, optimizer, 8, 9)
    assert model.layers[0].weight.tolist() != weight


def test_large_eager_updates_are_evaluated_in_groups() -> None:
    """The same result as in one graph, and most of the extra memory of one graph is saved."""
    from mufree.schedule_free import kernels

    def run(limit: int):
        optimizer = AdamWScheduleFree(learning_rate=0.01)
        model = {"layers": [mx.full((64, 1024), float(i)) for i in range(24)]}
        gradients = {"layers": [mx.full((64, 1024), 0.5) for _ in range(24)]}
        optimizer.init(model)
        before, kernels.EVALUATE_ABOVE = kernels.EVALUATE_ABOVE, limit
        groups, kernels.GROUP_BYTES = kernels.GROUP_BYTES, 2**20
        try:
            mx.eval(model, gradients, optimizer.state)
            optimizer.update(model, gradients)
            mx.eval(model, optimizer.state)
            mx.clear_cache()
            active = mx.get_active_memory()
            mx.reset_peak_memory()
            optimizer.update(model, gradients)
            mx.eval(model, optimizer.state)
            return mx.get_peak_memory() - active, [w.tolist() for w in model["layers"]]
        finally:
            kernels.EVALUATE_ABOVE, kernels.GROUP_BYTES = before, groups

    grouped, in_groups = run(2**20)
    whole, at_once = run(2**40)
    assert in_groups == at_once
    assert grouped < whole / 3
