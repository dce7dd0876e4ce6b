"""Every sequence against an independent reference, in float64, at every update."""

from __future__ import annotations

import copy
from itertools import product
from types import MappingProxyType, SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from mufree.schedule_free import adamw, averaging, form, kernels, radam
from mufree.schedule_free.averaging import RESERVED
from schedule_free_problems import distance, gradient, sequences, start, to_mlx, to_numpy
from schedule_free_reference import Reference

FLOAT64 = 1e-12  # 50 updates of a dozen float64 roundings; planted mistakes are off by more than 1e-5
CAUGHT = 1e-5
SCALARS = 3e-7  # float32: a product, an exponential
RECTIFIED = 1e-6  # float32: roundings of ρ, of which ρ − 4 is what counts; the plain formula is off by 1e-3 and more
GRID = list(product((0.0, 0.1), (0.0, 0.5), (0.0, 1.0, 2.0), (0, 5), (0.9, 0.98)))
CLASSES = {"adamw": AdamWScheduleFree, "sgd": SGDScheduleFree, "radam": RAdamScheduleFree}


class Family(dict):
    """Scales as an optimizer sees them."""

    def __init__(self, family: str, triples) -> None:
        super().__init__({name: SimpleNamespace(lr=a, eps=b, weight_decay=c) for name, (a, b, c) in triples.items()})
        self.family = family


def build(kind, reference: Reference, holds="y", scales=None):
    settings = {"weight_decay": reference.weight_decay, "r": reference.r, "model_holds": holds}
    settings |= {"weight_lr_power": reference.weight_lr_power, "learning_rate": reference.lr, "scales": scales}
    if kind != "radam":
        settings["warmup_steps"] = reference.warmup_steps
    if kind == "radam":
        settings["silent_sgd_phase"] = reference.silent_sgd_phase
    if kind == "sgd":
        settings["momentum"] = reference.beta1
    else:
        settings |= {"betas": (reference.beta1, reference.beta2), "eps": reference.eps}
    return CLASSES[kind](**settings)


def worst(optimizer, reference: Reference, updates=50, missing=frozenset()) -> float:
    """Largest relative distance of any sequence or scalar over all updates."""
    held = to_mlx(start(0), mx.float64)
    optimizer.init({name: w for name, w in held.items() if (name, 0) not in missing})
    largest = 0.0

    def present(y, k):
        return {name: g for name, g in gradient(y, k, 0).items() if (name, k) not in missing}

    for k, want in enumerate(reference.run(start(0), present, updates)):
        at = sequences_of_known(optimizer, held)
        g = to_mlx(present(at, k), mx.float64)
        held = held | optimizer.apply_gradients(g, held)
        known = {name: held[name] for name in held if name in optimizer.state}
        got = sequences(optimizer, known)
        for name in "xyz":
            largest = max(largest, distance(got[name], {n: want[name][n] for n in known}))
        if want["v"] and all(np.abs(a).max() > 0 for a in want["v"].values()):
            ours = to_numpy({n: optimizer.state[n]["v"] for n in want["v"]})
            largest = max(largest, distance(ours, want["v"]))
        for name in ("weight_sum", "lr_max", "c", "scheduled_lr"):
            value = optimizer.state[RESERVED][name].item()
            largest = max(largest, abs(value - want[name]) / max(abs(want[name]), 1e-30) if value != want[name] else 0)
    return largest


def sequences_of_known(optimizer, held):
    known = {name: w for name, w in held.items() if name in optimizer.state}
    return to_numpy({n: w for n, w in held.items() if n not in known}) | sequences(optimizer, known)["y"]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("holds", ["y", "x"])
def test_every_sequence_over_the_grid(kind, holds) -> None:
    """Decay × r × power × warmup × β1: y, z, x, v, weight_sum, lr_max and c at each of 50 updates."""
    for decay, r, power, warmup, beta1 in GRID:
        if kind == "radam" and warmup:
            continue
        reference = Reference(kind, 0.01, beta1, 0.999, 1e-8, decay, warmup, r, power)
        assert worst(build(kind, reference, holds), reference) < FLOAT64, (decay, r, power, warmup, beta1)


@pytest.mark.parametrize("holds", ["y", "x"])
@pytest.mark.parametrize("kind", CLASSES)
def test_unequal_scales(kind, holds) -> None:
    """Rates, eps and decays that differ from parameter to parameter."""
    triples = {"w": (0.125, 0.25, 8.0), "b": (1.0, 0.125, 0.0), "s": (2.0, 1.0, 1.0)}
    family = "sgd" if kind == "sgd" else "adam"
    reference = Reference(kind, 0.01, weight_decay=0.1, eps=1e-3, r=0.5, scales=triples)
    if kind != "radam":
        reference.warmup_steps = 5
    assert worst(build(kind, reference, holds, Family(family, triples)), reference) < FLOAT64


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("kind", CLASSES)
def test_scales_of_one_change_no_bit(kind, dtype) -> None:
    """At base width the update is the one without scales."""
    results = []
    for scales in (None, Family("sgd" if kind == "sgd" else "adam", dict.fromkeys("wbs", (1.0, 1.0, 1.0)))):
        optimizer = build(kind, Reference(kind, 0.01, weight_decay=0.1), scales=scales)
        held = to_mlx(start(0), dtype)
        for k in range(8):
            held = optimizer.apply_gradients(to_mlx(gradient(start(0), k, 0), dtype), held)
        results.append([(name, a.astype(mx.float32).tolist()) for name, a in tree_flatten([held, optimizer.state])])
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_copied_optimizer_goes_on_by_itself(kind) -> None:
    """copy.deepcopy: the same from there, and the original is left alone."""
    optimizer, held = build(kind, Reference(kind, 0.01)), to_mlx(start(0), mx.float32)
    held = optimizer.apply_gradients(held, held)
    other = copy.deepcopy(optimizer)
    there = other.apply_gradients(held, held)
    assert optimizer.step.item() == 1
    here = optimizer.apply_gradients(held, held)
    assert all(here[name].tolist() == there[name].tolist() for name in here)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_callable_learning_rate(kind) -> None:
    """A schedule of the number of updates made, which may go down again."""
    reference = Reference(kind, lambda k: 0.25 if k < 9 else 0.125)
    optimizer = build(kind, reference)
    optimizer._schedulers["learning_rate"] = lambda step: mx.where(step < 9, 0.25, 0.125)
    assert worst(optimizer, reference) < FLOAT64


def test_radam_with_plain_steps_first() -> None:
    """silent_sgd_phase=False moves along the gradient while the rectification is not defined."""
    reference = Reference("radam", 0.01, weight_decay=0.1, silent_sgd_phase=False)
    assert worst(build("radam", reference), reference) < FLOAT64


@pytest.mark.parametrize("kind", CLASSES)
def test_parameters_without_a_gradient(kind) -> None:
    """One is missing at times, one joins at the 21st update; both follow the reference, in one set of scalars."""
    missing = {("b", 3), ("b", 4), ("b", 30)} | {("s", k) for k in range(20)}
    reference = Reference(kind, 0.01, weight_decay=0.1, warmup_steps=0)
    assert worst(build(kind, reference), reference, missing=missing) < FLOAT64


def test_a_float64_parameter_that_joins_late_widens_the_scalars() -> None:
    """Its average is exact from there on."""
    optimizer, held = AdamWScheduleFree(0.1, eps=0.0), {"a": mx.ones((2,))}
    held |= optimizer.apply_gradients({"a": held["a"]}, held)
    held["b"] = mx.ones((2,), mx.float64)
    new = optimizer.apply_gradients(held, held)
    assert (new["a"].dtype, new["b"].dtype) == (mx.float32, mx.float64)
    assert optimizer.state[RESERVED]["c"].dtype == mx.float64
    assert abs(optimizer.state["b"]["z"][0].item() - 0.9) < 1e-15  # a float32 rate would be off by 1.5e-9


def test_a_late_parameter_first_moves_by_the_rate() -> None:
    """Upstream's would move 25 rates at update 1,000."""
    optimizer = AdamWScheduleFree(learning_rate=0.01)
    held = {"a": mx.array([1.0]), "b": mx.array([1.0, -1.0])}
    for _ in range(1000):
        held |= optimizer.apply_gradients({"a": mx.array([1.0])}, held)
    optimizer.apply_gradients({"a": mx.array([1.0]), "b": mx.array([3.0, -1e-3])}, held)
    moved = held["b"] - optimizer.state["b"]["z"]
    assert np.allclose(moved, [0.01, -0.01], rtol=2e-5)  # eps is 1e-5 of the second gradient


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("power", [2.0, 0.0])
def test_a_rate_that_is_zero_at_first(compiled, power) -> None:
    """Rates 0, 0, 0.1: no NaN, no movement for two updates; then c is 1 and x is z, or all weights are 1."""
    optimizer = AdamWScheduleFree(learning_rate=lambda k: mx.where(k < 2, 0.0, 0.1), weight_lr_power=power)
    held = {"w": mx.array([1.0, 2.0])}
    optimizer.init(held)
    step = lambda g, p: optimizer.apply_gradients(g, p)  # noqa: E731
    step = mx.compile(step, inputs=optimizer.state, outputs=optimizer.state) if compiled else step
    for _ in range(2):
        held = step({"w": mx.array([1.0, -1.0])}, held)
        assert held["w"].tolist() == optimizer.state["w"]["z"].tolist() == [1.0, 2.0]
    held = step({"w": mx.array([1.0, -1.0])}, held)
    x, z = optimizer.average(held)["w"], optimizer.state["w"]["z"]
    assert np.allclose(z, [0.9, 2.1], rtol=1e-6)
    assert optimizer.state[RESERVED]["c"].item() == pytest.approx(1.0 if power else 1 / 3)
    assert np.allclose(x, z if power else [1 - 0.1 / 3, 2 + 0.1 / 3], rtol=1e-6)


def test_decay_is_at_y_and_outside_the_division() -> None:
    """With a zero gradient z falls by lr·wd·y whatever v is; scaling all gradients leaves the decay as it is."""
    moves = []
    for factor in (1.0, 1000.0):
        optimizer = AdamWScheduleFree(learning_rate=0.1, weight_decay=0.1, eps=0.0)
        held = {"w": mx.array([2.0], mx.float64)}
        for _ in range(3):
            held = optimizer.apply_gradients({"w": mx.array([factor], mx.float64)}, held)
        y, z = held["w"].item(), optimizer.state["w"]["z"].item()
        moves.append(z)
        optimizer.apply_gradients({"w": mx.array([0.0], mx.float64)}, held)
        assert optimizer.state["w"]["z"].item() == pytest.approx(z - 0.1 * 0.1 * y, rel=1e-14)
    assert moves[0] == pytest.approx(moves[1], rel=1e-14)


def test_c_does_not_depend_on_the_scale_of_the_rate() -> None:
    """A rate eight times as large gives the same averaging weights."""
    values = []
    for rate in (0.01, 0.08):
        optimizer = AdamWScheduleFree(learning_rate=rate, warmup_steps=7)
        held, values_here = {"w": mx.zeros((2,))}, []
        for _ in range(12):
            held = optimizer.apply_gradients({"w": mx.ones((2,))}, held)
            values_here.append(optimizer.state[RESERVED]["c"].item())
        values.append(values_here)
    assert np.allclose(*values, rtol=3e-7)  # float32 roundings of a dozen products


@pytest.mark.parametrize("rate", [0.0025, 1e-3])
@pytest.mark.parametrize("r", [0.0, 0.75])
@pytest.mark.parametrize("updates", [10**5, 10**6])
def test_c_after_a_million_updates(rate, r, updates) -> None:
    """A plain float32 sum is off by 6e-4 and 7e-3; the pair is within 1e-6 of float64."""
    numbers = np.arange(1, updates + 1, dtype=np.float64) ** r
    weights = (numbers.astype(np.float32) * np.float32(rate) ** 2)[:-1]
    total, remainder = np.float32(0), np.float32(0)
    for weight in weights:
        total, remainder = averaging._compensated_add(total, remainder, weight)
    before = averaging.initial_scalars()
    before |= {"weight_sum": mx.array(total), "weight_sum_remainder": mx.array(remainder), "lr_max": mx.array(rate)}
    rule = averaging.Averaging(r=r, weight_lr_power=2.0)
    after = rule.advance(mx.array(float(updates)), mx.array(rate), before)
    assert abs(after["c"].item() / (numbers[-1] / numbers.sum()) - 1) < 1e-6


def test_the_smaller_summand_is_never_lost() -> None:
    """Also where the weight is the larger one, as after a long warmup from tiny rates."""
    for total, term in ((1.0, 1e-9), (1e-9, 1.0)):
        new, remainder = averaging._compensated_add(*map(mx.array, (total, 0.0, term)))
        assert (new.item(), remainder.item()) == (1.0, pytest.approx(1e-9, rel=1e-7))


@pytest.mark.parametrize("beta2", [0.9, 0.999, 0.99999])
def test_small_numbers_in_float32(beta2) -> None:
    """1 − β2^k, off by 1e-3 if float32 subtracts, and RAdam's rate, where it would cancel 2000 against 2000."""
    adam = adamw.Adam(beta2=beta2, eps=1e-8, weight_decay=0.0)
    rectified = radam.RectifiedAdam(adam=adam, silent=True)
    one = [mx.array(1.0, dtype) for dtype in (mx.float32, mx.float64)]
    for k in (1, 2, 3, 6, 10, 100, 600, 2000, 4000, 10_000, 200_000, 10**8):
        at = [mx.array(float(k), dtype) for dtype in (mx.float32, mx.float64)]
        ours, exact = (adam.bias_correction(a).item() for a in at)
        assert ours == pytest.approx(exact, rel=SCALARS), k
        ours, exact = (rectified.rate(a, b).item() for a, b in zip(at, one, strict=True))
        assert ours == pytest.approx(exact, rel=RECTIFIED), k


MISTAKES = MappingProxyType(
    {
        "c inverted": (form.Form, "weights", lambda self, c: (1 - c, 1 - self.beta1 * c)),
        "decay on z only": (
            adamw.Adam,
            "descend",
            lambda self, g, _, z, moments, s: right_step(self, g, z, z, moments, s),
        ),
        "bias correction inside the averaging weight": (
            averaging.Averaging,
            "advance",
            lambda self, k1, rate, before: right_advance(self, k1, rate * mx.sqrt(1 - 0.999**k1), before),
        ),
        "decay before the division": (
            adamw.Adam,
            "descend",
            lambda self, g, y, z, moments, s: right_step(self, g + self.weight_decay * y, y, z, moments, s[:2]),
        ),
    }
)
right_step, right_advance = adamw.Adam.descend, averaging.Averaging.advance


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_caught(name, monkeypatch) -> None:
    """The comparison of this file sees each of them, by far."""
    owner, attribute, wrong = MISTAKES[name]
    reference = Reference("adamw", 0.01, weight_decay=0.1, warmup_steps=5)
    monkeypatch.setattr(owner, attribute, wrong)
    clear()
    try:
        assert worst(build("adamw", reference), reference) > CAUGHT
    finally:
        monkeypatch.undo()
        clear()
    assert worst(build("adamw", reference), reference) < FLOAT64


def clear() -> None:
    kernels._scalar_function.cache_clear()
    kernels._group_function.cache_clear()
