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


def test_large_fresh_layers_are_fresh() -> None:
    """Eight million squares, which one running float32 sum would take for 1.2 % less: five times what is allowed."""
    model = nn.Sequential(nn.Linear(4096, 2048, bias=False))
    parametrize(model, make_base_shapes(lambda width: nn.Sequential(nn.Linear(2 * width, width, bias=False))))


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


@pytest.mark.parametrize(("inputs", "outputs"), [(1000, 4000), (4000, 1000)])
def test_millions_of_fresh_entries_are_seen_to_be_fresh(inputs: int, outputs: int) -> None:
    """MLX's own float32 mean of four million squares is off by more than so many entries can scatter."""

    def make(width: int) -> nn.Module:
        return nn.Linear(inputs * width // 64, outputs * width // 64, bias=False)

    shapes = make_base_shapes(nn.Linear(8, 8, bias=False), nn.Linear(16, 16, bias=False))
    for seed in range(3):
        mx.random.seed(seed)
        assert parametrize(make(64), shapes)


def test_a_second_time_is_noticed_on_a_small_readout_of_little_more_width() -> None:
    """At m = 1.5 a readout of 192 entries starts 1/√1.5 narrower: too little for its std, not for its largest entry."""

    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, width, bias=False), nn.Linear(width, 2, bias=False))

    model, shapes = make(96), make_base_shapes(make, base_width=64)
    parametrize(model, shapes)
    with pytest.raises(Refused, match=r"layers\.1\.weight: is not what MLX draws"):
        parametrize(model, shapes)


def test_a_pattern_of_vectors_draws_vectors() -> None:
    """``*.bias`` names nothing else, so it is not passed over."""
    model = mlp_at(512)
    parametrize(model, make_base_shapes(mlp_at(64), mlp_at(128)), init={"*.bias": 0.0})
    assert not any(mx.any(array).item() for path, array in flat(model).items() if path.endswith("bias"))
    assert mx.any(model.layers[0].weight).item()


def test_a_later_pattern_wins_only_where_it_draws() -> None:
    """A gain named outright keeps its std beside a wildcard of matrices."""
    model = llama_at(512)
    parametrize(model, SHAPES[False], init={"model.norm.weight": 0.5, "*.weight": 0.02})
    assert std(model.model.norm.weight) == pytest.approx(0.5, rel=0.2)


def test_a_gain_that_carries_the_heads_multiplier_cannot_be_drawn() -> None:
    """Its start is the multiplier; asked for outright, that is said."""
    with pytest.raises(Refused, match=r"init\['model\.norm\.weight'\]: carries a multiplier"):
        parametrize(llama_at(512, tied=True), SHAPES[True], init={"model.norm.weight": 0.5})


@pytest.mark.parametrize("wanted", [1, None, ["*"]])
def test_zero_readout_is_a_bool_or_a_pattern(wanted: object) -> None:
    """Nothing else is taken for yes."""
    with pytest.raises(Refused, match=r"zero_readout: .* give True, False or a path pattern"):
        parametrize(llama_at(128), SHAPES[False], zero_readout=wanted)  # type: ignore[arg-type]


def test_an_override_keeps_what_is_known_of_the_initialiser() -> None:
    """A Linear that is called hidden is still checked and still drawn by MLX's law."""
    shapes = make_base_shapes(mlp_at(64), mlp_at(128))
    model = mlp_at(512)
    before = model.layers[4].weight
    scales = parametrize(model, shapes, overrides={"layers.2.weight": "hidden", "layers.4.weight": "oi"})
    assert scales == parametrize(mlp_at(512), shapes)
    assert mx.allclose(model.layers[4].weight * math.sqrt(8), before).item()


class Places(nn.Module):
    """Layers under keys that are numbers, in a list and in a tuple; one array in a list of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = {"0": nn.Linear(4, width), "1": nn.Linear(width, width)}
        self.more = [nn.Linear(width, width)]
        self.last = (nn.Linear(width, 3),)
        self.tables = [{"0": mx.ones((5, width))}]
        self.activation = nn.ReLU()


def test_weights_are_found_again_wherever_they_are_kept() -> None:
    """A key that is a number is no place in a list."""
    model, other = Places(512), Places(64)
    shapes = make_base_shapes(other, Places(128))
    scales = parametrize(model, shapes, overrides={"tables.*": "input-like"}, init={"tables.*": 0.5})
    assert std(model.blocks["1"].bias) == pytest.approx((3 * 64) ** -0.5, rel=0.1)
    assert std(model.last[0].weight) == pytest.approx((3 * 64) ** -0.5 / 8, rel=STD)
    assert std(model.tables[0]["0"]) == pytest.approx(0.5, rel=STD)
    assert scales["tables.0.0"].kind == "input-like"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_half_precision_models_start_like_float32_ones(dtype: mx.Dtype, tied: bool) -> None:
    """Fresh, rounded weights pass for fresh, keep their dtype, and are refused the second time."""
    model = llama_at(512, tied=tied)
    model.set_dtype(dtype)
    parametrize(model, SHAPES[tied])
    found = flat(model)
    assert {array.dtype for array in found.values()} == {dtype}
    assert std(found["model.embed_tokens.weight"]) == pytest.approx(64**-0.5, rel=STD)
    with pytest.raises(Refused, match="embed_tokens"):
        parametrize(model, SHAPES[tied])


@pytest.mark.parametrize("width", [16, 48, 96])
def test_narrower_than_the_base_and_no_power_of_two(width: int) -> None:
    """m below 1 and m = 0.75, 1.5: the same rules, larger readouts and smaller embeddings."""
    model = llama_at(width)
    scales = parametrize(model, SHAPES[False])
    m, found = width / 64, flat(model)
    assert scales["model.layers.0.mlp.up_proj.weight"].lr == pytest.approx(1 / m)
    assert std(found["model.embed_tokens.weight"]) == pytest.approx(64**-0.5, rel=2 * STD)
    assert std(found["lm_head.weight"]) == pytest.approx((3 * 64) ** -0.5 / m, rel=2 * STD)


def test_a_large_fresh_weight_is_taken_for_fresh() -> None:
    """Four million squares, summed in one float32, are 0.3 % too few, more than chance ever does."""
    make = lambda width: nn.Sequential(nn.Linear(width, 4 * width, bias=False))  # noqa: E731
    model = make(1024)
    before = mx.array(model.layers[0].weight)
    scales = parametrize(model, make_base_shapes(make, base_width=64))
    assert scales["layers.0.weight"].kind == "hidden"
    assert mx.array_equal(model.layers[0].weight, before * scales["layers.0.weight"].init * 4)


def test_a_quantised_layers_bias_is_left_alone() -> None:
    """Its weights are packed, so how they were drawn is not known."""

    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, width), nn.QuantizedLinear.from_linear(nn.Linear(width, width)))

    model = make(512)
    before = model.layers[1].bias
    parametrize(model, make_base_shapes(make, base_width=64))
    assert mx.array_equal(model.layers[1].bias, before).item()


def test_keep_and_a_start_at_zero_contradict_each_other() -> None:
    """One of them would not be done."""
    with pytest.raises(Refused, match="'keep' leaves the weights as they are and cannot start some at zero"):
        parametrize(llama_at(128), SHAPES[False], init="keep", zero_readout=True)
