"""Coordinates of language models with every kind of head over a few updates, and of attention whose heads grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest

from mufree import make_base_shapes
from mufree.lm import at_width, build
from mufree.studies.coordinate_runs import run_coord_check
from mufree.studies.coordinates import SLOPE, Growth
from mufree.studies.language import language_task
from mufree.studies.task import Task
from mufree.training.config import PretrainConfig

BASE, RATE, WIDTHS = 64, 2.0**-8, [64, 128, 256]
# Over two octaves with two seeds chance gives attention logits up to 0.16, the control 0.28 to 0.96, the planted fault
# 0.58. Logits divided by a d that grows shrink at first, as random ones do; what a fault does is make them grow.
ATTENTION, CONTROL, FAULT = 0.25, 0.2, 0.35


def task_of(model_type: str, zero_readout: bool) -> tuple[Task, Any]:
    config = PretrainConfig(
        model_type=model_type, lr=RATE, zero_readout=zero_readout, zero_query=True, batch_size=8, eval_batches=1
    )
    return language_task(config, WIDTHS)


def growths(task: Task, folder: Path, parametrisation: Any = "mup") -> dict[tuple[str, str], Growth]:
    found = run_coord_check(
        task, widths=WIDTHS, rate=RATE, seeds=2, updates=4, folder=folder, parametrisation=parametrisation
    )
    return {(growth.module, growth.at): growth for growth in found.growth}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen3", "granite", "gemma"])
def test_coordinates_do_not_follow_the_width(model_type: str, tmp_path: Path) -> None:
    """Blocks within the gate, logits too, or no growth where the head is tied, at y and at x; the control fails."""
    tied = model_type != "qwen3"
    task, _ = task_of(model_type, not tied)
    for (module, at), found in growths(task, tmp_path / "mup").items():
        assert found.steepness <= (ATTENTION if "attention" in module else SLOPE), (module, at, found)
        assert found.one_sided is (tied and module == "output")
    control = growths(task, tmp_path / "sp", "sp")
    assert max(found.steepness for found in control.values()) > CONTROL


@pytest.mark.slow
@pytest.mark.parametrize("carried", [True, False])
def test_attention_by_the_root_of_a_growing_head_size_is_seen(carried: bool, tmp_path: Path) -> None:
    """Four heads that grow, in a code that divides by √d: right only where the queries carry the rest of 1/d."""
    task, prepared = task_of("llama", True)
    small = prepared.model_config

    def make(width: int) -> nn.Module:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": width // 4}
        return build({**at_width(small, width), **heads})

    shapes, choices = make_base_shapes(make, base_width=BASE), {"base_head_dim": BASE // 4} if carried else {}
    changed = replace(task, make=make, shapes=shapes, parametrize={**task.parametrize, **choices})
    slopes = [one.slope for (module, _), one in growths(changed, tmp_path).items() if "attention" in module]
    assert max(slopes) <= SLOPE if carried else max(slopes) > FAULT
