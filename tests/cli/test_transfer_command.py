"""``mufree transfer``, and ``mufree pretrain --recipe``, as a person uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mufree import Recipe
from mufree.cli import run
from mufree.cli.numbers import rates, whole_numbers
from mufree.studies.cells import Cell

SMALL = """
base_width: 16
layers: 1
head_dim: 8
seq_length: 16
batch_size: 2
warmup: 2
eval_batches: 2
widths: 16,32
rates: 2^-8..2^-2
seeds: 1
updates: 6
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``small.yaml``, a finished sweep ``s`` and its recipe."""
    folder = tmp_path_factory.mktemp("transfer")
    (folder / "small.yaml").write_text(SMALL)
    assert run(_words(folder, "--save", str(folder / "recipe.json"))) in (0, 1)
    return folder


def test_a_sweep_is_kept_and_reported(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call trains nothing; its JSON has the verdict, every gate and the table; the status is the verdict's."""
    before = {path: path.stat().st_mtime_ns for path in (swept / "s" / "cells").iterdir()}
    assert len(before) == 2 * 7 * 2
    status = run(_words(swept, "--json"))
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if found["passed"] else 1)
    assert {check["name"] for check in found["checks"]} == {"interior", "regret", "drift", "control", "best"}
    assert len(found["table"]) == 28
    assert before == {path: path.stat().st_mtime_ns for path in (swept / "s" / "cells").iterdir()}
    kept = json.loads((swept / "s" / "result.json").read_text())
    assert len(kept["rows"]) == 28


def test_only_base_finds_the_same_rate(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the same kept cells, claiming nothing about transfer."""
    assert run(_words(swept, "--only-base", "--save", str(swept / "base.json"))) == 0
    said = capsys.readouterr().out
    assert "transfer was not checked" in said
    assert f"kept: the result of other cells that was there, as {swept / 's' / 'result-1.json'}" in said
    assert Recipe.load(swept / "base.json").rate == Recipe.load(swept / "recipe.json").rate
    assert Recipe.load(swept / "base.json").passed is None


def test_a_recipe_trains_another_width_as_the_sweep_did(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bit for bit: every loss is the cell's; the recipe is in the export, with the base shapes."""
    recipe = Recipe.load(swept / "recipe.json")
    words = [
        "pretrain",
        "--recipe",
        str(swept / "recipe.json"),
        "--width",
        "32",
        "--updates",
        "6",
        "--report-every",
        "1",
    ]
    assert run([*words, "--eval-batches", "2", "--out", str(swept / "run")]) == 0
    assert recipe.summary() in " ".join(capsys.readouterr().out.split())
    name = Cell(width=32, rate=recipe.rate, updates=6).name
    cell = json.loads((swept / "s" / "cells" / f"{name}.json").read_text())["result"]
    lines = [json.loads(line) for line in (swept / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [round(line["loss"], 6) for line in lines if "loss" in line] == cell["curve"]
    notes = json.loads((swept / "run" / "export" / "mufree.json").read_text())
    assert Recipe.from_mapping(notes["recipe"]) == recipe
    assert notes["recipe"]["base_shapes"]["lm_head.weight"] == [None, 16]
    assert run(["pretrain", "--resume", "--out", str(swept / "run"), "--updates", "7"]) == 0
    assert run(["export", str(swept / "run"), "--out", str(swept / "y"), "--weights", "y"]) == 0
    assert json.loads((swept / "y" / "mufree.json").read_text())["recipe"] == notes["recipe"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--head-dim", "16"], "head_dim: 16 is not the 8"),
        (["--layers", "2"], "layers: 2 is not the 1"),
        (["--lr", "0.5", "--beta2", "0.9"], "beta2: 0.9 is not the 0.98"),
        (["--despite", "layers"], "'layers' cannot differ"),
    ],
)
def test_what_contradicts_a_recipe(
    swept: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Is refused by name, before anything is written."""
    place = swept / "none"
    assert run(["pretrain", "--recipe", str(swept / "recipe.json"), "--width", "32", "--out", str(place), *words]) == 2
    assert said in capsys.readouterr().err
    assert not place.exists()


def test_a_contradiction_that_is_named_is_taken(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the option's own spelling."""
    words = ["pretrain", "--recipe", str(swept / "recipe.json"), "--dry-run", "--json", "--weight-decay", "0.2"]
    assert run([*words, "--despite", "weight-decay"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["weight_decay"] == 0.2


def test_another_vocabulary_is_not_covered(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe whose tokenizer was another."""
    content = json.loads((swept / "recipe.json").read_text())
    (swept / "other.json").write_text(json.dumps(content | {"tokenizer_hash": "0" * 16}))
    assert run(["pretrain", "--recipe", str(swept / "other.json"), "--out", str(swept / "none")]) == 2
    assert "tokenizer: is not the one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--widths", "16"], "one width shows no transfer; give another, or --only-base"),
        (["--widths", "32,64"], "lack the base width, 16"),
        (["--widths", "16,20"], "20 makes num_attention_heads 2.5"),
        (["--updates", "0"], "updates: 0"),
        (["--beta1", "0.8"], "beta1: 0.8 contradicts 0.9"),
        (["--jobs", "0"], "jobs: 0"),
    ],
)
def test_what_a_sweep_refuses(swept: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    """By name, with the remedy, status 2."""
    assert run(_words(swept, *words)) == 2
    assert said in capsys.readouterr().err


def test_a_sweep_on_the_edge_gives_no_recipe(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lowest rates of the same cells."""
    assert run(_words(swept, "--rates", "2^-8..2^-6", "--save", str(swept / "edge.json"))) == 2
    assert "add higher rates" in capsys.readouterr().err
    assert run(_words(swept, "--rates", "2^-8..2^-6")) == 1
    assert not (swept / "edge.json").exists()


def test_a_coordinate_check_refuses_a_sweep_s_folder(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the other way round is the same test of the store."""
    assert (
        run(["coord-check", "--base-width", "16", "--head-dim", "8", "--widths", "16,32", "--out", str(swept / "s")])
        == 2
    )
    assert "holds a transfer study, not coord-check" in capsys.readouterr().err


def test_the_control_of_a_coordinate_check_fails_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which module follows the width."""
    words = ["coord-check", "--base-width", "16", "--head-dim", "8", "--widths", "16,32,64", "--layers", "1"]
    words += ["--seq-length", "16", "--batch-size", "2", "--seeds", "1", "--updates", "2", "--out", str(tmp_path / "c")]
    assert run([*words, "--scales", "sp", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert {growth["module"] for growth in found["growth"]} == {
        "model.layers.0", "model.layers.0: attention logits", "output",
    }  # fmt: skip
    assert {growth["at"] for growth in found["growth"]} == {"y", "x"}
    assert "But 1 seed cannot decide" in found["verdict"]
    capsys.readouterr()
    assert run([*words, "--scales", "sp", "--widths", "16,32"]) in (0, 1)
    assert f"as {tmp_path / 'c' / 'result-1.json'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "c" / "result-1.json").read_text())["verdict"] == found["verdict"]


def test_a_quick_look_is_part_of_the_check(tmp_path: Path) -> None:
    """Three widths over the whole range, one seed, all else as in the check; options win over it."""
    from mufree.cli import coord_check
    from mufree.cli.parser import Parser

    parser = Parser()
    coord_check.add_arguments(parser)
    quick, whole = (coord_check.read(parser.parse_args(words)) for words in (["--quick"], []))
    assert quick[0] == {"widths": [64, 256, 1024], "seeds": 1, "updates": whole[0]["updates"]}
    assert {64, 1024} <= set(quick[0]["widths"]) <= set(whole[0]["widths"])
    assert quick[1] == whole[1]
    assert coord_check.read(parser.parse_args(["--quick", "--seeds", "2"]))[0]["seeds"] == 2


def test_the_help_shows_the_defaults_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the command, where it has others than pretraining."""
    with pytest.raises(SystemExit):
        run(["coord-check", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for words in ("output head at zero (default: yes)", "queries at zero (default: yes)", "micro-batch (default: 16)"):
        assert words in said


def test_a_quick_grid_is_a_part_of_the_full_one_that_passes() -> None:
    """By the cells of the study that is kept."""
    from mufree.cli.transfer import FULL, QUICK
    from mufree.studies import Transfer

    assert {**QUICK, "widths": FULL["widths"], "rates": FULL["rates"]} == FULL
    assert {*QUICK["widths"]} < {*FULL["widths"]}
    assert {*QUICK["rates"]} < {*FULL["rates"]}
    kept = Transfer.load(Path(__file__).parents[2] / "reference/data/transfer.json")
    rows = [row for row in kept.rows if row["width"] in QUICK["widths"] and row["rate"] in QUICK["rates"]]
    assert Transfer(rows=rows, base_width=64).passed


def test_jobs_share_the_work(tmp_path: Path) -> None:
    """Two processes, one folder, the result of one."""
    (tmp_path / "small.yaml").write_text(SMALL)
    words = _words(tmp_path, "--jobs", "2", "--rates", "2^-5..2^-3", "--no-sp", "--json")
    done = subprocess.run([sys.executable, "-m", "mufree", *words], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert len(json.loads(done.stdout)["table"]) == 6


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2^-8..2^-6", [2.0**-8, 2.0**-7, 2.0**-6]), ("0.01,1e-3", [0.01, 0.001]), ("0.5..0.5", [0.5])],
)
def test_rates_as_people_write_them(text: str, numbers: list[float]) -> None:
    """A range of doublings, or a list."""
    assert rates(text) == numbers


@pytest.mark.parametrize("text", ["2^-4..2^-8", "0.1..0.3", "a", "0..1", ""])
def test_rates_that_are_none(text: str) -> None:
    """With what was wrong."""
    import argparse

    with pytest.raises(argparse.ArgumentTypeError):
        rates(text)
    with pytest.raises(argparse.ArgumentTypeError):
        whole_numbers("64,x")


def _words(folder: Path, *more: Any) -> list[str]:
    return ["transfer", "-c", str(folder / "small.yaml"), "--out", str(folder / "s"), *more]


@pytest.mark.parametrize("command", ["transfer", "coord-check"])
def test_a_list_in_a_file_that_is_none_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file and the option, status 2, and nothing written."""
    (tmp_path / "c.yaml").write_text("widths: [64, wide]\n")
    assert run([command, "-c", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "c.yaml: widths: 'wide' is not a list of whole numbers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["transfer", "coord-check"])
def test_ctrl_c_ends_with_what_is_kept(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130, one line on stderr."""
    from mufree.studies.task import Task

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "start", interrupted)
    (tmp_path / "small.yaml").write_text(SMALL if command == "transfer" else SMALL.replace("rates", "# rates"))
    words = [command, "-c", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "s"), "--jobs", "1"]
    assert run(words) == 130
    said = capsys.readouterr().err
    assert said.startswith(f"mufree {command}: stopped; 0 of ")
    assert said.endswith("the same command goes on from there\n")
