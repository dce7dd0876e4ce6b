"""A grouped optimizer keeps its ratios, and is one MLX optimizer in every other way."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mufree import Refused
from mufree.build.grouped import Grouped, Member

ROUNDING = 1e-6  # a rate near 1 times a factor, in float32
UPDATES = 6


def ramp(step: mx.array) -> mx.array:
    """A schedule: 0.1, 0.2, …"""
    return 0.1 * (step + 1).astype(mx.float32)


def trained(optimizer: optim.Optimizer, params: dict, updates: int = UPDATES, *, compiled: bool = False) -> dict:
    """Parameters after some updates on gradients that depend on them."""

    def update(params: dict) -> dict:
        gradients = {"layers": [{"w": p["w"] - 1.0, "b": 0.5 * p["b"]} for p in params["layers"]]}
        return optimizer.apply_gradients(gradients, params)

    optimizer.init(params)
    if compiled:
        update = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state)
    for _ in range(updates):
        params = update(params)
        mx.eval(params, optimizer.state)
    return params


def params() -> dict:
    return {"layers": [{"w": mx.full((2, 2), 0.3 * (i + 2)), "b": mx.full((2,), 0.7)} for i in range(3)]}


def grouped(rate: object = 0.1, factor: float = 0.25) -> Grouped:
    """Weights at the rate, biases at a quarter of it and by another rule."""
    weights = frozenset(f"layers.{i}.w" for i in range(3))
    biases = frozenset(f"layers.{i}.b" for i in range(3))
    return Grouped(
        [
            Member(optimizer=optim.AdamW(0.0, bias_correction=True, weight_decay=0.1), paths=weights),
            Member(optimizer=optim.SGD(0.0, momentum=0.9), paths=biases, rate_factor=factor),
        ],
        rate,
    )


def alone(rate: object, factor: float) -> dict:
    """What the two rules give by themselves, each with its own rate."""
    scaled = (lambda step: factor * rate(step)) if callable(rate) else factor * rate
    weights = trained(optim.AdamW(rate, bias_correction=True, weight_decay=0.1), params())
    biases = trained(optim.SGD(scaled, momentum=0.9), params())
    return {"layers": [{"w": w["w"], "b": b["b"]} for w, b in zip(weights["layers"], biases["layers"], strict=True)]}


def assert_same(left: dict, right: dict) -> None:
    for (path, a), (_, b) in zip(tree_flatten(left), tree_flatten(right), strict=True):
        assert mx.abs(a - b).max().item() <= ROUNDING, path


@pytest.mark.parametrize("rate", [0.1, ramp], ids=["float", "schedule"])
@pytest.mark.parametrize("compiled", [False, True])
def test_members_move_as_by_themselves(rate: object, compiled: bool) -> None:
    """Each parameter follows its own rule at its own rate, plain and compiled."""
    assert_same(trained(grouped(rate), params(), compiled=compiled), alone(rate, 0.25))


def test_a_rate_set_by_hand_keeps_the_ratios() -> None:
    """Setting the rate sets the base, in a compiled step too."""
    optimizer = grouped(0.1)
    start = trained(optimizer, params(), 0)

    def update(params: dict) -> dict:
        ones = {"layers": [{"w": mx.zeros((2, 2)), "b": mx.ones((2,))} for _ in range(3)]}
        return optimizer.apply_gradients(ones, params)

    step = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state)
    first = step(start)
    optimizer.learning_rate = 0.4
    second = step(first)
    moved = [(a["layers"][0]["b"] - b["layers"][0]["b"])[0].item() for a, b in ((start, first), (first, second))]
    assert moved == pytest.approx([0.1 * 0.25, 0.4 * 0.25 * 1.9], abs=ROUNDING)
    assert optimizer.learning_rate.item() == pytest.approx(0.4)
    assert optimizer.member_rate("layers.1.b").item() == pytest.approx(0.1)
    assert optimizer.step.item() == 2


def test_the_state_is_that_of_a_stock_optimizer() -> None:
    """One step, one rate, and each parameter's moments under its own path."""
    optimizer = grouped()
    trained(optimizer, params(), 2)
    keys = [path for path, _ in tree_flatten(optimizer.state)]
    assert {"step", "learning_rate", "layers.0.w.m", "layers.2.b.v"} <= set(keys)
    assert len(keys) == 2 + 3 * 2 + 3


def test_state_reloads_bit_for_bit(tmp_path: Path) -> None:
    """Three updates, a file, three more in a fresh object = six."""
    first = grouped(ramp)
    half = trained(first, params(), 3)
    mx.save_safetensors(str(tmp_path / "state.safetensors"), dict(tree_flatten(first.state)))
    second = grouped(ramp)
    second.init(half)
    second.state = tree_unflatten(list(mx.load(str(tmp_path / "state.safetensors")).items()))
    resumed, straight = trained(second, half, 3), trained(grouped(ramp), params(), 6)
    for (path, a), (_, b) in zip(tree_flatten(resumed), tree_flatten(straight), strict=True):
        assert mx.array_equal(a, b), path


def test_a_path_owned_twice_is_refused() -> None:
    """By path, at construction; so is one rule in two groups, which would share a rate."""
    rule = optim.SGD(0.1)
    with pytest.raises(Refused) as caught:
        Grouped(
            [Member(optimizer=rule, paths=frozenset({"a", "b"})), Member(optimizer=rule, paths=frozenset({"b"}))], 1
        )
    assert [(r.field, r.code) for r in caught.value.reasons] == [("members[1]", "given_twice"), ("b", "owned_twice")]


def test_a_layer_unfrozen_later_joins() -> None:
    """Its state is made when its first gradient comes."""
    rules = [Member(optimizer=optim.SGD(0.0, momentum=0.9), paths=frozenset({"a", "late"}))]
    optimizer = Grouped(rules, 0.1)
    both = {"a": mx.ones(2), "late": mx.ones(2)}
    optimizer.apply_gradients({"a": mx.ones(2)}, both)
    assert optimizer.apply_gradients(both, both)["late"][0].item() == pytest.approx(0.9, abs=ROUNDING)


def test_a_path_owned_by_nobody_is_refused_before_anything_changes() -> None:
    """By path, with the step where it was."""
    optimizer = Grouped([Member(optimizer=optim.SGD(0.1), paths=frozenset({"a"}))], 0.1)
    tree = {"a": mx.ones(2), "c": mx.ones(2)}
    with pytest.raises(Refused, match="c: belongs to no group"):
        optimizer.apply_gradients(tree, tree)
    assert optimizer.step.item() == 0


def test_a_rule_that_is_more_than_a_rule_is_refused() -> None:
    """A container's own bookkeeping would be skipped."""
    inner = Grouped([Member(optimizer=optim.SGD(0.1), paths=frozenset({"a"}))], 0.1)
    with pytest.raises(Refused, match="Grouped does more"):
        Grouped([Member(optimizer=inner, paths=frozenset({"a"}))], 0.1)


def test_members_that_cannot_be_one_optimizer_are_refused_together() -> None:
    """Words of the state, rates that are none, and nobody at all."""

    def member(path: str, factor: float = 1.0) -> Member:
        return Member(optimizer=optim.SGD(0.1), paths=frozenset({path}), rate_factor=factor)

    wrong = [member("step.weight"), member("a", -1.0), member("b", float("nan")), member("c", float("inf"))]
    with pytest.raises(Refused) as caught:
        Grouped([*wrong, member("d", 0.0), member("steps")], 0.1)
    assert [(r.field, r.code) for r in caught.value.reasons] == [
        ("step.weight", "reserved"),
        *((f"members[{index}].rate_factor", "out_of_range") for index in (1, 2, 3)),
    ]
    with pytest.raises(Refused, match="members: "):
        Grouped([], 0.1)


def test_members_hold_no_state_between_updates() -> None:
    """What a compiled step leaves in them would be dead arrays of its trace."""
    optimizer = grouped()
    trained(optimizer, params(), 2, compiled=True)
    assert [member.optimizer.state for member in optimizer.members] == [{}, {}]


def test_a_fresh_state_starts_moments_anew() -> None:
    """As in a stock optimizer: what the state given does not hold is made at the next update."""
    optimizer = grouped()
    trained(optimizer, params(), 2)
    optimizer.state = {"step": mx.array(0, mx.uint64), "learning_rate": mx.array(0.1)}
    again = params()
    gradients = {"layers": [{"w": p["w"] - 1.0, "b": 0.5 * p["b"]} for p in again["layers"]]}
    assert_same(optimizer.apply_gradients(gradients, again), trained(grouped(), params(), 1))
