"""Every fault a run can meet, made to happen: what is said, and that the last good checkpoint loads.

Processes that are killed are in ``test_kills``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, CheckpointError, Refused
from mufree.cli import run as command
from mufree.training import load_checkpoint, pretrain, save_checkpoint
from mufree.training.checkpoint import checkpoints, verify
from mufree.training.folder import RunFolder
from mufree.training.keeping import best, prune, validated_loss
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from training_settings import SMALL, TINY, Heard, flags, small


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 updates with checkpoints at 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    pretrain(small(folder, save_every=2, keep=9))
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy to harm."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def content(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def loads(checkpoint: Path) -> bool:
    """Whether a checkpoint goes into a fresh model and optimizer."""
    prepared = prepare(small(checkpoint.parent / "new"))
    prepared.optimizer.init(prepared.model.trainable_parameters())
    return load_checkpoint(checkpoint, prepared.model, prepared.optimizer)["position"]["update"] == int(checkpoint.name)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A filesystem of its own that is soon full."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be made in the folder: by its mode, and for root, whom modes do not stop, as immutable."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root and (
            shutil.which("chattr") is None
            or subprocess.run(["chattr", "+i", str(folder)], capture_output=True).returncode
        ):
            pytest.skip("root writes to everything here")
        yield
    finally:
        if root:
            subprocess.run(["chattr", "-i", str(folder)], capture_output=True)
        folder.chmod(0o755)


def test_a_full_disk_stops_the_run_and_harms_nothing(tmp_path: Path) -> None:
    """Really full, while checkpoints are written: what is kept is named and loads, and with room the run goes on."""
    pretrain(small(tmp_path / "straight", updates=12))
    with small_disk(tmp_path / "small", "2500k") as disk:
        settings = {"save_every": 1, "keep": 9, "updates": 12}
        with pytest.raises(OSError, match=r"; the last checkpoint is .*0000000\d") as caught:
            pretrain(small(disk / "run", **settings))
        found = checkpoints(disk / "run" / "checkpoints")
        assert 2 <= len(found) < 9
        assert str(found[-1]) in str(caught.value)
        assert all(loads(path) for path in found)
        assert not [path for path in (disk / "run" / "checkpoints").iterdir() if path not in found]
        shutil.rmtree(found[0])
        shutil.rmtree(found[1])
        pretrain(small(disk / "run", **{**settings, "keep": 1, "save_every": 100}), resume=True)
        ours, theirs = (root / "checkpoints/00000012" for root in (disk / "run", tmp_path / "straight"))
        for name in ("x", "y", "optimizer", "random"):
            assert (ours / f"{name}.safetensors").read_bytes() == (theirs / f"{name}.safetensors").read_bytes()


def test_the_command_tells_a_full_disk_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and the checkpoint that is kept."""
    with small_disk(tmp_path / "small", "2500k") as disk:
        assert command(["pretrain", *flags(disk / "run", data=SMALL, save_every=1, keep=9, updates=12)]) == 1
        said = capsys.readouterr().err
    assert "the last checkpoint is" in said
    assert "Traceback" not in said


def test_a_folder_that_turns_read_only_stops_the_run_and_harms_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the run; afterwards it goes on."""
    before = {path.name: content(path) for path in checkpoints(place / "checkpoints")}
    settings = {"save_every": 2, "keep": 9, "updates": 10}
    with (
        read_only(place / "checkpoints"),
        pytest.raises(OSError, match=r"(not permitted|denied|Read-only).*; the last checkpoint is .*00000006"),
    ):
        pretrain(small(place, **settings), resume=True)
    assert {path.name: content(path) for path in checkpoints(place / "checkpoints")} == before
    assert loads(place / "checkpoints" / "00000006")
    assert pretrain(small(place, **settings), resume=True).update == 10


def test_a_read_only_place_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """For a new run, with the place; a saved run in one says which file cannot be written."""
    (tmp_path / "fixed").mkdir()
    with read_only(tmp_path / "fixed"), pytest.raises(Refused, match=r"fixed cannot be written to"):
        pretrain(small(tmp_path / "fixed" / "run"))
    pretrain(small(tmp_path / "run", updates=1))
    with read_only(tmp_path / "run"), pytest.raises(OSError, match=r"run\.json"):
        pretrain(small(tmp_path / "run", updates=2), resume=True)
    assert loads(tmp_path / "run" / "checkpoints" / "00000001")


FILES = ("x.safetensors", "y.safetensors", "optimizer.safetensors", "random.safetensors", "facts.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_and_any_cut_is_seen(place: Path, name: str) -> None:
    """Forty random bits and ten lengths of every file."""
    checkpoint, drawn = place / "checkpoints" / "00000006", random.Random(name)
    whole = (checkpoint / name).read_bytes()
    verify(checkpoint)
    damaged = []
    for _ in range(40):
        bit = drawn.randrange(8 * len(whole))
        damaged.append(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
    # But for the newline at the end, which says nothing.
    damaged += [whole[: drawn.randrange(len(whole) - 1)] for _ in range(10)] + [b"", whole + b"\0"]
    for bits in damaged:
        (checkpoint / name).write_bytes(bits)
        with pytest.raises(CheckpointError) as caught:
            verify(checkpoint)
        assert str(checkpoint) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_with_a_damaged_file_the_run_goes_on_from_the_checkpoint_before(place: Path, finished: Path, name: str) -> None:
    """It says which file, and ends with the bits of the undamaged run."""
    damaged = place / "checkpoints" / "00000006" / name
    damaged.write_bytes(damaged.read_bytes()[:-2])
    heard = Heard()
    pretrain(small(place, save_every=2, keep=9), resume=True, report=heard)
    assert any("passed over a checkpoint" in text and "00000006" in text for text in heard.notes)
    assert any("going on from" in text and "00000004" in text for text in heard.notes)
    ours, theirs = (content(root / "checkpoints" / "00000006") for root in (place, finished))
    assert all(ours[one] == theirs[one] for one in FILES[:4])


def test_one_flipped_bit_in_the_runs_description_is_refused(place: Path) -> None:
    """It holds the settings: another rate would go unseen otherwise."""
    whole, drawn = (place / "run.json").read_bytes(), random.Random(1)
    for _ in range(40):
        bit = drawn.randrange(8 * len(whole))
        flipped = whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]
        (place / "run.json").write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"run\.json is not what mufree writes"):
            RunFolder(place).saved()


def test_a_renamed_checkpoint_is_passed_over(place: Path, finished: Path) -> None:
    """It would be gone on from at another update than it holds."""
    shutil.copytree(place / "checkpoints/00000004", place / "checkpoints/00000030")
    heard = Heard()
    pretrain(small(place, updates=6), resume=True, report=heard)
    assert any("00000030: was written as 00000004" in text for text in heard.notes)
    assert {path.name for path in checkpoints(place / "checkpoints")} >= {"00000030", "00000004", "00000006"}
    assert content(place / "checkpoints" / "00000006") == content(finished / "checkpoints" / "00000006")


def test_a_renamed_checkpoint_is_kept_and_no_other_goes_for_it(place: Path) -> None:
    """It can be given its name back."""
    for number in (5, 30):
        shutil.copytree(place / "checkpoints/00000004", place / f"checkpoints/{number:08}")
    prune(place / "checkpoints/00000006", 2)
    left = {path.name for path in checkpoints(place / "checkpoints")}
    assert left >= {"00000004", "00000005", "00000006", "00000030"}


def test_a_checkpoint_of_another_run_is_passed_over(place: Path, finished: Path, tmp_path: Path) -> None:
    """Though it is whole, of the same shape, and newer; alone it is refused. One file of it is a damaged file."""
    pretrain(small(tmp_path / "other", seed=1, updates=8))
    shutil.copytree(tmp_path / "other" / "checkpoints" / "00000008", place / "checkpoints" / "00000008")
    heard = Heard()
    pretrain(small(place, updates=6), resume=True, report=heard)
    assert any("00000008: is a checkpoint of another run" in text for text in heard.notes)
    assert content(place / "checkpoints" / "00000006") == content(finished / "checkpoints" / "00000006")
    for path in checkpoints(place / "checkpoints"):
        shutil.rmtree(path)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "00000008", place / "checkpoints" / "00000008")
    with pytest.raises(CheckpointError, match="is a checkpoint of another run"):
        pretrain(small(place, updates=9), resume=True)
    shutil.copytree(finished / "checkpoints" / "00000006", place / "checkpoints" / "00000006")
    shutil.copy(place / "checkpoints/00000008/y.safetensors", place / "checkpoints/00000006/y.safetensors")
    with pytest.raises(CheckpointError, match=r"00000006/y\.safetensors: does not have the checksum"):
        verify(place / "checkpoints" / "00000006")


def test_another_set_of_trainable_paths_is_refused_with_each(tmp_path: Path) -> None:
    """Frozen here and trained there, and the other way round; nothing is loaded."""

    def made(frozen: bool) -> tuple[nn.Module, Any]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        if frozen:
            model.layers[0].freeze()
        optimizer = AdamWScheduleFree(0.1)
        optimizer.init(model.trainable_parameters())
        return model, optimizer

    for saved, loaded, code in ((True, False, "missing"), (False, True, "extra")):
        save_checkpoint(tmp_path / "c", *made(saved), {})
        model, optimizer = made(loaded)
        before = [array.tolist() for _, array in tree_flatten([model.parameters(), optimizer.state])]
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / "c", model, optimizer)
        paths = {f"layers.0.{leaf}.{part}" for leaf in ("weight", "bias") for part in "zv"}
        assert {(reason.field, reason.code) for reason in caught.value.reasons} == {
            (f"optimizer.safetensors: {path}", code) for path in paths
        }
        assert [array.tolist() for _, array in tree_flatten([model.parameters(), optimizer.state])] == before


@pytest.mark.slow
def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """The second is refused as long as the first lives, and goes on when it was killed."""
    words = ["pretrain", *flags(tmp_path / "run", data=SMALL, updates=10**6, save_every=5)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen([sys.executable, "-m", "mufree", *words], **quiet)
    try:
        deadline = time.monotonic() + 60
        while not checkpoints(tmp_path / "run" / "checkpoints") and time.monotonic() < deadline:
            assert first.poll() is None
            time.sleep(0.05)
        with pytest.raises(Refused, match="another process is training in"):
            pretrain(small(tmp_path / "run", updates=10**6, save_every=5), resume=True)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    reached = int(checkpoints(tmp_path / "run" / "checkpoints")[-1].name)
    assert pretrain(small(tmp_path / "run", updates=reached + 1), resume=True).update == reached + 1


def test_the_best_is_kept_beside_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By validation loss at x, whenever it was validated; also by a run that went on, and it can be exported."""
    evaluate = Trainer.evaluate
    losses = {0: 9.0, 2: 5.0, 4: 3.0, 6: 4.0, 8: 6.0, 10: 2.0}

    def told(self: Trainer, batches: Any, *, at: str = "x") -> float:
        evaluate(self, batches, at=at)
        return losses[self.position.update]

    monkeypatch.setattr(Trainer, "evaluate", told)
    settings = {"eval_every": 2, "save_every": 3, "keep": 1}
    seen = {}
    for updates in (6, 8, 10):
        pretrain(small(tmp_path / "run", **settings, updates=updates), resume=updates > 6)
        seen[updates] = [int(path.name) for path in checkpoints(tmp_path / "run" / "checkpoints")]
    assert seen == {6: [4, 6], 8: [4, 8], 10: [10]}


def test_a_best_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    """The run goes on from before it, and no longer measures itself by it."""
    settings = {"eval_every": 2, "save_every": 2, "keep": 2}
    pretrain(small(tmp_path / "run", **settings, updates=4))
    kept = tmp_path / "run" / "checkpoints" / "00000004"
    assert best(checkpoints(kept.parent)) == kept
    (kept / "y.safetensors").write_bytes(b"")
    pretrain(small(tmp_path / "run", **{**settings, "save_every": 100}, updates=6), resume=True)
    verify(kept)


def test_the_best_can_be_exported(place: Path, tmp_path: Path) -> None:
    """Of the run's three checkpoints, only the last was validated, so that is the best; then an earlier one is."""
    assert [validated_loss(path) is not None for path in checkpoints(place / "checkpoints")] == [False, False, True]
    assert RunFolder(place).newest(best=True).name == "00000006"
    shutil.rmtree(place / "checkpoints" / "00000006")
    assert RunFolder(place).newest(best=True).name == "00000004"


CHANGES: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 3},
    "warmup": {"warmup": 50},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_named_may_contradict_the_saved_run(place: Path, finished: Path, name: str) -> None:
    """It is said, it is in force, and it is what the run is from then on; unnamed it is refused with how to name it."""
    with pytest.raises(CheckpointError, match=f"contradicts the saved run's .*--despite {name}"):
        pretrain(small(place, **CHANGES[name], updates=8), resume=True)
    heard = Heard()
    pretrain(small(place, **CHANGES[name], updates=8), resume=True, despite=(name,), report=heard)
    assert any(f"as it is meant to, {name} goes on at {CHANGES[name][name]!r}" in text for text in heard.notes)
    shutil.copytree(finished, place.parent / "same")
    pretrain(small(place.parent / "same", updates=8), resume=True)
    ours, theirs = (content(place.parent / one / "checkpoints" / "00000008") for one in ("run", "same"))
    assert ours["y.safetensors"] != theirs["y.safetensors"]
    pretrain(small(place, **CHANGES[name], updates=9), resume=True)
    tokens = json.loads((place / "checkpoints/00000009/facts.json").read_text())["position"]["tokens"]
    assert tokens == 6 * 32 + 3 * 16 * CHANGES[name].get("batch_size", TINY["batch_size"])


def test_the_new_rate_is_the_one_used(place: Path) -> None:
    """The saved state holds the old one."""
    pretrain(small(place, lr=2.0**-3, updates=7), resume=True, despite=("lr",))
    state = mx.load(str(place / "checkpoints/00000007/optimizer.safetensors"))
    assert state["schedule_free.scheduled_lr"].item() == state["learning_rate"].item() == 2.0**-3


def test_another_batch_size_goes_on_at_the_very_next_token(place: Path) -> None:
    """The position is an offset in the data, not a number of batches."""
    asked: list[tuple[int, int]] = []
    prepared = prepare(small(place))
    kind = type(prepared.train)
    sequences = kind.sequences

    def watched(self: Any, first: int, count: int, seed: int) -> Any:
        asked.append((first, count))
        return sequences(self, first, count, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "sequences", watched)
        pretrain(small(place, batch_size=5, updates=8), resume=True, despite=("batch_size",))
        pretrain(small(place, batch_size=5, updates=9), resume=True)
    assert asked == [(12, 5), (17, 5), (22, 5)]


def test_what_arrays_depend_on_cannot_be_named(place: Path) -> None:
    """A width, β1 (which x is worked out with), a misspelling: with what can."""
    for name, change in (("width", {"width": 64}), ("beta1", {"beta1": 0.5}), ("learning_rate", {})):
        with pytest.raises(CheckpointError, match=f"despite: '{name}' cannot differ from the saved run's; one of: lr,"):
            pretrain(small(place, **change), resume=True, despite=(name,))


def test_other_data_can_be_meant(place: Path, tmp_path: Path) -> None:
    """The tokens that follow come from it."""
    (tmp_path / "other.txt").write_text("Something else entirely. " * 200)
    changed = {"data": str(tmp_path / "other.txt"), "updates": 7}
    with pytest.raises(CheckpointError, match="train_tokens"):
        pretrain(small(place, **changed), resume=True)
    assert pretrain(small(place, **changed), resume=True, despite=("data",)).update == 7


def test_the_command_takes_the_name_with_dashes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And refuses one that nothing is given for it to differ from."""
    words = ["pretrain", "--resume", "--out", str(place), "--updates", "7", "--batch-size", "3"]
    assert command(words) == 2
    assert "--despite batch_size" in capsys.readouterr().err
    assert command([*words, "--despite", "batch-size"]) == 0
    capsys.readouterr()
    assert command(["pretrain", "--despite", "lr"]) == 2
    assert "give --recipe FILE, or --resume" in capsys.readouterr().err


def flip_last(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)


def test_an_export_says_what_it_passes_over_and_replaces_no_later_one(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The export of update 6 stays when only update 4 is whole; elsewhere update 4 is written."""
    before = content(place / "export")
    flip_last(RunFolder(place).checkpoint(6) / "x.safetensors")
    assert command(["export", str(place)]) == 2
    said = capsys.readouterr().err
    assert "passed over a checkpoint" in said
    assert "holds update 6 of this run, later than update 4" in said
    assert content(place / "export") == before
    assert command(["export", str(place), "--out", str(tmp_path / "elsewhere")]) == 0
    assert "passed over a checkpoint" in capsys.readouterr().err
    assert json.loads((tmp_path / "elsewhere/mufree.json").read_text())["position"]["update"] == 4


def test_a_trained_run_whose_checkpoints_are_gone_does_not_start_anew(place: Path) -> None:
    """Its export would be replaced by one of a few updates; the way on is from its weights."""
    before = content(place / "export")
    shutil.rmtree(place / "checkpoints")
    with pytest.raises(CheckpointError, match=r"checkpoints are gone.*--weights"):
        pretrain(small(place, save_every=2, keep=9, updates=8), resume=True)
    assert content(place / "export") == before


def test_somebody_elses_file_in_the_export_is_not_lost(place: Path) -> None:
    """Named before the run goes on; what starts with a dot is no one's work."""
    (place / "export/.DS_Store").touch()
    (place / "export/notes.txt").write_text("mine")
    (place / "export/sub").mkdir()
    with pytest.raises(Refused, match=r"notes\.txt, sub besides an export"):
        pretrain(small(place, save_every=2, keep=9, updates=8), resume=True)
    assert (place / "export/notes.txt").read_text() == "mine"
    (place / "export/notes.txt").unlink()
    (place / "export/sub").rmdir()
    assert pretrain(small(place, save_every=2, keep=9, updates=8), resume=True).update == 8
