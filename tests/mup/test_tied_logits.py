"""What a tied model's own code does after its norm: multipliers on the logits, and layers between norm and head."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mufree import MuSharedReadout, Refused, Scales, make_base_shapes, mup_scales, parametrize

VOCABULARY, BASE = 64, 64
CAP = 30.0
# A std of 64 tokens' 64 logits, one seed: known to a few per cent; a missing or doubled 1/m is a factor of 4.
LOGITS = 0.15


class Body(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = [nn.Linear(width, width)]
        self.norm = nn.RMSNorm(width)
        self.mult = BASE / width
        self.cap = 30.0

    def hidden(self, tokens: mx.array) -> mx.array:
        return self.norm(self.layers[0](self.embed(tokens)))

    def logits(self, hidden: mx.array) -> mx.array:
        return self.embed.as_linear(hidden)


class After(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens)) * self.mult


class Divided(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        out = self.embed.as_linear(self.hidden(tokens)).astype(mx.float32)
        return out / (1 / self.mult)


class InPlace(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        out = self.hidden(tokens) @ self.embed.weight.T
        out *= self.mult
        return out


class Before(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens) * self.mult)


class ByMethod(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return mx.multiply(self.logits(self.hidden(tokens)), self.mult)


class Inner(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.logits(self.hidden(tokens))


class Outer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.model = Inner(width)
        self.mult = BASE / width

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.model(tokens) * self.mult


class Shared(Body):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.head = MuSharedReadout(self.embed, bias=False, base_dims=BASE)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.head(self.hidden(tokens))


def scales_of(kind: Any, width: int = 512, **choices: Any) -> Scales:
    return mup_scales(kind(width), make_base_shapes(kind, base_width=BASE), **choices)


def logit_std(kind: Any, width: int, **choices: Any) -> float:
    mx.random.seed(3)
    model = kind(width)
    parametrize(model, make_base_shapes(kind, base_width=BASE), **choices)
    logits = model(mx.arange(VOCABULARY)[None]).astype(mx.float32)
    return mx.std(logits).item()


MULTIPLIED = (After, Divided, InPlace, Before, ByMethod, Outer)


@pytest.mark.parametrize("kind", MULTIPLIED)
def test_a_factor_on_tied_logits_whose_base_value_is_not_known_is_asked_for(kind: Any) -> None:
    """Its value here is known, its share of the 1/m is not: silence would give the 1/m twice."""
    with pytest.raises(Refused, match=r"has a factor on the logits: .*mult\b.*multipliers=\{'readout': base width"):
        scales_of(kind)
    own = scales_of(kind, multipliers={"readout": 1 / 8})
    assert (own.readout.share, own.readout.gains) == (1, ())
    assert "own multiplier" in own.table()
    other = scales_of(kind, multipliers={"readout": 1.0})
    assert other.readout.share == 1 / 8


@pytest.mark.parametrize("kind", [After, Before, Outer])
@pytest.mark.parametrize("width", [64, 256, 1024])
def test_logits_with_a_multiplier_of_ones_own_follow_those_of_the_shared_readout(kind: Any, width: int) -> None:
    """The same 1/m, neither none nor two of them."""
    wanted = logit_std(Shared, width)
    assert logit_std(kind, width, multipliers={"readout": BASE / width}) == pytest.approx(wanted, rel=LOGITS)
    assert wanted == pytest.approx(math.sqrt(BASE / width), rel=2 * LOGITS)


class Capped(Body):
    limit = 30.0

    def __call__(self, tokens: mx.array) -> mx.array:
        out = mx.tanh(self.embed.as_linear(self.hidden(tokens)) / CAP) * CAP
        out = 2 * out / -self.limit
        return out - mx.logsumexp(out, axis=-1, keepdims=True)


class Temperature(Body):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.temperature = mx.array(0.0)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens)) * mx.exp(self.temperature)


class WithLoss(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens))

    def loss(self, tokens: mx.array, mask: mx.array) -> mx.array:
        logits = self.embed.as_linear(self.hidden(tokens))
        return (nn.losses.cross_entropy(logits, tokens) * mask).sum() / mask.sum()


@pytest.mark.parametrize("kind", [Capped, Temperature, WithLoss])
def test_what_is_the_same_at_every_width_or_a_parameter_is_not_asked_about(kind: Any) -> None:
    """Constants, numbers of the class, trained temperatures, and what happens to a loss."""
    assert scales_of(kind).readout.share == 1 / 8


def test_a_multiplier_on_a_tied_weight_itself_does_not_say_which_use_it_means() -> None:
    """It would enlarge the embedding and count the 1/m twice."""
    with pytest.raises(Refused, match=r"embed\.weight.*count twice.*multipliers=\{'readout': base width / width\}"):
        scales_of(After, multipliers={"embed.weight": 1 / 8})
    both = scales_of(After, multipliers={"embed.weight": math.sqrt(8), "readout": 1.0})
    assert both.readout.share == pytest.approx(math.sqrt(8) / 8)


def test_the_word_readout_multiplies_an_untied_head() -> None:
    """Table 8 by the model's own code."""

    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 5))

    head = scales_of(make, multipliers={"readout": 1 / 8})["layers.2.weight"]
    assert (head.multiplier, head.init, head.lr) == (1 / 8, 1, 1)


class NoNorm(Body):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.Identity()

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.hidden(tokens))


def test_without_a_norm_the_two_other_ways_are_named() -> None:
    """A layer, and a factor that is declared."""
    with pytest.raises(Refused, match=r"no single norm .*MuSharedReadout .*multipliers=\{'readout'"):
        scales_of(NoNorm)


class First(NoNorm):
    """Its only norm is that of the embedding, defined after the layers."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.embed_norm = nn.RMSNorm(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.embed_norm(self.embed(tokens))
        for layer in self.layers:
            h = layer(h)
        return self.embed.as_linear(h)


class Named(NoNorm):
    """Layers of their own names, after an embedding norm; the head in a method that has a local only."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.layers
        self.embed_norm = nn.RMSNorm(width)
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.logits(self.two(self.one(self.embed_norm(self.embed(tokens)))))


class Projected(Body):
    """norm → Linear → GELU → tied head, as BERT's."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.project = nn.Linear(width, width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(nn.gelu(self.project(self.hidden(tokens))))


class Unseen(Projected):
    """The same where the code does not show it."""

    def __call__(self, tokens: mx.array) -> mx.array:
        steps = [self.hidden, self.project, self.embed.as_linear]
        for step in steps:
            tokens = step(tokens)
        return tokens


class Bent(Body):
    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(nn.gelu(self.hidden(tokens)))


class Earlier(Body):
    """A factor on the head's input, some lines before it."""

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.hidden(tokens) * self.mult
        return self.embed.as_linear(h)


@pytest.mark.parametrize("kind", [First, Named, Projected, Unseen, Bent, Earlier])
def test_a_norm_that_is_not_seen_to_come_last_is_asked_about(kind: Any) -> None:
    """Its gain is not a factor of the logits, or may not be."""
    with pytest.raises(Refused, match=r"not evident that \w+ comes last before the head.*readout_gain="):
        scales_of(kind)
    assert scales_of(kind, multipliers={"readout": 1 / 8}).readout.gains == ()
    pattern = "embed_norm.*" if kind in (First, Named) else "norm.*"
    assert scales_of(kind, readout_gain=pattern).readout.share == 1 / 8


class Quiet(Body):
    """Dropout, a cast, the last token only, and two ways to the head."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.dropout = nn.Dropout(0.1)
        self.embed_norm = nn.RMSNorm(width)
        self.later = nn.Linear(width, width)
        self.embed_norm, self.layers = nn.Identity(), [self.later]
        self.norm = nn.RMSNorm(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        h = 2 * self.dropout(self.norm(h))
        return self.embed.as_linear(h[:, -1].astype(mx.float32))

    def all(self, tokens: mx.array) -> mx.array:
        return self.logits(self.hidden(tokens))


class Early(nn.Module):
    """A norm that is defined before the layers that it comes after."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.norm = nn.RMSNorm(width)
        self.body = nn.Linear(width, width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.norm(self.body(self.embed(tokens))))


@pytest.mark.parametrize("kind", [Quiet, Early])
def test_a_norm_that_is_seen_to_come_last_carries(kind: Any) -> None:
    """Whatever order the modules are defined in, and through what leaves a factor alone."""
    assert scales_of(kind).readout.gains == ("norm.weight",)


class Valued(Body):
    """A tied head and one of its own behind the same norm, in one line each."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.value = nn.Linear(width, 1)

    def __call__(self, tokens: mx.array) -> tuple[mx.array, mx.array]:
        h = self.hidden(tokens); return self.embed.as_linear(h), self.value(h)  # noqa: E702  # fmt: skip


def test_a_second_head_behind_the_same_norm_is_asked_about() -> None:
    """Its input would be divided too, though its own start and rate are."""
    with pytest.raises(Refused, match=r"norm\.weight: would carry .* embed\.weight, and value\.weight may read"):
        scales_of(Valued)
    assert scales_of(Valued, readout_gain="norm.weight").readout.share == 1 / 8

    class Apart(Valued):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.head = MuSharedReadout(self.embed, base_dims=BASE)

    assert scales_of(Apart).readout.gains == ()
