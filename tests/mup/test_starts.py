"""The start of every weight against what the table says, and starts that are not known."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import gemma
from mup_models import flat, llama_at

from mufree import Refused, make_base_shapes, mup_scales, parametrize
from mufree.mup.gains import gain_offset
from mufree.mup.walk import leaves

# Stds of at least 512 entries of two models, each known to 1/√1024; the largest of a dozen. Factors are 2 and more.
STD = 0.15


class Tied(nn.Module):
    def __init__(self, width: int, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layers = [nn.Linear(width, width)]
        self.norm = norm(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.norm(self.layers[0](self.embed(tokens))))


class PlusOne(Tied):
    def __init__(self, width: int) -> None:
        super().__init__(width, gemma.RMSNorm)


class Attention(nn.Module):
    """Heads that grow, with a norm on the queries."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = 4
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.q_norm = nn.RMSNorm(width // 4)


def tied_llama(width: int) -> nn.Module:
    return llama_at(width, tied=True)


CHOICES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (llama_at, {}),
    (llama_at, {"multipliers": {"lm_head.weight": 1 / 4, "*.q_proj.weight": 2.0}}),
    (llama_at, {"multipliers": {"readout": 1 / 8}}),
    (tied_llama, {}),
    (tied_llama, {"multipliers": {"model.norm.weight": 1 / 4}}),
    (tied_llama, {"multipliers": {"readout": 1 / 2}}),
    (tied_llama, {"multipliers": {"readout": 1 / 2, "*embed_tokens.weight": 2.0}}),
    (Tied, {}),
    (Tied, {"multipliers": {"norm.*": 1 / 2}}),
    (Tied, {"multipliers": {"norm.weight": 1 / 8, "readout": 2.0}}),
    (PlusOne, {"multipliers": {"norm.weight": 1 / 2}}),
    (Attention, {"base_head_dim": 16}),
    (Attention, {"base_head_dim": 16, "multipliers": {"q_norm.weight": 1 / 2}}),
)


@pytest.mark.parametrize("width", [64, 256, 512])
@pytest.mark.parametrize(("make", "choices"), CHOICES)
def test_every_weight_starts_as_the_table_says(make: Any, choices: dict[str, Any], width: int) -> None:
    """Its std, or its value where it is constant, is the base model's times the table's init."""
    base, model = make(64), make(width)
    scales = parametrize(model, make_base_shapes(make, base_width=64), **choices)
    offsets = {leaf.path: gain_offset(leaf) for leaf in leaves(base) if leaf.name == "weight" and len(leaf.shape) == 1}
    start = flat(base)
    for path, array in flat(model).items():
        before, after = (values + offsets.get(path, 0.0) for values in (start[path], array))
        ratio = math.sqrt(mx.mean(after**2).item() / max(mx.mean(before**2).item(), 1e-30))
        if not mx.any(before).item():
            assert not mx.any(after).item(), path
        elif path in offsets:
            assert ratio == pytest.approx(scales[path].init, rel=1e-5), path
        else:
            few = 2 * STD if before.size < 256 else STD
            assert ratio == pytest.approx(scales[path].init, rel=few), path


def test_a_head_size_that_does_not_scale_has_no_share_to_carry() -> None:
    """A query norm of the base's size would be moved while the table says it is not."""

    class Fixed(Attention):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.num_heads = width // 16
            self.q_norm = nn.RMSNorm(16)

    with pytest.raises(Refused, match=r"q_norm\.weight: has 16 entries in the base model too.*leave base_head_dim off"):
        mup_scales(Fixed(256), make_base_shapes(Fixed, base_width=64), base_head_dim=8)


class ReadsOut(nn.Module):
    """A vector of one's own that gives one number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)
        self.w = mx.random.normal((width,)) / width**0.5
        self.gain = mx.full((width,), 0.5)
        self.shift = mx.zeros((width,))


class Placed(nn.Module):
    """Positions of one's own, whose start shrinks with the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pos = mx.random.normal((64, width)) * width**-0.5
        self.layer = nn.Linear(width, 3)


def test_a_vector_of_unknown_start_is_asked_for_its_std_and_its_kind() -> None:
    """A gain or a bias is constant, and passes."""
    shapes = make_base_shapes(ReadsOut, base_width=64)
    with pytest.raises(Refused, match=r"w: has to start as wide as .*init=\{'w': base std\}.*'output-like'") as refusal:
        parametrize(ReadsOut(1024), shapes)
    assert len(refusal.value.reasons) == 1
    model = ReadsOut(1024)
    scales = parametrize(model, shapes, overrides={"w": "output-like"}, init={"w": 1 / 8})
    assert scales["w"].lr == 1 / 16
    assert mx.std(model.w).item() == pytest.approx(1 / 8 / 16, rel=STD)


def test_a_table_of_unknown_start_is_asked_for_its_std() -> None:
    """Its rule's factor is 1, and its own start shrinks with the width all the same."""
    shapes, named = make_base_shapes(Placed, base_width=64), {"pos": "input-like"}
    with pytest.raises(Refused, match=r"pos: has to start as wide as in the base model"):
        parametrize(Placed(512), shapes, overrides=named)
    model = Placed(512)
    parametrize(model, shapes, overrides=named, init={"pos": 1 / 8})
    assert mx.std(model.pos).item() == pytest.approx(1 / 8, rel=STD)


@pytest.mark.parametrize("init", ["keep", {"*": "keep"}, {"pos": "keep"}])
def test_a_start_that_is_right_by_itself_is_kept(init: Any) -> None:
    """By the user's word, for all weights or for some."""
    model = Placed(512)
    before = model.pos
    parametrize(model, make_base_shapes(Placed, base_width=64), overrides={"pos": "input-like"}, init=init)
    assert mx.array_equal(model.pos, before).item()


@pytest.mark.parametrize("width", [64, 512])
def test_frozen_buffers_and_the_base_model_are_not_asked_about(width: int) -> None:
    """What is not trained stays, and the base model starts as it does."""
    model = Placed(width)
    if width != 64:
        model.freeze(keys=["pos"], recurse=False)
    parametrize(model, make_base_shapes(Placed, base_width=64), overrides={"pos": "input-like"})


class Squeezed(nn.Module):
    """A bottleneck between two layers, without biases: with both at zero nothing would ever move."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(5, width, bias=False)
        self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)
        self.out = nn.Linear(width, 3, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.out(self.up(self.down(self.first(x))))


class TwoHeads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(5, width)
        self.policy, self.value = nn.Linear(width, 8), nn.Linear(width, 1)


def test_a_bottleneck_is_not_zeroed_with_the_readout() -> None:
    """Of several weights that map to a finite size, what is a head has to be named."""
    shapes = make_base_shapes(Squeezed, base_width=64)
    with pytest.raises(Refused, match=r"down\.weight: may be a bottleneck.*by a pattern"):
        parametrize(Squeezed(128), shapes, zero_readout=True)
    model = Squeezed(128)
    parametrize(model, shapes, zero_readout="out.*")
    zero = [path for path, array in flat(model).items() if not mx.any(array).item()]
    assert zero == ["out.weight"]
    gradients = nn.value_and_grad(model, lambda m: (m(mx.ones((2, 5))) - 1).square().sum())(model)[1]
    assert any(mx.any(array).item() for array in flat(gradients).values())


def test_several_heads_start_at_zero_together() -> None:
    """Nothing takes their sizes up."""
    model = TwoHeads(128)
    parametrize(model, make_base_shapes(TwoHeads, base_width=64), zero_readout=True)
    assert {path for path, array in flat(model).items() if not mx.any(array).item()} == {
        "policy.weight", "policy.bias", "value.weight", "value.bias",
    }  # fmt: skip


def test_the_last_of_overlapping_patterns_wins_and_one_without_effect_is_refused() -> None:
    """An exception follows its rule; the other way round it would do nothing."""
    shapes = make_base_shapes(llama_at, base_width=64)
    model = llama_at(128)
    parametrize(model, shapes, init={"*.weight": 0.02, "*.up_proj.weight": 0.0})
    assert not mx.any(model.model.layers[0].mlp.up_proj.weight).item()
    with pytest.raises(Refused, match=r"init\['\*\.up_proj\.weight'\]: has no effect.*put it after them"):
        parametrize(llama_at(128), shapes, init={"*.up_proj.weight": 0.0, "*.weight": 0.02})


class BareGain(nn.Module):
    """Its final norm is a call with a gain of the model's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layer = nn.Linear(width, width)
        self.g = mx.ones((width,))

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.layer(self.embed(tokens))
        return self.embed.as_linear(mx.fast.rms_norm(h, self.g, 1e-5))


def test_a_bare_gain_carries_the_heads_multiplier() -> None:
    """It is multiplied with as it is; its model cannot be called to find that out."""
    model = BareGain(512)
    scales = parametrize(model, make_base_shapes(BareGain, base_width=64), readout_gain="g")
    assert mx.all(model.g == 1 / 8).item()
    assert (scales["g"].lr, scales["g"].weight_decay) == (1 / 8, 8)


class BareShift(BareGain):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.g = mx.zeros((width,))


def test_a_bare_gain_that_does_not_start_at_one_is_refused() -> None:
    """Such as one that is added to 1."""
    with pytest.raises(Refused, match=r"g: starts at 0, not 1 or 2"):
        parametrize(BareShift(512), make_base_shapes(BareShift, base_width=64), readout_gain="g")


def test_a_word_that_is_no_std_is_refused() -> None:
    """And nothing is drawn by it."""
    make = lambda width: nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))  # noqa: E731
    with pytest.raises(Refused, match="'kep' is no std"):
        parametrize(make(64), make_base_shapes(make, base_width=16), init={"layers.0.*": "kep"})
