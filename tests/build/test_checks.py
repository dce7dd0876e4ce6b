"""Plan, model and scales that do not go together are refused with every reason; precision that is lost is said."""

from __future__ import annotations

import warnings
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map

from mufree import Refused, build_optimizer, plan_optimizer

DECAYING = {"optimizer": "adamw", "lr": 0.1, "weight_decay": 0.5}


def reasons(model: Any, scales: Any = None, **settings: Any) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        build_optimizer(plan_optimizer(**{**DECAYING, **settings}), model, scales=scales)
    return [(reason.field, reason.code) for reason in caught.value.reasons]


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def failing(path: str, _array: mx.array) -> bool:
    raise KeyError(path)


@pytest.mark.parametrize(
    ("mask", "code", "words"),
    [
        (failing, "mask_failed", r"raised KeyError\('layers.0.bias'\) for layers.0.bias"),
        (lambda _path: True, "mask_failed", "takes 1 positional argument"),
        (lambda _path, _array: None, "not_a_flag", "returned None for layers.1.weight"),
        (lambda _path, array: mx.any(array > 0), "not_a_flag", "returned array"),
        (lambda path, _array: "yes" * ("bias" in path), "not_a_flag", "returned 'yes' for layers.1.bias"),
    ],
    ids=["raises", "arity", "none", "array", "text"],
)
def test_a_mask_that_gives_no_answer_is_refused_for_every_path(mask: Any, code: str, words: str) -> None:
    """Not only for the first."""
    assert reasons(two_layers(), decay_mask=mask) == [("decay_mask", code)] * 4
    with pytest.raises(Refused, match=words):
        build_optimizer(plan_optimizer(**DECAYING, decay_mask=mask), two_layers())


@pytest.mark.parametrize("mask", ["all", "hf"])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Module(), ("model", "empty")),
        (nn.ReLU(), ("model", "empty")),
        ({}, ("model", "empty")),
        (3, ("model", "not_an_array")),
        ("x", ("model", "not_an_array")),
        ({"a": None, "b": {"c": 1.0}}, ("b.c", "not_an_array")),
    ],
    ids=["module", "relu", "dict", "int", "text", "leaves"],
)
def test_what_is_no_model_is_refused(model: Any, reason: tuple[str, str], mask: str) -> None:
    """Nothing to train, or something that is no array."""
    assert reason in reasons(model, decay_mask=mask)


def test_what_is_no_plan_is_refused() -> None:
    """Its metadata, for one."""
    with pytest.raises(Refused, match="plan: dict; give what plan_optimizer returned"):
        build_optimizer(plan_optimizer(**DECAYING).as_metadata())


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free_adamw"])
def test_a_parameter_by_a_name_of_the_state_is_refused(optimizer: str) -> None:
    """MLX's state holds ``step`` and ``learning_rate`` beside the parameters' trees."""
    model = {"step": {"weight": mx.zeros(2)}, "learning_rate": mx.zeros(1), "w": mx.zeros(2)}
    found = reasons(model, optimizer=optimizer)
    assert found == [("step.weight", "reserved"), ("learning_rate", "reserved")]


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd", "muon", "adafactor", "lion"])
def test_bfloat16_parameters_are_warned_of(optimizer: str) -> None:
    """In Python's way, and in the plan on the object."""
    model = {"w": mx.ones((4, 4), mx.bfloat16), "u": mx.ones((4, 4))}
    plan = plan_optimizer(optimizer=optimizer, lr=1e-3)
    with pytest.warns(UserWarning, match=r"1 of 2 parameters are bfloat16 \(w, …\).*below 1/512 of a weight"):
        built = build_optimizer(plan, model)
    assert "bfloat16" in built.plan.warnings[-1]
    assert plan.warnings == ()


def test_the_warning_names_what_this_plan_loses() -> None:
    """A decay that rounds away, and a second moment that never forgets; not where they do not."""
    model = {"w": mx.ones((2, 2), mx.bfloat16)}

    def said(**settings: Any) -> str:
        with pytest.warns(UserWarning, match="bfloat16") as caught:
            build_optimizer(plan_optimizer(**{"optimizer": "adamw", **settings}), model)
        return str(caught[0].message)

    assert "a decay of lr·λ = 0.001" in said(lr=1e-2, weight_decay=0.1)
    assert "decay" not in said(lr=0.1, weight_decay=0.1)
    assert "decay" not in said(optimizer="sgd", lr=1e-2, weight_decay=0.1)
    assert "β2 = 0.999" in said(lr=0.1)
    assert "β2" not in said(lr=0.1, betas=(0.9, 0.99))


def test_what_the_warning_says_is_so() -> None:
    """In bfloat16 an update of 1/513, a decay of 0.001 and a β2 of 0.999 do nothing; in float32 they do."""

    def moved(dtype: mx.Dtype, **settings: Any) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            params = {"w": mx.ones((2, 2), dtype)}
            built = build_optimizer(plan_optimizer(**settings), params)
        gradient = tree_map(mx.ones_like if settings["optimizer"] == "sgd" else mx.zeros_like, params)
        return not mx.array_equal(built.apply_gradients(gradient, params)["w"], params["w"])

    for settings in (
        {"optimizer": "sgd", "lr": 1 / 513},
        {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1},
    ):
        assert not moved(mx.bfloat16, **settings)
        assert moved(mx.float32, **settings)
    assert moved(mx.bfloat16, optimizer="sgd", lr=1 / 200)
    assert mx.array(0.999).astype(mx.bfloat16).item() == 1.0


@pytest.mark.parametrize("optimizer", ["schedule_free_adamw", "schedule_free_sgd"])
def test_ours_keep_float32_copies_and_need_no_warning(optimizer: str) -> None:
    """Warnings are errors here; frozen bfloat16 weights, as under LoRA, need none either."""
    build_optimizer(plan_optimizer(optimizer=optimizer, lr=1e-3), {"w": mx.ones((4, 4), mx.bfloat16)})
    model = two_layers()
    model.set_dtype(mx.bfloat16)
    model.freeze()
    model.layers.append(nn.Linear(2, 2))
    build_optimizer(plan_optimizer(**DECAYING), model)


def test_quantised_and_frozen_layers_are_left_alone_and_may_be_unfrozen() -> None:
    """A list of layers, the first frozen, the second quantised: their paths are owned all the same."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4))
    nn.quantize(model, class_predicate=lambda path, _module: path == "layers.1")
    model.layers[0].freeze()
    model.layers[1].freeze()
    optimizer = build_optimizer(plan_optimizer(**DECAYING, decay_mask="hf", max_grad_norm=1.0), model)
    for trained in (2, 4):
        gradients = tree_map(mx.zeros_like, model.trainable_parameters())
        assert len(tree_flatten(gradients)) == trained
        before = model.layers[1]["weight"]
        optimizer.update(model, gradients)
        assert mx.array_equal(model.layers[1]["weight"], before)
        model.layers[0].unfreeze()
    assert optimizer.step.item() == 2


def test_a_tied_embedding_is_one_parameter_that_decays_once() -> None:
    """As an embedding and as a head it has one path, and one update."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.embed.weight = mx.ones((5, 4))

        def __call__(self, x: mx.array) -> mx.array:
            return self.embed.as_linear(self.embed(x))

    model = Tied()
    optimizer = build_optimizer(plan_optimizer(**DECAYING, decay_mask="hf"), model)
    optimizer.update(model, tree_map(mx.zeros_like, model.parameters()))
    assert model.embed.weight[0, 0].item() == pytest.approx(1 - 0.1 * 0.5)


def test_l2_said_twice_of_sgd_is_sgd_s_own() -> None:
    """Its decay is coupled anyway, so that scales fit with and without the word."""

    class Scales(dict):
        family = "sgd"

    class Scale:
        lr = eps = weight_decay = 0.5

    settings = {"optimizer": "sgd", "lr": 1.0, "weight_decay": 0.5}
    for coupled in (False, True):
        optimizer = build_optimizer(plan_optimizer(**settings, coupled_weight_decay=coupled), scales=Scales(w=Scale()))
        assert optimizer.apply_gradients({"w": mx.zeros(1)}, {"w": mx.ones(1)})["w"].item() == 1 - 0.5 * 0.25


def test_a_schedule_free_optimizer_is_built_for_a_model_that_holds_x() -> None:
    """As asked; an optimizer that keeps no average cannot be."""
    plan = plan_optimizer(optimizer="schedule_free_adamw", lr=0.1, max_grad_norm=1.0)
    assert build_optimizer(plan, model_holds="x").model_holds == "x"
    assert build_optimizer(plan).model_holds == "y"
    with pytest.raises(Refused, match="model_holds: 'x', but AdamW keeps no average"):
        build_optimizer(plan_optimizer(**DECAYING), model_holds="x")
