"""Scales of a fine-tune: A by its width, B as it is, whatever says what the rate was tuned on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.lora import LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from mufree import AdamWScheduleFree, MuAdamW, Recipe, Refused, ShapeMismatch, lm, make_base_shapes, mup_scales
from mufree.lm.configs import new_config

BASE, WIDTH, M = 32, 128, 4
KEYS = ["self_attn.q_proj", "mlp.down_proj"]
RANK = 3


def config(model_type: str = "llama", width: int = WIDTH, **fields: Any) -> dict[str, Any]:
    return new_config(
        model_type, width=width, layers=2, head_dim=16, vocab_size=48, max_length=64, fields=fields or None
    )


def adapted(settings: dict[str, Any], *, dora: bool = False, bits: int = 0, keys: list[str] | None = None) -> nn.Module:
    model = lm.build(settings)
    model.freeze()
    if bits:
        nn.quantize(model, 32, bits)
    linear_to_lora_layers(model, 2, {"rank": RANK, "scale": 10.0, "dropout": 0.0, "keys": keys or KEYS}, use_dora=dora)
    return model


def trained(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.trainable_parameters()))


def what(scale: Any) -> tuple[str, float, float, float, float]:
    return (scale.kind, scale.lr, scale.eps, scale.weight_decay, scale.init)


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("dora", [False, True])
def test_factors_are_scaled_by_what_they_map(dora: bool, bits: int) -> None:
    """A: rate/m, decay·m, the start that mlx-lm gives it; B and DoRA's m: the rate; a packed base says nothing else."""
    model = adapted(config(), dora=dora, bits=bits)
    scales = lm.lora_scales(model, BASE)
    assert set(scales) == set(trained(model))
    for path, scale in scales.items():
        name = path.rsplit(".", 1)[1]
        expected = {
            "lora_a": ("output-like", 1 / M, 1.0, M, M**-0.5),
            "lora_b": ("input-like", 1.0, 1 / M, 1.0, 1.0),
            "m": ("input-like", 1.0, 1 / M, 1.0, 1.0),
        }[name]
        assert what(scale) == expected
    assert any(path.endswith(".m") for path in scales) == dora
    down = "model.layers.0.mlp.down_proj.lora_a"
    assert [(dim.base, dim.size) for dim in scales.dims[down]] == [(4 * BASE, 4 * WIDTH), (None, RANK)]


def test_every_way_to_name_the_base_says_the_same(tmp_path: Path) -> None:
    """A width, a config, its file, its folder, base shapes, a recipe with and without a config, and its file."""
    model, base = adapted(config()), config(width=BASE)
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(base))
    shapes = lm.base_shapes(config(), BASE)
    shapes.save(tmp_path / "base.bsh")
    recipe = Recipe(
        rate=0.01, base_width=BASE, settings={}, model_config=base, tokenizer_hash="", updates=1, seconds=1.0,
        base_shapes={path: list(shape) for path, shape in shapes.items()},
    )  # fmt: skip
    recipe.save(tmp_path / "recipe.json")
    expected = lm.lora_scales(model, BASE).by_path
    places = [folder, folder / "config.json", tmp_path / "base.bsh", str(tmp_path / "recipe.json")]
    for named in [base, shapes, recipe, replace(recipe, model_config={}), *places]:
        assert lm.lora_scales(model, named).by_path == expected


def test_the_ratio_is_that_of_the_base_model() -> None:
    """B's rate over A's: λ at the base, λ·m at m times its width, and λ where no base is named; decay as it was."""
    model = adapted(config())
    a, b = (f"model.layers.1.self_attn.q_proj.{name}" for name in ("lora_a", "lora_b"))
    for base, quotient in ((BASE, 16 * M), (WIDTH, 16), (None, 16)):
        scales = lm.lora_scales(model, base, ratio=16)
        assert scales[b].lr == 16
        assert scales[b].lr / scales[a].lr == quotient
        assert (scales[b].weight_decay, scales[b].note) == (1, "LoRA+ ratio 16")
    assert set(lm.lora_scales(adapted(config(), dora=True), None, ratio=16).by_path) > {a, b}
    magnitude = lm.lora_scales(adapted(config(), dora=True), None, ratio=16)["model.layers.1.self_attn.q_proj.m"]
    assert magnitude.lr == 1


def test_finite_factors_and_the_head() -> None:
    """An embedding's A and the head's B have no width; a vector that is trained beside adapters is input-like."""
    model = adapted(config(), keys=["model.embed_tokens", "lm_head"])
    model.model.norm.unfreeze()
    scales = lm.lora_scales(model, BASE)
    assert {path: (scale.kind, scale.lr) for path, scale in scales.items()} == {
        "model.embed_tokens.lora_a": ("scalar-like", 1),
        "model.embed_tokens.lora_b": ("input-like", 1),
        "lm_head.lora_a": ("output-like", 1 / M),
        "lm_head.lora_b": ("scalar-like", 1),
        "model.norm.weight": ("input-like", 1),
    }


def test_experts() -> None:
    """Every expert's factors as a single matrix's, in the order (expert, rank, in) and (expert, out, rank)."""

    def experts(width: int) -> Any:
        return nn.Sequential(SwitchLinear(width, 2 * width, 5))

    model = experts(WIDTH)
    model.freeze()
    model.layers[0] = LoRASwitchLinear.from_base(model.layers[0], r=RANK)
    scales = lm.lora_scales(model, make_base_shapes(experts(BASE), experts(2 * BASE)))
    assert {path: (s.kind, s.lr, s.m_in, s.m_out) for path, s in scales.items()} == {
        "layers.0.lora_a": ("output-like", 1 / M, M, 1),
        "layers.0.lora_b": ("input-like", 1, 1, M),
    }


@pytest.mark.parametrize(("dora", "carrier", "other"), [(False, "lora_b", "lora_a"), (True, "m", "lora_b")])
def test_a_forward_multiplier_counts_once(dora: bool, carrier: str, other: str) -> None:
    """Gemma multiplies its embedding by √width: one factor of the adapter gets the inverse, the other none."""
    model = adapted(config("gemma"), dora=dora, keys=["model.embed_tokens"])
    scales = lm.lora_scales(model, BASE)
    assert scales[f"model.embed_tokens.{carrier}"].multiplier == pytest.approx(M**0.5)
    assert scales[f"model.embed_tokens.{carrier}"].lr == pytest.approx(M**-0.5 if not dora else 1)
    assert scales[f"model.embed_tokens.{other}"].multiplier == 1
    assert lm.lora_scales(model, None, ratio=2)[f"model.embed_tokens.{carrier}"].multiplier == 1


def test_weights_themselves_are_scaled_as_mup_does() -> None:
    """Without adapters: mup's own scales, of the trained leaves alone."""
    model = lm.build(config())
    model.freeze()
    model.model.layers[1].unfreeze()
    whole = mup_scales(lm.build(config()), lm.base_shapes(config(), BASE))
    scales = lm.lora_scales(model, BASE)
    assert dict(scales) == {path: scale for path, scale in whole.items() if path in trained(model)}
    assert "head is not trained" in scales.table()
    model.unfreeze()
    assert dict(lm.lora_scales(model, BASE)) == dict(whole)


def test_the_table_names_every_number() -> None:
    """One line for layers that repeat, the base sizes, the ratio."""
    table = lm.lora_scales(adapted(config()), BASE, ratio=16).table()
    assert "model.layers.*.self_attn.q_proj.lora_a (2×)  32→128 × 3   output-like  4" in table
    assert "LoRA+ ratio 16" in table
    assert "every multiplier is 1" in lm.lora_scales(adapted(config()), WIDTH).table().lower()


FIRST_MOVE = 1e-3  # a first Adam move is the rate up to eps over the gradient and the rounding of weights of size 1


@pytest.mark.parametrize("optimizer", ["schedule_free", "adamw"])
def test_optimizers_take_them(optimizer: str) -> None:
    """The first moves are the rates: lr·λ for B, lr/m for A (of a B that is not zero, or A would have no gradient)."""
    model = adapted(config())
    given = trained(model)
    model.load_weights(
        [(path, mx.random.normal(value.shape)) for path, value in given.items() if path.endswith("lora_b")],
        strict=False,
    )
    before = trained(model)
    scales = lm.lora_scales(model, BASE, ratio=4)
    made: Any = AdamWScheduleFree(learning_rate=1e-2, scales=scales, eps=1e-14)
    if optimizer == "adamw":
        made = MuAdamW(model, scales, learning_rate=1e-2, eps=1e-14, bias_correction=True, weight_decay=0.0)
    ids = mx.array([[3, 1, 4]])
    made.update(model, nn.value_and_grad(model, lambda m: m(ids).logsumexp(-1).mean())(model)[1])
    assert before
    for path, value in trained(model).items():
        moved = float(mx.abs(value - before[path]).max().item())
        assert moved == pytest.approx(1e-2 * (4 if path.endswith("lora_b") else 1 / M), rel=FIRST_MOVE)


def test_at_the_base_width_nothing_changes() -> None:
    """The same bits with the scales of the base itself as without scales."""
    finals = []
    for scaled in (True, False):
        mx.random.seed(3)
        model = adapted(config())
        optimizer = AdamWScheduleFree(learning_rate=1e-2, scales=lm.lora_scales(model, WIDTH) if scaled else None)
        for step in range(3):
            ids = mx.array([[3, 1, 4 + step]])
            gradient = nn.value_and_grad(model, lambda m, ids: m(ids).logsumexp(-1).mean())(model, ids)[1]
            optimizer.update(model, gradient)
        finals.append({path: np.array(value) for path, value in trained(model).items()})
    assert all(np.array_equal(finals[0][path], finals[1][path]) for path in finals[0])


def changes(width: int, scaled: bool) -> tuple[float, float]:
    """How far an adapter of one frozen layer moves its output and its x·A in ten updates at one rate."""

    def layer(size: int) -> Any:
        return nn.Sequential(nn.Linear(size, size, bias=False))

    mx.random.seed(0)
    model = layer(width)
    model.freeze()
    adapter = model.layers[0] = LoRALinear.from_base(model.layers[0], r=4, scale=1.0)
    scales = lm.lora_scales(model, make_base_shapes(layer(64), layer(128))) if scaled else None
    optimizer = AdamWScheduleFree(learning_rate=0.02, scales=scales)
    x = mx.random.normal((32, width), key=mx.random.key(1))
    readout = mx.random.normal((width,), key=mx.random.key(2)) / width
    target = mx.random.normal((32,), key=mx.random.key(4))
    output, inner = model(x), x @ adapter.lora_a

    def loss(model: Any) -> Any:
        return ((model(x) @ readout - target) ** 2).mean()

    for _ in range(10):
        optimizer.update(model, nn.value_and_grad(model, loss)(model)[1])
    return tuple(
        float(mx.abs(new - old).mean().item()) for new, old in ((model(x), output), (x @ adapter.lora_a, inner))
    )


SPREAD = 1.3  # what coordinate checks allow between widths


def test_coordinates_move_alike_at_every_width_and_without_scales_they_do_not() -> None:
    """16 times as wide, with the rate of the narrow layer; in the control x·A moves with the width."""
    narrow = changes(64, scaled=True)
    assert narrow == changes(64, scaled=False)
    wide = changes(1024, scaled=True)
    print(narrow, wide, changes(1024, scaled=False))
    for before, after in zip(narrow, wide, strict=True):
        assert before / SPREAD < after < before * SPREAD
    assert changes(1024, scaled=False)[1] > 2 * narrow[1]


@pytest.mark.parametrize(
    ("base", "options", "says"),
    [
        (None, {}, "base: neither a base nor a ratio"),
        (40, {}, "config.*40|width: 40 makes num_attention_heads"),
        (0, {}, "width: 0 is not a positive whole number"),
        (True, {}, "base: True is no recipe"),
        (2.5, {}, "base: 2.5 is no recipe"),
        ({**config(width=BASE), "num_hidden_layers": 3}, {}, "base.num_hidden_layers: is 3, the model's 2"),
        ({**config(width=BASE), "vocab_size": 50}, {}, "base.vocab_size: is 50"),
        (config("qwen3", width=BASE), {}, "base.model_type: is 'qwen3', the model's 'llama'"),
        ({**config(width=BASE), "head_dim": 8}, {}, "base.head_dim: is 8"),
        ({**config(), "tie_word_embeddings": True}, {}, "base.tie_word_embeddings: is True"),
        ("nowhere", {}, "base: nowhere does not exist"),
        (BASE, {"ratio": 0}, "ratio: 0 is not a finite number > 0"),
        (BASE, {"ratio": True}, "ratio: True"),
        (BASE, {"ratio": float("inf")}, "ratio: inf"),
        (BASE, {"family": "adamax"}, "family: 'adamax' is none of"),
        (BASE, {"weight_decay": "full", "ratio": -1}, "(?s)ratio: -1.*weight_decay: 'full'"),
        (BASE, {"overrides": {"nothing.*": "hidden"}}, "'nothing.*' matches no parameter"),
        (make_base_shapes({"w": (4, 4)}, {"w": (8, 8)}), {}, "the base has no model.layers.0.self_attn.q_proj.weight"),
    ],
)
def test_what_does_not_fit_is_refused(base: Any, options: dict[str, Any], says: str) -> None:
    """With where, what and the remedy; a base of another depth, family, vocabulary or head size among them."""
    with pytest.raises(Refused, match=says):
        lm.lora_scales(adapted(config()), base, **options)


def test_files_that_are_no_base_are_refused(tmp_path: Path) -> None:
    """A folder without a config, JSON of something else, no JSON."""
    model = adapted(config())
    with pytest.raises(Refused, match=r"holds no config\.json"):
        lm.lora_scales(model, tmp_path)
    for text, says in (('{"a": 1}', "neither a model's config nor a recipe"), ("{", "no JSON file that can be read")):
        (tmp_path / "base.json").write_text(text)
        with pytest.raises(Refused, match=says):
            lm.lora_scales(model, tmp_path / "base.json")


def test_models_that_do_not_fit_are_refused() -> None:
    """Nothing trainable; a ratio without adapters; no config to be had; a vocabulary that is no width."""
    frozen = lm.build(config())
    frozen.freeze()
    with pytest.raises(Refused, match="model: has no trainable parameter; attach LoRA layers"):
        lm.lora_scales(frozen, BASE)
    frozen.unfreeze()
    with pytest.raises(Refused, match="ratio: 16 is for LoRA's B"):
        lm.lora_scales(frozen, BASE, ratio=16)
    plain = nn.Sequential(LoRALinear(64, 64, r=4))
    with pytest.raises(Refused, match="config: is needed to find the base model's sizes"):
        lm.lora_scales(plain, 16)
    other = adapted({**config(), "vocab_size": 50}, keys=["lm_head"])
    with pytest.raises(ShapeMismatch, match=r"lm_head\.lora_b: axis 1 is 50 and 48 in the base"):
        lm.lora_scales(other, lm.base_shapes(config(), BASE))


def test_a_base_without_its_multiplier_is_refused() -> None:
    """A recipe without a config cannot say by what its gemma multiplied the embedding."""
    model = adapted(config("gemma"), keys=["model.embed_tokens"])
    shapes = lm.base_shapes(config("gemma"), BASE)
    with pytest.raises(Refused, match=r"does not say its multiplier of \*embed_tokens.weight; give its config"):
        lm.lora_scales(model, replace(shapes, forward={}))


def test_the_model_is_only_looked_at() -> None:
    """Weights, freezing and the random state are as before."""
    model = adapted(config())
    before, state = trained(model), mx.array(mx.random.state[0])
    lm.lora_scales(model, BASE)
    assert all(trained(model)[path] is value for path, value in before.items())
    assert mx.array_equal(mx.random.state[0], state).item()
