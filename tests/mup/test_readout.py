from __future__ import annotations

import subprocess
import sys
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import gemma
from mup_families import build
from mup_models import flat, llama_at

from mufree import BaseShapes, Refused, make_base_shapes, mup_scales, parametrize

SECONDS, MEGABYTES = 2.0, 400.0


class Tied(nn.Module):
    """A model of one's own that calls the embedding's as_linear, with the norms it is given."""

    def __init__(self, width: int, norms: int = 1, kind: type[nn.Module] = nn.RMSNorm) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.layers = [nn.Linear(width, width)]
        for n in range(norms):
            self[f"norm{n}"] = kind(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.layers[0](self.tokens(tokens))
        return self.tokens.as_linear(self.norm0(h))


def shapes_of(**settings: Any) -> BaseShapes:
    return make_base_shapes(Tied(64, **settings), Tied(128, **settings))


def test_a_tied_head_of_ones_own_is_found_by_as_linear() -> None:
    """The gain of the norm after the layers carries the head's 1/m: start, rate, decay; eps is the base's."""
    model = Tied(512)
    scales = parametrize(model, shapes_of())
    assert scales["tokens.weight"].kind == "input-like"
    gain = scales["norm0.weight"]
    assert (gain.init, gain.lr, gain.eps, gain.weight_decay, gain.multiplier) == (1 / 8, 1 / 8, 1, 8, 1)
    assert mx.all(model.norm0.weight == 1 / 8).item()
    assert "carries the head's 0.125" in scales.table()


def test_a_norms_bias_carries_its_share_too() -> None:
    """Both what it multiplies and what it adds go through the head."""
    scales = mup_scales(Tied(512, kind=nn.LayerNorm), shapes_of(kind=nn.LayerNorm))
    assert scales.readout.gains == ("norm0.weight", "norm0.bias")
    assert scales["norm0.bias"].lr == 1 / 8


def test_a_gain_of_one_plus_w_starts_at_two_over_m_minus_one_and_does_not_decay() -> None:
    """mlx-lm's Gemma norm starts at w = 1; decay would pull w to 0, which is m times too much."""
    model = Tied(512, kind=gemma.RMSNorm)
    scales = parametrize(model, shapes_of(kind=gemma.RMSNorm))
    assert mx.all(model.norm0.weight == 2 / 8 - 1).item()
    assert (scales["norm0.weight"].lr, scales["norm0.weight"].weight_decay) == (1 / 8, 0)


def test_gemmas_embedding_has_given_the_head_its_root_already() -> None:
    """h = √d·W[token] makes A = √m for the embedding, so 1/√m is left for the head; its own start is MLX's."""
    model = build("gemma", 256)
    before = model.model.embed_tokens.weight
    scales = parametrize(model, make_base_shapes(build("gemma", 64), build("gemma", 128)))
    embedding, gain = scales["model.embed_tokens.weight"], scales["model.norm.weight"]
    assert (embedding.multiplier, embedding.init, embedding.lr, embedding.eps) == (2, 1 / 2, 1 / 2, 1 / 2)
    assert (gain.init, gain.lr) == (1 / 2, 1 / 2)
    assert mx.array_equal(model.model.embed_tokens.weight, before).item()


@pytest.mark.parametrize("norms", [0, 2])
def test_no_single_final_norm_is_refused(norms: int) -> None:
    """Until it is named."""
    with pytest.raises(Refused, match=r"tokens\.weight: is embedding and head at once"):
        mup_scales(Tied(512, norms), shapes_of(norms=norms))
    if norms:
        named = mup_scales(Tied(512, norms), shapes_of(norms=norms), readout_gain="norm1.*")
        assert named.readout.gains == ("norm1.weight",)


def test_an_untied_head_leaves_the_norm_alone() -> None:
    """Table 3 needs no forward change."""
    scales = mup_scales(llama_at(512), make_base_shapes(llama_at(64), llama_at(128)))
    assert scales.readout.way == "untied head"
    assert scales["model.norm.weight"].lr == 1


def test_a_models_own_multipliers_need_the_base_models() -> None:
    """A file that mup wrote does not say by how much the base divides its logits; ours does."""
    shapes = make_base_shapes(build("granite", 64), build("granite", 128))
    with pytest.raises(Refused, match="forward multipliers of its own"):
        mup_scales(build("granite", 256), BaseShapes(shapes.widths))
    assert mup_scales(build("granite", 256), shapes).readout.way == "untied head"


def test_minicpm_has_its_readout_by_the_base_width_in_its_config() -> None:
    """lm_head's input is divided by hidden_size / dim_model_base: A = 1/m, Table 8."""
    models = [build("minicpm", width) for width in (64, 128, 256)]
    for model in models:
        model.args.dim_model_base = 64
    scales = mup_scales(models[2], make_base_shapes(*models[:2]))
    head = scales["lm_head.weight"]
    assert (head.multiplier, head.init, head.lr, head.eps) == (1 / 4, 1, 1, 1 / 4)


def test_queries_start_at_zero_through_their_norms_gain() -> None:
    """A norm would undo the projection's zero at the first update."""
    model = build("qwen3", 128)
    parametrize(model, make_base_shapes(build("qwen3", 64), build("qwen3", 128)), zero_query=True)
    zero = {path.split(".", 3)[-1] for path, array in flat(model).items() if not mx.any(array).item()}
    assert zero == {"self_attn.q_norm.weight"}


def test_a_fused_projection_starts_with_zero_rows_for_its_queries() -> None:
    """And leaves keys and values."""
    model = build("phi3", 128)
    parametrize(model, make_base_shapes(build("phi3", 64), build("phi3", 128)), zero_query=True)
    weight = model.model.layers[0].self_attn.qkv_proj.weight
    assert not mx.any(weight[:128]).item()
    assert mx.all(mx.any(weight[128:], axis=1)).item()


def test_a_fused_projection_that_is_drawn_anew_keeps_its_other_rows_std() -> None:
    """Its keys and values have the std that was asked for, its queries none; its bias is zeroed alike."""
    model = build("gpt2", 256)
    shapes = make_base_shapes(build("gpt2", 64), build("gpt2", 128))
    parametrize(model, shapes, init={"*c_attn.weight": 0.5}, zero_query=True)
    layer = model.model.h[0].attn.c_attn
    assert not mx.any(layer.weight[:256]).item()
    assert not mx.any(layer.bias[:256]).item()
    assert mx.sqrt(mx.mean(layer.weight[256:] ** 2)).item() == pytest.approx(0.5 / 2, rel=0.05)


@pytest.mark.slow
def test_an_eight_billion_parameter_llama_takes_no_memory() -> None:
    """Base shapes and scales of a lazy model: under 2 s and 400 MB, the whole process."""
    code = f"""
import pathlib, resource, sys, time
from mlx_lm.models import llama
from mufree import make_base_shapes, mup_scales
def make(width):
    return llama.Model(llama.ModelArgs(
        model_type="llama", hidden_size=width, num_hidden_layers=32, intermediate_size=width * 7 // 2,
        num_attention_heads=width // 128, num_key_value_heads=width // 512, head_dim=128, rms_norm_eps=1e-5,
        vocab_size=128256, tie_word_embeddings=False))
start = time.process_time()  # a busy machine has a slow clock
scales = mup_scales(make(4096), make_base_shapes(make, base_width=512))
took = time.process_time() - start
status = pathlib.Path("/proc/self/status")
if status.exists():  # ru_maxrss would count the test process that this one was forked from
    peak = int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
assert len(scales) == 291, len(scales)
assert took < {SECONDS}, took
assert peak < {MEGABYTES}, peak
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class ByWeight(Tied):
    """Its head multiplies with the embedding's weight itself."""

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.norm0(self.layers[0](self.tokens(tokens))) @ self.tokens.weight.T


class Inherited(ByWeight):
    """Its forward pass is its base's."""


class Alias(nn.Module):
    """The head is the embedding under another name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.layers = [nn.Linear(width, width)]
        self.norm = nn.RMSNorm(width)
        self.head = self.tokens

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.head.as_linear(self.norm(self.layers[0](self.tokens(tokens))))


@pytest.mark.parametrize("kind", [ByWeight, Inherited, Alias])
def test_other_ways_to_tie_are_found_too(kind: type[nn.Module]) -> None:
    """A head that is not found would have no 1/m, and nothing would say so."""
    scales = mup_scales(kind(512), make_base_shapes(kind, base_width=64))
    assert scales.readout.way == "tied head"
    assert scales.readout.share == 1 / 8
    assert len(scales.readout.gains) == 1


def test_a_head_that_takes_its_own_weight_is_not_tied() -> None:
    """Nor is an embedding whose weight is looked up or asked its dtype."""

    class Own(Tied):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.head = nn.Linear(width, 3)

        def __call__(self, tokens: mx.array) -> mx.array:
            h = self.tokens(tokens) + self.tokens.weight[:1]
            h = self.norm0(self.layers[0](h.astype(self.tokens.weight.dtype)))
            return h @ self.head.weight.T

    scales = mup_scales(Own(512), make_base_shapes(Own, base_width=64))
    assert scales.readout.heads == ("head.weight",)


def test_a_trained_norms_bias_does_not_look_like_one_plus_w() -> None:
    """What a norm adds to its gain is told apart from what it adds to its output: the gain decays."""
    model = Tied(512, kind=nn.LayerNorm)
    model.norm0.bias = mx.full((512,), 0.3)
    scales = mup_scales(model, shapes_of(kind=nn.LayerNorm))
    assert scales["norm0.weight"].weight_decay == 8


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("norn*", "'norn\\*' matches no parameter"), ("layers.0.weight", "layers.0.weight: has shape")],
)
def test_a_readout_gain_that_is_none_is_refused(pattern: str, words: str) -> None:
    """A pattern that matches nothing, or a matrix."""
    with pytest.raises(Refused, match=words):
        mup_scales(Tied(512), shapes_of(), readout_gain=pattern)


def test_a_readout_gain_for_an_untied_head_is_refused() -> None:
    """It would do nothing."""
    with pytest.raises(Refused, match="none is tied here"):
        mup_scales(llama_at(512), make_base_shapes(llama_at(64), llama_at(128)), readout_gain="model.norm.*")


class PlusOne(nn.Module):
    """Attention whose query norm has a gain of 1 + w."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = 4
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.q_norm = gemma.RMSNorm(width // 4)


def test_a_query_norm_of_one_plus_w_carries_and_starts_at_zero_as_a_whole() -> None:
    """(1 + w)·√(d₀/d) is its gain, and at zero w is −1; mlx-lm's own w starts at 1."""
    shapes = make_base_shapes(PlusOne, base_width=64)
    model, zero = PlusOne(1024), PlusOne(1024)
    parametrize(model, shapes, base_head_dim=16)
    assert mx.all(model.q_norm.weight == 2 / 4 - 1).item()
    parametrize(zero, shapes, zero_query=True)
    assert mx.all(zero.q_norm.weight == -1).item()


def test_a_tied_minicpm_has_no_division_to_count_on() -> None:
    """Its tied path skips it, so the norm's gain carries all of the 1/m that its embedding leaves."""
    models = [build("minicpm", width) for width in (64, 128, 256)]
    for model in models:
        model.args.dim_model_base = 64
        model.args.tie_word_embeddings = True
        if "lm_head" in model:
            del model.lm_head
    scales = mup_scales(models[2], make_base_shapes(*models[:2]))
    assert scales.readout.way == "tied head"
    assert scales.readout.share == 1 / 4


def test_a_quantised_head_does_not_make_the_embedding_one() -> None:
    """Its packed weight has no kind, but it is there: the norm's gain has nothing to carry."""

    def make(width: int) -> nn.Module:
        model = llama_at(width)
        model.lm_head = model.lm_head.to_quantized(group_size=32)
        return model

    scales = mup_scales(make(256), make_base_shapes(make))
    assert scales.readout.way == "no readout"
    assert scales["model.norm.weight"].lr == 1
