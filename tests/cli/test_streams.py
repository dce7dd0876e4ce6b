"""The command at odd ends: pipes that close, terminals without Unicode, JSON for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mufree.cli import run
from training_settings import flags


def started(words: list[str], **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mufree", *words]
    env = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def test_json_is_all_there_is_on_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Progress goes to stderr, also what libraries print; for a plan and for a result."""
    for extra, key in ((["--dry-run"], "plan"), ([], "valid_loss_x"), (["--resume"], "valid_loss_y")):
        assert run(["pretrain", *flags(tmp_path / "run", updates=2), "--json", *extra]) == 0
        assert key in json.loads(capfd.readouterr().out)


@pytest.mark.slow
def test_an_ascii_terminal_gets_no_traceback(tmp_path: Path) -> None:
    """Question marks stand for what it cannot show, in the plan, the help and a refusal."""
    for words, status in (
        (["pretrain", *flags(tmp_path / "run"), "--dry-run"], 0),
        (["plan", "--help"], 0),
        (["pretrain", "--base-width", "0"], 2),
    ):
        process = started(words, PYTHONIOENCODING="ascii")
        said, errors = process.communicate()
        assert process.returncode == status, errors
        assert b"Traceback" not in errors
        (said + errors).decode("ascii")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_run_politely(tmp_path: Path) -> None:
    """``| head``: saved, exported, silent, and the status that a shell gives for SIGPIPE."""
    process = started(["pretrain", *flags(tmp_path / "run", updates=100000, report_every=1)])
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        while not process.stdout.readline().startswith(b"update     3"):
            pass
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
    assert (tmp_path / "run" / "export" / "model.safetensors").is_file()


def test_a_resumed_plan_is_that_of_the_saved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another model is refused by a dry run too, and a wrong YAML key is said to be in the YAML file."""
    out = tmp_path / "run"
    assert run(["pretrain", *flags(out, updates=1)]) == 0
    capsys.readouterr()
    assert run(["pretrain", "--resume", "--dry-run", "--out", str(out), "--width", "64"]) == 2
    assert "width: 64 contradicts the saved run's 32" in capsys.readouterr().err
    (tmp_path / "more.yaml").write_text("updats: 5\n")
    assert run(["pretrain", "--resume", "--out", str(out), "-c", str(tmp_path / "more.yaml")]) == 2
    assert "more.yaml: updats: no such option; did you mean updates?" in capsys.readouterr().err
    assert run(["pretrain", "--resume", "--out", str(out)]) == 0
    assert "has made 1 update already; for more give --updates" in capsys.readouterr().out
