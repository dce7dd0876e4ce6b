from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import pytest
from mup_models import flat, identical, llama_at, mlp_at

from mufree import Refused, make_base_shapes, parametrize

# A std estimated from n entries scatters by about 1/√(2n); the smallest tensor looked at has 3,000.
STD = 0.05
SHAPES = {tied: make_base_shapes(llama_at(64, tied=tied), llama_at(128, tied=tied)) for tied in (False, True)}


def std(array: mx.array) -> float:
    return math.sqrt(mx.mean(array.astype(mx.float32) ** 2).item())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("width", [64, 128, 512])
def test_embeddings_keep_their_std_and_hidden_ones_shrink(width: int, tied: bool) -> None:
    """The start of a tied or untied model, relative to the base model's, is that of the table at every width."""
    model = llama_at(width, tied=tied)
    parametrize(model, SHAPES[tied])
    found, m = flat(model), width / 64
    assert std(found["model.embed_tokens.weight"]) == pytest.approx(64**-0.5, rel=STD)
    assert std(found["model.layers.0.mlp.up_proj.weight"]) == pytest.approx((3 * width) ** -0.5, rel=STD)
    if tied:
        assert mx.all(found["model.norm.weight"] == 1 / m).item()
    else:
        assert std(found["lm_head.weight"]) == pytest.approx((3 * 64) ** -0.5 / m, rel=STD)


def test_biases_keep_the_base_models_std() -> None:
    """MLX draws a Linear's bias with its fan-in; the rules want it constant."""
    model = mlp_at(1024)
    parametrize(model, make_base_shapes(mlp_at(64), mlp_at(128)))
    assert std(model.layers[2].bias) == pytest.approx((3 * 64) ** -0.5, rel=STD)
    assert std(model.layers[0].bias) == pytest.approx((3 * 8) ** -0.5, rel=STD)


@pytest.mark.parametrize("tied", [False, True])
def test_at_base_width_no_bit_changes(tied: bool) -> None:
    """Every multiplier is 1 and every array the same."""
    model = llama_at(64, tied=tied)
    before = flat(model)
    scales = parametrize(model, SHAPES[tied])
    assert identical(flat(model), before)
    for scale in scales.values():
        assert (scale.init, scale.lr, scale.eps, scale.weight_decay, scale.multiplier) == (1, 1, 1, 1, 1)
    assert "standard parametrisation" in scales.table()


@pytest.mark.parametrize("tied", [False, True])
def test_a_second_time_is_refused_and_changes_nothing(tied: bool) -> None:
    """Weights that were scaled once are no longer what MLX draws."""
    model = llama_at(512, tied=tied)
    parametrize(model, SHAPES[tied])
    before = flat(model)
    with pytest.raises(Refused, match=r"embed_tokens\.weight: is not what MLX draws"):
        parametrize(model, SHAPES[tied])
    assert identical(flat(model), before)


def test_one_update_makes_weights_stale() -> None:
    """After one step of 1e-4 some entries of a Linear lie outside ±1/√in."""
    layer = nn.Sequential(nn.Linear(256, 256))
    shapes = make_base_shapes(lambda width: nn.Sequential(nn.Linear(width, width)))
    layer.layers[0].weight = layer.layers[0].weight + 1e-4 * mx.sign(mx.random.normal((256, 256)))
    with pytest.raises(Refused, match=r"of 65536 entries lie outside"):
        parametrize(layer, shapes)


def test_another_initialisation_is_noticed() -> None:
    """N(0, 0.02) is not MLX's; with ``init`` saying so it is drawn anew."""
    model = llama_at(512)
    model.model.embed_tokens.weight = mx.random.normal((48, 512), scale=0.02)
    with pytest.raises(Refused, match="embed_tokens"):
        parametrize(model, SHAPES[False])
    parametrize(
        model, SHAPES[False], init={"*embed_tokens.weight": 0.02, "lm_head.weight": 0.02, "*_proj.weight": 0.02}
    )
    found = flat(model)
    assert std(found["model.embed_tokens.weight"]) == pytest.approx(0.02, rel=STD)
    assert std(found["lm_head.weight"]) == pytest.approx(0.02 / 8, rel=STD)
    assert std(found["model.layers.1.self_attn.v_proj.weight"]) == pytest.approx(0.02 / math.sqrt(8), rel=STD)


def test_a_wildcard_leaves_norm_gains_alone() -> None:
    """``*.weight`` draws matrices; a vector is drawn only by its own path."""
    model = llama_at(512, tied=True)
    parametrize(model, SHAPES[True], init={"*.weight": 0.02, "model.layers.0.input_layernorm.weight": 0.5})
    found = flat(model)
    assert mx.all(found["model.layers.1.input_layernorm.weight"] == 1).item()
    assert mx.all(found["model.norm.weight"] == 1 / 8).item()
    assert std(found["model.layers.0.input_layernorm.weight"]) == pytest.approx(0.5, rel=0.2)


def test_keep_changes_nothing() -> None:
    """Trained weights get scales only."""
    model = llama_at(512, tied=True)
    before = flat(model)
    scales = parametrize(model, SHAPES[True], init="keep")
    assert identical(flat(model), before)
    assert scales["model.norm.weight"].lr == 1 / 8


def test_readout_and_queries_start_at_zero_on_request() -> None:
    """And nothing else does."""
    model = llama_at(128)
    parametrize(model, SHAPES[False], zero_readout=True, zero_query=True)
    zero = {path for path, array in flat(model).items() if not mx.any(array).item()}
    assert zero == {"lm_head.weight", *(f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2))}


def test_a_tied_head_cannot_start_at_zero() -> None:
    """It is the embedding."""
    with pytest.raises(Refused, match="cannot start at zero"):
        parametrize(llama_at(128, tied=True), SHAPES[True], zero_readout=True)


@pytest.mark.parametrize("init", ["torch", {"*.wieght": 0.02}, {"*": -1.0}])
def test_unknown_initialisations_are_refused(init: object) -> None:
    """A word that is none, a pattern that matches nothing, a negative std."""
    with pytest.raises(Refused, match="init"):
        parametrize(llama_at(128), SHAPES[False], init=init)  # type: ignore[arg-type]


def test_a_large_fresh_weight_is_taken_for_fresh() -> None:
    """Four million squares, summed in one float32, are 0.3 % too few, more than chance ever does."""
    make = lambda width: nn.Sequential(nn.Linear(width, 4 * width, bias=False))  # noqa: E731
    model = make(1024)
    before = mx.array(model.layers[0].weight)
    scales = parametrize(model, make_base_shapes(make, base_width=64))
    assert scales["layers.0.weight"].kind == "hidden"
    assert mx.array_equal(model.layers[0].weight, before * scales["layers.0.weight"].init * 4)
