"""A fine-tune whose rate was tuned on another width: A and B by kind, in the run, its plan and its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx.utils import tree_flatten

from mufree import CheckpointError, Recipe, Refused, lm
from mufree.lm import finetune
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.overview import overview
from mufree.lm.tuning.prepare import Prepared, prepare
from tiny_finetune import CONFIG, make_model, settings

NARROW = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
M, RATIO, RATE = 2, 4, 1e-2
FIRST_MOVE = 1e-3  # a first Adam move is the rate up to eps over the gradient and the rounding of weights of size 1
QUICK = {"iters": 6, "learning_rate": RATE, "warmup": 2}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the same model at half the width."""
    return make_model(tmp_path_factory.mktemp("narrow") / "model", **NARROW)


def prepared(base: tuple[Path, Path], out: Path, **changes: Any) -> Prepared:
    return prepare(from_mapping(settings(*base, out, **{**QUICK, **changes})))


@pytest.mark.parametrize("optimizer", [None, "adamw_torch"])
def test_the_first_moves_are_the_rates(optimizer: str | None, base: Any, narrow: Path, tmp_path: Path) -> None:
    """lr·λ for B and lr/m for A, from adapters whose B is not zero (or A would have no gradient)."""
    finetune(settings(*base, tmp_path / "first", iters=1, learning_rate=RATE, warmup=0))
    start = str(tmp_path / "first" / "adapters.safetensors")
    given = {"iters": 1, "optimizer": optimizer, "warmup": None if optimizer else 0, "resume_adapter_file": start}
    if optimizer:
        given |= {"optimizer_config": {"adamw_torch": {"weight_decay": 0.0, "eps": 1e-14}}}
    else:
        given |= {"optimizer_config": {"schedule_free_adamw": {"eps": 1e-14}}}
    finetune(settings(*base, tmp_path / "out", learning_rate=RATE, tuned_on=str(narrow), lora_ratio=RATIO, **given))
    before, after = (mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("first", "out"))
    assert before.keys() == after.keys()
    for path, value in after.items():
        moved = mx.abs(value - before[path]).max().item()
        assert moved == pytest.approx(RATE * (RATIO if path.endswith("lora_b") else 1 / M), rel=FIRST_MOVE)


def test_a_model_that_is_its_own_base_is_tuned_as_without(base: Any, tmp_path: Path) -> None:
    """The same bits, since every multiplier is 1; at half the width they are others."""
    finals = []
    for name, changes in (("none", {}), ("own", {"base_width": 64}), ("half", {"base_width": 32})):
        finetune(settings(*base, tmp_path / name, **QUICK, **changes))
        finals.append(mx.load(str(tmp_path / name / "adapters.safetensors")))
    none, own, half = finals
    assert all(mx.array_equal(none[path], own[path]).item() for path in none)
    assert not any(mx.array_equal(none[path], half[path]).item() for path in none)


def test_every_name_of_the_base_makes_the_same_scales(base: Any, narrow: Path, tmp_path: Path) -> None:
    """A width, a model folder, a config, base shapes, a recipe."""
    shapes = lm.base_shapes(CONFIG, 32)
    shapes.save(tmp_path / "base.bsh")
    config = json.loads((narrow / "config.json").read_text())
    Recipe(
        rate=0.5, base_width=32, settings={}, model_config=config, tokenizer_hash="", updates=1, seconds=1.0,
        base_shapes={path: list(shape) for path, shape in shapes.items()},
    ).save(tmp_path / "recipe.json")  # fmt: skip
    expected = prepared(base, tmp_path / "out", base_width=32)
    assert expected.scales is not None
    assert {scale.lr for scale in expected.scales.values()} == {1, 1 / M}
    for place in (narrow, narrow / "config.json", tmp_path / "base.bsh", tmp_path / "recipe.json"):
        named = prepared(base, tmp_path / "out", tuned_on=str(place))
        assert dict(named.scales or {}) == dict(expected.scales)
        assert named.identity() == expected.identity()
        assert named.plan()["peak_lr"] == RATE  # the one given, not the recipe's


def test_a_config_that_leaves_a_default_out_is_the_same_base(base: Any, tmp_path: Path) -> None:
    """What a config does not say is mlx-lm's default, which ties a llama's embeddings; saying otherwise is refused."""
    tied = make_model(tmp_path / "tied", tie_word_embeddings=True)
    config = {name: value for name, value in {**CONFIG, **NARROW}.items() if name != "tie_word_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert prepared((tied, base[1]), tmp_path / "out", tuned_on=str(tmp_path)).scales
    with pytest.raises(Refused, match=r"tuned_on\.tie_word_embeddings: is True, the model's False"):
        prepared(base, tmp_path / "out", tuned_on=str(tmp_path))


def test_the_plan_shows_them(base: Any, narrow: Path, tmp_path: Path) -> None:
    """As a table with every number, as JSON with one entry for layers that repeat; or that there are none."""
    plain = prepared(base, tmp_path / "out")
    assert "scales      none: the rate is used as it is, for A and B alike" in overview(plain)
    assert plain.plan()["scales"] is None
    scaled = prepared(base, tmp_path / "out", tuned_on=str(narrow), lora_ratio=RATIO)
    said = overview(scaled)
    assert f"the rate is that of {narrow}; B's rate is 4 times A's there (LoRA+)" in said
    assert "model.layers.*.self_attn.q_proj.lora_a (2×)" in said
    assert "LoRA+ ratio 4" in said
    noted = scaled.plan()["scales"]
    assert (noted["tuned_on"], noted["lora_ratio"], noted["family"]) == (str(narrow), RATIO, "adam")
    group = next(group for group in noted["groups"] if group["paths"].endswith("q_proj.lora_a"))
    assert (group["count"], group["lr"], group["weight_decay"]) == (2, 1 / M, M)
    alone = prepared(base, tmp_path / "out", lora_ratio=RATIO, learning_rate=None)
    assert "the rate is that of this model itself; B's rate is 4 times" in overview(alone)
    full = prepared(base, tmp_path / "out", fine_tune_type="full")
    assert "none: the rate is used as it is, for every weight" in overview(full)


@pytest.mark.parametrize("optimizer", [None, "adamw_torch"])
def test_a_resumed_run_keeps_them(optimizer: str | None, base: Any, narrow: Path, tmp_path: Path) -> None:
    """Without a word the same bits as straight through; another base or ratio, or a base that changed, is refused."""
    given: dict[str, Any] = {"tuned_on": str(narrow), "lora_ratio": RATIO, "optimizer": optimizer}
    given |= {"warmup": None if optimizer else 2, "save_every": 3, "learning_rate": RATE}
    finetune(settings(*base, tmp_path / "straight", **given, iters=6))
    out = tmp_path / "out"
    finetune(settings(*base, out, **given, iters=3))
    for changes, says in (
        ({"lora_ratio": 2}, "lora_ratio: 2 contradicts the saved run's 4"),
        ({"tuned_on": str(base[0])}, "tuned_on: .* contradicts the saved run: it gives other multipliers"),
        ({"base_width": 32}, "base_width: 32 is given beside tuned_on"),
    ):
        with pytest.raises(Refused, match=says):
            finetune({"adapter_path": str(out), "iters": 6, **changes}, resume=True)
    finetune({"adapter_path": str(out), "iters": 6}, resume=True)
    one, other = (mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("straight", "out"))
    assert all(mx.array_equal(one[path], other[path]).item() for path in one)
    written = json.loads((out / "adapter_config.json").read_text())
    assert (written["tuned_on"], written["lora_ratio"]) == (str(narrow), RATIO)
    assert written["mufree"]["plan"]["scales"]["groups"]


def test_a_base_that_changed_is_refused(base: Any, tmp_path: Path) -> None:
    """What it scales is part of what a run shares with the one that it goes on from."""
    tuned_on = make_model(tmp_path / "base", **NARROW)
    finetune(settings(*base, tmp_path / "out", **QUICK, tuned_on=str(tuned_on)))
    config = json.loads((tuned_on / "config.json").read_text())
    (tuned_on / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    with pytest.raises(CheckpointError, match=r"tuned_on: .* contradicts the saved run: it gives other multipliers"):
        finetune({"adapter_path": str(tmp_path / "out"), "iters": 9}, resume=True)


def test_weights_and_quantised_bases_are_scaled_too(base: Any, tmp_path: Path) -> None:
    """A full fine-tune by μP's own rules; LoRA on four bits as on the plain weights."""
    full = prepared(base, tmp_path / "out", fine_tune_type="full", num_layers=1, base_width=32)
    assert full.scales is not None
    assert full.scales.keys() == dict(tree_flatten(full.model.trainable_parameters())).keys()
    assert full.scales["model.layers.1.mlp.up_proj.weight"].lr == 1 / M
    assert full.scales["model.layers.1.input_layernorm.weight"].lr == 1
    mlx_lm.convert(str(base[0]), str(tmp_path / "q"), quantize=True)
    packed = prepared((tmp_path / "q", base[1]), tmp_path / "out", base_width=32)
    assert dict(packed.scales or {}) == dict(prepared(base, tmp_path / "out", base_width=32).scales or {})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "two bases": ({"base_width": 32, "tuned_on": "x"}, "base_width: 32 is given beside tuned_on 'x'"),
    "no rate": ({"base_width": 32, "learning_rate": None}, "learning_rate: is missing, and base_width says on what"),
    "a ratio of 0": ({"lora_ratio": 0}, "lora_ratio: 0 is not allowed; give a number > 0"),
    "a ratio that is no number": ({"lora_ratio": "four"}, "lora_ratio: 'four' is not a number"),
    "a width of 0": ({"base_width": 0}, "base_width: 0 is too small"),
    "a width without heads": ({"base_width": 40}, r"base_width: 40 makes num_attention_heads 1\.25"),
    "a base that is not there": ({"tuned_on": "/nowhere"}, "tuned_on: /nowhere does not exist; give a model folder"),
    "a ratio without a B": ({"fine_tune_type": "full", "lora_ratio": 4}, "lora_ratio: 4 is for LoRA's B"),
    "mlx-lm's adam": ({"optimizer": "adam", "lora_ratio": 4}, "lora_ratio: 4 asks for scales, which mlx-lm's adam"),
    "mlx-lm's sgd": ({"optimizer": "sgd", "base_width": 32}, "base_width: 32 asks .* mlx-lm's sgd does not take"),
    "schedule-free SGD": ({"optimizer": "schedule_free_sgd", "base_width": 32}, "which schedule_free_sgd does not"),
    "a step without a rule": ({"optimizer": "adadelta", "base_width": 32}, "which adadelta does not take; leave"),
    "both": (
        {"optimizer": "adam", "base_width": 32, "lora_ratio": 4, "warmup": 3},
        r"(?s)warmup: 3 .*base_width: 32 asks.*lora_ratio: 4 asks",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_does_not_fit_is_refused(fault: str, base: Any, tmp_path: Path) -> None:
    """Under the settings' own names; nothing is written."""
    changes, says = WRONG[fault]
    with pytest.raises(Refused) as caught:
        finetune({**settings(*base, tmp_path / "out", learning_rate=RATE), **changes})
    assert re.search(says, str(caught.value)), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_base_of_another_kind_is_refused(base: Any, tmp_path: Path) -> None:
    """Another depth, a folder of something else, a file that is no base."""
    deep = make_model(tmp_path / "deep", **NARROW, num_hidden_layers=3)
    (tmp_path / "list.json").write_text("[]")
    for place, says in (
        (deep, "tuned_on.num_hidden_layers: is 3, the model's 2"),
        (base[1], r"tuned_on: .* holds no config\.json"),
        (tmp_path / "list.json", "tuned_on: .* is neither a model's config nor a recipe"),
    ):
        with pytest.raises(Refused, match=says):
            prepared(base, tmp_path / "out", tuned_on=str(place))
