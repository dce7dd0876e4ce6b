from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mup_models import llama_at

from mufree import BaseShapes, Refused, make_base_shapes, mup_scales


class Odd(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.kernel = mx.zeros((width, width))
        self.slope = mx.zeros((width,))
        self.fixed = mx.zeros((3, 5))


def odd(width: int) -> nn.Module:
    return nn.Sequential(Odd(width))


def test_kinds_of_a_llama() -> None:
    """An embedding and a readout of one shape are different kinds."""
    scales = mup_scales(llama_at(512), make_base_shapes(llama_at(64), llama_at(128)))
    kinds = {path: scale.kind for path, scale in scales.items()}
    assert kinds["model.embed_tokens.weight"] == "input-like"
    assert kinds["lm_head.weight"] == "output-like"
    assert kinds["model.layers.1.mlp.down_proj.weight"] == "hidden"
    assert kinds["model.layers.0.input_layernorm.weight"] == "input-like"


def test_an_unknown_module_is_refused_until_it_is_named() -> None:
    """A vector scales as a vector, a matrix has to be named; a kind or axis letters will do."""
    shapes = make_base_shapes(odd(64), odd(128))
    with pytest.raises(Refused, match=r"layers\.0\.kernel: Odd is no layer whose axes are known") as refusal:
        mup_scales(odd(512), shapes)
    assert len(refusal.value.reasons) == 1
    scales = mup_scales(odd(512), shapes, overrides={"*.kernel": "hidden"})
    assert scales["layers.0.kernel"].m_in == 8
    assert scales["layers.0.slope"].kind == "input-like"
    assert scales["layers.0.fixed"].kind == "scalar-like"
    assert mup_scales(odd(512), shapes, overrides={"*.kernel": "io"})["layers.0.kernel"].kind == "hidden"


@pytest.mark.parametrize("overrides", [{"*.kernal": "hidden"}, {"*.kernel": "hiden"}, {"*.kernel": "output-like"}])
def test_overrides_that_cannot_be_meant_are_refused(overrides: dict[str, str]) -> None:
    """A pattern that matches nothing, a kind that is none, a kind with another number of widths."""
    with pytest.raises(Refused, match="kern"):
        mup_scales(odd(512), make_base_shapes(odd(64), odd(128)), overrides=overrides)


def test_a_bare_tree_goes_by_its_axes() -> None:
    """(…, out, in); a matrix of which only the last axis scales has to be named."""
    base = {"a": (64, 9), "b": (64, 64), "c": (10, 64), "d": (64,), "e": (3,)}
    delta = {"a": (128, 9), "b": (128, 128), "c": (10, 128), "d": (128,), "e": (3,)}
    target = {"a": (256, 9), "b": (256, 512), "c": (10, 256), "d": (256,), "e": (3,)}
    shapes = make_base_shapes(base, delta)
    with pytest.raises(Refused, match=r"c: only its last axis scales: an embedding .* or a readout"):
        mup_scales(target, shapes)
    scales = mup_scales(target, shapes, overrides={"c": "output-like"})
    kinds = {path: scale.kind for path, scale in scales.items()}
    assert kinds == {"a": "input-like", "b": "hidden", "c": "output-like", "d": "input-like", "e": "scalar-like"}
    assert (scales["b"].m_in, scales["b"].m_out, scales["c"].m_in) == (8, 4, 4)


def test_assigning_the_embedding_to_the_head_ties_nothing() -> None:
    """In MLX those are two parameters."""
    model = llama_at(128)
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(Refused, match=r"lm_head\.weight: holds the very array of model\.embed_tokens\.weight"):
        mup_scales(model, make_base_shapes(llama_at(64), llama_at(128)))


def test_without_base_shapes_nothing_is_scaled() -> None:
    """Missing base shapes are refused with what to do."""
    with pytest.raises(Refused, match="make_base_shapes"):
        mup_scales(llama_at(128), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("letters", ["..", "o.", ".i"])
def test_letters_may_not_pass_over_a_width(letters: str) -> None:
    """A dot is for an axis that does not scale."""
    with pytest.raises(Refused, match="neither fan-in nor fan-out by its letter and must not scale"):
        mup_scales(odd(512), make_base_shapes(odd(64), odd(128)), overrides={"*.kernel": letters})


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.again = self.first


def test_one_module_under_two_names_is_one_parameter() -> None:
    """MLX keeps it so through updates: what the last name is given, the other has."""
    scales = mup_scales(Twice(512), make_base_shapes(Twice(64), Twice(128)))
    assert scales["first.weight"] == scales["again.weight"]


def test_a_model_without_parameters_matches_no_pattern() -> None:
    """And says so."""
    with pytest.raises(Refused, match="'x' matches no parameter; there is none"):
        mup_scales(nn.ReLU(), BaseShapes({}), overrides={"x": "hidden"})


def test_an_array_that_is_no_parameter_is_told_what_to_do() -> None:
    """Whole numbers cannot be trained."""

    def make(width: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, width))
        model.layers[0].ids = mx.arange(4)
        return model

    with pytest.raises(Refused, match=r"ids: .* freeze its module, or .* a leading underscore"):
        mup_scales(make(128), make_base_shapes(make))


def test_a_later_pattern_wins() -> None:
    """So that an exception can follow a rule."""
    overrides = {"*.kernel": "hidden", "layers.0.*": "scalar-like"}
    scales = mup_scales(odd(512), make_base_shapes(odd(64), odd(128)), overrides=overrides)
    assert scales["layers.0.kernel"].kind == "scalar-like"
