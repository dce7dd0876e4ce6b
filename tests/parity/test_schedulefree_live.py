"""Against the PyTorch implementation, where it is installed."""

from __future__ import annotations

from itertools import product

import mlx.core as mx
import pytest

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from mufree.schedule_free.averaging import RESERVED
from schedule_free_problems import distance, error, problem, run, sequences, to_numpy

torch = pytest.importorskip("torch")
pytest.importorskip("schedulefree")
import torch_side  # noqa: E402 – needs both

FLOAT64 = 1e-12  # some thousand roundings of 1e-16 each; every planted mistake is off by 1e-5 or more
X_Y_RATIO, Z_RATIO = 1.75, 2.25  # float32 error over PyTorch's own: the same operations in another order
OURS = {"adamw": AdamWScheduleFree, "sgd": SGDScheduleFree, "radam": RAdamScheduleFree}
GRID = list(product((0.0, 0.1), (0.0, 0.5), (0.0, 1.0, 2.0), (0, 5), (0.9, 0.98)))
STANDARD = {"lr": 0.0025, "warmup_steps": 100, "weight_decay": 0.1}


def ours(kind, settings, **more):
    return OURS[kind](**{("learning_rate" if n == "lr" else n): value for n, value in settings.items()}, **more)


def follow(kind, settings, updates, *, every=1, **more) -> float:
    """Largest relative distance of x, y, z, v, weight_sum or lr_max at every ``every``-th update."""
    theirs = {}

    def keep(k, now, group) -> None:
        if k % every == every - 1:
            theirs[k] = (now, group["weight_sum"], group["lr_max"], group["scheduled_lr"])

    torch_side.run(kind, settings, updates, observe=keep)
    optimizer = ours(kind, settings, **more)
    worst = 0.0

    def compare(k, held) -> None:
        nonlocal worst
        if k in theirs:
            now, *scalars = theirs[k]
            got = sequences(optimizer, held)
            if kind != "sgd":
                got["v"] = to_numpy({name: optimizer.state[name]["v"] for name in held})
            worst = max(worst, *(distance(got[name], now[name]) for name in got))
            for name, value in zip(("weight_sum", "lr_max", "scheduled_lr"), scalars, strict=True):
                mine = optimizer.state[RESERVED][name].item()
                worst = max(worst, abs(mine - value) / abs(value) if mine != value else 0.0)

    run(optimizer, updates, mx.float64, observe=compare)
    assert theirs
    return worst


@pytest.mark.parametrize("kind", OURS)
def test_the_grid(kind) -> None:
    """Decay × r × power × warmup × β1, 50 updates each, every sequence and scalar at every update."""
    for decay, r, power, warmup, beta1 in GRID:
        settings = {"lr": 0.01, "weight_decay": decay, "r": r, "weight_lr_power": power}
        settings |= {"momentum": beta1} if kind == "sgd" else {"betas": (beta1, 0.999)}
        if kind == "radam" and warmup:
            continue
        if kind != "radam":
            settings["warmup_steps"] = warmup
        assert follow(kind, settings, 50) < FLOAT64, (decay, r, power, warmup, beta1)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("adamw", STANDARD), ("sgd", STANDARD | {"lr": 0.05}), ("radam", {"lr": 0.0025, "weight_decay": 0.1})],
)
def test_a_thousand_updates_in_float64(kind, settings) -> None:
    """Warmup 100 and decay 0.1."""
    assert follow(kind, settings, 1000, every=50) < FLOAT64


def test_the_closure_form() -> None:
    """model_holds="x" follows upstream's closure form, which keeps x itself."""
    theirs = torch_side.run_closure(STANDARD, 300)
    optimizer = ours("adamw", STANDARD, model_holds="x")
    got = sequences(optimizer, run(optimizer, 300, mx.float64))
    assert max(distance(got[name], theirs[name]) for name in "xz") < FLOAT64


@pytest.mark.parametrize(
    "updates", [100, pytest.param(1000, marks=pytest.mark.slow), pytest.param(4000, marks=pytest.mark.slow)]
)
def test_float32_is_nearly_as_exact_as_pytorch(updates) -> None:
    """The distance to the float64 trajectory over PyTorch float32's own, worst of 5 seeds."""
    seeds = tuple(range(5))
    exact = torch_side.run("adamw", STANDARD, updates, seed=seeds)
    theirs = torch_side.run("adamw", STANDARD, updates, seed=seeds, dtype=torch.float32)
    optimizer = ours("adamw", STANDARD)
    got = sequences(optimizer, run(optimizer, updates, mx.float32, seeds))
    off = {
        whose: {name: [error(problem(at[name], i), problem(exact[name], i)) for i in seeds] for name in "xyz"}
        for whose, at in (("ours", got), ("theirs", theirs))
    }
    worst = {name: max(a / b for a, b in zip(off["ours"][name], off["theirs"][name], strict=True)) for name in "xyz"}
    print(updates, worst)
    assert max(worst["x"], worst["y"]) <= X_Y_RATIO
    assert worst["z"] <= Z_RATIO
