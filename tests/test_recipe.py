"""Recipes: read back whole, refused where they do not reach. Pure Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mufree import Recipe, Refused
from mufree.recipe import FIXED, TUNED
from mufree.training.config import PretrainConfig, from_mapping

SETTINGS: dict[str, Any] = {name: getattr(PretrainConfig(), name) for name in (*FIXED, *TUNED)} | {"lr": 2.0**-7}
MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 2048}


def recipe(**changed: Any) -> Recipe:
    values: dict[str, Any] = {
        "rate": 2.0**-7,
        "base_width": 64,
        "settings": SETTINGS,
        "model_config": MODEL,
        "base_shapes": {"w": [64, None]},
        "tokenizer_hash": "abc",
        "updates": 120,
        "seconds": 45.2,
        "passed": True,
        "regret": 0.0021,
    }
    return Recipe(**(values | changed))


def test_a_recipe_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    """In a folder that is made for it."""
    recipe().save(tmp_path / "new" / "r.json")
    again = Recipe.load(tmp_path / "new" / "r.json")
    assert again.as_dict() == recipe().as_dict()
    assert again.as_dict()["settings"]["lr"] == 2.0**-7


def test_any_width_is_covered(tmp_path: Path) -> None:
    """The width is what a recipe is free in; a setting that says the same is welcome."""
    settings = recipe().settings_with({"width": 512, "beta1": 0.9, "updates": 10, "out": "here"})
    config = from_mapping(settings)
    assert (config.width, config.lr, config.updates) == (512, 2.0**-7, 10)
    assert config.recipe == recipe().as_dict()


@pytest.mark.parametrize("name", TUNED)
def test_a_contradiction_has_to_be_named(name: str) -> None:
    """Each setting that the recipe says; named, it is taken."""
    other = {"decay_rule": "none", "zero_readout": True, "zero_query": True}.get(name, 3)
    with pytest.raises(Refused, match=f"{name}: .*--despite {name}"):
        recipe().settings_with({name: other})
    assert recipe().settings_with({name: other}, despite=[name])[name] == other


@pytest.mark.parametrize(
    ("name", "other"),
    [("head_dim", 32), ("layers", 3), ("base_width", 32), ("model_type", "qwen3"), ("model", {"a": 1})],
)
def test_what_it_does_not_reach_is_refused(name: str, other: object) -> None:
    """And naming it does not help."""
    with pytest.raises(Refused, match=f"{name}: .*sweep anew"):
        recipe().settings_with({name: other})
    with pytest.raises(Refused, match=f"'{name}' cannot differ"):
        recipe().settings_with({name: other}, despite=[name])


def test_every_contradiction_at_once() -> None:
    """In one refusal."""
    with pytest.raises(Refused) as refused:
        recipe().settings_with({"lr": 0.5, "warmup": 1, "layers": 9})
    assert {reason.field for reason in refused.value.reasons} == {"lr", "warmup", "layers"}


def test_model_and_tokenizer_are_compared() -> None:
    """With what was built, whatever the settings said; the longest sequence is no matter of width."""
    recipe().check_covers(MODEL | {"max_position_embeddings": 4096}, "abc")
    with pytest.raises(Refused) as refused:
        recipe().check_covers(MODEL | {"num_hidden_layers": 3, "extra": 1}, "other")
    assert [reason.field for reason in refused.value.reasons] == ["extra", "num_hidden_layers", "tokenizer"]


@pytest.mark.parametrize(
    "changed", [{"rate": -1.0}, {"rate": True}, {"format": 2}, {"settings": []}, {"model_config": None}]
)
def test_a_value_that_cannot_be_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    """From Python and from a file."""
    (tmp_path / "r.json").write_text(json.dumps(recipe().as_dict() | changed))
    with pytest.raises(Refused, match="recipe"):
        recipe(**changed)
    with pytest.raises(Refused, match="recipe"):
        Recipe.load(tmp_path / "r.json")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rate": 1}'])
def test_a_file_that_is_no_recipe(tmp_path: Path, content: str) -> None:
    """Says how to make one."""
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(Refused, match="recipe"):
        Recipe.load(tmp_path / "r.json")
    with pytest.raises(Refused, match="does not exist; make it with mufree transfer --save"):
        Recipe.load(tmp_path / "none.json")


def test_a_rate_beside_another_lr_is_refused() -> None:
    """One of the two was edited, and the plan would show the one and train with the other."""
    with pytest.raises(Refused, match=r"recipe: rate: 0\.125 is not the lr among its settings, 0\.0625"):
        recipe(rate=0.125, settings={"lr": 0.0625})


def test_the_summary_says_how_far_it_is_trusted() -> None:
    """Rate, where and how fast it was tuned, what it costs, and whether the check held."""
    assert recipe().summary() == "rate 2^-7, tuned at 64 in 45 s, regret at most 0.21 %"
    assert recipe(regret=None, passed=None).summary().endswith("transfer not checked")
    assert recipe(passed=False).summary().endswith("did not pass its check")
