"""Against recorded trajectories of the PyTorch implementation (``reference/record.py``); needs no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mufree import (
    AdamWScheduleFree,
    MuAdamWScheduleFree,
    RAdamScheduleFree,
    SGDScheduleFree,
    make_base_shapes,
    mup_scales,
)
from schedule_free_problems import SHAPES, distance, run, sequences

DATA = Path(__file__).parents[1] / "data" / "schedule_free.npz"
FLOAT64 = 1e-12  # 1000 updates of roundings of 1e-16, most of which average out; planted mistakes are off by 1e-3
CLASSES = {"adamw": AdamWScheduleFree, "sgd": SGDScheduleFree, "radam": RAdamScheduleFree}


def load() -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(DATA) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("about"))), arrays


ABOUT, ARRAYS = load()


def optimizer_of(case, holds):
    kind, settings, base = ABOUT["cases"][case]
    settings = {("learning_rate" if name == "lr" else name): value for name, value in settings.items()}
    if base is None:
        return CLASSES[kind](**settings, model_holds=holds)
    scales = mup_scales(SHAPES, make_base_shapes(shapes(base), shapes(ABOUT["delta"])), scale_eps=False)
    return MuAdamWScheduleFree(SHAPES, scales, impl=CLASSES[kind], **settings, model_holds=holds)


def shapes(recorded):
    return {name: tuple(shape) for name, shape in recorded.items()}


@pytest.mark.filterwarnings("ignore:decoupled_wd:UserWarning")
@pytest.mark.parametrize("holds", ["y", "x"])
@pytest.mark.parametrize("case", ABOUT["cases"])
def test_recorded_trajectories(case, holds) -> None:
    """x, y and z after the recorded numbers of updates."""
    optimizer = optimizer_of(case, holds)
    marks = sorted({int(name.split("/")[1]) for name in ARRAYS if name.split("/")[0] == case})
    seen = []

    def compare(k, held) -> None:
        if k + 1 in marks:
            seen.append(k + 1)
            for sequence, ours in sequences(optimizer, held).items():
                theirs = {name: ARRAYS[f"{case}/{k + 1}/{sequence}/{name}"] for name in held}
                assert distance(ours, theirs) < FLOAT64, (k + 1, sequence)

    run(optimizer, marks[-1], mx.float64, observe=compare)
    assert seen == marks


def test_the_recording_says_what_made_it() -> None:
    """Versions inside, and small."""
    assert ABOUT["versions"]["schedulefree"] == "1.4.1"
    assert DATA.stat().st_size < 300_000
