"""What a refusal says: one sentence for one cause, however many leaves it hits, and what can be done."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mufree import (
    AdamWScheduleFree,
    MuAdam,
    MuAdamWScheduleFree,
    Refused,
    SGDScheduleFree,
    make_base_shapes,
    mup_scales,
)
from mufree.errors import CheckpointError


class Deep(nn.Module):
    """Nine layers, eighteen leaves."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(9)]


def begun(model: nn.Module) -> AdamWScheduleFree:
    optimizer = AdamWScheduleFree(learning_rate=0.1)
    optimizer.init(model.trainable_parameters())
    return optimizer


@pytest.mark.parametrize("before", [mx.float32, mx.bfloat16])
def test_a_model_that_was_cast_after_init(before) -> None:
    """Either way: one line with the first paths, and what to do."""
    model = Deep()
    model.set_dtype(before)
    optimizer = begun(model)
    model.set_dtype(mx.bfloat16 if before == mx.float32 else mx.float32)
    with pytest.raises(CheckpointError, match=r"and 15 more: .*cast before optimizer\.init, or make a new") as refused:
        optimizer.update(model, model.trainable_parameters())
    assert "\n" not in str(refused.value)
    assert len(refused.value.reasons) == 18


def test_a_cast_inside_averaged(tmp_path) -> None:
    """The weights are y again by then, which is said, and where x is to be had."""
    model = Deep()
    optimizer = begun(model)
    optimizer.update(model, model.trainable_parameters())
    y = dict(tree_flatten(model.parameters()))

    def save() -> None:
        with optimizer.averaged(model):
            model.set_dtype(mx.bfloat16)
            model.save_weights(str(tmp_path / "x.safetensors"))

    with pytest.raises(Refused, match=r"and \d+ more: was replaced .*y was put back.*optimizer\.average\(") as refused:
        save()
    assert "\n" not in str(refused.value)
    assert "train(" not in str(refused.value)
    assert all(array is y[path] for path, array in tree_flatten(model.parameters()))


def test_weights_put_in_under_eval_can_be_discarded() -> None:
    """There the other remedy is right."""
    model = Deep()
    optimizer = begun(model)
    optimizer.eval(model)
    model.update(tree_unflatten([(path, array + 1) for path, array in tree_flatten(model.parameters())]))
    with pytest.raises(Refused, match="discard=True"):
        optimizer.train(model)
    optimizer.train(model, discard=True)


def test_a_state_of_another_width_and_a_state_with_gaps() -> None:
    """Three of the shapes, and the number of the rest; one line for what is missing alike."""
    narrow, wide = begun(Deep(4)), begun(Deep(8))
    with pytest.raises(CheckpointError) as refused:
        wide.state = narrow.state
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    assert lines[-1] == "and 33 more of other shapes"
    assert len(refused.value.reasons) == 36
    gaps = [(path, array) for path, array in tree_flatten(wide.state) if not path.endswith(".v")]
    with pytest.raises(
        CheckpointError, match=r"^layers\.0\.weight\.v, .* and 15 more: not in the state given"
    ) as refused:
        wide.state = tree_unflatten(gaps)
    assert "\n" not in str(refused.value)
    with pytest.raises(Refused, match="and 15 more of other shapes"):
        wide.average(Deep(4).parameters())


SHAPES = make_base_shapes(Deep, base_width=4)


@pytest.mark.parametrize(
    "use",
    [
        lambda scales: AdamWScheduleFree(scales=scales),
        lambda scales: SGDScheduleFree(scales=scales),
        lambda scales: MuAdam(Deep(), scales, learning_rate=0.1),
        lambda scales: MuAdamWScheduleFree(Deep(), scales, learning_rate=0.1),
    ],
)
@pytest.mark.parametrize(
    ("scales", "said"), [(SHAPES, "these are BaseShapes, not Scales"), ({}, "a dict holds no"), ({"w": 1.0}, "a dict")]
)
def test_scales_that_are_none(use, scales, said) -> None:
    """By what they are, with the function that makes some."""
    with pytest.raises(Refused, match=rf"scales: .*{said}.*parametrize\(model, base_shapes\)"):
        use(scales)


@pytest.mark.parametrize("use", [SGDScheduleFree, lambda scales: MuAdam(Deep(), scales, learning_rate=0.1)])
def test_another_family_names_both_ways(use) -> None:
    """parametrize for a fresh model, mup_scales for one that has started."""
    family = "adam" if use is SGDScheduleFree else "sgd"
    with pytest.raises(Refused, match=r"mup_scales\(…, family=.*parametrize\(…, family="):
        use(scales=mup_scales(Deep(8), SHAPES, family=family))
