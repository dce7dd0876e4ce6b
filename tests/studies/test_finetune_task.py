"""Fine-tunes as cells: the script beside the kept data, on a tiny version."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import Refused
from mufree.studies.cells import Cell
from mufree.studies.horizon import run_horizon
from mufree.studies.task import Task, train_cell
from mufree.studies.transfer import Transfer
from mufree.studies.transfer_runs import run_transfer
from mufree.training import PretrainConfig

sys.path.append(str(Path(__file__).parents[2] / "reference"))
import finetune

SMALL: dict[str, Any] = {"layers": 1, "head_dim": 16, "seq_length": 16, "batch_size": 2, "eval_batches": 1, "warmup": 1}
BASE = PretrainConfig(updates=3, width=16, base_width=16, report_every=3, eval_every=3, **SMALL)
TUNED = PretrainConfig(**SMALL, weight_decay=0.0)
WIDTHS = (16, 32)
SOURCES = ("heapq.py", "textwrap.py")
RATES = [2.0**-9, 2.0**-7, 2.0**-5]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, Path]:
    """Two tiny bases and the task on them; the domains are cut down to what a test needs."""
    folder = tmp_path_factory.mktemp("finetune")
    (folder / "help.txt").write_text(topics["assignment"] + topics["strings"], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "SOURCES", SOURCES)
        return finetune.finetune_task(TUNED, base(folder), WIDTHS, folder / "bases", measured=(2,)), folder


def base(folder: Path) -> PretrainConfig:
    return replace(BASE, data=str(folder / "help.txt"))


def test_cells_train_adapters_of_the_pretrained_base(made: tuple[Task, Path]) -> None:
    """Its weights, frozen, of every width; another seed draws other factors."""
    task, folder = made
    for width in WIDTHS:
        trainer = task.start(Cell(width=width, rate=0.01, updates=2))
        before = dict(tree_flatten(trainer.model.parameters()))
        stored = mx.load(str(folder / "bases" / f"width-{width}" / "export" / "model.safetensors"))
        inner, plain = (f"model.layers.0.mlp.down_proj.{name}" for name in ("linear.weight", "weight"))
        assert mx.array_equal(before[inner], stored[plain]).item()
        trainer.advance()
        moved = {p for p, value in tree_flatten(trainer.model.parameters()) if not mx.array_equal(value, before[p])}
        assert moved
        assert all(path.endswith("lora_b") for path in moved)
    other = task.start(Cell(width=16, rate=0.01, updates=2, seed=1))
    first = task.start(Cell(width=16, rate=0.01, updates=2, seed=0))
    factor = "model.layers.0.mlp.down_proj.lora_a"
    one, two = (dict(tree_flatten(each.model.parameters()))[factor] for each in (first, other))
    assert not mx.array_equal(one, two).item()


def test_scaled_and_unscaled_differ_only_away_from_the_base(made: tuple[Task, Path]) -> None:
    """The same cell at the narrow width, another at the wide one; a start at the base's own loss in both."""
    task = made[0]
    for width, same in ((16, True), (32, False)):
        rows = [
            train_cell(task, Cell(width=width, rate=0.05, updates=4, parametrisation=kind)) for kind in ("mup", "sp")
        ]
        assert (rows[0]["losses"] == rows[1]["losses"]) == same
        assert rows[0]["curve"][0] == rows[1]["curve"][0]


def test_the_domains_differ_and_are_told_by_their_content(
    made: tuple[Task, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own source; it and the bases, which are trained once, are among the settings."""
    task, folder = made
    assert "def nsmallest(" in (folder / "bases" / "domain.jsonl").read_text(encoding="utf-8")
    assert set(task.settings["bases"]) == {"16", "32"}
    monkeypatch.setattr(finetune, "SOURCES", SOURCES[:1])
    monkeypatch.setattr(finetune, "pretrain", None)
    other = finetune.finetune_task(replace(TUNED, warmup=2), base(folder), WIDTHS, folder / "bases", measured=(2,))
    changed = {name for name in task.settings if task.settings[name] != other.settings[name]}
    assert changed == {"warmup", "train_tokens", "valid_tokens"}
    assert not finetune._finished(replace(base(folder), updates=4), folder / "bases" / "width-16" / "export")
    assert not finetune._finished(replace(base(folder), seed=4), folder / "bases" / "width-16" / "export")


def test_both_studies_run_on_it_and_go_on(made: tuple[Task, Path], tmp_path: Path) -> None:
    """A tiny grid of each; a second call trains nothing, and the kept file is the study."""
    task = made[0]
    settings = {"base_width": 16, "widths": WIDTHS, "rates": RATES, "updates": 2, "seeds": 1}
    found = run_transfer(task, **settings, folder=tmp_path / "t", context={"titles": {"mup": "scaled", "sp": "one"}})
    never = replace(task, make=None)  # type: ignore[arg-type]
    assert list(run_transfer(never, **settings, folder=tmp_path / "t").rows) == list(found.rows)
    found.save(tmp_path / "t.json")
    assert Transfer.load(tmp_path / "t.json").verdict == found.verdict
    assert found.plot(tmp_path / "t.png").is_file()
    options = {"width": 16, "rates": RATES, "updates": 4, "horizons": (2, 4), "seeds": 1, "folder": tmp_path / "h"}
    horizon = run_horizon(task, **options)
    assert horizon.horizons == (2, 4)
    assert {row["updates"] for row in horizon.rows if row["schedule"] == "cosine"} == {2, 4}
    assert list(run_horizon(never, **options).rows) == list(horizon.rows)
    for wrong in ((4, 2), (2, 3), ()):
        with pytest.raises(Refused, match="do not rise to 4, the longest"):
            run_horizon(task, **{**options, "horizons": wrong})


def test_the_scripts_settings_are_what_the_studies_take() -> None:
    """Its grids and horizons can be trained, on models that exist."""
    import studies

    assert max(studies.LORA_WIDTHS) == 4 * min(studies.LORA_WIDTHS)
    assert studies.LORA_HORIZONS == (100, 200, 400)
    for width in studies.LORA_WIDTHS:
        config = PretrainConfig(**studies.FINETUNE, width=width, base_width=studies.LORA_WIDTHS[0])
        assert config.weight_decay == 0
    assert {"lora-transfer", "lora-horizon"} <= set(studies.STUDIES)
