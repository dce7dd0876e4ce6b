"""Checkpoints: whole or not there, and strict when read."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, CheckpointError, RAdamScheduleFree, Refused, SGDScheduleFree
from mufree.files import recover_all
from mufree.training import load_checkpoint, save_checkpoint
from mufree.training.checkpoint import checkpoints
from mufree.training.keeping import prune
from mufree.training.manifest import sealed


def trained(width: int = 4, updates: int = 3, optimizer: Any = None) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 1))
    optimizer = optimizer or AdamWScheduleFree(0.1)
    optimizer.init(model.trainable_parameters())
    step = nn.value_and_grad(model, lambda model, x: model(x).square().mean())
    for _ in range(updates):
        optimizer.update(model, step(model, mx.ones((5, 3)))[1])
    mx.eval(model.parameters(), optimizer.state)
    return model, optimizer


def everything(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return {p: a.tolist() for p, a in [*tree_flatten(model.parameters()), *tree_flatten(optimizer.state)]}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    """Weights, state, random state and facts, into a model that knows nothing yet."""
    model, optimizer = trained()
    save_checkpoint(tmp_path / "c", model, optimizer, {"position": 3})
    drawn = mx.random.normal((4,)).tolist()
    other, empty = trained(updates=0)
    assert load_checkpoint(tmp_path / "c", other, empty) == {"position": 3}
    assert everything(other, empty) == everything(model, optimizer)
    assert mx.random.normal((4,)).tolist() == drawn
    average = dict(tree_flatten(optimizer.average(model.parameters())))
    saved = mx.load(str(tmp_path / "c" / "x.safetensors"))
    assert all(mx.array_equal(average[path], saved[path]) for path in average)


@pytest.mark.parametrize("holds", ["y", "x"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("cls", [AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree])
def test_every_schedule_free_optimizer_goes_on_bit_for_bit(tmp_path: Path, cls: Any, dtype: Any, holds: str) -> None:
    """6 updates, a checkpoint, 3 more = the 3 more of a fresh model and optimizer that loaded it, compiled as well."""

    def new() -> tuple[nn.Module, Any, Any]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        model.set_dtype(dtype)
        optimizer = cls(0.1, weight_decay=0.1, model_holds=holds)
        optimizer.init(model.trainable_parameters())
        loss = lambda model, x: (model(x) - 1).square().mean()  # noqa: E731
        gradient = nn.value_and_grad(model, optimizer.at_y(loss) if holds == "x" else loss)
        state = [model.state, optimizer.state, mx.random.state]
        step = mx.compile(
            lambda: optimizer.update(model, gradient(model, mx.ones((5, 3), dtype))[1]), inputs=state, outputs=state
        )
        return model, optimizer, step

    model, optimizer, step = new()
    for _ in range(6):
        step()
    save_checkpoint(tmp_path / "c", model, optimizer, {})
    saved = mx.load(str(tmp_path / "c" / "x.safetensors"))
    average = dict(tree_flatten(optimizer.average(model.parameters())))
    assert all(saved[path].tolist() == average[path].tolist() for path in average)
    for _ in range(3):
        step()
    other, loaded, again = new()
    again()
    load_checkpoint(tmp_path / "c", other, loaded)
    for _ in range(3):
        again()
    assert everything(other, loaded) == everything(model, optimizer)


def test_a_model_that_holds_x_for_the_time_being_is_not_saved(tmp_path: Path) -> None:
    """Its x would be taken for y on resuming."""
    model, optimizer = trained()
    optimizer.eval(model)
    with pytest.raises(Refused, match="holds the average"):
        save_checkpoint(tmp_path / "c", model, optimizer, {})
    assert not (tmp_path / "c").exists()
    optimizer.train(model)
    save_checkpoint(tmp_path / "c", model, optimizer, {})


def test_a_multi_optimizers_average_is_saved(tmp_path: Path) -> None:
    """x of what the schedule-free child trains, the rest as it is."""
    children = [AdamWScheduleFree(0.1), optim.SGD(0.1)]
    model, optimizer = trained(optimizer=optim.MultiOptimizer(children, [lambda _, w: w.ndim == 2]))
    save_checkpoint(tmp_path / "c", model, optimizer, {})
    y, x = (mx.load(str(tmp_path / "c" / f"{name}.safetensors")) for name in "yx")
    assert {path for path in y if y[path].tolist() != x[path].tolist()} == {"layers.0.weight", "layers.2.weight"}


def test_stock_optimizers_can_be_saved_too(tmp_path: Path) -> None:
    """One without an average has the same weights at x and y."""
    model, optimizer = trained(optimizer=optim.AdamW(0.1))
    save_checkpoint(tmp_path / "c", model, optimizer, {})
    assert (tmp_path / "c" / "x.safetensors").read_bytes() == (tmp_path / "c" / "y.safetensors").read_bytes()


FAULTS = {
    "missing": (lambda c: (c / "y.safetensors").unlink(), r"y.safetensors: is missing"),
    "truncated": (lambda c: (c / "x.safetensors").write_bytes((c / "x.safetensors").read_bytes()[:-1]), "checksum"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "no readable manifest"),
    "half a manifest": (lambda c: (c / "manifest.json").write_text('{"format": 1'), "no readable manifest"),
    "another format": (
        lambda c: (c / "manifest.json").write_text(json.dumps({"format": 99, "files": {}})),
        "format 99; this version reads format 3",
    ),
    "a path outside": (
        lambda c: (c / "manifest.json").write_text(
            json.dumps(sealed({**json.loads((c / "manifest.json").read_text()), "files": {"../../etc/passwd": "0"}}))
        ),
        "is not the name of a file in this folder",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_changes_nothing(tmp_path: Path, fault: str) -> None:
    """Each fault is named with its file, and model and optimizer are as they were."""
    damage, says = FAULTS[fault]
    model, optimizer = trained()
    save_checkpoint(tmp_path / "c", model, optimizer, {})
    damage(tmp_path / "c")
    other, empty = trained(updates=1)
    before = everything(other, empty)
    with pytest.raises(CheckpointError, match=says):
        load_checkpoint(tmp_path / "c", other, empty)
    assert everything(other, empty) == before


def test_another_models_checkpoint_is_refused_with_every_path(tmp_path: Path) -> None:
    """All shapes that differ are listed, for weights and state; nothing is half loaded."""
    save_checkpoint(tmp_path / "c", *trained(width=4), {})
    other, empty = trained(width=6)
    before = everything(other, empty)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "c", other, empty)
    fields = [reason.field for reason in caught.value.reasons]
    assert "y.safetensors: layers.0.weight" in fields
    assert "optimizer.safetensors: layers.2.weight.z" in fields
    assert "layers.2.bias" not in " ".join(fields)
    assert everything(other, empty) == before


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short while writing, or between the two renames: the old one can be loaded."""
    model, optimizer = trained()
    folder = tmp_path / "saves" / "00000003"
    save_checkpoint(folder, model, optimizer, {"number": 1})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(folder, model, optimizer, {"number": 2})
    monkeypatch.undo()
    assert load_checkpoint(folder, model, optimizer) == {"number": 1}
    folder.rename(folder.with_name(".00000003.old"))
    recover_all(tmp_path / "saves")
    assert checkpoints(tmp_path / "saves") == [folder]
    assert load_checkpoint(folder, model, optimizer) == {"number": 1}


def test_a_process_killed_between_the_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every one of them: the next writer finds the old folder or the new one, whole."""
    rename, folder = Path.rename, tmp_path / "c"
    for last in range(4):
        model, optimizer = trained()
        save_checkpoint(folder, model, optimizer, {"number": 1})
        made: list[Path] = []

        def killed(self: Path, to: Path, *, made: list[Path] = made, last: int = last) -> Path:
            if len(made) >= last:
                raise SystemExit
            made.append(to)
            return rename(self, to)

        with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
            patch.setattr(Path, "rename", killed)
            save_checkpoint(folder, model, optimizer, {"number": 2})
        recover_all(tmp_path)
        assert load_checkpoint(folder, model, optimizer) == {"number": 2 if last > 1 else 1}
        assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    """Older checkpoints go, other files stay."""
    for number in (2, 10, 9):
        (tmp_path / f"{number:08}").mkdir()
    (tmp_path / "notes").mkdir()
    prune(tmp_path / "00000010", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000009", "00000010", "notes"]
