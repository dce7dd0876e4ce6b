"""``mufree lora`` as a person uses it who has used ``mlx_lm.lora``."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mufree.cli import run
from tiny_finetune import make_data, make_model

YAML = """
model: "{model}"
train: true
fine_tune_type: lora
data: "{data}"
seed: 0
num_layers: 2
batch_size: 2
iters: 7
val_batches: -1
learning_rate: 1e-3
steps_per_report: 1
steps_per_eval: 4
resume_adapter_file: null
adapter_path: "{out}"
save_every: 3
test: false
test_batches: 500
max_seq_length: 40
grad_checkpoint: false
grad_accumulation_steps: 2
lora_parameters:
  keys: ["self_attn.q_proj", "self_attn.v_proj"]
  rank: 8
  scale: 20.0
  dropout: 0.0
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("base")
    return make_model(folder / "model"), make_data(folder / "data")


@pytest.fixture
def file(base: tuple[Path, Path], tmp_path: Path) -> Path:
    """A config as mlx-lm's example has it."""
    path = tmp_path / "lora.yaml"
    path.write_text(YAML.format(model=base[0], data=base[1], out=tmp_path / "adapters"))
    return path


def test_every_flag_of_mlx_lm_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Found in the installed parser."""
    from mlx_lm.lora import build_parser

    with pytest.raises(SystemExit) as caught:
        run(["lora", "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for action in build_parser()._actions:
        for flag in action.option_strings:
            assert f"{flag} " in said or f"{flag}," in said or f"{flag}\n" in said or f"{flag}]" in said, flag


def test_the_whole_job(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan, training, the best adapters; then the run goes on for longer with nothing but the new length."""
    assert run(["lora", "-c", str(file), "--test"]) == 0
    said = capsys.readouterr().out
    for words in (
        "lora, all 2 layers, rank 8, scale 20, dropout 0",
        "AdamWScheduleFree",
        "no schedule: a constant rate of 0.001 after 20 updates of warmup",
        "1 of 7 micro-batches are left over: 2 make an update, and 3 updates are made",
        "validation loss",
        "at y",
        "test loss",
        "best validation loss",
        "--resume",
        "peak memory",
    ):
        assert words in said, words
    assert "▼" not in said
    out = tmp_path / "adapters"
    assert run(["lora", "--resume", "--adapter-path", str(out), "--iters", "10", "--json"]) == 0
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert (result["update"], result["folder"], result["best"]) == (5, str(out), str(out / "best"))
    assert result["best_valid_loss"] <= result["valid_loss_x"]
    assert "going on from" in streams.err
    for line in (out / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["iteration"] <= 10


def test_a_dry_run_writes_nothing(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the plan, as a table or as JSON; options win over the file."""
    words = ["lora", "-c", str(file), "--optimizer", "adam", "--learning-rate", "2e-3", "--dry-run"]
    assert run([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["plan"]["optimizer"], plan["plan"]["meaning"], plan["plan"]["peak_lr"]) == ("Adam", "mlx-lm", 2e-3)
    assert plan["plan"]["leftover_micro_batches"] == 1
    assert plan["settings"]["lora_parameters"]["rank"] == 8
    # rank 8 on two square projections of 64 in each of two layers
    assert plan["trained_parameters"] == 2 * 2 * (64 * 8 + 8 * 64)
    assert "no bias correction, first update 3.16 times the rate" in plan["notes"][0]
    assert run(words) == 0
    assert "meaning: mlx-lm" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lora.yaml"]


def test_wrong_input_ends_with_status_2(file: Path, base: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons on stderr, all at once, no traceback."""
    for words, says in (
        (["--num-layers", "5"], "num_layers: 5 is more than the model's 2 layers"),
        (["--iters", "0", "--batch-size", "0"], "batch_size: 0 is too small"),
        (["--no-train"], "train: neither train nor test is asked for; give --train, --test or both"),
        (["--model", "/nowhere"], "model: '/nowhere' cannot be loaded"),
    ):
        assert run(["lora", "-c", str(file), *words]) == 2
        said = capsys.readouterr()
        assert says in said.err
        assert "Traceback" not in said.err + said.out
    file.write_text(file.read_text().replace("rank: 8", "rank: 0").replace("save_every", "safe_every"))
    assert run(["lora", "-c", str(file)]) == 2
    said = capsys.readouterr().err
    assert "lora.yaml: safe_every: no such key; did you mean save_every?" in said
    assert "lora_parameters.rank: 0; give a whole number from 1 to 2147483647" in said


def test_a_second_run_does_not_replace_the_first(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the first was mlx-lm's, whose adapters are replaced as mlx-lm would."""
    out = tmp_path / "adapters"
    out.mkdir()
    (out / "adapters.safetensors").write_bytes(b"mlx-lm's")
    (out / "adapter_config.json").write_text("{}")
    assert run(["lora", "-c", str(file), "--iters", "2"]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(["lora", "-c", str(file)]) == 2
    assert "adapter_path:" in (said := capsys.readouterr().err)
    assert "go on with --resume" in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_dry_run_refuses_what_the_run_would(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is a file, before anything is loaded; settings that contradict the run to go on with."""
    (taken := tmp_path / "taken").write_text("mine")
    assert run(["lora", "-c", str(file), "--adapter-path", str(taken), "--model", "/nowhere", "--dry-run"]) == 2
    assert f"adapter_path: {taken} is a file; give a folder" in capsys.readouterr().err
    assert run(["lora", "-c", str(file), "--iters", "2", "--base-width", "32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["peak_memory"] > 0
    assert result["planned_memory"] > 0
    words = ["lora", "--resume", "--adapter-path", str(tmp_path / "adapters"), "--dry-run"]
    assert run([*words, "--base-width", "64"]) == 2
    assert "base_width: 64 contradicts the saved run's 32; leave it out" in capsys.readouterr().err
    assert run([*words, "--iters", "4", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["plan"]["scales"]["base_width"] == 32
    assert planned["memory"]["total"] == result["planned_memory"]


def test_ctrl_c_saves_and_says_how_to_go_on(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130, as shells have it; the run goes on from there."""
    from mufree.training.report import ConsoleReporter

    heard = ConsoleReporter.record

    def record(self: ConsoleReporter, line: Any) -> None:
        heard(self, line)
        if line["iteration"] == 3 and "loss" in line:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ConsoleReporter, "record", record)
    assert run(["lora", "-c", str(file)]) == 130
    assert f"mufree lora --resume --adapter-path {tmp_path / 'adapters'}" in capsys.readouterr().out
    monkeypatch.undo()
    assert run(["lora", "--resume", "--adapter-path", str(tmp_path / "adapters")]) == 0
    assert "update     3" in capsys.readouterr().out
