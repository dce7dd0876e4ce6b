"""Small problems and the sequences of an optimizer on them, shared by the tests."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np

from mufree.schedule_free import ScheduleFree

SHAPES = {"w": (16, 24), "b": (16,), "s": (1,)}


Seeds = int | tuple[int, ...]
"""One problem, or several side by side along a first axis: every update is elementwise."""


def start(seed: Seeds) -> dict[str, np.ndarray]:
    """Initial weights, float64."""
    if isinstance(seed, tuple):
        return _stacked([start(one) for one in seed])
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def gradient(weights: dict[str, np.ndarray], k: int, seed: Seeds) -> dict[str, np.ndarray]:
    """A noisy gradient at ``weights``, of update ``k``: a quartic bowl and noise that depends only on k and seed."""
    noise = _noise(k, seed)
    return {name: weights[name] + 0.1 * weights[name] ** 3 + noise[name] for name in SHAPES}


@lru_cache(maxsize=8192)
def _noise(k: int, seed: Seeds) -> dict[str, np.ndarray]:
    if isinstance(seed, tuple):
        return _stacked([_noise(k, one) for one in seed])
    generator = np.random.default_rng((seed, k))
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def _stacked(problems: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([problem[name] for problem in problems]) for name in SHAPES}


def to_mlx(arrays: dict[str, np.ndarray], dtype: mx.Dtype) -> dict[str, mx.array]:
    return {name: mx.array(a, dtype) for name, a in arrays.items()}


def to_numpy(arrays: dict[str, mx.array]) -> dict[str, np.ndarray]:
    wide = {name: a.astype(mx.float64) for name, a in arrays.items()}
    mx.eval(wide)  # at once: each evaluation waits for another thread
    return {name: np.array(a, dtype=np.float64) for name, a in wide.items()}


def sequences(optimizer: ScheduleFree, held: dict[str, mx.array]) -> dict[str, dict[str, np.ndarray]]:
    """x, z and, from them, y, in float64."""
    z = to_numpy({name: optimizer.state[name]["z"] for name in held})
    if optimizer.model_holds == "y":
        return {"x": to_numpy(optimizer.average(held)), "y": to_numpy(held), "z": z}
    beta1 = optimizer._layout.form.beta1
    x = to_numpy(held)
    return {"x": x, "y": {name: beta1 * x[name] + (1 - beta1) * z[name] for name in x}, "z": z}


def run(optimizer: ScheduleFree, updates: int, dtype: mx.Dtype, seed: Seeds = 0, observe=None) -> dict[str, mx.array]:
    """Run on the noisy quartic bowl; returns what the model holds. ``observe(k, held)`` after each update."""
    held = to_mlx(start(seed), dtype)
    optimizer.init(held)
    for k in range(updates):
        y = to_numpy(held) if optimizer.model_holds == "y" else sequences(optimizer, held)["y"]
        g = to_mlx(gradient(y, k, seed), dtype)
        held = optimizer.apply_gradients(g, held)
        if observe is not None:
            observe(k, held)
    return held


def distance(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Largest difference over all arrays, relative to the largest entry of each."""
    return max(float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()) for name in theirs)


def error(ours: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """Root of the summed squares of the difference: an estimate of rounding error, not a bound."""
    return float(np.sqrt(sum(((ours[name] - exact[name]) ** 2).sum() for name in exact)))


def problem(arrays: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """One of several problems side by side."""
    return {name: a[index] for name, a in arrays.items()}
