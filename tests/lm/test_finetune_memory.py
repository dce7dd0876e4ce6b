"""What a fine-tune plans of the memory, beside what it takes."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mufree.lm.memory_plan import FACTOR, memory_plan
from mufree.lm.tuning import memory
from mufree.lm.tuning.finetuning import tune_prepared
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.overview import overview, peak_line
from mufree.lm.tuning.prepare import prepare
from mufree.training.report import Silent
from tiny_finetune import make_data, make_model, settings


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Rows of about 50 tokens, and one of 700."""
    folder = tmp_path_factory.mktemp("base")
    data = make_data(folder / "data")
    rows = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(json.dumps({"text": "abcdefg" * 100}) + "\n" + rows)
    return make_model(folder / "model"), data


@pytest.mark.parametrize(("longest", "seen"), [(40, 39), (2048, 704)])
def test_the_plan_is_for_the_longest_rows(longest: int, seen: int, base: Any, tmp_path: Path) -> None:
    """701 tokens fill 704 places, unless they are cut off, of which the model sees all but the last."""
    prepared = prepare(from_mapping(settings(*base, tmp_path / "out", max_seq_length=longest)))
    options = {"batch_size": 2, "seq_length": seen}
    assert prepared.memory == memory_plan(prepared.model, prepared.optimizer, **options)
    rows = [line.split(maxsplit=1) for line in overview(prepared).splitlines()]
    assert ["memory", prepared.memory.lines()[0]] in rows
    starts = {line.index(value) for (_, value), line in zip(rows, overview(prepared).splitlines(), strict=True)}
    assert len(starts) == 1, "memory and notes are rows like the others"
    assert "note" in [name for name, _ in rows]


def test_accumulation_and_checkpointing_reach_the_plan(base: Any, tmp_path: Path) -> None:
    """As the plan of the same options."""
    given = {"max_seq_length": 97, "batch_size": 3, "grad_accumulation_steps": 2, "grad_checkpoint": True}
    prepared = prepare(from_mapping(settings(*base, tmp_path / "out", **given)))
    options = {"batch_size": 3, "seq_length": 96, "accumulation": 2, "checkpointing": True}
    expected = memory_plan(prepared.model, prepared.optimizer, **options)
    assert prepared.memory == expected
    for other in ({"batch_size": 2}, {"accumulation": 1}, {"checkpointing": False}):
        assert memory_plan(prepared.model, prepared.optimizer, **{**options, **other}) != expected


def test_the_row_with_the_most_tokens_is_found_by_its_characters() -> None:
    """Only the longest are tokenised."""
    asked: list[str] = []

    class Rows(list[Any]):
        def process(self, row: Any) -> Any:
            asked.append(row["text"])
            return row["text"].split(), 0

    assert memory.longest(Rows({"text": "a " * number} for number in range(1, 101))) == 100
    assert len(asked) == memory._LOOKED_AT


def test_the_run_takes_about_what_was_planned(base: Any, tmp_path: Path) -> None:
    """Within the stated factor; both are told."""
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    prepared = prepare(from_mapping(settings(*base, tmp_path / "out", iters=12, max_seq_length=2048)))
    tune_prepared(prepared, resume=False, report=Silent())
    peak = mx.get_peak_memory() - before
    assert prepared.memory is not None
    assert prepared.memory.total / FACTOR < peak < prepared.memory.total * FACTOR
    tenth = SimpleNamespace(memory=SimpleNamespace(total=98_765_432))
    assert peak_line(tenth, 123_456_789) == "peak memory 123 MB (planned: 99 MB)"  # type: ignore[arg-type]
    assert peak_line(SimpleNamespace(memory=None), 1_234_567) == "peak memory 1.2 MB"  # type: ignore[arg-type]
