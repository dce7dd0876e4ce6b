"""The four families that are built at a width, with tied heads and their three ways to a 1/m."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten

from mufree import MuAdam, lm, parametrize
from mufree.lm.configs import ARCHITECTURES, new_config
from mufree.lm.tokenizer import byte_tokenizer

BASE = 64
TIED = ("llama", "granite", "gemma")
# Four updates of 2^-8 lower the loss on one batch by 0.1 and more; float32 noise is 1e-6.
LEARNT = 0.02
# Logits of the reloaded model: written and read as float32, the same operations.
SAME = 1e-5


def config_of(model_type: str, width: int, **fields: Any) -> dict[str, Any]:
    return new_config(model_type, width=width, layers=2, head_dim=32, vocab_size=257, max_length=64, fields=fields)


def trained(model_type: str, width: int) -> tuple[nn.Module, dict[str, Any], float, float]:
    config = (
        config_of(model_type, width, tie_word_embeddings=True)
        if model_type == "llama"
        else config_of(model_type, width)
    )
    model = lm.build(config)
    scales = parametrize(model, lm.base_shapes(config, BASE))
    optimizer = MuAdam(model, scales, learning_rate=2.0**-8, bias_correction=True)
    tokens = mx.random.randint(0, 257, (2, 17))

    def loss(model: nn.Module) -> mx.array:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    before = loss(model).item()
    for _ in range(4):
        optimizer.update(model, nn.value_and_grad(model, loss)(model)[1])
    return model, config, before, loss(model).item()


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_width_keeps_every_ratio(model_type: str) -> None:
    """At another width a config is the one that would have been written there."""
    assert lm.at_width(config_of(model_type, 64), 512) == config_of(model_type, 512)
    assert lm.at_width(config_of(model_type, 512), 64) == config_of(model_type, 64)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_at_base_width_nothing_is_scaled(model_type: str) -> None:
    """Every multiplier is 1 and no weight changes."""
    config = config_of(model_type, BASE)
    model = lm.build(config)
    before = dict(tree_flatten(model.parameters()))
    scales = parametrize(model, lm.base_shapes(config, BASE))
    after = dict(tree_flatten(model.parameters()))
    assert all(mx.array_equal(before[path], after[path]).item() for path in before)
    assert {n for s in scales.values() for n in (s.m_in, s.multiplier, s.init, s.lr, s.eps, s.weight_decay)} == {1.0}


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("llama", "untied head lm_head.weight, by init and rates alone"),
        ("qwen3", "untied head lm_head.weight, by init and rates alone"),
        ("granite", "tied head model.embed_tokens.weight, through a multiplier of the model's own"),
        # Gemma multiplies its embedding by √d, which has given the head √m already: 1/√m is left.
        ("gemma", r"through the gain of model.norm.weight (× 0.353553)"),
    ],
)
def test_the_table_names_the_way_to_the_readouts_multiplier(model_type: str, words: str) -> None:
    """Three ways, chosen by the model."""
    config = config_of(model_type, 512)
    assert words in parametrize(lm.build(config), lm.base_shapes(config, BASE)).table()


@pytest.mark.parametrize("model_type", TIED)
def test_a_tied_model_trains_loads_quantises_and_generates_in_stock_mlx_lm(model_type: str, tmp_path: Path) -> None:
    """What is exported is what mlx-lm itself loads, converts and samples from."""
    model, config, before, after = trained(model_type, 128)
    assert after < before - LEARNT
    lm.export(tmp_path / "model", model, config, byte_tokenizer())
    loaded, tokenizer = mlx_lm.load(str(tmp_path / "model"))
    tokens = mx.array([[1, 2, 3, 4]])
    assert mx.abs(loaded(tokens) - model(tokens)).max().item() < SAME
    assert "mup" not in (tmp_path / "model" / "config.json").read_text()
    mlx_lm.convert(str(tmp_path / "model"), mlx_path=str(tmp_path / "small"), quantize=True)
    small, tokenizer = mlx_lm.load(str(tmp_path / "small"))
    assert isinstance(mlx_lm.generate(small, tokenizer, "ab", max_tokens=3), str)
