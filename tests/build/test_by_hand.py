"""Built optimizers in a hand-written loop: rates set by hand, compiled steps, files, and inside MLX's container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mufree import build_optimizer, plan_optimizer

ROUNDING = 1e-6  # a few float32 updates of size 1


class Scale:
    def __init__(self, lr: float = 1.0) -> None:
        self.lr, self.eps, self.weight_decay = lr, 1.0, 1.0


class Scales(dict):
    family = "sgd"


def moves(optimizer: optim.Optimizer, rates: list[float | None], *, compiled: bool) -> dict[str, list[float]]:
    """How far each parameter falls at each update whose gradient is 1, after setting the rate to what is not None."""
    params = {"a": mx.zeros(1), "b": mx.zeros(1)}
    optimizer.init(params)

    def update(params: dict) -> dict:
        return optimizer.apply_gradients(tree_map(mx.ones_like, params), params)

    step = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state) if compiled else update
    found: dict[str, list[float]] = {path: [] for path in params}
    for rate in rates:
        if rate is not None:
            optimizer.learning_rate = rate
        after = step(params)
        for path in params:
            found[path].append((params[path] - after[path]).item())
        params = after
    return found


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_grad_norm": 9.0},
        {"total_updates": 9},
        {"total_updates": 9, "past_end": "refuse"},
        {"scheduler": "constant_with_warmup"},
    ],
    ids=["plain", "clip", "total", "refuse", "no_warmup"],
)
@pytest.mark.parametrize("ratio", [None, 0.25], ids=["one", "scales"])
def test_a_rate_set_by_hand_survives_where_mlx_s_would(
    settings: dict[str, Any], ratio: float | None, compiled: bool
) -> None:
    """On a rate that nothing schedules, whatever else is planned; with scales the ratio stays."""
    scales = None if ratio is None else Scales(a=Scale(), b=Scale(ratio))
    optimizer = build_optimizer(plan_optimizer(optimizer="sgd", lr=1.0, **settings), scales=scales)
    found = moves(optimizer, [None, 0.5, None], compiled=compiled)
    assert found["a"] == pytest.approx([1.0, 0.5, 0.5], abs=ROUNDING)
    assert found["b"] == pytest.approx([(ratio or 1.0) * rate for rate in (1.0, 0.5, 0.5)], abs=ROUNDING)


@pytest.mark.parametrize("scales", [None, Scales(a=Scale(), b=Scale(0.25))], ids=["one", "scales"])
def test_a_scheduled_rate_follows_its_schedule_as_mlx_s_does(scales: Scales | None) -> None:
    """MLX overwrites what was set by hand at the next update; here it is the same, ratios kept."""
    plan = plan_optimizer(optimizer="sgd", lr=1.0, scheduler="linear", total_updates=4)
    ours = moves(build_optimizer(plan, scales=scales), [None, 9.0, None, None], compiled=False)
    stock = moves(optim.SGD(optim.linear_schedule(1.0, 0.0, 4)), [None, 9.0, None, None], compiled=False)
    assert ours["a"] == pytest.approx(stock["a"], abs=ROUNDING)
    factor = 1.0 if scales is None else 0.25
    assert ours["b"] == pytest.approx([factor * move for move in stock["b"]], abs=ROUNDING)


@pytest.mark.parametrize("scheduler", ["constant", "linear"])
@pytest.mark.parametrize("ratio", [None, 0.25], ids=["one", "scales"])
def test_past_a_refusing_end_a_compiled_step_changes_no_parameter(scheduler: str, ratio: float | None) -> None:
    """Where nothing can be raised; a rate set by hand changes nothing about that."""
    plan = plan_optimizer(optimizer="sgd", lr=1.0, scheduler=scheduler, total_updates=2, past_end="refuse")
    scales = None if ratio is None else Scales(a=Scale(), b=Scale(ratio))
    found = moves(build_optimizer(plan, scales=scales), [None, None, None, 7.0], compiled=True)
    assert all(found[path][:2] != [0.0, 0.0] and found[path][2:] == [0.0, 0.0] for path in found)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.LayerNorm(4)]
        self.head = nn.Linear(4, 2)

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


PLANNED = [
    {"optimizer": "adamw_torch", "lr": 0.1, "scheduler": "cosine", "total_updates": 8, "max_grad_norm": 0.5},
    {"optimizer": "lion", "lr": 0.01, "weight_decay": 0.5, "decay_mask": "hf"},
    {"optimizer": "adam", "lr": 0.1, "weight_decay": 0.5, "coupled_weight_decay": True, "decay_mask": "hf"},
    {"optimizer": "adamax", "lr": 0.1, "total_updates": 8, "past_end": "refuse"},
    {"optimizer": "schedule_free_adamw", "lr": 0.1, "warmup_steps": 3, "max_grad_norm": 0.5},
    {"optimizer": "schedule_free_sgd", "lr": 0.1, "weight_decay": 0.5, "decay_mask": "hf"},
]


def updates(model: nn.Module, optimizer: optim.Optimizer, count: int, *, compiled: bool) -> None:
    """Some updates on a fixed problem, in a step that captures model and state."""
    inputs = mx.sin(mx.arange(20)).reshape(5, 4)
    gradient = nn.value_and_grad(model, lambda model: mx.square(model(inputs) - 1).mean())
    state = [model.state, optimizer.state]

    def update() -> mx.array:
        loss, gradients = gradient(model)
        optimizer.update(model, gradients)
        return loss

    step = mx.compile(update, inputs=state, outputs=state) if compiled else update
    for _ in range(count):
        step()
        mx.eval(state)


def run(settings: dict[str, Any], *, compiled: bool = False, file: Path | None = None) -> dict[str, mx.array]:
    """Six updates of a fixed model; with a file, its state goes through it after three, into a fresh optimizer."""
    mx.random.seed(3)
    model = Model()
    optimizer = build_optimizer(plan_optimizer(**settings), model)
    optimizer.init(model.trainable_parameters())
    updates(model, optimizer, 3, compiled=compiled)
    if file is not None:
        mx.save_safetensors(str(file), dict(tree_flatten(optimizer.state)))
        optimizer = build_optimizer(plan_optimizer(**settings), model)
        optimizer.init(model.trainable_parameters())
        optimizer.state = tree_unflatten(list(mx.load(str(file)).items()))
    updates(model, optimizer, 3, compiled=compiled)
    return dict(tree_flatten(model.parameters()))


@pytest.mark.parametrize("settings", PLANNED, ids=lambda settings: settings["optimizer"])
def test_compiled_is_eager_and_a_resumed_run_is_a_straight_one(settings: dict[str, Any], tmp_path: Path) -> None:
    """Model and state captured by a compiled step; a file in between changes no bit."""
    straight = run(settings)
    for path, value in run(settings, compiled=True).items():
        assert mx.abs(value - straight[path]).max().item() <= ROUNDING, path
    for compiled in (False, True):
        expected = run(settings, compiled=compiled)
        for path, value in run(settings, compiled=compiled, file=tmp_path / "state.safetensors").items():
            assert mx.array_equal(value, expected[path]), path


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_inside_mlx_s_container_each_keeps_to_its_plan(compiled: bool) -> None:
    """Muon for a matrix; for the rest AdamW with a mask and a schedule."""
    model = Model()
    muon = build_optimizer(plan_optimizer(optimizer="muon", lr=0.02))
    rest = {"optimizer": "adamw", "lr": 0.1, "scheduler": "linear", "total_updates": 4, "past_end": "hold"}
    adamw = build_optimizer(plan_optimizer(**rest, weight_decay=0.5, decay_mask="hf"), model)
    both = optim.MultiOptimizer([muon, adamw], [lambda path, _weight: path == "layers.0.weight"])
    both.init(model.trainable_parameters())
    model.update(tree_map(mx.ones_like, model.parameters()))
    zeros = tree_map(mx.zeros_like, model.parameters())
    state = [model.state, both.state]

    def update() -> None:
        both.update(model, zeros)

    step = mx.compile(update, inputs=state, outputs=state) if compiled else update
    for _ in range(2):
        step()
    assert adamw.learning_rate.item() == pytest.approx(0.075)
    assert model.head.weight[0, 0].item() == pytest.approx((1 - 0.1 * 0.5) * (1 - 0.075 * 0.5))
    assert [model.head.bias[0].item(), model.layers[1].weight[0].item(), model.layers[0].weight[0, 0].item()] == [
        1.0
    ] * 3
