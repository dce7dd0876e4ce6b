"""One kernel a parameter, counted in the exported graph: operations that every further parameter adds."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from test_equations import Family

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree

SCALES = {f"{name}{i}": (0.125, 0.25, 8.0) if name == "a" else (1.0, 0.5, 1.0) for name in "ab" for i in range(4)}


def operations(outputs, folder: Path) -> list[str]:
    """Names of the operations that have to run to get ``outputs``."""
    mx.export_to_dot(str(folder / "graph.dot"), *[array for _, array in tree_flatten(outputs)])
    return re.findall(r'label ="([^"]+)"', (folder / "graph.dot").read_text())


def kernels_a_leaf(step_for, dtype, folder: Path) -> float:
    """By how many operations an update of eight matrices exceeds one of four: the scalars are the same."""
    counts = []
    for each in (2, 4):
        names = [f"{name}{i}" for i in range(each) for name in "ab"]
        weights = {name: mx.random.normal((24, 16 + int(name[1]))).astype(dtype) for name in names}
        gradients = {name: mx.random.normal(w.shape).astype(dtype) for name, w in weights.items()}
        step, state = step_for(weights)
        mx.eval(weights, gradients, state)
        counts.append(len(operations([step(gradients, weights), state], folder)))
    return (counts[1] - counts[0]) / 4


CASES = {"plain": {}, "decay": {"weight_decay": 0.1}, "scales": {"weight_decay": 0.1, "scales": True}}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("holds", ["y", "x"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cls", [AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree])
def test_one_kernel_a_leaf(cls, case, holds, dtype, compiled, tmp_path) -> None:
    """Whatever the form, the precision and the scales, and also when the caller has compiled nothing."""
    settings = dict(CASES[case])
    if "scales" in settings:
        settings["scales"] = Family("sgd" if cls is SGDScheduleFree else "adam", SCALES)

    def step_for(weights):
        optimizer = cls(model_holds=holds, **settings)
        optimizer.init(weights)
        step = optimizer.apply_gradients
        if compiled:
            step = mx.compile(step, inputs=optimizer.state, outputs=optimizer.state)
        return step, optimizer.state

    assert kernels_a_leaf(step_for, dtype, tmp_path) == 1


def test_the_textbook_order_takes_three(tmp_path) -> None:
    """The control: the same update as the paper writes it, compiled; the count sees it."""

    def step_for(weights):
        state = {name: {"z": mx.array(w), "v": mx.zeros_like(w)} for name, w in weights.items()}

        def step(gradients, weights):
            new = {}
            for name, y in weights.items():
                g, z, v = gradients[name], state[name]["z"], state[name]["v"]
                v = 0.999 * v + 0.001 * g**2
                u = g / (mx.sqrt(v / 0.5) + 1e-8) + 0.1 * y
                x = (y - 0.1 * z) / 0.9
                z = z - 0.01 * u
                x = 0.9 * x + 0.1 * z
                new[name], state[name]["z"], state[name]["v"] = 0.9 * x + 0.1 * z, z, v
            return new

        return mx.compile(step, inputs=state, outputs=state), state

    assert kernels_a_leaf(step_for, mx.float32, tmp_path) >= 2
