"""μP's optimizers on stock MLX rules and on schedule-free ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mufree import (
    AdamWScheduleFree,
    MuAdam,
    MuAdamW,
    MuAdamWScheduleFree,
    MuSGD,
    RAdamScheduleFree,
    Refused,
    SGDScheduleFree,
    ShapeMismatch,
    make_base_shapes,
    mup_scales,
)

# Rates are float32; a ratio of two is good to 1e-7.
RATIO = 1e-6
# A float32 weight of 0.1 after one update of 1e-3.
ONE_UPDATE = 1e-6


def model_at(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3))


SHAPES = make_base_shapes(model_at, base_width=16)
HIDDEN, INPUT, HEAD = "layers.1.weight", "layers.0.weight", "layers.2.weight"


def prepared(family: str = "adam", **choices: Any) -> tuple[nn.Module, Any]:
    model = model_at(128)
    return model, mup_scales(model, SHAPES, family=family, **choices)  # type: ignore[arg-type]


def moved(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, float]:
    """How far the first entry of each parameter moves in an update whose gradients are all 1."""
    before = dict(tree_flatten(model.parameters()))
    optimizer.update(model, tree_map(mx.ones_like, model.parameters()))
    after = dict(tree_flatten(model.parameters()))
    return {path: (before[path] - after[path]).reshape(-1)[0].item() for path in before}


def test_rates_are_split_by_width() -> None:
    """A sign-like first step is each parameter's rate."""
    model, scales = prepared()
    steps = moved(model, MuAdam(model, scales, learning_rate=1e-2, bias_correction=True))
    assert steps[INPUT] == pytest.approx(1e-2, rel=1e-3)
    assert steps[HIDDEN] == pytest.approx(1e-2 / 8, rel=1e-3)
    assert steps[HEAD] == pytest.approx(1e-2 / 8, rel=1e-3)


@pytest.mark.parametrize("impl", [optim.Adam, optim.AdamW, optim.Adamax, optim.Lion, optim.RMSprop, optim.Adagrad])
def test_ratios_survive_schedules_settings_by_hand_and_reloads(impl: type[optim.Optimizer], tmp_path: Path) -> None:
    """The hidden rate is an eighth at every update, whoever sets it."""
    model, scales = prepared()
    schedule = optim.linear_schedule(1e-2, 1e-3, 5)
    optimizer = MuAdam(model, scales, impl=impl, learning_rate=schedule)

    def ratio() -> float:
        return (optimizer.member_rate(HIDDEN) / optimizer.member_rate(INPUT)).item()  # type: ignore[attr-defined]

    for _ in range(6):
        moved(model, optimizer)
        assert ratio() == pytest.approx(1 / 8, rel=RATIO)
    assert optimizer.learning_rate.item() == pytest.approx(1e-3)
    fixed = MuAdam(model, scales, impl=impl, learning_rate=1e-2)
    fixed.init(model.trainable_parameters())
    fixed.learning_rate = 0.5
    assert fixed.member_rate(HIDDEN).item() == pytest.approx(0.5 / 8)  # type: ignore[attr-defined]
    mx.save_safetensors(str(tmp_path / "state.safetensors"), dict(tree_flatten(fixed.state)))
    again = MuAdam(model, scales, impl=impl, learning_rate=1e-2)
    again.state = tree_unflatten(list(mx.load(str(tmp_path / "state.safetensors")).items()))
    assert again.member_rate(HIDDEN).item() == pytest.approx(0.5 / 8)  # type: ignore[attr-defined]


def test_the_decay_is_scaled_against_the_rate() -> None:
    """Rate × decay stays: a zero gradient shrinks every weight by the same share; decoupled, by an eighth of it."""
    model, scales = prepared()
    model.update(tree_map(mx.ones_like, model.parameters()))
    for decoupled, share in ((False, 1.0), (True, 1 / 8)):
        settings = {"learning_rate": 1e-2, "weight_decay": 0.5, "decoupled_wd": decoupled}
        if decoupled:
            with pytest.warns(UserWarning, match="multiplied by the learning rate"):
                optimizer = MuAdamW(model, scales, **settings)
        else:
            optimizer = MuAdamW(model, scales, **settings)
        optimizer.init(model.trainable_parameters())
        ones = tree_map(mx.ones_like, model.parameters())
        after = dict(tree_flatten(optimizer.apply_gradients(tree_map(mx.zeros_like, ones), ones)))
        assert 1 - after[INPUT][0, 0].item() == pytest.approx(5e-3, abs=ONE_UPDATE)
        assert 1 - after[HIDDEN][0, 0].item() == pytest.approx(5e-3 * share, abs=ONE_UPDATE)


@pytest.mark.parametrize("impl", [AdamWScheduleFree, RAdamScheduleFree, optim.AdamW])
def test_decoupled_decay_warns_where_the_decay_is_multiplied_by_the_rate(impl: type[optim.Optimizer]) -> None:
    """Schedule-free optimizers among them."""
    model, scales = prepared()
    with pytest.warns(UserWarning, match=f"{impl.__name__}'s decay is multiplied"):
        MuAdam(model, scales, impl=impl, learning_rate=1e-2, weight_decay=0.1, decoupled_wd=True)


def test_own_groups_keep_their_rate_decay_and_other_keys() -> None:
    """Each is split by width, and every keyword reaches the rule."""
    model, scales = prepared()
    groups = [{"match": "*.bias", "weight_decay": 0.0, "betas": (0.5, 0.5)}, {"match": HEAD, "learning_rate": 4e-2}]
    optimizer = MuAdamW(model, scales, learning_rate=1e-2, weight_decay=0.1, eps=1e-6, groups=groups)
    rules = {path: member for member in optimizer.members for path in member.paths}  # type: ignore[attr-defined]
    assert rules["layers.0.bias"].optimizer.betas == (0.5, 0.5)
    assert rules["layers.0.bias"].optimizer.weight_decay == 0
    assert rules[HIDDEN].optimizer.weight_decay == pytest.approx(0.8)
    assert rules[HIDDEN].optimizer.eps == pytest.approx(1e-6 / 8)
    assert rules[HEAD].rate_factor == pytest.approx(4 / 8)
    assert rules[HEAD].optimizer.eps == 1e-6


def test_schedule_free_groups_share_one_averaging_weight() -> None:
    """A constant factor cancels in c, so x is the same average everywhere."""
    model, scales = prepared()
    groups = [{"match": "*.bias", "weight_decay": 0.0}, {"match": HEAD, "learning_rate": 4e-2}]
    optimizer = MuAdamWScheduleFree(model, scales, learning_rate=1e-2, weight_decay=0.1, groups=groups)
    steps = moved(model, optimizer)
    whole = steps["layers.0.bias"]
    assert steps[HEAD] / whole == pytest.approx(4 / 8, rel=0.1)
    assert steps[HIDDEN] / whole == pytest.approx(1 / 8, rel=0.1)


def test_a_group_may_decay_where_nothing_else_does() -> None:
    """A decay of one's own beside a base decay of 0, and unequal eps."""
    model, scales = prepared()
    groups = [{"match": HIDDEN, "weight_decay": 0.5, "eps": 1e-4}]
    optimizer = MuAdamWScheduleFree(model, scales, learning_rate=1e-2, groups=groups)
    ones = tree_map(mx.ones_like, model.parameters())
    optimizer.init(ones)
    after = dict(tree_flatten(optimizer.apply_gradients(tree_map(mx.zeros_like, ones), ones)))
    # At the first update c is 1, so y falls with z by rate × decay, here 1e-2/8 × 0.5·8.
    assert 1 - after[HIDDEN][0, 0].item() == pytest.approx(5e-3, abs=ONE_UPDATE)
    assert after[INPUT][0, 0].item() == 1


def test_bare_trees_train_too() -> None:
    """Dicts, lists and tuples of arrays, without a module; a learning rate may be an array."""
    tree = {"body": [mx.ones((32, 32)), mx.ones((32,))], "head": (mx.ones((3, 32)),)}
    base, delta = ({"body": [mx.ones((w, w)), mx.ones((w,))], "head": (mx.ones((3, w)),)} for w in (8, 16))
    shapes = make_base_shapes(base, delta)
    with pytest.raises(Refused, match=r"head\.0: only its last axis scales"):
        mup_scales(tree, shapes)
    scales = mup_scales(tree, shapes, overrides={"head.*": "output-like"})
    optimizer = MuAdam(tree, scales, learning_rate=mx.array(1e-2), bias_correction=True)
    after = optimizer.apply_gradients(tree, tree)
    assert 1 - after["body"][0][0, 0].item() == pytest.approx(1e-2 / 4, rel=1e-3)
    assert 1 - after["head"][0][0, 0].item() == pytest.approx(1e-2 / 4, rel=1e-3)


def test_frozen_parameters_without_a_scale_are_passed_over() -> None:
    """A packed layer under an adapter trains nothing."""
    layers = [nn.QuantizedLinear.from_linear(nn.Linear(w, w)) for w in (64, 128)]
    shapes = make_base_shapes(
        *(nn.Sequential(layer, nn.Linear(w, 3)) for w, layer in zip((64, 128), layers, strict=True))
    )
    model = nn.Sequential(nn.QuantizedLinear.from_linear(nn.Linear(256, 256)), nn.Linear(256, 3))
    optimizer = MuAdam(model, mup_scales(model, shapes), learning_rate=1e-2)
    assert all(not path.endswith("0.weight") for member in optimizer.members for path in member.paths)  # type: ignore[attr-defined]


def test_sgd_has_its_own_scales() -> None:
    """Rate × m_out/m_in."""
    model, scales = prepared("sgd")
    steps = moved(model, MuSGD(model, scales, learning_rate=1e-3))
    assert steps[INPUT] == pytest.approx(8e-3, rel=1e-3)
    assert steps[HIDDEN] == pytest.approx(1e-3, rel=1e-3)
    assert steps[HEAD] == pytest.approx(1e-3 / 8, rel=1e-3)
    assert isinstance(MuSGD(model, scales, impl=SGDScheduleFree, learning_rate=1e-3), SGDScheduleFree)


class OwnAdam(optim.Adam):
    """A class of one's own with another keyword."""

    def __init__(self, learning_rate: float, eps: float = 1e-8, *, colour: str = "red") -> None:
        super().__init__(learning_rate, eps=eps)
        self.colour = colour


def test_any_class_and_its_keywords_are_taken() -> None:
    """Whatever the constructor names."""
    model, scales = prepared()
    optimizer = MuAdam(model, scales, impl=OwnAdam, learning_rate=1e-2, colour="blue")
    assert {member.optimizer.colour for member in optimizer.members} == {"blue"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (MuAdam, {"impl": optim.Muon}, "Muon scales its updates by each tensor's shape itself"),
        (MuAdam, {"impl": optim.Adafactor}, "Adafactor takes its step relative to each tensor's size"),
        (MuAdam, {"impl": optim.SGD}, "use MuSGD"),
        (MuSGD, {"impl": optim.AdamW}, "use MuAdam"),
        (MuSGD, {}, "made for 'adam'"),
        (MuAdam, {"weight_decay": 0.1}, "weight_decay: Adam does not take it"),
        (MuAdamW, {"weight_dcay": 0.1}, "weight_dcay: AdamW does not take it"),
        (MuAdamW, {"groups": [{"match": "*", "colour": 1}]}, "colour: AdamW does not take it"),
        (MuAdamWScheduleFree, {"groups": [{"match": "*", "betas": (0.9, 0.9)}]}, "betas"),
        (MuAdamW, {"learning_rate": None}, "learning_rate: is missing"),
        (MuAdamW, {"learning_rate": "1e-3"}, "learning_rate: '1e-3'; give a finite number"),
        (MuAdamW, {"weight_decay": -1.0}, "weight_decay: -1.0; give"),
        (MuAdamW, {"groups": [{"match": "*", "learning_rate": float("nan")}]}, r"groups\[0\].learning_rate: nan"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, settings: dict[str, Any], words: str) -> None:
    """Optimizers that scale by themselves, the other family's, keywords that nobody reads."""
    model, scales = prepared()
    given = {"learning_rate": 1e-2, **settings}
    if settings.get("learning_rate", 1) is None:
        del given["learning_rate"]
    with pytest.raises(Refused, match=words):
        make(model, scales, **given)


def test_a_group_with_its_own_rate_beside_a_schedule_is_refused() -> None:
    """There is no ratio between a number and a schedule."""
    model, scales = prepared()
    groups = [{"match": HEAD, "learning_rate": 1e-2}]
    with pytest.raises(Refused, match="a rate of its own beside a schedule"):
        MuAdam(model, scales, learning_rate=optim.cosine_decay(1e-2, 10), groups=groups)


def test_a_parameter_without_a_scale_is_refused() -> None:
    """By path."""
    _, scales = prepared()
    with pytest.raises(ShapeMismatch, match="other: no scale is known"):
        MuAdam({"other": mx.ones((3,))}, scales, learning_rate=1e-2)


class Passing(optim.AdamW):
    """Hands everything else on, so that its base's defaults are its own."""

    def __init__(self, learning_rate: float, **rest: Any) -> None:
        super().__init__(learning_rate, **rest)


@pytest.mark.parametrize(("given", "decay", "eps"), [({}, 0.01, 1e-8), ({"weight_decay": 0.1, "eps": 1e-4}, 0.1, 1e-4)])
def test_a_class_that_hands_keywords_on_has_them_scaled(given: dict[str, float], decay: float, eps: float) -> None:
    """Its decay and eps are its base's and follow the scales, given or not."""
    model, scales = prepared()
    optimizer = MuAdam(model, scales, impl=Passing, learning_rate=1e-2, **given)
    rules = {path: member.optimizer for member in optimizer.members for path in member.paths}  # type: ignore[attr-defined]
    assert rules[HIDDEN].weight_decay == pytest.approx(8 * decay)
    assert rules[HIDDEN].eps == pytest.approx(eps / 8)
    assert rules[INPUT].weight_decay == pytest.approx(decay)


class OwnSGD(optim.SGD):
    """A class of one's own of the other family."""


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (MuAdam, {"impl": OwnSGD}, "OwnSGD does not divide by the gradient's size; use MuSGD"),
        (MuAdam, {"impl": optim.AdaDelta}, "AdaDelta takes the size of its steps from eps"),
        (MuAdam, {"impl": optim.MultiOptimizer}, "MultiOptimizer has rules of its own"),
        (MuAdam, {"impl": "AdamW"}, "'AdamW' is no optimizer class"),
        (MuAdam, {"impl": optim.Adam(1e-3)}, "is no optimizer class"),
        (MuAdam, {"impl": nn.Linear}, "is no optimizer class"),
        (MuAdamWScheduleFree, {"impl": optim.AdamW}, "AdamW is not schedule-free; use MuAdam or MuSGD"),
        (MuAdam, {"learning_rate": mx.array([1.0, 2.0])}, r"learning_rate: has shape \(2,\)"),
        (MuAdam, {"learning_rate": mx.array(float("nan"))}, "learning_rate: nan"),
        (MuAdam, {"groups": "*"}, "groups: .* is no list"),
        (MuAdam, {"learning_rate": 0.0, "groups": [{"match": "*", "learning_rate": 0.1}]}, "beside 0"),
    ],
)
def test_optimizers_and_rates_that_are_none_are_refused(make: Any, settings: dict[str, Any], words: str) -> None:
    """Subclasses go with their base; what is no class, no rate or no list is named."""
    model, scales = prepared()
    with pytest.raises(Refused, match=words):
        make(model, scales, **{"learning_rate": 1e-2, **settings})


@pytest.mark.parametrize("impl", [optim.AdamW, AdamWScheduleFree])
def test_a_compiled_step_and_a_reload_go_on_as_one_run(impl: type[optim.Optimizer], tmp_path: Path) -> None:
    """With groups and a schedule: six compiled updates are three, a saved state, a new optimizer and three more."""
    _, scales = prepared()
    rate = optim.linear_schedule(1e-2, 1e-3, 6)

    def run(model: nn.Module, optimizer: optim.Optimizer, updates: int) -> None:
        x = mx.random.normal((4, 6), key=mx.random.key(2))
        loss = nn.value_and_grad(model, lambda model: model(x).square().mean())

        @partial(mx.compile, inputs=[model.state, optimizer.state], outputs=[model.state, optimizer.state])
        def step() -> mx.array:
            value, gradients = loss(model)
            optimizer.update(model, gradients)
            return value

        for _ in range(updates):
            mx.eval(step(), model.state, optimizer.state)

    def make(model: nn.Module) -> optim.Optimizer:
        groups = [{"match": "*.bias", "weight_decay": 0.0}]
        optimizer = MuAdam(model, scales, impl=impl, learning_rate=rate, weight_decay=0.1, groups=groups)
        optimizer.init(model.trainable_parameters())
        return optimizer

    mx.random.seed(4)
    straight, halves = model_at(128), model_at(128)
    halves.update(straight.parameters())
    run(straight, make(straight), 6)
    first = make(halves)
    run(halves, first, 3)
    file = str(tmp_path / "state.safetensors")
    mx.save_safetensors(file, dict(tree_flatten(first.state)))
    second = make(halves)
    second.state = tree_unflatten(list(mx.load(file).items()))
    run(halves, second, 3)
    one, other = (dict(tree_flatten(model.parameters())) for model in (straight, halves))
    assert all(mx.array_equal(one[path], other[path]).item() for path in one)


class Adding(optim.AdamW):
    """A keyword of its own beside its base's, one of which has another default."""

    def __init__(self, learning_rate: float, eps: float = 1e-4, colour: str = "red", **rest: Any) -> None:
        super().__init__(learning_rate, eps=eps, **rest)
        self.colour = colour


def test_a_class_that_adds_keywords_keeps_its_own_defaults() -> None:
    """The nearest class's count."""
    model, scales = prepared()
    optimizer = MuAdam(model, scales, impl=Adding, learning_rate=1e-2, colour="blue")
    rules = {path: member.optimizer for member in optimizer.members for path in member.paths}  # type: ignore[attr-defined]
    assert rules[HIDDEN].eps == pytest.approx(1e-4 / 8)
    assert rules[HIDDEN].weight_decay == pytest.approx(0.08)
    assert rules[HIDDEN].colour == "blue"


def test_schedule_free_eps_follows_the_scales() -> None:
    """With eps as large as the gradients, the first moves show it: eps/8 for hidden tensors, all of it at the head."""
    model, scales = prepared()
    ones = tree_map(mx.ones_like, model.parameters())
    optimizer = MuAdamWScheduleFree(model, scales, learning_rate=1e-2, eps=1.0)
    after = dict(tree_flatten(optimizer.apply_gradients(ones, ones)))
    moves = {path: 1 - after[path].reshape(-1)[0].item() for path in (HIDDEN, HEAD, INPUT)}
    assert moves[HIDDEN] == pytest.approx(1e-2 / 8 / (1 + 1 / 8), abs=ONE_UPDATE)
    assert moves[HEAD] == pytest.approx(1e-2 / 8 / (1 + 1), abs=ONE_UPDATE)
    assert moves[INPUT] == pytest.approx(1e-2 / (1 + 1 / 8), abs=ONE_UPDATE)
