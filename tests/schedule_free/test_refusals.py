"""What is refused: by name and value, all at once, before any state has changed."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from test_equations import Family

from mufree import AdamWScheduleFree, RAdamScheduleFree, Refused, SGDScheduleFree, averaged
from mufree.errors import CheckpointError

W = {"w": mx.zeros((2,))}


def fields(refused) -> set[str]:
    return {reason.field for reason in refused.value.reasons}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"learning_rate": -1e-3}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"learning_rate": True}, "learning_rate"),
        ({"learning_rate": "1e-3"}, "learning_rate"),
        ({"learning_rate": [1e-3]}, "learning_rate"),
        ({"learning_rate": mx.array([1.0, 2.0])}, "learning_rate"),
        ({"learning_rate": mx.array(-1.0)}, "learning_rate"),
        ({"learning_rate": lambda _: mx.array(-1.0)}, "learning_rate"),
        ({"betas": (0.0, 0.999)}, "betas[0]"),
        ({"betas": (1.1, 0.999)}, "betas[0]"),
        ({"betas": (0.9, 1.0)}, "betas[1]"),
        ({"betas": (0.9, 0.99999999)}, "betas[1]"),
        ({"betas": (0.9, math.nan)}, "betas[1]"),
        ({"betas": 0.9}, "betas"),
        ({"eps": -1e-8}, "eps"),
        ({"eps": math.inf}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"warmup_steps": 0.03}, "warmup_steps"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_steps": True}, "warmup_steps"),
        ({"warmup_steps": 10**30}, "warmup_steps"),
        ({"weight_decay": 10**400}, "weight_decay"),
        ({"r": -1.0}, "r"),
        ({"r": 9.0}, "r"),
        ({"weight_lr_power": -1.0}, "weight_lr_power"),
        ({"weight_lr_power": 20.0}, "weight_lr_power"),
        ({"learning_rate": 1e3, "r": 4.0}, "weight_lr_power"),  # 2e40 after ten million updates
        ({"model_holds": "z"}, "model_holds"),
        ({"scales": Family("sgd", {"w": (1.0, 1.0, 1.0)})}, "scales"),
        ({"scales": {"w": 1.0}}, "scales"),
        ({"scales": Family("adam", {"w": (math.nan, 1.0, 1.0)})}, "scales['w'].lr"),
        ({"scales": Family("adam", {"w": (1.0, "1", 1.0)})}, "scales['w'].eps"),
    ],
)
def test_a_setting_out_of_range(settings, field) -> None:
    """Each by its name."""
    with pytest.raises(Refused) as refused:
        AdamWScheduleFree(**settings)
    assert fields(refused) == {field}


def test_all_problems_at_once() -> None:
    """Nobody has to fix one to see the next."""
    with pytest.raises(Refused) as refused:
        AdamWScheduleFree(learning_rate=-1, betas=(0, 1), eps=-1, weight_decay=-1, warmup_steps=0.5, r=-1)
    names = {"learning_rate", "betas[0]", "betas[1]", "eps", "weight_decay", "warmup_steps", "r"}
    assert fields(refused) == names


@pytest.mark.parametrize("make", [AdamWScheduleFree, RAdamScheduleFree])
def test_beta1_zero_is_fine_where_the_model_holds_x(make) -> None:
    """Nothing is divided by it there; but it cannot be converted."""
    optimizer = make(betas=(0.0, 0.999), model_holds="x")
    optimizer.init(dict(W))
    with pytest.raises(Refused, match="β1"):
        optimizer.convert(dict(W), "y")


@pytest.mark.parametrize("momentum", [0.0, 1.5, -0.1, None])
def test_momentum_out_of_range(momentum) -> None:
    """The interpolation of the plain descent."""
    with pytest.raises(Refused, match="momentum"):
        SGDScheduleFree(momentum=momentum)


def test_scales_of_another_family() -> None:
    """Adam's in plain descent would be wrong by the width multiplier."""
    with pytest.raises(Refused, match="'adam' family"):
        SGDScheduleFree(scales=Family("adam", {"w": (0.125, 1.0, 8.0)}))


def test_radam_with_plain_steps_and_scales() -> None:
    """The plain steps would need other scales than the rectified ones."""
    with pytest.raises(Refused, match="silent_sgd_phase"):
        RAdamScheduleFree(silent_sgd_phase=False, scales=Family("adam", {"w": (0.125, 1.0, 8.0)}))


def test_radam_that_would_never_start() -> None:
    """At β2 ≤ 0.6 the silent phase has no end."""
    with pytest.raises(Refused, match="never ends"):
        RAdamScheduleFree(betas=(0.9, 0.6))
    RAdamScheduleFree(betas=(0.9, 0.6), silent_sgd_phase=False)


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({}, "parameters"),
        ({"layers": [{}, {}]}, "parameters"),
        ([mx.zeros((2,))], "parameters"),
        ({"w": mx.zeros((2,), mx.int32)}, "w"),
        ({"w": mx.zeros((2,), mx.uint32)}, "w"),
        ({"w": mx.zeros((2,), mx.complex64)}, "w"),
        ({"step": mx.zeros((2,))}, "step"),
        ({"learning_rate": {"w": mx.zeros((2,))}}, "learning_rate"),
        ({"schedule_free": {"w": mx.zeros((2,))}}, "schedule_free"),
    ],
)
def test_parameters_that_cannot_be_trained(tree, field) -> None:
    """Refused by init, and the state is as it was."""
    optimizer = AdamWScheduleFree()
    before = set(optimizer.state)
    with pytest.raises(Refused) as refused:
        optimizer.init(tree)
    assert fields(refused) == {field}
    assert set(optimizer.state) == before
    optimizer.init(dict(W))


def test_a_parameter_without_a_scale() -> None:
    """Scales are keyed by path; a changed path is named."""
    optimizer = AdamWScheduleFree(scales=Family("adam", {"v": (1.0, 1.0, 1.0)}))
    with pytest.raises(Refused) as refused:
        optimizer.init({"w": mx.zeros((2,)), "v": mx.zeros((2,))})
    assert fields(refused) == {"w"}


def test_an_empty_group_of_a_multi_optimizer() -> None:
    """Its filter matches nothing."""
    both = optim.MultiOptimizer([AdamWScheduleFree(), optim.SGD(0.1)], [lambda path, _: "nothing" in path])
    with pytest.raises(Refused, match="no parameter at all"):
        both.init(nn.Linear(2, 2).parameters())


def test_a_state_of_another_optimizer() -> None:
    """MLX's AdamW keeps other arrays."""
    other = optim.AdamW(0.1)
    other.init(dict(W))
    optimizer = AdamWScheduleFree()
    with pytest.raises(CheckpointError) as refused:
        optimizer.state = other.state
    assert "schedule_free.weight_sum" in fields(refused)
    optimizer.init(dict(W))


def test_a_state_of_the_other_form() -> None:
    """A state says itself which sequence its model holds."""
    held = AdamWScheduleFree(model_holds="x")
    held.init(dict(W))
    with pytest.raises(CheckpointError, match="model_holds"):
        AdamWScheduleFree().state = held.state


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("schedule_free.weight_sum", lambda a: a.reshape(1)),
        ("schedule_free.c", lambda a: a.astype(mx.bfloat16)),
        ("learning_rate", lambda _: mx.array([0.1, 0.2])),
        ("step", lambda a: a.astype(mx.float32)),
    ],
)
def test_a_state_with_another_scalar(name, wrong) -> None:
    """Its axis would go into parameters that have none, its precision into every average."""
    optimizer = AdamWScheduleFree()
    optimizer.init(dict(W))
    state = {path: wrong(a) if path == name else a for path, a in tree_flatten(optimizer.state)}
    with pytest.raises(CheckpointError) as refused:
        AdamWScheduleFree().state = tree_unflatten(list(state.items()))
    assert fields(refused) == {name}


@pytest.mark.parametrize("state", [None, [], {}, {"step": 1}, 3])
def test_a_state_that_is_none(state) -> None:
    """Refused, and the old one is kept."""
    optimizer = AdamWScheduleFree()
    optimizer.init(dict(W))
    with pytest.raises(CheckpointError):
        optimizer.state = state
    optimizer.apply_gradients(dict(W), dict(W))


def test_a_loaded_state_whose_gap_shows_late() -> None:
    """The first update had no gradient for the leaf that lacks its z."""
    held = {"a": mx.ones((2,)), "b": mx.ones((2,))}
    optimizer, other = AdamWScheduleFree(), AdamWScheduleFree()
    optimizer.init(held)
    other.state = tree_unflatten([(path, a) for path, a in tree_flatten(optimizer.state) if path != "b.z"])
    other.apply_gradients({"a": held["a"]}, held)
    with pytest.raises(CheckpointError) as refused:
        other.apply_gradients(held, held)
    assert fields(refused) == {"b.z"}
    assert other.step.item() == 1


@pytest.mark.parametrize(
    ("changed", "field"),
    [(lambda w: w[:1], "w.z"), (lambda w: w.astype(mx.bfloat16), "w.y"), (lambda w: w.astype(mx.float64), "w.z")],
)
def test_a_parameter_that_has_changed_since(changed, field) -> None:
    """Another shape would broadcast; half precision would train without its float32 weights."""
    optimizer, held = AdamWScheduleFree(), {"w": mx.ones((3,))}
    held = optimizer.apply_gradients(held, held)
    now = {"w": changed(held["w"])}
    with pytest.raises(CheckpointError) as refused:
        optimizer.apply_gradients(now, now)
    assert field in fields(refused)
    assert optimizer.step.item() == 1


def test_averaged_without_a_schedule_free_optimizer() -> None:
    """There is no average then."""
    with pytest.raises(Refused, match="no schedule-free optimizer"), averaged(optim.SGD(0.1), nn.Linear(2, 2)):
        pass


def test_at_y_where_the_model_holds_y() -> None:
    """Would be a second step away from the average."""
    with pytest.raises(Refused, match="at_y is for"):
        AdamWScheduleFree().at_y(lambda model: model)


def test_the_learning_rate_setter() -> None:
    """Refuses as the constructor does, and keeps the old one."""
    optimizer = AdamWScheduleFree(learning_rate=0.5)
    with pytest.raises(Refused):
        optimizer.learning_rate = -1.0
    assert optimizer.learning_rate.item() == 0.5


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("gradients", [None, [], mx.ones((2,)), {"w": 1.0}, {"w": np.ones(2)}, {"w": [1.0, 2.0]}])
def test_gradients_that_are_no_arrays(gradients, started) -> None:
    """NumPy's too: it would fail only after the scalars had moved on."""
    optimizer = AdamWScheduleFree()
    if started:
        optimizer.init(dict(W))
    with pytest.raises(Refused):
        optimizer.apply_gradients(gradients, dict(W))
    assert optimizer.step.item() == 0


@pytest.mark.parametrize("started", [False, True])
def test_gradients_that_do_not_fit(started) -> None:
    """They would broadcast into the parameter; the state is as it was."""
    optimizer, held = AdamWScheduleFree(), {"w": mx.zeros((2, 3)), "b": mx.zeros((3,))}
    if started:
        optimizer.init(held)
    with pytest.raises(Refused) as refused:
        optimizer.apply_gradients({"w": mx.zeros((3,)), "c": mx.zeros((3,)), "b": mx.zeros((3,))}, held)
    assert fields(refused) == {"w", "c"}
    assert optimizer.step.item() == 0
