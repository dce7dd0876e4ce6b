"""Forms that must train identically: Lemma J.1, the tied head's two ways, and base width beside no μP at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import granite
from mup_families import build
from mup_lemma import UPDATES, lemma_losses
from mup_models import flat, identical

from mufree import (
    AdamWScheduleFree,
    MuAdamW,
    MuAdamWScheduleFree,
    MuSGD,
    RAdamScheduleFree,
    Scales,
    SGDScheduleFree,
    make_base_shapes,
    parametrize,
)

# What a wrong eps or decay changes in the loss, from the lemma's own controls; exact forms differ by 0.
NOTICED = 1e-6
# Three is no power of two: a factor of 1/3 rounds, 1e-7 an update on a loss of 4.
AT_THREE = 1e-5


RULES: dict[str, Callable[[Any, Scales], optim.Optimizer]] = {
    "AdamWScheduleFree": lambda _, s: AdamWScheduleFree(0.01, eps=1e-3, weight_decay=0.5, warmup_steps=3, scales=s),
    "RAdamScheduleFree": lambda _, s: RAdamScheduleFree(0.01, eps=1e-3, weight_decay=0.5, scales=s),
    "MuAdamW": lambda net, s: MuAdamW(net, s, learning_rate=0.01, eps=1e-3, weight_decay=0.5),
}


@pytest.mark.parametrize("theta", [1 / 8, 8.0])
@pytest.mark.parametrize("name", RULES)
def test_lemma_j1_is_exact(name: str, theta: float) -> None:
    """A·θ, init/θ, rate/θ, eps·θ, decay·θ: the losses of 30 updates are the same to the last bit of float64."""
    assert lemma_losses(theta, RULES[name]) == lemma_losses(1.0, RULES[name])


@pytest.mark.parametrize("theta", [1 / 8, 8.0])
@pytest.mark.parametrize("rule", [{"scale_eps": False}, {"weight_decay": "standard"}])
def test_without_the_eps_or_the_decay_rule_the_lemma_fails(theta: float, rule: dict[str, Any]) -> None:
    """All four have to move together."""
    make = RULES["AdamWScheduleFree"]
    one, other = lemma_losses(1.0, make, **rule), lemma_losses(theta, make, **rule)
    assert abs(one[-1] - other[-1]) > NOTICED


@pytest.mark.parametrize("theta", [1 / 8, 8.0])
def test_lemma_j1_is_exact_for_sgd(theta: float) -> None:
    """There the rate goes with θ², schedule-free or not."""
    for make in (
        lambda net, s: MuSGD(net, s, learning_rate=2.0**-9, momentum=0.5, weight_decay=0.5),
        lambda _, s: SGDScheduleFree(2.0**-9, weight_decay=0.5, scales=s),
    ):
        assert lemma_losses(theta, make, family="sgd") == lemma_losses(1.0, make, family="sgd")


def granite_at(width: int, scaling: float) -> nn.Module:
    return granite.Model(
        granite.ModelArgs(
            model_type="granite",
            hidden_size=width,
            num_hidden_layers=2,
            intermediate_size=2 * width,
            num_attention_heads=width // 16,
            num_key_value_heads=width // 16,
            rms_norm_eps=1e-5,
            vocab_size=48,
            logits_scaling=scaling,
            attention_multiplier=1 / 16,
            embedding_multiplier=2.0,
            residual_multiplier=0.5,
            max_position_embeddings=64,
            attention_bias=False,
            mlp_bias=False,
            rope_theta=1e4,
            tie_word_embeddings=True,
        )
    )


def tied_losses(width: int, scaling: float) -> tuple[list[float], dict[str, mx.array], Scales]:
    shapes = make_base_shapes(granite_at(32, 1.0), granite_at(64, scaling))
    mx.random.seed(3)
    model = granite_at(width, scaling)
    scales = parametrize(model, shapes)
    optimizer = AdamWScheduleFree(2.0**-7, eps=1e-4, weight_decay=0.25, warmup_steps=4, scales=scales)
    tokens = mx.random.randint(0, 48, (2, 9))

    def loss(model: nn.Module) -> mx.array:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    found = []
    for _ in range(UPDATES):
        value, gradients = nn.value_and_grad(model, loss)(model)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        found.append(value.item())
    return found, flat(model), scales


@pytest.mark.parametrize(("m", "tolerance"), [(8, 0.0), (3, AT_THREE)])
def test_the_norms_gain_does_what_granites_logits_scaling_does(m: int, tolerance: float) -> None:
    """The two ways of a tied head give the same losses over 30 updates: to the bit where m is a power of two."""
    by_config, weights, configured = tied_losses(32 * m, float(m))
    by_gain, others, absorbed = tied_losses(32 * m, 1.0)
    assert configured["model.norm.weight"].lr == 1
    assert absorbed["model.norm.weight"].lr == pytest.approx(1 / m)
    assert max(abs(a - b) for a, b in zip(by_config, by_gain, strict=True)) <= tolerance
    assert by_config[-1] < by_config[0] - 0.5
    if tolerance == 0:
        others["model.norm.weight"] = others["model.norm.weight"] * m
        assert identical(weights, others)


ARCHITECTURES = ("llama", "qwen3", "granite", "gemma", "gemma2", "mixtral", "deepseek_v3", "mamba2", "gpt2", "phi")


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_at_base_width_training_is_that_without_mup(family: str) -> None:
    """Three updates with and without scales, on the same start, leave the same bits."""
    shapes = make_base_shapes(build(family, 64), build(family, 128))
    tokens = mx.random.randint(0, 48, (2, 8))
    ends = []
    for with_mup in (False, True):
        mx.random.seed(5)
        model = build(family, 64)
        if with_mup:
            scales = parametrize(model, shapes)
            optimizer = MuAdamWScheduleFree(model, scales, learning_rate=0.01, weight_decay=0.1)
        else:
            optimizer = AdamWScheduleFree(learning_rate=0.01, weight_decay=0.1)

        def loss(model: nn.Module) -> mx.array:
            return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()

        model.train()
        for _ in range(3):
            gradients = nn.value_and_grad(model, loss)(model)[1]
            optimizer.update(model, gradients)
        ends.append(dict(tree_flatten(model.parameters())))
    assert identical(*ends)
