"""What broke others, each small input with what is right here; those about optimizers are in tests/build."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_unflatten
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.dora import DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
from mup_models import flat, identical, llama_at, mlp_at

from mufree import (
    AdamWScheduleFree,
    BaseShapes,
    Refused,
    SGDScheduleFree,
    ShapeMismatch,
    make_base_shapes,
    mup_scales,
    param_groups,
    parametrize,
)

# The std of 48 × 8 entries is known to 1/√768; eight widths are looked at.
SMALL_SAMPLE = 0.15


class Holder(nn.Module):
    """One layer made by a function of width."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer


def kinds_of(make: object, width: int = 512) -> dict[str, tuple[str, float, float]]:
    shapes = make_base_shapes(Holder(make(64)), Holder(make(128)))  # type: ignore[operator]
    scales = mup_scales(Holder(make(width)), shapes)  # type: ignore[operator]
    return {path.removeprefix("layer."): (s.kind, s.m_in, s.m_out) for path, s in scales.items()}


@pytest.mark.parametrize("width", [8, 16, 32, 64, 128, 256, 512])
def test_a_tied_embeddings_std_is_the_same_at_every_width(width: int) -> None:
    """It is input-like, in one group, and nothing rescales it as a readout too."""

    def make(width: int) -> nn.Module:
        return llama_at(width, tied=True, num_attention_heads=width // 8, head_dim=8)

    model = make(width)
    scales = parametrize(model, make_base_shapes(make(8), make(16)))
    weight = model.model.embed_tokens.weight
    assert mx.sqrt(mx.mean(weight**2)).item() == pytest.approx(8**-0.5, rel=SMALL_SAMPLE)
    groups = param_groups(model, scales, learning_rate=1.0)
    assert sum("model.embed_tokens.weight" in group.paths for group in groups) == 1


def test_equal_base_and_target_are_called_standard_parametrisation() -> None:
    """Nothing is scaled, and the table says so."""
    table = mup_scales(llama_at(64), make_base_shapes(llama_at(64), llama_at(128))).table()
    assert "Every multiplier is 1" in table
    assert "standard parametrisation" in table


def test_another_vocabulary_is_refused_and_a_file_names_what_it_takes_for_finite(tmp_path: Path) -> None:
    """A .bsh file holds null for a finite axis, so the table of its scales names the finite sizes."""
    shapes = make_base_shapes(llama_at(64), llama_at(128))
    other = llama_at(128, vocab_size=50)
    with pytest.raises(ShapeMismatch, match=r"embed_tokens\.weight: axis 0 is 48 in the base model and 50 here"):
        mup_scales(other, shapes)
    shapes.save(tmp_path / "base.bsh")
    table = mup_scales(other, BaseShapes.load(tmp_path / "base.bsh")).table()
    assert "Taken as sizes that do not scale: 50." in table


def test_planning_saving_and_loading_leave_weights_as_they_are(tmp_path: Path) -> None:
    """Bit for bit; loaded weights are refused as a fresh start and kept on request."""
    shapes = make_base_shapes(llama_at(64, tied=True), llama_at(128, tied=True))
    model = llama_at(256, tied=True)
    before = flat(model)
    mup_scales(model, shapes).table()
    assert identical(flat(model), before)
    parametrize(model, shapes)
    model.save_weights(str(tmp_path / "w.safetensors"))
    loaded = llama_at(256, tied=True)
    loaded.load_weights(str(tmp_path / "w.safetensors"))
    with pytest.raises(Refused, match="not what MLX draws"):
        parametrize(loaded, shapes)
    parametrize(loaded, shapes, init="keep")
    assert identical(flat(loaded), flat(model))


def test_scales_survive_replaced_parameters() -> None:
    """They are keyed by path, not hung on arrays."""
    model = llama_at(256)
    scales = mup_scales(model, make_base_shapes(llama_at(64), llama_at(128)))
    before = param_groups(model, scales, learning_rate=0.1)
    model.update(tree_unflatten([(path, array + 1) for path, array in flat(model).items()]))
    model.set_dtype(mx.bfloat16)
    assert param_groups(model, scales, learning_rate=0.1) == before


def test_scales_of_the_other_family_are_refused() -> None:
    """They would be eight times wrong at m = 8."""
    scales = mup_scales(llama_at(512), make_base_shapes(llama_at(64), llama_at(128)))
    with pytest.raises(Refused, match="family"):
        SGDScheduleFree(scales=scales)
    assert AdamWScheduleFree(scales=scales) is not None


class Wav(nn.Module):
    """Features, two projections, a hidden layer and two that end in fixed sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features, self.project = nn.Linear(40, width), nn.Linear(width, width)
        self.query, self.key = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.classes = nn.Linear(2 * width, 30)


def test_one_readout_is_found_among_five_linear_layers() -> None:
    """By its axes, not by its class."""
    scales = mup_scales(Wav(512), make_base_shapes(Wav(64), Wav(128)))
    assert [path for path, scale in scales.items() if scale.kind == "output-like"] == ["classes.weight"]
    assert scales.readout.heads == ("classes.weight",)


def test_experts_are_hidden_one_by_one_and_their_number_may_not_grow() -> None:
    """(E, out, in) with E fixed; three infinite axes are refused."""
    found = kinds_of(lambda width: SwitchLinear(width, 2 * width, 4))
    assert found == {"weight": ("hidden", 8, 8), "bias": ("input-like", 1, 8)}
    with pytest.raises(Refused, match="number of experts and must not scale"):
        kinds_of(lambda width: SwitchLinear(width, width, width // 16))


def test_convolutions_have_their_fan_in_last() -> None:
    """(out, kh, kw, in); depthwise ones have a finite fan-in."""
    assert kinds_of(lambda width: nn.Conv2d(width, 2 * width, 3))["weight"] == ("hidden", 8, 8)
    assert kinds_of(lambda width: nn.Conv2d(3, width, 3))["weight"] == ("input-like", 1, 8)
    assert kinds_of(lambda width: nn.Conv2d(width, 3, 3))["weight"] == ("output-like", 8, 1)
    assert kinds_of(lambda width: nn.Conv2d(width, width, 3, groups=width))["weight"] == ("input-like", 1, 8)
    assert kinds_of(lambda width: nn.ConvTranspose2d(width, 3, 3))["weight"] == ("output-like", 8, 1)


def test_adapters_scale_as_they_are_stored() -> None:
    """A: output-like, rate/m_in; B: input-like, the base rate; DoRA's magnitude: input-like."""
    lora = kinds_of(lambda width: LoRALinear(width, width, r=4))
    assert (lora["lora_a"], lora["lora_b"]) == (("output-like", 8, 1), ("input-like", 1, 8))
    dora = kinds_of(lambda width: DoRALinear(width, width, r=4))
    assert (dora["lora_a"], dora["m"]) == (("output-like", 8, 1), ("input-like", 1, 8))
    switch = kinds_of(lambda width: LoRASwitchLinear(width, width, 4, r=4))
    assert (switch["lora_a"], switch["lora_b"]) == (("output-like", 8, 1), ("input-like", 1, 8))
    embedding = kinds_of(lambda width: LoRAEmbedding(30, width, r=4))
    assert (embedding["lora_a"], embedding["lora_b"]) == (("scalar-like", 1, 1), ("input-like", 1, 8))


def test_an_adapters_start_is_left_as_it_is() -> None:
    """A ~ U(±1/√in) is right at every width because B is zero."""
    model = Holder(LoRALinear(512, 512, r=4))
    shapes = make_base_shapes(Holder(LoRALinear(64, 64, r=4)), Holder(LoRALinear(128, 128, r=4)))
    before = model.layer.lora_a
    scales = parametrize(model, shapes)
    assert mx.array_equal(model.layer.lora_a, before).item()
    assert scales["layer.lora_a"].init == 8**-0.5


@pytest.mark.parametrize(
    ("make", "name", "expected"),
    [
        (lambda w: nn.RNN(5, w), "Wxh", ("input-like", 1, 8)),
        (lambda w: nn.RNN(w, w), "Whh", ("hidden", 8, 8)),
        (lambda w: nn.GRU(5, w), "Wx", ("input-like", 1, 8)),
        (lambda w: nn.LSTM(w, w), "Wx", ("hidden", 8, 8)),
        (lambda w: nn.MultiHeadAttention(w, 4), "query_proj.weight", ("hidden", 8, 8)),
        (lambda w: nn.Bilinear(w, 3, w), "weight", ("hidden", 8, 8)),
        (lambda w: nn.GroupNorm(4, w), "weight", ("input-like", 1, 8)),
        (lambda w: nn.BatchNorm(w), "running_mean", ("input-like", 1, 8)),
        (lambda w: nn.PReLU(w), "weight", ("input-like", 1, 8)),
        (lambda w: MultiLinear(4, w, 6), "weight", ("input-like", 1, 8)),
        (lambda w: MultiLinear(16, 16, w // 16), "weight", ("scalar-like", 1, 1)),
        (lambda w: nn.Linear(w, 64), "weight", ("output-like", 8, 1)),
    ],
)
def test_other_layers(make: object, name: str, expected: tuple[str, float, float]) -> None:
    """Recurrent, attention, bilinear, norms, activations, low-rank attention, fixed key/value heads."""
    assert kinds_of(make)[name] == expected


@pytest.mark.parametrize(
    "make", [lambda w: nn.RNN(w, w), lambda w: nn.GRU(5, w), lambda w: nn.LSTM(w, w), lambda w: nn.Conv2d(w, w, 3)]
)
def test_other_initialisers_are_brought_to_the_rules(make: object) -> None:
    """Input-like tensors keep the base model's std, hidden ones shrink by 1/√m, whatever MLX drew them with."""

    def std(array: mx.array) -> float:
        return mx.sqrt(mx.mean(array**2)).item()

    base, model = Holder(make(64)), Holder(make(512))  # type: ignore[operator]
    before = {path: std(array) for path, array in flat(base).items()}
    scales = parametrize(model, make_base_shapes(base, Holder(make(128))))  # type: ignore[operator]
    for path, array in flat(model).items():
        assert std(array) == pytest.approx(before[path] * scales[path].init, rel=SMALL_SAMPLE), path


def test_low_rank_attention_and_state_spaces_are_called_experimental() -> None:
    """In the table's last column."""
    from mup_families import build

    for family, word in (("deepseek_v3", "MLA"), ("mamba", "SSM")):
        scales = mup_scales(build(family, 128), make_base_shapes(build(family, 64), build(family, 128)))
        assert f"experimental: {word}" in scales.table()


def test_frozen_parameters_do_not_have_to_be_known() -> None:
    """A packed or unknown frozen tensor has no scale, and what trains has one."""
    base, delta, model = (nn.QuantizedLinear.from_linear(nn.Linear(w, w)) for w in (64, 128, 512))
    shapes = make_base_shapes(Holder(base), Holder(delta))
    assert "layer.weight" not in mup_scales(Holder(model), shapes)
    model.unfreeze()
    with pytest.raises(Refused, match="packed"):
        mup_scales(Holder(model), shapes)


def test_a_bias_free_mlp_has_no_surprises() -> None:
    """The three layers are input-like, hidden and output-like."""
    scales = mup_scales(mlp_at(512), make_base_shapes(mlp_at(64), mlp_at(128)))
    weights = {path: scale.kind for path, scale in scales.items() if path.endswith("weight")}
    assert list(weights.values()) == ["input-like", "hidden", "output-like"]


def test_an_adapter_is_no_readout() -> None:
    """A LoRA A maps to a finite size too, and must not start at zero with the head."""

    class Adapted(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer, self.logits = LoRALinear(width, width, r=4), nn.Linear(width, 7)

    scales = mup_scales(Adapted(512), make_base_shapes(Adapted, base_width=64))
    assert scales["layer.lora_a"].kind == "output-like"
    assert scales.readout.heads == ("logits.weight",)
