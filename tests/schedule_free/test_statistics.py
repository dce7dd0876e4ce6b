"""Running statistics in the tree that an optimizer is given: they are no parameters, and pass through everything."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map

from mufree import AdamWScheduleFree, RAdamScheduleFree, Refused, SGDScheduleFree
from mufree.schedule_free.state import leaves

NAMES = ("running_mean", "running_var")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4, momentum=0.5), nn.Linear(4, 1))


def statistics(tree) -> dict[str, list[float]]:
    return {path: a.tolist() for path, a in tree_flatten(tree) if path.endswith(NAMES)}


def same(array, other) -> bool:
    return array.tolist() == other.tolist()


@pytest.mark.parametrize("cls", [AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree])
@pytest.mark.parametrize("holds", ["y", "x"])
def test_all_parameters_of_a_model_with_batch_norm(cls, holds) -> None:
    """init, updates, averages and conversions treat the rest as if they were not there."""
    model = network()
    optimizer = cls(learning_rate=0.5, model_holds=holds)
    optimizer.init(model.parameters())
    assert {path for path, _ in leaves(optimizer.state)} == {
        path for path, _ in tree_flatten(model.trainable_parameters())
    }
    loss = lambda model, x: (model(x) - 1).square().mean()  # noqa: E731
    gradient = nn.value_and_grad(model, optimizer.at_y(loss) if holds == "x" else loss)
    for n in range(6):
        optimizer.update(model, gradient(model, mx.random.normal((8, 3), key=mx.random.key(n)) * 10.0 ** (3 - n))[1])
    now = statistics(model.parameters())
    assert len(now) == 2
    assert statistics(optimizer.average(model.parameters())) == now
    with optimizer.averaged(model):
        assert statistics(model.parameters()) == now
    optimizer.convert(model, "x" if holds == "y" else "y")
    assert statistics(model.parameters()) == now


@pytest.mark.parametrize("started", [False, True])
def test_gradients_of_everything(started) -> None:
    """As MLX gives them of a whole tree: the statistics come back as they are, started or joining."""
    model = network()
    optimizer = AdamWScheduleFree(learning_rate=0.5)
    if started:
        optimizer.init(model.parameters())
    held = model.parameters()
    after = optimizer.apply_gradients(tree_map(mx.ones_like, held), held)
    assert statistics(after) == statistics(held)
    assert not same(after["layers"][0]["weight"], held["layers"][0]["weight"])
    assert not any(path.endswith(NAMES) for path, _ in leaves(optimizer.state))


def test_nothing_but_statistics_is_nothing() -> None:
    """There is nothing to train."""
    with pytest.raises(Refused, match="no parameter at all"):
        AdamWScheduleFree().init({"running_mean": mx.zeros((3,)), "running_var": mx.ones((3,))})
