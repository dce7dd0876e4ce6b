"""How a config grows in width."""

from __future__ import annotations

from typing import Any

import pytest

from mufree import Refused
from mufree.lm import at_width, base_shapes, build
from mufree.lm.configs import known_fields, new_config


def config(**changes: Any) -> dict[str, Any]:
    return new_config(
        "llama", **{"width": 64, "layers": 1, "head_dim": 16, "vocab_size": 50, "max_length": 128, **changes}
    )


def test_heads_and_feed_forward_grow_with_the_width() -> None:
    """The head size stays; everything that is a width keeps its ratio."""
    grown = at_width(config(fields={"num_key_value_heads": 2, "intermediate_size": 172}), 128)
    assert {name: grown[name] for name in grown if grown[name] != config()[name]} == {
        "hidden_size": 128,
        "intermediate_size": 344,
        "num_attention_heads": 8,
    }
    assert (grown["num_key_value_heads"], grown["head_dim"]) == (4, 16)


def test_there_and_back_is_the_same() -> None:
    """Growing and shrinking composes, and the config handed in is untouched."""
    small = config()
    kept = dict(small)
    assert at_width(at_width(at_width(small, 256), 16), 64) == small == kept


@pytest.mark.parametrize("width", [100, 0, -64, 64.0, True, 24])
def test_a_width_that_does_not_work_is_refused(width: Any) -> None:
    """A fraction of a head cannot be built, and nothing is rounded."""
    with pytest.raises(Refused) as caught:
        at_width(config(), width)
    assert {reason.field for reason in caught.value.reasons} == {"width"}


def test_every_field_that_would_be_a_fraction_is_named() -> None:
    """One refusal with all of them, each with the step that would do."""
    with pytest.raises(Refused) as caught:
        at_width(config(fields={"num_key_value_heads": 1}), 80)
    messages = [reason.message for reason in caught.value.reasons]
    assert len(messages) == 1
    assert "num_key_value_heads 1.25" in messages[0]
    assert "multiple of 64" in messages[0]


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"width": 100}, "width", "give 96 or 112"),
        ({"fields": {"rope_thta": 1}}, "model.rope_thta", "it has: .*rope_theta"),
        ({"fields": {"hidden_size": 128}}, "model.hidden_size", "is not the 64 of the options"),
        ({"fields": {"num_key_value_heads": 3}}, "model.num_key_value_heads", "does not divide the 4 query heads"),
        ({"fields": {"intermediate_size": "big"}}, "model.intermediate_size", "positive whole number"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    """Where, what was given, what is allowed."""
    with pytest.raises(Refused, match=says) as caught:
        config(**changes)
    assert [reason.field for reason in caught.value.reasons] == [field]


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    """The list is in the message."""
    with pytest.raises(Refused, match=r"'lama' is not an architecture built here; choose one of: .*llama"):
        new_config("lama", width=64, layers=1, head_dim=16, vocab_size=50, max_length=128)


def test_all_fields_are_read_by_mlx_lm_or_transformers() -> None:
    """What a new config writes is known to somebody."""
    assert set(config()) <= known_fields("llama") | {"architectures", "hidden_act"}


def test_base_shapes_mark_the_axes_that_grow_and_take_no_randomness() -> None:
    """Vocabulary and head size are finite, widths are base sizes; the random state is as before."""
    import mlx.core as mx

    before = mx.random.state[0].tolist()
    shapes = base_shapes(at_width(config(), 256), 64)
    assert mx.random.state[0].tolist() == before
    assert shapes["model.embed_tokens.weight"] == (None, 64)
    assert shapes["lm_head.weight"] == (None, 64)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (64, 64)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 256)
    assert shapes["model.norm.weight"] == (64,)


def test_the_models_are_mlx_lms_own() -> None:
    """What is built is the stock class, so its weights load in stock mlx-lm."""
    assert type(build(config())).__module__ == "mlx_lm.models.llama"


def test_a_config_without_what_a_model_needs_is_refused() -> None:
    """mlx-lm's TypeError becomes a refusal that names the field."""
    with pytest.raises(Refused, match="hidden_size"):
        build({"model_type": "llama"})
    with pytest.raises(Refused, match="not a model type of the installed mlx-lm"):
        build({"model_type": "lama"})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "qwen3_moe", "moe_intermediate_size": 32}, "model_type"),
        ({"hidden_size": None}, "config.hidden_size"),
        ({"hidden_size": "64"}, "config.hidden_size"),
        ({"num_attention_heads": 0}, "config.num_attention_heads"),
        ({"intermediate_size": [64, 64]}, "config.intermediate_size"),
        ({"num_key_value_heads": 1.5}, "config.num_key_value_heads"),
    ],
)
def test_a_config_whose_widths_are_not_known_is_refused(changes: dict[str, Any], field: str) -> None:
    """Another architecture may have widths of other names, which would be left behind in silence."""
    with pytest.raises(Refused) as caught:
        at_width({**config(), **changes}, 128)
    assert [reason.field for reason in caught.value.reasons] == [field]


def test_a_model_type_that_is_missing_is_refused_when_built() -> None:
    """Not a KeyError from within mlx-lm."""
    with pytest.raises(Refused, match="model_type"):
        build({"hidden_size": 64})
