"""Heads that are tied by code of every spelling, and models in which no head can be seen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.tuner.lora import LoRAEmbedding

from mufree import Refused, Scales, make_base_shapes, mup_scales, parametrize

VOCABULARY = 20


class Body(nn.Module):
    """An embedding, a layer and a final norm; a subclass says how the logits come about."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = [nn.Linear(width, width)]
        self.norm = nn.RMSNorm(width)

    def hidden(self, tokens: mx.array) -> mx.array:
        return self.norm(self.layers[0](self.embed(tokens)))


def scales_of(kind: Callable[[int], nn.Module], **choices: Any) -> Scales:
    return mup_scales(kind(512), make_base_shapes(kind, base_width=64), **choices)


class Plain(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens))


class Super(Plain):
    def __call__(self, tokens: mx.array) -> mx.array:
        return super().__call__(tokens)


class ByName(Plain):
    def __call__(self, tokens: mx.array) -> mx.array:
        return Plain.__call__(self, tokens)


class Matmul(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return mx.matmul(self.hidden(tokens), mx.transpose(self.embed.weight))


class Einsum(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return mx.einsum("btd,vd->btv", self.hidden(tokens), self.embed.weight)


class Item(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens) @ self.embed["weight"].T


class Local(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        weight = self.embed.weight
        return self.hidden(tokens) @ weight.T


class LocalProduct(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        weight = self.embed.weight
        return mx.matmul(self.hidden(tokens), mx.transpose(weight))


class GetAttribute(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return getattr(self, "embed").as_linear(self.hidden(tokens))  # noqa: B009


class Property(Body):
    @property
    def table(self) -> mx.array:
        return self.embed.weight.T

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens) @ self.table


def head_of(model: Any, hidden: mx.array) -> mx.array:
    return model.embed.as_linear(hidden)


def read_with(embedding: nn.Embedding, hidden: mx.array) -> mx.array:
    return embedding.as_linear(hidden)


class Helper(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return head_of(self, self.hidden(tokens))


class HandedOn(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return read_with(self.embed, self.hidden(tokens))


def passed_through(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @functools.wraps(function)
    def inner(*arguments: Any) -> mx.array:
        return function(*arguments)

    return inner


class Decorated(Body):
    @passed_through
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens))


SPELLINGS = (
    Plain, Super, ByName, Matmul, Einsum, Item, Local, LocalProduct, GetAttribute, Property, Helper, HandedOn,
    Decorated,
)  # fmt: skip


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_tied_head_is_found_however_it_is_spelt(kind: type[Body]) -> None:
    """And its 1/m is in the gain of the norm before it."""
    assert kind(8)(mx.array([[1, 2]])).shape == (1, 2, VOCABULARY)
    scales = scales_of(kind)
    assert scales.readout.heads == ("embed.weight",)
    assert (scales.readout.gains, scales.readout.share) == (("norm.weight",), 1 / 8)


class Table(nn.Module):
    """An embedding of one's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = mx.random.normal((VOCABULARY, width)) * 0.02

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.rows[tokens]

    def unembed(self, hidden: mx.array) -> mx.array:
        return hidden @ self.rows.T


class OwnTable(Body):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.embed = Table(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.unembed(self.hidden(tokens))


class Lookup(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = mx.random.normal((VOCABULARY, width)) * 0.02

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.rows[tokens]


class SilentTable(Body):
    """Its head is not in its code."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.embed = Lookup(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens)


def test_an_embedding_of_ones_own_is_a_tied_head_too() -> None:
    """Once it is named input-like, as it has to be."""
    scales = scales_of(OwnTable, overrides={"embed.rows": "input-like"})
    assert (scales.readout.heads, scales.readout.gains) == (("embed.rows",), ("norm.weight",))


class Hidden(Body):
    """Its head is in the loss function, or there is none."""

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens)


class Overridden(Plain):
    """What its base's call did with the embedding is not done any more."""

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens)


@pytest.mark.parametrize(
    ("kind", "choices"),
    [(Hidden, {}), (Overridden, {}), (SilentTable, {"overrides": {"embed.rows": "input-like"}})],
)
def test_a_model_with_an_embedding_and_no_readout_is_refused_with_both_ways_out(
    kind: type[Body], choices: dict[str, Any]
) -> None:
    """A head that is tied where it cannot be seen would get no 1/m, and nothing would say so."""
    with pytest.raises(Refused, match=r"embed\.\w+: is an embedding.*readout_gain='path\.\*'.*readout_gain=False"):
        scales_of(kind, **choices)
    tied = scales_of(kind, readout_gain="norm.*", **choices)
    assert (tied.readout.way, tied.readout.gains, tied["norm.weight"].lr) == ("tied head", ("norm.weight",), 1 / 8)
    bare = scales_of(kind, readout_gain=False, **choices)
    assert (bare.readout.way, bare["norm.weight"].lr) == ("no readout", 1)


def test_a_declared_head_starts_like_a_found_one() -> None:
    """The gain is 1/m in the weights as well."""
    model = Hidden(512)
    parametrize(model, make_base_shapes(Hidden, base_width=64), readout_gain="norm.*")
    assert mx.all(model.norm.weight == 1 / 8).item()


def test_at_base_width_nothing_is_missing() -> None:
    """Every multiplier is 1 whatever the head is."""
    assert mup_scales(Hidden(64), make_base_shapes(Hidden, base_width=64)).readout.way == "no readout"


def test_no_head_says_that_an_embedding_that_looks_tied_is_none() -> None:
    """The user's word wins over what the code looks like."""
    assert scales_of(Plain, readout_gain=False).readout.way == "no readout"


class Heads(Hidden):
    """Two heads of one's own, in a list."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.heads = [nn.Linear(width, 3), nn.Linear(width, 3)]


class Squeezed(Hidden):
    """Blocks with a bottleneck of a finite size, which are no heads."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.layers += [nn.Linear(width, 4), nn.Linear(4, width), nn.Linear(width, 4), nn.Linear(4, width)]


class Adapted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = LoRAEmbedding(VOCABULARY, width, r=4)


class Packed(Hidden):
    """A quantised layer that ends in a finite size."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.last = nn.QuantizedLinear.from_linear(nn.Linear(width, 32))


@pytest.mark.parametrize("kind", [Heads, Adapted, Packed])
def test_what_may_be_a_head_or_an_adapter_is_let_pass(kind: Callable[[int], nn.Module]) -> None:
    """Nothing is missing there."""
    assert scales_of(kind).readout.way == "no readout"


def test_a_bottleneck_is_no_head() -> None:
    """What maps to a finite size is taken up again."""
    with pytest.raises(Refused, match="nothing is found that reads out"):
        scales_of(Squeezed)


class Positions(Body):
    """An untied head, and scores of relative positions by a product with their table."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.places = nn.Embedding(7, width)
        self.head = nn.Linear(width, 11)

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.hidden(tokens)
        return self.head(h + (h @ self.places.weight.T).sum())


def test_a_table_that_is_multiplied_beside_an_untied_head_is_asked_about() -> None:
    """It may be a second head or relative positions."""
    with pytest.raises(Refused, match=r"places\.weight: is multiplied with .* head\.weight reads out too"):
        scales_of(Positions)
    assert scales_of(Positions, readout_gain=False).readout.heads == ("head.weight",)
    assert scales_of(Positions, readout_gain="norm.*").readout.heads == ("places.weight",)


def test_a_readout_gain_without_any_embedding_says_what_the_head_is() -> None:
    """It declares nothing there."""
    make = lambda width: nn.Sequential(nn.Linear(3, width), nn.RMSNorm(width), nn.Linear(width, 5))  # noqa: E731
    with pytest.raises(Refused, match=r"none is tied here: the head is layers\.2\.weight; leave it off"):
        scales_of(make, readout_gain="layers.1.*")


@pytest.mark.parametrize("value", [True, 1, ["norm.*"]])
def test_a_readout_gain_is_a_pattern_or_false(value: object) -> None:
    """Nothing else."""
    with pytest.raises(Refused, match=r"readout_gain: .* is no path pattern, and not False"):
        scales_of(Plain, readout_gain=value)
