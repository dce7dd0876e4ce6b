"""Coordinate checks: what is looked at, the gates, and faults that have to be found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from small_task import MLP, batches, loss

from mufree import AdamWScheduleFree, Refused, Scales
from mufree.studies import CoordCheck, coord_check
from mufree.studies.coordinate_runs import hidden_rate_not_divided
from mufree.studies.probes import activations, blocks

WIDTHS = [32, 64, 128, 256]
# A third of the power that either fault grows with, several times what chance does on this small network.
GATE_FAR = 0.3
# Sums of a few hundred float32 terms, in another order.
ROUNDING = 1e-5


def check(scales: object = "mup", **changed: object) -> CoordCheck:
    arguments = {
        "base_width": 32,
        "widths": WIDTHS,
        "optimizer": lambda scales: AdamWScheduleFree(2.0**-6, scales=scales),
        "seeds": 3,
        "updates": 4,
        "zero_readout": True,
    }
    return coord_check(MLP, batches, loss, scales=scales, **(arguments | changed))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mup() -> CoordCheck:
    return check()


def test_mup_passes(mup: CoordCheck) -> None:
    """Blocks and output, at y and at x, after every update."""
    assert mup.passed, mup.verdict
    assert mup.verdict.startswith("Passed: from width 32 to 256")
    assert mup.modules == ["layers.0", "layers.1", "output"]
    assert mup.points == ["y", "x"]
    assert len(mup.rows) == len(WIDTHS) * 3 * 3 * 5 * 2
    assert {row["statistic"] for row in mup.rows} == {"mean_abs"}
    values = {at: [row["value"] for row in mup.rows if row["at"] == at and row["update"] == 4] for at in ("y", "x")}
    assert values["y"] != values["x"]


@pytest.mark.parametrize("scales", ["sp", hidden_rate_not_divided])
def test_the_control_and_a_planted_mistake_fail(scales: object) -> None:
    """By far, and the sentence names the module."""
    found = check(scales, zero_readout=scales != "sp")
    assert not found.passed
    assert max(abs(growth.slope) for growth in found.growth) > GATE_FAR
    assert "follow the width" in found.verdict
    failed = [f"{growth.module} at {growth.at}" for growth in found.growth if not growth.passed]
    assert (
        f"Did not pass: {len(failed)} of {len(found.growth)} follow the width; {', '.join(failed[:3])}" in found.verdict
    )


def test_a_mistake_seen_at_one_point_only_is_seen(mup: CoordCheck) -> None:
    """Rows at x that grow fail the check, whatever those at y do; the start is no part of it."""
    grown = [row | {"value": row["value"] * row["width"]} if row["at"] == "x" else row for row in mup.rows]
    assert not CoordCheck(rows=grown).passed
    at_start = [row | {"value": row["value"] * row["width"]} if row["update"] == 0 else row for row in mup.rows]
    assert CoordCheck(rows=at_start).passed


def test_spread_is_a_gate_of_its_own(mup: CoordCheck) -> None:
    """A bump in the middle has no slope."""
    bumped = [row | {"value": row["value"] * (1.6 if row["width"] in (64, 128) else 1)} for row in mup.rows]
    assert not CoordCheck(rows=bumped).passed


@pytest.mark.parametrize(
    ("widths", "seeds", "few"),
    [
        ((32, 64), (0, 1, 2), "But 2 widths cannot decide"),
        ((32, 64, 128), (0,), "But 1 seed cannot decide"),
        ((32, 64), (0,), "But 2 widths and 1 seed cannot decide"),
        ((32, 64, 128), (0, 1), None),
    ],
)
def test_a_verdict_of_too_few_says_so(
    mup: CoordCheck, widths: tuple[int, ...], seeds: tuple[int, ...], few: str | None
) -> None:
    """Whether it passes or not, and what to run instead."""
    rows = [row for row in mup.rows if row["width"] in widths and row["seed"] in seeds]
    for found in (CoordCheck(rows=rows), CoordCheck(rows=[r | {"value": r["value"] * r["width"]} for r in rows])):
        assert ("cannot decide" in found.verdict) == (few is not None)
        assert few is None or (few in found.verdict and "3 widths or more and 3 seeds" in found.verdict)


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_a_value_that_is_no_number_or_zero_at_one_width_fails(mup: CoordCheck, value: float) -> None:
    """No logarithm hides it."""
    rows = [row | {"value": value} if (row["width"], row["update"]) == (64, 2) else row for row in mup.rows]
    assert not CoordCheck(rows=rows).passed


def test_it_is_kept_and_read_back(tmp_path: Path) -> None:
    """A second call trains nothing more and finds the same; so does the file."""
    first = check(widths=[32, 64], seeds=1, updates=1, folder=tmp_path / "c")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "c" / "cells").iterdir()}
    assert check(widths=[32, 64], seeds=1, updates=1, folder=tmp_path / "c").rows == first.rows
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "c" / "cells").iterdir()}
    first.save(tmp_path / "c.json")
    assert CoordCheck.load(tmp_path / "c.json").growth == first.growth
    with pytest.raises(Refused, match="scales: 'hidden_rate_not_divided' contradicts None"):
        check(hidden_rate_not_divided, widths=[32, 64], seeds=1, updates=1, folder=tmp_path / "c")


def test_the_statistic_is_the_mean_of_absolute_values(mup: CoordCheck) -> None:
    """Of the first layer of a fresh base model, computed by hand."""
    mx.random.seed(0)
    model = MLP(32)
    x = mx.array(batches(0)[0])
    by_hand = mx.mean(mx.abs(x @ model.layers[0].weight.T + model.layers[0].bias)).item()
    row = next(r for r in mup.rows if (r["width"], r["seed"], r["update"], r["module"]) == (32, 0, 0, "layers.0"))
    assert row["value"] == pytest.approx(by_hand, rel=ROUNDING)


@pytest.mark.parametrize(
    ("changed", "message"), [({"widths": [64]}, "two or more"), ({"scales": "mu"}, "'mu' is not 'mup', 'sp'")]
)
def test_a_check_that_shows_nothing_is_refused(changed: dict[str, object], message: str) -> None:
    """A single width; a misspelt parametrisation."""
    with pytest.raises(Refused, match=message):
        check(**changed)


class Attention(nn.Module):
    """Two blocks of MLX's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]

    def __call__(self, x: mx.array, mask: object) -> mx.array:
        for block in self.blocks:
            q = block(x).reshape(1, -1, 2, 4).swapaxes(1, 2)
            k = q[:, :1]
            x = mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, mask=mask).swapaxes(1, 2).reshape(x.shape)
        return x


MASKED = [[True, False, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("mask", ["causal", mx.array(MASKED), mx.where(mx.array(MASKED), 0.0, -1e9)])
def test_attention_logits_are_seen_through_the_fused_kernel(mask: object) -> None:
    """The scaled scores of the pairs that attend, shared key heads too; nothing of the model is changed afterwards."""
    model, x = Attention(), mx.random.normal((1, 3, 8))
    fused, plain = mx.fast.scaled_dot_product_attention, model(x, mask)
    found = activations(model, lambda: model(x, mask))
    assert set(found) == {"blocks.0", "blocks.1", "output", "output: attention logits"}
    assert mx.array_equal(found["output"], plain)
    assert type(model) is Attention
    assert type(model.blocks[0]) is nn.Linear
    assert mx.fast.scaled_dot_product_attention is fused
    scores = found["output: attention logits"]
    q = found["blocks.1"].reshape(1, 3, 2, 4).swapaxes(1, 2)
    by_hand = mx.where(mx.array(MASKED), 0.5 * (q @ q[:, :1].swapaxes(-1, -2)), 0.0)
    assert mx.allclose(scores, by_hand, rtol=ROUNDING, atol=ROUNDING)


def test_an_error_in_the_forward_pass_leaves_the_model_as_it_was() -> None:
    """Its modules have their own classes again."""
    model = Attention()
    fused = mx.fast.scaled_dot_product_attention
    with pytest.raises(ValueError, match="shape"):
        activations(model, lambda: model(mx.zeros((1, 3, 7)), None))
    assert type(model) is Attention
    assert mx.fast.scaled_dot_product_attention is fused


def test_blocks_are_the_outermost_lists_or_the_children() -> None:
    """In the order of their numbers."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(2, 2)
            self.layers = [MLP(4) for _ in range(11)]

    assert blocks(Deep()) == [f"layers.{n}" for n in range(11)]
    assert set(blocks(nn.Bilinear(2, 2, 2))) == set()


def test_a_changed_scale_keeps_the_mapping() -> None:
    """The planted mistake changes hidden rates, and nothing else."""
    from mufree import make_base_shapes, mup_scales

    scales = mup_scales(MLP(64), make_base_shapes(MLP, base_width=32))
    changed = hidden_rate_not_divided(scales)
    assert isinstance(changed, Scales)
    differing = {path for path in scales if scales[path] != changed[path]}
    assert differing == {path for path in scales if scales[path].kind == "hidden"} == {"layers.1.weight"}
    assert changed["layers.1.weight"] == replace(scales["layers.1.weight"], lr=1.0, weight_decay=1.0)


def trended(slopes: dict[int, float], **more: object) -> CoordCheck:
    """A check of one module, ``output``, that goes as width^slope after each update."""
    rows = [
        {"width": w, "seed": 0, "module": "output", "update": u, "statistic": "mean_abs", "at": "y", "value": w**slope}
        for u, slope in slopes.items()
        for w in (64, 128, 256)
    ]
    return CoordCheck(rows=rows, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slopes", "passed"),
    [
        ({1: -0.5, 10: -0.3}, True),
        ({1: -0.5, 10: 0.2}, False),
        ({1: -0.5, 11: -0.05}, True),
        ({1: -0.5, 11: -0.3}, False),
        ({1: 0.2, 11: 0.0}, False),
    ],
)
def test_logits_that_start_at_random_may_shrink_but_not_grow(
    slopes: dict[int, float], passed: bool, tmp_path: Path
) -> None:
    """A tied head's, until update 10; then they are gated like the others, and others always are."""
    found = trended(slopes, random_start=("output",))
    found.save(tmp_path / "check.json")
    assert found.passed is CoordCheck.load(tmp_path / "check.json").passed is passed
    assert not trended(slopes).passed
    assert found.growth[0].one_sided is (max(slopes) <= 10 or slopes[1] > 0)


class TiedModel(nn.Module):
    """An embedding that is the head too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(12, width), [nn.Linear(width, width)], nn.RMSNorm(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embed.as_linear(self.norm(self.layers[0](self.embed(tokens))))


@pytest.mark.parametrize(("scales", "passed"), [("mup", True), ("sp", False)])
def test_a_tied_head_is_noticed(scales: str, passed: bool) -> None:
    """Its logits are gated upwards only, which the control fails all the same."""
    found = coord_check(
        TiedModel,
        [mx.random.randint(0, 12, (4, 7), key=mx.random.key(n)) for n in range(4)],
        lambda model, t: nn.losses.cross_entropy(model(t[:, :-1]), t[:, 1:]).mean(),
        base_width=32,
        widths=WIDTHS,
        optimizer=lambda scales: AdamWScheduleFree(2.0**-6, scales=scales),
        seeds=2,
        updates=3,
        scales=scales,
    )
    assert found.random_start == ("output",)
    output = [growth for growth in found.growth if growth.module == "output"]
    assert all(growth.one_sided and growth.passed is passed for growth in output)


@pytest.mark.parametrize(("name", "tied"), [("mup", False), ("qwen3", False), ("granite", True), ("gemma", True)])
def test_the_checks_that_are_kept_meet_the_gates(name: str, tied: bool) -> None:
    """Five widths, three seeds, ten updates, at y and at x: what the README says, from the data itself."""
    kept = CoordCheck.load(Path(__file__).parents[2] / "reference" / "data" / f"coord-check-{name}.json")
    assert kept.passed, kept.verdict
    assert {row["width"] for row in kept.rows} == {64, 128, 256, 512, 1024}
    assert len({row["seed"] for row in kept.rows}) == 3
    assert (kept.updates, kept.points) == (10, ["y", "x"])
    assert kept.random_start == (("output",) if tied else ())
