from __future__ import annotations

from typing import Any

import pytest
from mup_models import flat, llama_at, mlp_at

from mufree import Refused, ShapeMismatch, make_base_shapes, mup_scales, param_groups

SHAPES = make_base_shapes(llama_at(64), llama_at(128))


def test_every_parameter_is_in_exactly_one_group_and_none_is_empty() -> None:
    """The groups are a partition of the trainable parameters."""
    model = llama_at(512)
    scales = mup_scales(model, SHAPES)
    groups = param_groups(model.trainable_parameters(), scales, learning_rate=0.01, weight_decay=0.1)
    paths = [path for group in groups for path in group.paths]
    assert sorted(paths) == sorted(flat(model))
    assert all(group.paths for group in groups)
    assert sum(group.parameters for group in groups) == sum(a.size for a in flat(model).values())


def test_rates_and_decays_at_eight_times_the_width() -> None:
    """Rate 0.01 and decay 0.1 become 0.00125 and 0.8 for hidden tensors: their product stays."""
    scales = mup_scales(llama_at(512), SHAPES)
    groups = {g.kind: g for g in param_groups(llama_at(512), scales, learning_rate=0.01, weight_decay=0.1)}
    hidden = groups["hidden"]
    assert (hidden.width_mult, hidden.learning_rate, hidden.weight_decay, hidden.eps) == (8, 0.00125, 0.8, 0.125)
    assert (groups["output-like"].learning_rate, groups["output-like"].eps) == (0.00125, 1)
    assert (groups["input-like"].learning_rate, groups["input-like"].weight_decay) == (0.01, 0.1)


def test_decoupled_decay_is_left_unscaled() -> None:
    """As microsoft/mup's flag: 0.00125 and 0.1."""
    scales = mup_scales(llama_at(512), SHAPES)
    groups = param_groups(llama_at(512), scales, learning_rate=0.01, weight_decay=0.1, decoupled_wd=True)
    assert {g.weight_decay for g in groups} == {0.1}
    assert {g.learning_rate for g in groups} == {0.01, 0.00125}


def test_a_users_group_is_split_and_keeps_its_own_keys() -> None:
    """A decay mask and a rate factor compose; other keys are handed on."""
    shapes = make_base_shapes(mlp_at(64), mlp_at(128))
    model = mlp_at(512)
    scales = mup_scales(model, shapes)
    own = [
        {"match": "*.bias", "weight_decay": 0.0, "betas": (0.8, 0.9)},
        {"match": ["layers.2.*", "layers.4.*"], "learning_rate": 1.0},
    ]
    groups = param_groups(model, scales, learning_rate=0.01, weight_decay=0.1, groups=own)
    where = {path: group for group in groups for path in group.paths}
    assert where["layers.0.bias"].weight_decay == 0
    assert where["layers.0.bias"].options["betas"] == (0.8, 0.9)
    assert where["layers.2.weight"].learning_rate == pytest.approx(1 / 8)
    assert where["layers.2.weight"].weight_decay == pytest.approx(0.8)
    assert where["layers.0.weight"].learning_rate == 0.01


def test_a_group_that_matches_nothing_is_refused() -> None:
    """A misspelt pattern is not passed over."""
    scales = mup_scales(llama_at(512), SHAPES)
    with pytest.raises(Refused, match=r"groups\[0\].*\*\.baises"):
        param_groups(llama_at(512), scales, learning_rate=0.01, groups=[{"match": "*.baises"}])


def test_a_parameter_without_a_scale_lists_old_and_new_paths() -> None:
    """Scales are keyed by path; a renamed path is an error that says both."""
    scales = mup_scales({"w": (512, 512)}, make_base_shapes({"w": (64, 64)}, {"w": (128, 128)}))
    with pytest.raises(ShapeMismatch, match=r"v: no scale is known; scales without a parameter: w"):
        param_groups({"v": (512, 512)}, scales, learning_rate=0.01)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"match": "*"}, "is no list of groups"),
        ("*", "is no list of groups"),
        (["*"], "is no list of groups"),
        ([{}], r"groups\[0\]: has no 'match'"),
        ([{"match": 3}], r"groups\[0\]: has no 'match'"),
        ([{"match": ["*", None]}], r"groups\[0\]: has no 'match'"),
        ([{"match": "*", "learning_rate": -1.0}], r"groups\[0\]\.learning_rate: -1\.0"),
        ([{"match": "*", "weight_decay": None}], r"groups\[0\]\.weight_decay: None"),
        ([{"match": "*"}, {"match": "*.norm.weight"}], r"groups\[1\]: .* only what earlier groups have taken"),
    ],
)
def test_groups_that_are_none_are_refused(groups: Any, words: str) -> None:
    """Other forms, no match, no numbers, and a group to which earlier ones leave nothing."""
    model = llama_at(512)
    with pytest.raises(Refused, match=words):
        param_groups(model, mup_scales(model, SHAPES), learning_rate=0.01, groups=groups)


@pytest.mark.parametrize("settings", [{"learning_rate": float("nan")}, {"weight_decay": -0.1}, {"eps": "1e-8"}])
def test_numbers_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    """By name."""
    model = llama_at(512)
    with pytest.raises(Refused, match=f"{next(iter(settings))}: .* finite number"):
        param_groups(model, mup_scales(model, SHAPES), **{"learning_rate": 0.01, **settings})


def test_scales_that_are_none_are_refused() -> None:
    """A plain dict does not say for which optimizers it was made."""
    model = llama_at(512)
    with pytest.raises(Refused, match="dict holds no scales"):
        param_groups(model, dict(mup_scales(model, SHAPES)), learning_rate=0.01)  # type: ignore[arg-type]


def test_an_error_in_a_users_function_comes_out_as_it_is() -> None:
    """It is the user's own code."""
    model = llama_at(512)
    with pytest.raises(ZeroDivisionError):
        param_groups(model, mup_scales(model, SHAPES), learning_rate=0.01, groups=[{"match": lambda *_: 1 / 0}])


def test_tensors_of_unlike_eps_are_kept_apart() -> None:
    """Two hidden tensors of one fan-in and two fan-outs have one rate and two eps."""
    base, delta, target = ({"a": (w, w), "b": (v, w)} for w, v in ((64, 32), (128, 64), (512, 64)))
    scales = mup_scales(target, make_base_shapes(base, delta))
    groups = param_groups(target, scales, learning_rate=0.01)
    assert {group.paths: (group.learning_rate, group.eps) for group in groups} == {
        ("a",): (0.00125, 1 / 8),
        ("b",): (0.00125, 1 / 2),
    }
