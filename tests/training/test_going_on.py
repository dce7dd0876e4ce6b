"""Runs that go on: from damaged, moved, foreign and half-written folders."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mufree import CheckpointError, NonFiniteLoss, Refused
from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints
from mufree.training.exporting import export_run
from mufree.training.folder import RunFolder
from mufree.training.keeping import best, prune
from mufree.training.loop import Trainer
from mufree.training.manifest import sealed
from mufree.training.report import Metrics, read_metrics
from training_settings import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 updates on a text of its own, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text("All work and no play. " * 100)
    pretrain(tiny(folder / "run", data=str(folder / "text.txt"), updates=4, save_every=2))
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def go_on(place: Path, **changes: Any) -> Any:
    settings = json.loads((place.parent / "run" / "run.json").read_text())["settings"]
    return pretrain(tiny(place, **{"updates": 6, "save_every": 2, "data": settings["data"], **changes}), resume=True)


def newest(place: Path) -> bytes:
    return (checkpoints(place / "checkpoints")[-1] / "y.safetensors").read_bytes()


def snapshot(place: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in place.rglob("*")}


def test_data_may_have_moved(place: Path, finished: Path, tmp_path: Path) -> None:
    """The same text elsewhere is the same data, and the new place is kept."""
    go_on(place)
    straight = newest(place)
    other = tmp_path / "other"
    shutil.copytree(finished / "run", other)
    shutil.copy(finished / "text.txt", tmp_path / "moved.txt")
    go_on(other, data=str(tmp_path / "moved.txt"))
    assert newest(other) == straight
    assert RunFolder(other).saved()["settings"]["data"] == str(tmp_path / "moved.txt")


def test_a_damaged_checkpoint_never_costs_a_whole_one(place: Path) -> None:
    """With one to keep, the damaged later one goes and the one just written stays."""
    (place / "checkpoints" / "00000004" / "y.safetensors").write_bytes(b"damaged")
    go_on(place, updates=3, keep=1)
    assert [path.name for path in checkpoints(place / "checkpoints")] == ["00000003"]
    assert RunFolder(place).newest().name == "00000003"


def test_no_whole_checkpoint_is_refused_with_what_is_wrong_with_each(place: Path) -> None:
    """Of another format, and damaged; nothing is touched."""
    manifest = place / "checkpoints" / "00000002" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 1}))
    (place / "checkpoints" / "00000004" / "x.safetensors").write_bytes(b"damaged")
    before = snapshot(place)
    for act in (lambda: go_on(place), lambda: export_run(place, place.parent / "e")):
        with pytest.raises(CheckpointError, match=r"checksum(.|\n)*has format 1; this version reads format 3"):
            act()
    assert {**snapshot(place), str(place): 0} == {**before, str(place): 0}


def edited(**parts: Any) -> Callable[[Path], Any]:
    def edit(place: Path) -> None:
        saved = json.loads((place / "run.json").read_text())
        kept = {name: value for name, value in {**saved, **parts}.items() if value is not None}
        (place / "run.json").write_text(json.dumps(sealed(kept)))

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        *[edited(**{name: value}) for name in ("settings", "identity") for value in (None, [1], "x")],
        *[lambda place, text=text: (place / "run.json").write_bytes(text) for text in (b"", b"[1]", b"5", b"\xff\xfe")],
    ],
)
def test_a_damaged_description_is_refused(place: Path, damage: Callable[[Path], Any]) -> None:
    """By training and by export."""
    damage(place)
    for act in (lambda: RunFolder(place).settings({}), lambda: export_run(place, place.parent / "e")):
        with pytest.raises(CheckpointError, match=r"run\.json is not what mufree writes"):
            act()


def test_an_option_that_the_saved_run_did_not_know_has_its_default(place: Path) -> None:
    """A run of an earlier version goes on; with another value than the default it does not."""
    settings = RunFolder(place).saved()["settings"]
    edited(settings={name: value for name, value in settings.items() if name != "zero_query"})(place)
    with pytest.raises(CheckpointError, match="zero_query: True contradicts the saved run's False"):
        go_on(place, zero_query=True)
    go_on(place)


def test_a_new_length_replaces_the_old_ones(place: Path) -> None:
    """Four updates were asked for; a number of tokens or a time alone is then the only limit."""
    folder = RunFolder(place)
    for new in ({"tokens": 320}, {"max_time": 1.5}, {"updates": 9, "max_time": 2.0}):
        settings = folder.settings(new)
        assert {name: settings[name] for name in ("updates", "tokens", "max_time") if settings[name] is not None} == new
    assert folder.settings({"lr": 0.5})["updates"] == 4


@pytest.mark.parametrize("part", ["metrics.jsonl", "checkpoints", "export"])
def test_a_part_that_is_something_else_is_told_before_training(
    place: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after hours, when it is to be written."""
    where = place / part
    shutil.rmtree(where) if where.is_dir() else where.unlink()
    where.write_text("mine") if part != "metrics.jsonl" else where.mkdir()
    monkeypatch.setattr(Trainer, "advance", lambda _: pytest.fail("an update was made"))
    with pytest.raises(Refused, match=f"{part} (is not a|exists and is not)"):
        go_on(place)


def test_a_better_checkpoint_of_another_run_is_nobodys_best(place: Path) -> None:
    """Neither exported, nor kept in the place of the run's own best one."""
    own, run = place / "checkpoints/00000002", RunFolder(place).saved()["run"]
    rewrite_facts(own, validated=2, losses={"valid_loss_x": 3.0})
    other = shutil.copytree(own, place / "checkpoints/00000001")
    rewrite_facts(other, run="another", validated=2, losses={"valid_loss_x": 1.0})
    assert best(checkpoints(place / "checkpoints")) == other
    assert RunFolder(place).newest(best=True) == best(checkpoints(place / "checkpoints"), run) == own
    prune(place / "checkpoints/00000004", 1)
    assert own in checkpoints(place / "checkpoints")


def rewrite_facts(checkpoint: Path, **changes: Any) -> None:
    """A checkpoint with other facts, whole."""
    facts, manifest = checkpoint / "facts.json", checkpoint / "manifest.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | changes))
    content = json.loads(manifest.read_text())
    content["files"]["facts.json"] = hashlib.sha256(facts.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sealed(content)))


@pytest.mark.parametrize("inside", [True, False])
def test_an_export_does_not_take_the_place_of_its_run(place: Path, inside: bool) -> None:
    """A folder that looks like an earlier export, and is or holds the run, is not replaced."""
    target = place if inside else place.parent
    (target / "mufree.json").write_text("{}")
    before = snapshot(place)
    with pytest.raises(Refused, match="would be replaced"):
        export_run(place, target)
    assert snapshot(place) == before


@pytest.mark.parametrize("name", ["run.json", "checkpoints/00000004/manifest.json"])
def test_json_that_nests_too_deep_is_damage(place: Path, name: str) -> None:
    """Python gives up on it with an error of its own."""
    (place / name).write_text("[" * 100_000)
    if name == "run.json":
        with pytest.raises(CheckpointError, match="is not what mufree writes"):
            RunFolder(place).saved()
    else:
        assert RunFolder(place).latest()[0] == place / "checkpoints/00000002"


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    """New, resumed and exported."""
    place = tmp_path / ("x" * 300)
    RunFolder(place).check_free()
    with pytest.raises(Refused, match="cannot be made: File name too long"), RunFolder(place).claimed():
        pass
    with pytest.raises(Refused, match="holds no run"):
        export_run(place, tmp_path / "export")


def test_one_process_writes_to_a_run(place: Path) -> None:
    """A second one is refused while the first is at work; reading disturbs neither."""
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        (place / "checkpoints" / ".00000006.new").mkdir()
        with pytest.raises(Refused, match="another process is training in"):
            go_on(place)
        export_run(place, place.parent / "e")
        assert (place / "checkpoints" / ".00000006.new").is_dir()
    finally:
        os.close(descriptor)
    go_on(place)
    assert not (place / "checkpoints" / ".00000006.new").exists()


def test_what_was_cut_short_is_put_back(place: Path) -> None:
    """Killed between the two renames of a checkpoint or an export, or while claiming the folder."""
    kept = newest(place)
    for folder in (place / "checkpoints" / "00000004", place / "export"):
        folder.rename(folder.with_name(f".{folder.name}.old"))
        folder.with_name(f".{folder.name}.new").mkdir()
    go_on(place, updates=4)
    assert newest(place) == kept
    assert (place / "export" / "model.safetensors").is_file()
    assert not [path for path in place.rglob("*") if path.name.endswith((".old", ".new"))]
    unborn = place.parent / "unborn"
    unborn.mkdir()
    (unborn / ".run.json.new").write_text("{")
    assert pretrain(tiny(unborn, updates=1)).update == 1


def test_the_metrics_of_a_run_that_goes_on_are_in_order_and_once(place: Path) -> None:
    """Cut to the checkpoint, bad lines dropped, nothing said twice, and the start only once."""
    metrics = place / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"update": 5, "loss": 1}\n\xff\n[1]\n{"a": 1}\n{"update": 5, "lo')
    go_on(place, updates=4)
    lines = read_metrics(metrics)
    assert [line["update"] for line in lines if "loss" in line] == [2, 4]
    assert [line["update"] for line in lines if "valid_loss_x" in line] == [0, 4]
    for part in ("checkpoints", "export"):
        shutil.rmtree(place / part)
    go_on(place, updates=4)
    again = read_metrics(metrics)
    timeless = [{k: v for k, v in line.items() if "second" not in k} for line in again]
    assert timeless == [{k: v for k, v in line.items() if "second" not in k} for line in lines[: len(again)]]
    written = Metrics(metrics, 0)
    for _ in range(2):
        written.write({"update": 1, "valid_loss_x": 1.0})
    written.close()
    assert len(read_metrics(metrics)) == 1


def test_a_folder_that_cannot_be_made_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file, in a folder without the right to write, with a name that is too long."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match=r"is not a folder, so .* cannot be made"):
        pretrain(tiny(tmp_path / "file" / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(Refused, match="cannot be written to"):
            pretrain(tiny(tmp_path / "run"))
    with pytest.raises((Refused, OSError), match="too long"):
        pretrain(tiny(tmp_path / ("a" * 300)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_names_the_checkpoint_that_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's RuntimeError is an OSError then, nothing half-written stays, and the run can go on."""

    def full(*_: Any) -> None:
        raise RuntimeError("[write] Unable to write 9376 bytes to file.")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "save_safetensors", full)
        with pytest.raises(OSError, match=r"Unable to write 9376 bytes to file; the last checkpoint is .*00000004"):
            go_on(place)
    assert sorted(path.name for path in (place / "checkpoints").iterdir()) == ["00000002", "00000004"]
    assert go_on(place).update == 6


def test_weights_that_are_not_finite_are_neither_saved_nor_exported(tmp_path: Path) -> None:
    """An update can leave a finite loss and weights that are none; the next loss would tell too late."""
    with pytest.raises(NonFiniteLoss, match=r"update \d is .*checkpoint.*\. Start again in"):
        pretrain(tiny(tmp_path / "run", weight_decay=1e38, save_every=1, warmup=0))
    for path in checkpoints(tmp_path / "run" / "checkpoints"):
        arrays = mx.load(str(path / "y.safetensors"))
        assert all(mx.all(mx.isfinite(array)).item() for array in arrays.values())
    assert not (tmp_path / "run" / "export").exists()


def test_an_export_has_the_card_of_its_weights(place: Path, tmp_path: Path) -> None:
    """x and y with their own loss; a tokenizer that has changed since is refused."""
    cards = [export_run(place, tmp_path / at, weights=at).joinpath("README.md").read_text() for at in ("x", "y")]
    losses = json.loads((tmp_path / "y" / "mufree.json").read_text())["losses"]
    for card, name in zip(cards, ("x", "y"), strict=True):
        assert f"| validation loss | {losses[f'valid_loss_{name}']:.4f} nats" in card
        assert f"| weights | {name}, " in card
    edited(identity={**RunFolder(place).saved()["identity"], "tokenizer": "0"})(place)
    with pytest.raises(Refused, match="no longer the one"):
        export_run(place, tmp_path / "again")
