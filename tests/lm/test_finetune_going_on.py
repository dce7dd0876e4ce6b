"""What a run that goes on must share with the one that was saved, and what may be another."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from mufree import CheckpointError
from mufree.cli import run as command
from mufree.files import read_json, write_json
from mufree.lm import finetune
from mufree.lm.tuning.base_weights import tokenizer_digest, weights_digest
from mufree.training.manifest import sealed
from mufree.training.report import Silent
from tiny_finetune import make_data, make_model, settings

SHORT = {"iters": 4, "save_every": 2, "steps_per_eval": 2, "warmup": 2}


@pytest.fixture(scope="module")
def made(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    out = tmp_path_factory.mktemp("made") / "out"
    finetune(settings(*base, out, **SHORT))
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LEFT = (
    "adapters.safetensors",
    "0000004_adapters.safetensors",
    "0000002_adapters.safetensors",
    "best/adapters.safetensors",
)


@pytest.mark.parametrize("left", LEFT)
def test_trained_adapters_without_checkpoints_are_not_trained_over(
    out: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of them are left; by the command too, and by its look at the plan; nothing changes."""
    shutil.rmtree(out / "checkpoints")
    for name in LEFT[: LEFT.index(left)]:
        (out / name).unlink()
    before = contents(out)
    says = f"has been trained, and its checkpoints are gone; .* in another folder: --resume-adapter-file {out / left}"
    with pytest.raises(CheckpointError, match=says):
        finetune({"adapter_path": str(out)}, resume=True)
    for more in ([], ["--dry-run"]):
        assert command(["lora", "--resume", "--adapter-path", str(out), *more]) == 2
        assert "its checkpoints are gone" in capsys.readouterr().err
    assert contents(out) == before


def test_a_run_killed_before_its_first_update_starts_again(base: Any, out: Path, tmp_path: Path) -> None:
    """The best adapters of a validation before any update are its beginning, which is no loss."""

    class Killed(Exception):
        pass

    class EndsAtOnce(Silent):
        def record(self, line: Any) -> None:
            if line["iteration"] == 0:
                return
            raise Killed

    other = tmp_path / "killed"
    with pytest.raises(Killed):
        finetune(settings(*base, other, **{**SHORT, "save_every": 4, "steps_per_report": 1}), report=EndsAtOnce())
    assert (other / "best").is_dir()
    assert finetune({"adapter_path": str(other)}, resume=True).update == 4


def test_other_base_weights_under_the_same_config_are_refused(base: Any, out: Path, tmp_path: Path) -> None:
    """Also where they replaced the first ones in their place; a quantised base too."""
    other = make_model(tmp_path / "other", seed=4)
    with pytest.raises(CheckpointError, match=f"model: '{other}' contradicts the saved run: its weights are others"):
        finetune({"adapter_path": str(out), "model": str(other), "iters": 6}, resume=True)
    for name, seed in (("q", 3), ("q2", 4)):
        mlx_lm.convert(str(make_model(tmp_path / f"{name}-plain", seed=seed)), str(tmp_path / name), quantize=True)
    finetune(settings(tmp_path / "q", base[1], tmp_path / "q-out", **SHORT))
    shutil.rmtree(tmp_path / "q")
    (tmp_path / "q2").rename(tmp_path / "q")
    with pytest.raises(CheckpointError, match=r"model: .* its weights are others"):
        finetune({"adapter_path": str(tmp_path / "q-out"), "iters": 6}, resume=True)


def test_a_fingerprint_sees_the_weights_and_not_where_they_are(base: Any, tmp_path: Path) -> None:
    """A copy, older files, other shards and another metadata are the same; one tensor that changed is not."""
    first = weights_digest(str(base[0]))
    copy = Path(shutil.copytree(base[0], tmp_path / "copy"))
    file = copy / "model.safetensors"
    os.utime(file, (1, 1))
    assert weights_digest(str(copy)) == first
    weights: Any = mx.load(str(file))
    mx.eval(weights)
    file.unlink()
    names = sorted(weights)
    mx.save_safetensors(str(copy / "model-00002-of-00002"), {name: weights[name] for name in names[:3]}, {"by": "me"})
    mx.save_safetensors(str(copy / "model-00001-of-00002"), {name: weights[name] for name in names[3:]})
    assert weights_digest(str(copy)) == first
    weights[names[-1]] = weights[names[-1]] * 1.01
    mx.save_safetensors(str(copy / "model-00001-of-00002"), {name: weights[name] for name in names[3:]})
    assert weights_digest(str(copy)) not in (first, None)
    (copy / "model-00001-of-00002.safetensors").write_bytes(b"\0")
    assert weights_digest(str(copy)) is None
    assert (weights_digest(str(tmp_path / "none")), tokenizer_digest(str(tmp_path / "none"))) == (None, None)


def test_another_tokenizer_or_template_is_refused(base: Any, out: Path, tmp_path: Path) -> None:
    """They decide what a row's tokens are; other words about the model do not."""
    copy = Path(shutil.copytree(base[0], tmp_path / "copy"))
    (copy / "README.md").write_text("moved")
    place = next(path for path in (copy / "chat_template.jinja", copy / "tokenizer_config.json") if path.is_file())
    finetune({"adapter_path": str(out), "iters": 5, "model": str(copy)}, resume=True)
    place.write_text(place.read_text().replace("role", "content"))
    with pytest.raises(CheckpointError, match=r"model: .* its tokenizer or chat template is another; give the one"):
        finetune({"adapter_path": str(out), "iters": 6, "model": str(copy)}, resume=True)


def test_a_run_saved_without_a_fingerprint_goes_on(out: Path, tmp_path: Path, base: Any) -> None:
    """It gets one; until then another path is another model."""
    forget(out, "base_weights", "tokenizer")
    copy = shutil.copytree(base[0], tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"model: .* contradicts the saved run's .*; leave it out"):
        finetune({"adapter_path": str(out), "model": str(copy), "iters": 6}, resume=True)
    finetune({"adapter_path": str(out), "iters": 6}, resume=True)
    assert read_json(out / "run.json")["identity"]["base_weights"] == weights_digest(str(base[0]))


def forget(out: Path, *parts: str) -> None:
    """Make a run one that an earlier version saved."""
    saved = read_json(out / "run.json")
    for part in parts:
        saved["identity"].pop(part)
    saved.pop("checksum", None)
    saved.pop("places")
    write_json(out / "run.json", sealed(saved))


@pytest.fixture
def started_there(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started in a folder of its own, with relative paths; the process is in another one now."""
    there = tmp_path / "there"
    shutil.copytree(base[0], there / "model")
    shutil.copytree(base[1], there / "text")
    monkeypatch.chdir(there)
    finetune(settings(Path("model"), Path("text"), Path("out"), **SHORT))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return there


def test_relative_paths_are_found_from_another_folder(started_there: Path) -> None:
    """The model and the data are where they were when the run began."""
    run = finetune({"adapter_path": str(started_there / "out"), "iters": 6}, resume=True)
    assert run.update == 6


def test_model_and_data_may_move(started_there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is asked for by its setting's name; the same content elsewhere is taken, and remembered."""
    (started_there / "model").rename("moved")
    shutil.move(started_there / "text", "rows")
    out = str(started_there / "out")
    with pytest.raises(CheckpointError) as caught:
        finetune({"adapter_path": out, "iters": 6}, resume=True)
    says = (
        f"is relative to the folder that the run was started in ({started_there}/{{}} is not there any more); give --"
    )
    assert [str(reason) for reason in caught.value.reasons] == [
        f"model: 'model' {says.format('model')}model", f"data: 'text' {says.format('text')}data"
    ]  # fmt: skip
    assert finetune({"adapter_path": out, "iters": 6, "model": "moved", "data": "rows"}, resume=True).update == 6
    assert finetune({"adapter_path": out, "iters": 7}, resume=True).update == 7
    shutil.rmtree("rows")
    make_data(Path("rows"), train=24)
    with pytest.raises(CheckpointError, match="data: 'rows' contradicts the saved run: the rows of its training set"):
        finetune({"adapter_path": out, "iters": 8}, resume=True)


def test_an_earlier_versions_relative_paths_are_asked_for(started_there: Path) -> None:
    """They are not taken for names of the hub, which would be asked."""
    forget(started_there / "out", "base_weights")
    with pytest.raises(CheckpointError, match=r"model: 'model' is relative to .* started in; give --model\n"):
        finetune({"adapter_path": str(started_there / "out"), "iters": 6}, resume=True)


def test_weights_to_start_from_are_not_needed_to_go_on(base: Any, out: Path, tmp_path: Path) -> None:
    """The checkpoint has replaced them."""
    file = tmp_path / "out" / "adapters.safetensors"
    finetune(settings(*base, tmp_path / "second", **SHORT, resume_adapter_file=str(file)))
    file.unlink()
    assert finetune({"adapter_path": str(tmp_path / "second"), "iters": 6}, resume=True).update == 6


@pytest.mark.parametrize(
    "given",
    [
        {"warmup": 2, "optimizer": "schedule_free_adamw", "learning_rate": 1e-4, "text_feature": "text"},
        {"optimizer": " Schedule_Free_AdamW", "optimizer_config": {"schedule_free_adamw": {"eps": 1e-8}}},
        {"optimizer_config": {"adam": {"eps": 1e-6}}},
    ],
)
def test_saying_what_is_so_already_is_no_contradiction(given: dict[str, Any], out: Path) -> None:
    """Settings are compared by what they mean."""
    assert finetune({"adapter_path": str(out), "iters": 6, **given}, resume=True).update == 6


def test_saying_otherwise_is_one(out: Path) -> None:
    """The optimizer's own settings too."""
    for given, field in (
        ({"warmup": 3}, "warmup"),
        ({"learning_rate": 2e-4}, "learning_rate"),
        ({"optimizer_config": {"schedule_free_adamw": {"eps": 1e-6}}}, "optimizer_config"),
        ({"optimizer": "schedule_free_sgd"}, "optimizer"),
        ({"lora_parameters": {"rank": 8, "dropout": 0.1, "scale": 10.0}}, "lora_parameters"),
    ):
        with pytest.raises(CheckpointError, match=f"^{field}: .* contradicts the saved run's"):
            finetune({"adapter_path": str(out), "iters": 6, **given}, resume=True)


def test_fewer_iterations_than_were_made_are_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the look at the plan too; nothing changes."""
    before = contents(out)
    for more in ([], ["--dry-run"]):
        assert command(["lora", "--resume", "--adapter-path", str(out), "--iters", "3", *more]) == 2
        assert "iters: 3 is less than the 4 micro-batches that the run has used already" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.parametrize("left_over", [0, 1])
def test_a_run_with_nothing_to_do_changes_no_file(left_over: int, base: Any, tmp_path: Path) -> None:
    """Though its validations draw; and its losses are told once more."""
    more = {"iters": 8 + left_over, "grad_accumulation_steps": 2, "val_batches": 2, "save_every": 4}
    run = finetune(settings(*base, tmp_path / "out", **{**SHORT, **more}))
    before = contents(tmp_path / "out")
    again = finetune({"adapter_path": str(tmp_path / "out")}, resume=True)
    assert contents(tmp_path / "out") == before
    assert {name: again.losses[name] for name in ("valid_loss_x", "valid_loss_y", "best_valid_loss")} == {
        name: run.losses[name] for name in ("valid_loss_x", "valid_loss_y", "best_valid_loss")
    }
    kept = mx.load(str(shutil.copy(tmp_path / "out" / "adapters.safetensors", tmp_path / "kept.safetensors")))
    (tmp_path / "out" / "adapters.safetensors").unlink()
    finetune({"adapter_path": str(tmp_path / "out")}, resume=True)
    back: Any = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    assert all(mx.array_equal(back[path], array).item() for path, array in kept.items())


def test_stopped_at_its_very_end_a_run_is_validated_when_it_goes_on(base: Any, tmp_path: Path) -> None:
    """Once, on the rows that it would have drawn; then nothing is left to do."""
    more = {**SHORT, "val_batches": 2, "steps_per_report": 1}
    whole = finetune(settings(*base, tmp_path / "whole", **more))

    class Stops(Silent):
        def record(self, line: Any) -> None:
            if line["iteration"] == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    assert finetune(settings(*base, tmp_path / "out", **more), report=Stops()).signal == signal.SIGTERM
    run = finetune({"adapter_path": str(tmp_path / "out")}, resume=True)
    assert run.losses["valid_loss_x"] == whole.losses["valid_loss_x"]
    before = contents(tmp_path / "out")
    finetune({"adapter_path": str(tmp_path / "out")}, resume=True)
    assert contents(tmp_path / "out") == before
    for folder in ("whole", "out"):
        finetune({"adapter_path": str(tmp_path / folder), "iters": 6}, resume=True)
    last = "checkpoints/00000006/optimizer.safetensors"
    assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "out" / last).read_bytes()
