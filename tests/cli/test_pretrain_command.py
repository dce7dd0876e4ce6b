"""``mufree pretrain`` as a person uses it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mufree.cli import run
from mufree.training.checkpoint import read_facts
from training_settings import SMALL, flags


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command says on stderr when it refuses."""
    assert run(words) == 2
    return capsys.readouterr().err


def test_the_whole_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan, training, sample; then the same folder goes on for longer with nothing but the new length."""
    out = tmp_path / "run"
    assert run(["pretrain", *flags(out)]) == 0
    said = capsys.readouterr().out
    for words in ("hidden", "output-like", "untied head", "validation loss", "at y", "read back by mlx_lm", "--resume"):
        assert words in said
    assert run(["pretrain", "--resume", "--out", str(out), "--updates", "8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["update"] == 8
    assert result["valid_loss_x"] > 0
    assert run(["export", str(out), "--weights", "y"]) == 0
    assert Path(capsys.readouterr().out.strip()).joinpath("model.safetensors").is_file()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates, with a prompt of its own, and validated at x after the last one already."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(["pretrain", *flags(out, updates=4, eval_every=4, data=SMALL, prompt="It's")]) == 0
    return out


def test_going_on_with_a_finished_run_says_both_losses(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one line, though that at x was known; which of them is exported; and how to go on."""
    assert run(["pretrain", "--resume", "--out", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "the run has made 4 updates already; for more give --updates" in said
    assert re.search(r"^update +4  validation loss \d\.\d{4} at x  validation loss \d\.\d{4} at y$", said, re.MULTILINE)
    assert said.count("at x, the average, which is exported") == 1
    assert run(["pretrain", "--resume", "--out", str(finished), "--updates", "3"]) == 0
    assert "--updates 3 is not beyond the 4 updates that the run has made" in capsys.readouterr().out


def test_what_is_proposed_is_what_was_asked_for(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own prompt, quoted for a shell, and sampled."""
    assert run(["pretrain", "--resume", "--out", str(finished)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("use it:"))
    words = shlex.split(line.removeprefix("use it:"))
    expected = ["mlx_lm.generate", "--model", str(finished / "export"), "--prompt", "It's", "--temp", "0.8"]
    assert words == expected


def test_an_export_says_what_it_is(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Update, sequence and loss, on stderr; stdout is the folder alone, for a script."""
    losses = read_facts(finished / "checkpoints" / "00000004")["losses"]
    for at, name in (("x", "the average"), ("y", "where gradients were taken")):
        assert run(["export", str(finished), "--weights", at, "--out", str(tmp_path / at)]) == 0
        said = capsys.readouterr()
        assert said.out == f"{tmp_path / at}\n"
        assert said.err == f"exported: update 4, {at}, {name}; validation loss {losses[f'valid_loss_{at}']:.4f}\n"


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the plan, as a table or as JSON."""
    assert run(["pretrain", *flags(tmp_path / "run"), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    rows = {row["kind"]: row for row in plan["groups"]}
    assert (rows["hidden"]["m_in"], rows["hidden"]["lr"]) == (2.0, 2.0**-7)
    assert (rows["hidden"]["eps"], rows["hidden"]["weight_decay"]) == (0.5e-8, 0.2)
    assert (rows["output-like"]["eps"], rows["output-like"]["weight_decay"]) == (1e-8, 0.2)
    assert (rows["input-like"]["lr"], rows["input-like"]["weight_decay"]) == (2.0**-6, 0.1)
    assert sum(row["parameters"] for row in plan["groups"]) == 32_928
    assert sum(row["tensors"] for row in plan["groups"]) == 12
    assert not list(tmp_path.iterdir())


def test_settings_come_from_yaml_and_options_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field of the architecture can only be in the file."""
    file = tmp_path / "run.yaml"
    file.write_text("width: 64\nlr: 0.25\nmodel:\n  rope_theta: 777.0\n")
    words = [word for word in flags(tmp_path / "run", lr="2^-4") if word not in ("--width", "32")]
    assert run(["pretrain", "-c", str(file), *words, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model_config"]["hidden_size"] == 64
    assert plan["model_config"]["rope_theta"] == 777.0
    assert plan["plan"]["peak_lr"] == 2.0**-4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a fraction of a head": ({"width": 100, "head_dim": 16, "base_width": 32}, r"width: 100 .* give 96 or 112"),
    "no base width": ({"base_width": 0}, r"base_width: 0 .* whole number ≥ 1"),
    "a negative rate": ({"lr": -1}, r"lr: -1.0 .* number > 0"),
    "an unknown architecture": ({"model_type": "lama"}, r"model_type: 'lama' .* choose one of: .*llama"),
    "a β out of range": ({"beta1": 1.5}, r"beta.*1\.5"),
    "an unreadable tokenizer": ({"tokenizer": "/nowhere"}, r"tokenizer: /nowhere has no tokenizer"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_wrong_settings_are_refused(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, the setting, what was given and what is allowed, and nothing is written."""
    changes, says = REFUSED[fault]
    words = [f"{a}={b}" for a, b in zip(*[iter(flags(tmp_path / "run", **changes))] * 2, strict=True)]
    assert re.search(says, refused(capsys, ["pretrain", *words]))
    assert not list(tmp_path.iterdir())


def test_wrong_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key, no YAML, no mapping; data that is missing, empty or shorter than a sequence."""
    out = tmp_path / "run"
    for name, content, says in (
        ("key.yaml", "widht: 128\n", "key.yaml: widht: no such option; did you mean width? The options are: "),
        ("broken.yaml", "width: [\n", "broken.yaml: is not YAML"),
        ("list.yaml", "- width\n", "list.yaml: holds a list; write one setting a line"),
        ("type.yaml", "width: wide\n", "width: 'wide' is not a whole number"),
    ):
        (tmp_path / name).write_text(content)
        assert says in refused(capsys, ["pretrain", "-c", str(tmp_path / name), "--out", str(out)])
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("short")
    for name, says in (("empty.txt", "is empty"), ("short.txt", "a sequence takes 17"), ("no.txt", "does not exist")):
        assert says in refused(capsys, ["pretrain", *flags(out, data=tmp_path / name)])
    assert not out.exists()


def test_all_problems_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data, tokenizer, width and optimizer in one refusal."""
    changes = {"data": tmp_path / "no.txt", "tokenizer": tmp_path / "no", "width": 36, "beta2": 2.0}
    said = refused(capsys, ["pretrain", *flags(tmp_path / "run", **changes)])
    for words in ("data: ", "tokenizer: ", "width: 36", "beta"):
        assert words in said


def test_an_occupied_folder_and_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Starting over a run, resuming nothing, resuming with another model: each says what to do."""
    out = tmp_path / "run"
    assert "holds no run to resume" in refused(capsys, ["pretrain", "--resume", "--out", str(out)])
    assert not out.exists()
    assert run(["pretrain", *flags(out, updates=1)]) == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    assert "go on with --resume" in refused(capsys, ["pretrain", *flags(out)])
    assert "width: 64 contradicts the saved run's 32" in refused(
        capsys, ["pretrain", "--resume", "--out", str(out), "--width", "64"]
    )
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


def test_a_misspelt_option_is_refused_by_the_parser() -> None:
    """Status 2, as for every refusal, also for an abbreviation."""
    for words in (["pretrain", "--widht", "64"], ["pretrain", "--upd", "4"], ["no-such-command"], []):
        with pytest.raises(SystemExit) as caught:
            run(words)
        assert caught.value.code == 2


@pytest.mark.slow
def test_the_module_and_the_status_of_a_refusal(tmp_path: Path) -> None:
    """``python -m mufree`` is the command; a refusal has no traceback."""
    command = [sys.executable, "-m", "mufree", "pretrain", "--lr", "0", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MUFREE_BLAS": "off"})
    assert done.returncode == 2
    assert "lr: 0.0 is not allowed; give a number > 0" in done.stderr
    assert "Traceback" not in done.stderr
