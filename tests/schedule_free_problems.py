"""Small problems and the sequences of an optimizer on them, shared by the tests."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mufree.schedule_free import ScheduleFree

SHAPES = {"w": (16, 24), "b": (16,), "s": (1,)}


def start(seed: int) -> dict[str, np.ndarray]:
    """Initial weights, float64."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def gradient(weights: dict[str, np.ndarray], k: int, seed: int) -> dict[str, np.ndarray]:
    """A noisy gradient at ``weights``, of update ``k``: a quartic bowl and noise that depends only on k and seed."""
    generator = np.random.default_rng((seed, k))
    return {
        name: weights[name] + 0.1 * weights[name] ** 3 + generator.normal(size=shape) for name, shape in SHAPES.items()
    }


def to_mlx(arrays: dict[str, np.ndarray], dtype: mx.Dtype) -> dict[str, mx.array]:
    return {name: mx.array(a, dtype) for name, a in arrays.items()}


def to_numpy(arrays: dict[str, mx.array]) -> dict[str, np.ndarray]:
    return {name: np.array(a.astype(mx.float64), dtype=np.float64) for name, a in arrays.items()}


def sequences(optimizer: ScheduleFree, held: dict[str, mx.array]) -> dict[str, dict[str, np.ndarray]]:
    """x, z and, from them, y, in float64."""
    z = to_numpy({name: optimizer.state[name]["z"] for name in held})
    if optimizer.model_holds == "y":
        return {"x": to_numpy(optimizer.average(held)), "y": to_numpy(held), "z": z}
    beta1 = optimizer._layout.form.beta1
    x = to_numpy(held)
    return {"x": x, "y": {name: beta1 * x[name] + (1 - beta1) * z[name] for name in x}, "z": z}


def run(optimizer: ScheduleFree, updates: int, dtype: mx.Dtype, seed: int = 0, observe=None) -> dict[str, mx.array]:
    """Run on the noisy quartic bowl; returns what the model holds. ``observe(k, held)`` after each update."""
    held = to_mlx(start(seed), dtype)
    optimizer.init(held)
    for k in range(updates):
        y = to_numpy(held) if optimizer.model_holds == "y" else sequences(optimizer, held)["y"]
        g = to_mlx(gradient(y, k, seed), dtype)
        held = optimizer.apply_gradients(g, held)
        mx.eval(held, optimizer.state)
        if observe is not None:
            observe(k, held)
    return held


def distance(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Largest difference over all arrays, relative to the largest entry of each."""
    return max(float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()) for name in theirs)


def error(ours: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """Root mean square of the difference over all entries together: an estimate of rounding error, not a bound."""
    return float(np.sqrt(sum(((ours[name] - exact[name]) ** 2).sum() for name in exact)))
