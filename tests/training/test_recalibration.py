"""BatchNorm's statistics belong to y while training; measured anew, they belong to x."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, Refused, build_optimizer, plan_optimizer, recalibrate

# Means of eight batches' variances differ from the variance of all rows by about one in the rows of a batch, 1/1024.
FRESH = 0.01
BATCHES = [mx.random.normal((1024, 6), key=mx.random.key(n)) * 3 + 1 for n in range(8)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm(16, momentum=0.3)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 1)

    def __call__(self, x: mx.array) -> mx.array:
        return self.last(self.drop(nn.relu(self.norm(self.first(x)))))


def trained(model: nn.Module, holds: str = "y") -> Any:
    optimizer = AdamWScheduleFree(0.2, model_holds=holds)
    optimizer.init(model.trainable_parameters())
    loss = lambda model, x: (model(x) - x.sum(-1, keepdims=True)).square().mean()  # noqa: E731
    step = nn.value_and_grad(model, optimizer.at_y(loss) if holds == "x" else loss)
    for batch in BATCHES:
        optimizer.update(model, step(model, batch)[1])
    return optimizer


def flat(tree: Any) -> dict[str, Any]:
    return {path: array.tolist() for path, array in tree_flatten(tree)}


@pytest.mark.parametrize("holds", ["y", "x"])
def test_the_statistics_become_those_of_x_and_nothing_else_changes(holds: str) -> None:
    """Within 1 % of a fresh pass at x, away from those of y; weights, state, modes and random state as before."""
    model = Net()
    optimizer = trained(model, holds)
    model.drop.eval()
    frozen = {"norm.running_mean", "norm.running_var"}
    before = {path: value for path, value in flat(model.parameters()).items() if path not in frozen}
    state, key = flat(optimizer.state), mx.random.state[0].tolist()
    old = model.norm.running_mean
    assert recalibrate(model, optimizer, BATCHES) == 8
    x = optimizer.average(model.parameters())
    rows = mx.concatenate(BATCHES) @ x["first"]["weight"].T + x["first"]["bias"]
    assert mx.allclose(model.norm.running_mean, rows.mean(0), rtol=FRESH, atol=FRESH)
    assert mx.allclose(model.norm.running_var, rows.var(0), rtol=FRESH)
    assert mx.abs(old - rows.mean(0)).max() > 10 * FRESH
    assert {path: value for path, value in flat(model.parameters()).items() if path not in frozen} == before
    assert flat(optimizer.state) == state
    assert mx.random.state[0].tolist() == key
    assert model.norm.momentum == 0.3
    assert (model.training, model.norm.training, model.drop.training) == (True, True, False)


def test_a_failed_measurement_leaves_the_old_statistics() -> None:
    """A batch that does not fit: as before, and the next update works."""
    model = Net()
    optimizer = trained(model)
    before = flat(model.parameters())
    with pytest.raises(ValueError, match="shape"):
        recalibrate(model, optimizer, [BATCHES[0], mx.ones((4, 5))])
    assert flat(model.parameters()) == before
    assert model.norm.momentum == 0.3
    assert model.training


def test_nothing_to_measure_is_refused() -> None:
    """No BatchNorm; no batch."""
    plain = nn.Linear(6, 1)
    with pytest.raises(Refused, match="no BatchNorm"):
        recalibrate(plain, trained(plain), BATCHES)
    model = Net()
    with pytest.raises(Refused, match="has no batch"):
        recalibrate(model, trained(model), [])


def test_the_plan_says_so_when_the_model_has_batchnorm() -> None:
    """And says nothing otherwise, nor for an optimizer without an average."""
    plan = plan_optimizer(optimizer="schedule_free_adamw", lr=0.1)
    assert "mufree.recalibrate" in build_optimizer(plan, Net()).plan.notes[-1]
    assert build_optimizer(plan, nn.Linear(2, 2)).plan.notes == plan.notes
    stock = plan_optimizer(optimizer="adamw", lr=0.1)
    assert build_optimizer(stock, Net()).plan.notes == stock.notes


class Two(Net):
    """A model of two inputs."""

    def __call__(self, x: mx.array, more: mx.array) -> mx.array:
        return super().__call__(x + more)


def test_batches_of_several_inputs() -> None:
    """Tuples, as the studies take them, of NumPy's arrays too: as if it had one input, their sum."""
    plain, model = Net(), Two()
    model.update(plain.parameters())
    optimizers = [AdamWScheduleFree(0.2) for _ in range(2)]
    recalibrate(plain, optimizers[0], BATCHES)
    recalibrate(model, optimizers[1], [(np.array(batch), np.zeros(6, np.float32)) for batch in BATCHES])
    assert mx.array_equal(plain.norm.running_mean, model.norm.running_mean)


def test_arguments_that_are_others() -> None:
    """Swapped, and one array, whose rows would be taken for batches."""
    model, optimizer = Net(), AdamWScheduleFree(0.2)
    with pytest.raises(
        Refused, match=r"a AdamWScheduleFree, no module; it is recalibrate\(model, optimizer, batches\)"
    ):
        recalibrate(optimizer, model, BATCHES)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"batches: one array of shape \(1024, 6\); .*\[batch\]"):
        recalibrate(model, optimizer, BATCHES[0])  # type: ignore[arg-type]
    with pytest.raises(Refused, match="batches: a int"):
        recalibrate(model, optimizer, 3)  # type: ignore[arg-type]
