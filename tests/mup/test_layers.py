from __future__ import annotations

import copy
import math
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mup_models import flat

from mufree import MuReadout, MuSharedReadout, Refused, attention_scale, make_base_shapes, mup_scales, parametrize

# A float32 product of 512 terms and its quantised or folded twin.
ROUNDING = 1e-5


def classifier(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), MuReadout(width, 4, base_dims=64))


class Shared(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layer = nn.Linear(width, width)
        self.head = MuSharedReadout(self.embed, base_dims=64)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.head(self.layer(self.embed(tokens)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4, normed: bool = False) -> None:
        super().__init__()
        self.num_heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        if normed:
            self.q_norm = nn.RMSNorm(width // heads)


def test_the_readout_divides_by_its_width_multiplier() -> None:
    """output_mult · x / m, the bias untouched."""
    layer = MuReadout(512, 3, base_dims=64, output_mult=2.0)
    x = mx.random.normal((2, 512))
    expected = (x * (2.0 / 8)) @ layer.weight.T + layer.bias
    assert mx.allclose(layer(x), expected, atol=ROUNDING).item()


def test_its_rows_are_those_of_table_8() -> None:
    """A = 1/m: the base model's std, rate and decay, eps divided; a constant output bias."""
    scales = mup_scales(classifier(512), make_base_shapes(classifier(64), classifier(128)))
    readout = scales["layers.3.weight"]
    assert (readout.kind, readout.multiplier, readout.m_in) == ("output-like", 1 / 8, 8)
    assert (readout.init, readout.lr, readout.eps, readout.weight_decay) == (1, 1, 1 / 8, 1)
    assert scales["layers.3.bias"].kind == "scalar-like"
    assert "by the multiplier A of the model" in scales.table()


def test_its_weight_and_bias_start_as_in_the_base_model() -> None:
    """MLX shrinks both with the fan-in; the rules keep them."""
    model = nn.Sequential(nn.Linear(8, 4096), MuReadout(4096, 512, base_dims=64))
    small = [nn.Sequential(nn.Linear(8, w), MuReadout(w, 512, base_dims=64)) for w in (64, 128)]
    parametrize(model, make_base_shapes(*small))
    for array in (model.layers[1].weight, model.layers[1].bias):
        std = math.sqrt(mx.mean(array**2).item())
        assert std == pytest.approx((3 * 64) ** -0.5, rel=0.1)


def test_the_multiplier_survives_copies_reloads_and_new_weights(tmp_path: Path) -> None:
    """It comes from the constructor, so no reload can lose it."""
    model = classifier(512)
    model.save_weights(str(tmp_path / "w.safetensors"))
    again = classifier(512)
    again.load_weights(str(tmp_path / "w.safetensors"))
    for other in (again, copy.deepcopy(model)):
        other.set_dtype(mx.bfloat16)
        assert other.layers[3].width_mult == 8


def test_folding_and_quantising_keep_what_it_computes() -> None:
    """The multiplier goes into the plain layer's weight."""
    layer = MuReadout(512, 64, base_dims=64)
    x = mx.random.normal((2, 512))
    assert type(layer.folded()) is nn.Linear
    assert mx.allclose(layer.folded()(x), layer(x), atol=ROUNDING).item()
    quantised = layer.to_quantized(group_size=64, bits=8)
    assert mx.allclose(quantised(x), layer(x), atol=0.01).item()


def test_a_readout_made_for_another_base_is_refused() -> None:
    """base_dims and the base shapes have to agree."""
    model = nn.Sequential(nn.Linear(8, 512), MuReadout(512, 4, base_dims=32))
    small = [nn.Sequential(nn.Linear(8, w), MuReadout(w, 4, base_dims=32)) for w in (64, 128)]
    with pytest.raises(Refused, match=r"layers\.1: was made for a base width of 32, not of 64"):
        mup_scales(model, make_base_shapes(*small))


def test_the_shared_readout_is_one_parameter() -> None:
    """The embedding's, in its place; it stays tied through updates and copies."""
    model = Shared(512)
    assert set(flat(model)) == {"embed.weight", "layer.weight", "layer.bias", "head.bias"}
    for tied in (model, copy.deepcopy(model)):
        tied.update({"embed": {"weight": mx.ones((20, 512))}})
        assert mx.allclose(tied.head(mx.ones((1, 512))), mx.full((1, 20), 64.0)).item()


def test_the_shared_readout_carries_the_tied_heads_multiplier() -> None:
    """The embedding is input-like, and no gain has to carry anything."""
    scales = mup_scales(Shared(512), make_base_shapes(Shared(64), Shared(128)))
    embedding = scales["embed.weight"]
    assert (embedding.kind, embedding.init, embedding.lr) == ("input-like", 1, 1)
    assert scales.readout.gains == ()
    assert "tied head embed.weight, through a multiplier of the model's own" in scales.table()


@pytest.mark.parametrize("settings", [{"base_dims": 0}, {"base_dims": 1.5}, {"base_dims": 64, "output_mult": math.nan}])
def test_impossible_sizes_are_refused(settings: dict[str, float]) -> None:
    """Whole numbers above 0, finite multipliers."""
    with pytest.raises(Refused, match=r"base_dims|output_mult"):
        MuReadout(64, 2, **settings)  # type: ignore[arg-type]


def test_attention_is_scaled_by_one_over_d() -> None:
    """α·√d₀/d: the usual 1/√d at the base model's head size."""
    assert attention_scale(64, 64) == 1 / 8
    assert attention_scale(256, 64) == 1 / 32
    with pytest.raises(Refused, match="head_dim"):
        attention_scale(0, 64)


@pytest.mark.parametrize("normed", [False, True])
def test_growing_heads_are_carried_by_the_query_or_its_norms_gain(normed: bool) -> None:
    """Where the code divides by √d: √(d₀/d) in W_q's start and rate, or in the gain where a norm would undo that."""

    def make(width: int) -> nn.Module:
        return nn.Sequential(Attention(width, normed=normed))

    shapes = make_base_shapes(make(64), make(128))
    model = make(1024)
    plain = mup_scales(model, shapes)
    scales = parametrize(model, shapes, base_head_dim=16)
    path = "layers.0.q_norm.weight" if normed else "layers.0.q_proj.weight"
    assert scales[path].init == plain[path].init / 4
    assert scales[path].lr == plain[path].lr / 4
    assert scales[path].eps == plain[path].eps * 4
    assert {p for p in scales if scales[p] != plain[p]} == (
        {path} if normed else {path, path.replace("weight", "bias")}
    )
    if normed:
        assert mx.all(model.layers[0].q_norm.weight == 0.25).item()
    with pytest.raises(Refused, match="no layer is called"):
        mup_scales(classifier(512), make_base_shapes(classifier(64), classifier(128)), base_head_dim=16)
