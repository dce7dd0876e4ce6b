"""Fields that somebody adds to a new model's config."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from mufree import Refused, lm
from mufree.lm.configs import new_config

RECURSIVE: dict[str, Any] = {}
RECURSIVE["type"] = RECURSIVE


def new(model_type: str = "llama", /, **fields: Any) -> dict[str, Any]:
    return new_config(model_type, width=64, layers=1, head_dim=16, vocab_size=50, max_length=128, fields=fields)


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        ("rope_theta", ["big", 0, -5, math.nan, math.inf, True, dt.date(2020, 1, 1)], "not a positive number"),
        ("rope_theta", [None], "is no value for it; leave it out"),
        ("rms_norm_eps", [0, -1], "not a positive number"),
        ("tie_word_embeddings", ["no", 1], "not true or false"),
        ("num_key_value_heads", [0, 1.0, True, "2"], "not a positive whole number"),
        ("num_key_value_heads", [None], "leave it out"),
        ("num_key_value_heads", [3], "does not divide"),
        ("sliding_window", [-3], "not a positive whole number"),
        ("layer_types", ["x", {}], "not a list"),
        ("rope_scaling", ["x"], "not a mapping"),
        ("rope_scaling", [{"factor": math.nan}, {"factor": {1, 2}}, RECURSIVE, {"type": "\ud800"}], "as JSON"),
        ("hidden_act", ["gelu", 3], "not what mlx-lm's llama computes"),
        ("architectures", [3, "LlamaForCausalLM"], "not what mlx-lm's llama computes"),
        ("hidden_size", [128], "is not the 64 of the options"),
        ("model_type", ["qwen3"], "is not the llama of the options"),
        ("rope_thta", [1.0], "has no such field"),
        (1, [2], "has no such field"),
    ],
)
def test_a_value_that_the_model_would_not_use_as_meant_is_refused(field: Any, values: list[Any], says: str) -> None:
    """By mlx-lm's own types; what it does not read would be another model in transformers."""
    for value in values:
        with pytest.raises(Refused, match=says) as caught:
            new_config("llama", width=64, layers=1, head_dim=16, vocab_size=50, max_length=128, fields={field: value})
        assert [reason.field for reason in caught.value.reasons] == [f"model.{field}"], value


def test_what_another_architecture_ignores_is_refused() -> None:
    """Qwen 3 has no attention bias in mlx-lm, Gemma's head is always tied, granite's heads follow from the width."""
    for model_type, fields in (
        ("qwen3", {"attention_bias": True}),
        ("gemma", {"tie_word_embeddings": False}),
        ("granite", {"num_attention_heads": 2}),
    ):
        with pytest.raises(Refused, match=r"mlx-lm's|leave it out"):
            new(model_type, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"num_attention_heads": 2},
        {"num_key_value_heads": 2, "intermediate_size": 100},
        {"sliding_window": None, "rope_theta": 500, "head_dim": 16, "hidden_act": "silu"},
    ],
)
def test_fields_that_work_are_taken(fields: dict[str, Any]) -> None:
    """The control: each model can be built, and has what was asked for."""
    config = new(**fields)
    assert {name: config[name] for name in fields} == fields
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    lm.build(config)


def test_fields_that_only_the_model_finds_wrong_are_refused_by_building_it() -> None:
    """Types can be right and the model still not be callable."""
    for fields in ({"rope_scaling": {"type": "linear"}}, {"rope_scaling": {"type": "none of them"}}):
        with pytest.raises(Refused, match="llama cannot be built from its config") as caught:
            lm.build(new(**fields))
        assert [reason.field for reason in caught.value.reasons] == ["model"]


@pytest.mark.parametrize("head_dim", [3, 15])
def test_an_odd_head_is_refused(head_dim: int) -> None:
    """Rotary positions turn pairs."""
    with pytest.raises(Refused, match=f"head_dim: {head_dim} is odd"):
        new_config("llama", width=30, layers=1, head_dim=head_dim, vocab_size=50, max_length=128)
