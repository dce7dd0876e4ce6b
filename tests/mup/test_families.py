"""Every model family of mlx-lm: built small, scaled, and updated once; the counts are those of the README."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mup_families import VOCABULARY, build, families

from mufree import MuAdam, Refused, make_base_shapes, parametrize

BUILT, UPDATED = 124, 118
# mlx-lm 0.32.2: its import ends the process without another package; a format for packed weights only.
NOT_BUILT = {"olmo": SystemExit, "prism_hadamard_qwen35": ValueError}
REFUSED = {"bitnet": "packed weights that no gradient can train"}
# Their scales are made; their own forward or backward pass does not run here, for reasons of their own.
NOT_RUN = {
    "deepseek_v41": "gather_axis has no gradient for its indices",
    "muse_spark": "a Metal kernel without a CPU form",
    "phi3small": "writes at fixed token ids beyond a small vocabulary",
    "rwkv7": "normalises a vector that it starts at zero, whose gradient is not a number",
    "recurrent_gemma": "its class skips nn.Module's constructor",
}
RUN = sorted(set(families()) - NOT_BUILT.keys() - REFUSED.keys() - NOT_RUN.keys())


def test_the_counts_are_as_stated() -> None:
    """Of the modules with a model class, how many are built and how many are trained for an update."""
    assert len(families()) == BUILT + len(NOT_BUILT)
    assert len(RUN) == UPDATED


@pytest.mark.parametrize("family", NOT_BUILT)
def test_what_is_not_built_cannot_be(family: str) -> None:
    """The family's own code says so."""
    with pytest.raises(NOT_BUILT[family]):
        build(family, 64)


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_refused_says_why(family: str) -> None:
    """A refusal names the parameter and what is missing."""
    with pytest.raises(Refused, match=REFUSED[family]):
        parametrize(build(family, 128), make_base_shapes(build(family, 64), build(family, 128)))


@pytest.mark.parametrize("family", NOT_RUN)
def test_the_others_have_scales(family: str) -> None:
    """A table at least."""
    model = build(family, 128)
    scales = parametrize(model, make_base_shapes(build(family, 64), build(family, 128)))
    assert "hidden" in scales.table()


@pytest.mark.parametrize("family", RUN)
def test_a_family_is_scaled_and_updated(family: str) -> None:
    """Twice as wide as its base, two updates leave every weight finite and move hidden and input-like ones."""
    model = build(family, 128)
    scales = parametrize(model, make_base_shapes(build(family, 64), build(family, 128)))
    assert {"hidden", "input-like"} <= {scale.kind for scale in scales.values()}
    assert scales.readout.way != "no readout"
    optimizer = MuAdam(model, scales, learning_rate=0.01, bias_correction=True)
    tokens = mx.random.randint(0, VOCABULARY, (2, 8))

    def loss(model: nn.Module) -> mx.array:
        logits = model(tokens).astype(mx.float32)
        return nn.losses.cross_entropy(logits[:, :-1], tokens[:, 1:]).mean()

    model.train()
    before = dict(tree_flatten(model.trainable_parameters()))
    for _ in range(2):  # a head that starts at zero keeps the rest still for one update
        optimizer.update(model, nn.value_and_grad(model, loss)(model)[1])
    after = dict(tree_flatten(model.trainable_parameters()))
    assert all(mx.isfinite(array).all().item() for array in after.values())
    moved = {scales[path].kind for path in after if not mx.array_equal(before[path], after[path]).item()}
    assert {"hidden", "input-like"} <= moved
