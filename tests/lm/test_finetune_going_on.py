"""What a run that goes on must share with the one that was saved, and what may be another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mufree import CheckpointError
from mufree.cli import run as command
from mufree.lm import finetune
from tiny_finetune import settings

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
    from mufree.training.report import Silent

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
