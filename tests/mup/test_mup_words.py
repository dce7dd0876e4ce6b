"""What tables and refusals say: of the model that was given, not of another."""

from __future__ import annotations

import inspect
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mup_models import llama_at, mlp_at

from mufree import Refused, make_base_shapes, mup_scales, parametrize


class Holder(nn.Module):
    def __init__(self, **arrays: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, arrays["rows"].shape[-1])
        for name, value in arrays.items():
            setattr(self, name, value)


def test_a_tied_model_at_its_base_width_has_no_multiplier_of_its_own() -> None:
    """It lacks nothing there."""
    table = mup_scales(llama_at(64, tied=True), make_base_shapes(lambda w: llama_at(w, tied=True))).table()
    assert "own multiplier" not in table
    assert "tied head model.embed_tokens.weight, which lacks nothing at this width" in table


def test_a_width_in_delta_s_place_is_told_its_name() -> None:
    """A factory and a number are nearly right."""
    with pytest.raises(Refused, match="write base_width=64"):
        make_base_shapes(mlp_at, 64)


def test_a_delta_narrower_than_the_base_is_warned_of() -> None:
    """The base is the model that was tuned, nearly always the narrower one."""
    with pytest.warns(UserWarning, match="delta is narrower than base"):
        make_base_shapes(mlp_at(128), mlp_at(64))


@pytest.mark.parametrize("width", [128, 64])
def test_a_model_in_the_place_of_base_shapes_is_named_by_its_type(width: int) -> None:
    """Its whole text would hide what is wrong."""
    with pytest.raises(Refused) as refusal:
        mup_scales(llama_at(128), llama_at(width))  # type: ignore[arg-type]
    assert "a model (Model) is no base shapes" in str(refusal.value)
    assert len(str(refusal.value)) < 200
    with pytest.raises(Refused, match=r"a Scales is no base shapes"):
        parametrize(mlp_at(128), mup_scales(mlp_at(128), make_base_shapes(mlp_at)))  # type: ignore[arg-type]


def test_a_table_of_ones_own_is_told_the_kinds_that_its_axes_allow() -> None:
    """Following the advice works."""
    make = lambda width: Holder(rows=mx.zeros((64, width)), square=mx.zeros((width, width)))  # noqa: E731
    with pytest.raises(Refused) as refusal:
        mup_scales(make(128), make_base_shapes(make))
    assert "overrides={'rows': 'input-like'} (or 'output-like'" in str(refusal.value)
    assert "overrides={'square': 'hidden'}" in str(refusal.value)
    scales = mup_scales(
        make(128), make_base_shapes(make), overrides={"rows": "input-like", "square": "hidden"}, readout_gain=False
    )
    assert scales["rows"].kind == "input-like"


def test_a_head_size_that_cannot_be_read_says_what_was_looked_for() -> None:
    """The names of the attributes."""

    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.h = 4
            self.q_proj = nn.Linear(width, width)

    with pytest.raises(Refused, match=r"q_proj: its head size cannot be read: .*head_dim.* n_heads, num_heads"):
        mup_scales(Attention(128), make_base_shapes(Attention), base_head_dim=16)


def test_an_index_array_is_no_packed_weight() -> None:
    """It is whole numbers."""
    make = lambda width: Holder(rows=mx.arange(4), wide=mx.zeros((width,)))  # noqa: E731
    with pytest.raises(Refused, match=r"rows: holds mlx\.core\.\w*int32, whole numbers that no gradient can train"):
        mup_scales(make(128), make_base_shapes(make))


def mixed(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4, bias=False)
    )


def test_a_tables_rows_name_the_places_that_they_are_of() -> None:
    """A star stands only for places that are all alike."""
    table = mup_scales(mixed(128), make_base_shapes(mixed)).table()
    paths = [line.split("  ")[0] for line in table.split("\n\n")[0].splitlines()[1:]]
    assert paths == ["layers.0.weight", "layers.*.bias (3×)", "layers.{1,2}.weight (2×)", "layers.3.weight"]
    llama = mup_scales(llama_at(128), make_base_shapes(llama_at)).table()
    assert "model.layers.*.mlp.up_proj.weight (2×)" in llama


def test_a_table_says_what_its_columns_mean() -> None:
    """What a factor is a factor of."""
    table = mup_scales(mixed(128), make_base_shapes(mixed)).table()
    assert "A: the forward multiplier" in table
    assert "init, lr, eps, decay: factors on the base model's std" in table


def test_the_order_of_a_fused_projection_is_stated() -> None:
    """What starts at zero is its first part."""
    assert "[queries; keys; values]" in (inspect.getdoc(parametrize) or "")
