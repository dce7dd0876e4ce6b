"""What only a pretraining run can be asked for: type of the weights, saved memory, clipping, weights to start from."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import CheckpointError, Refused, lm
from mufree.studies.language import language_task
from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints
from mufree.training.grad_checkpoint import checkpoint_gradients
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from mufree.training.report import read_metrics
from training_settings import Heard, small, tiny

# A block that is computed twice in other kernels: float32's last digits after three updates.
SAME = 1e-5


def packed(header: Any, size: int) -> bytes:
    """A safetensors file that is as long as its header says."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def entry(dtype: str = "F64", count: int = 1) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [count], "data_offsets": [0, 8]}


def test_bfloat16_weights_with_float32_state(tmp_path: Path) -> None:
    """In the checkpoint and in the export; the run goes on bit for bit, and as float32 it does not."""
    settings = {"dtype": "bfloat16", "accumulation": 3, "updates": 4}
    run = pretrain(small(tmp_path / "a", **settings))
    saved = checkpoints(tmp_path / "a" / "checkpoints")[-1]
    for name, dtype in (("y", mx.bfloat16), ("x", mx.bfloat16)):
        assert {array.dtype for array in mx.load(str(saved / f"{name}.safetensors")).values()} == {dtype}
    state = mx.load(str(saved / "optimizer.safetensors"))
    assert {array.dtype for path, array in state.items() if path.endswith((".z", ".v", ".y"))} == {mx.float32}
    assert json.loads((run.export / "config.json").read_text())["dtype"] == "bfloat16"
    pretrain(small(tmp_path / "b", **{**settings, "updates": 2}))
    pretrain(small(tmp_path / "b", **settings), resume=True)
    for name in ("x", "y", "optimizer"):
        paths = [tmp_path / run / "checkpoints/00000004" / f"{name}.safetensors" for run in "ab"]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(
        CheckpointError, match=r"dtype: 'float32' contradicts the saved run's 'bfloat16'; leave it out$"
    ):
        pretrain(small(tmp_path / "b", **{**settings, "dtype": "float32"}), resume=True)


def test_saved_memory_changes_no_weight(tmp_path: Path) -> None:
    """The same updates, in less memory; other models of the class stay as they are."""
    large = {"layers": 4, "seq_length": 256, "batch_size": 4}
    weights, peaks = [], []
    for saving in (False, True):
        config = tiny(tmp_path / "run", grad_checkpoint=saving, **large)
        prepared = prepare(config)
        trainer = Trainer(prepared.model, prepared.optimizer, lambda n, t=prepared.train: t.sequences(4 * n, 4, 0))
        trainer.advance()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        trainer.advance()
        peaks.append(mx.get_peak_memory() - before)
        weights.append(dict(tree_flatten(prepared.model.parameters())))
        assert set(weights[-1]) == set(weights[0])
    for path, value in weights[0].items():
        assert mx.linalg.norm(value - weights[1][path]).item() <= SAME * mx.linalg.norm(value).item(), path
    assert peaks[1] < 0.8 * peaks[0]
    model = lm.build(prepared.model_config)
    kind = type(model.layers[0])
    other = lm.build(prepared.model_config)
    checkpoint_gradients(other)
    assert type(other.layers[0]) is not kind
    assert isinstance(other.layers[0], kind)
    assert type(model.layers[0]) is kind


def test_a_run_clips_and_says_what_each_update_was_like(tmp_path: Path) -> None:
    """The optimizer has the norm; every report has c, the distance of x and y and the gradient before clipping."""
    config = small(tmp_path / "run", max_grad_norm=0.25)
    assert prepare(config).optimizer.max_grad_norm == 0.25
    assert prepare(small(tmp_path / "run")).optimizer.plan.max_grad_norm is None
    pretrain(config)
    lines = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert len(lines) == 3
    for line in lines:
        assert line["gradient_norm"] > 0.25
        assert 0 < line["c"] <= 1
        assert line["x_to_y"] > 0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to take weights from."""
    folder = tmp_path_factory.mktemp("source") / "run"
    pretrain(small(folder, updates=3))
    return folder


@pytest.mark.parametrize("what", ["export", "checkpoints/00000003", "export/model.safetensors"])
def test_weights_alone_start_a_run(tmp_path: Path, source: Path, what: str) -> None:
    """x of an export, a checkpoint, or a file; what is lost is said, and the run starts at its loss."""
    weights = str(source / what)
    kept = mx.load(str(source / "checkpoints/00000003/x.safetensors"))
    prepared = prepare(small(tmp_path / "run", weights=weights))
    assert all(mx.array_equal(value, kept[path]) for path, value in tree_flatten(prepared.model.parameters()))
    heard = Heard()
    pretrain(small(tmp_path / "run", weights=weights, updates=2), report=heard)
    told = next(text for text in heard.notes if weights in text)
    for lost in ("optimizer's state", "random state", "position in the data", "numbering", "warmup"):
        assert lost in told
    first = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    last = [line for line in read_metrics(source / "metrics.jsonl") if "valid_loss_x" in line][-1]
    assert (first["update"], first["valid_loss_x"]) == (0, pytest.approx(last["valid_loss_x"], abs=1e-6))


def test_a_run_from_weights_goes_on_after_they_are_gone(tmp_path: Path, source: Path) -> None:
    """Its own checkpoint has everything."""
    copy = tmp_path / "w.safetensors"
    copy.write_bytes((source / "export" / "model.safetensors").read_bytes())
    pretrain(small(tmp_path / "a", weights=str(copy), updates=4))
    pretrain(small(tmp_path / "b", weights=str(copy), updates=2))
    copy.unlink()
    pretrain(small(tmp_path / "b", weights=str(copy), updates=4), resume=True)
    a, b = ((tmp_path / run / "checkpoints/00000004/y.safetensors").read_bytes() for run in "ab")
    assert a == b


def flipped_header(content: bytes) -> bytes:
    return struct.pack("<Q", 1 << 62) + content[8:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content[:-1], "no whole safetensors file"),
        (lambda content: content[:20], "no whole safetensors file"),
        (lambda _: b"", "no whole safetensors file"),
        (lambda _: b"\x80\x04K\x01.", "no whole safetensors file"),
        (flipped_header, "no whole safetensors file"),
        (lambda _: packed({"w": entry()}, 8), "cannot be read: .*unsupported dtype F64"),
        (lambda _: packed({"w": entry("F32", 9)}, 8), "cannot be read: .*invalid data offsets"),
        (lambda _: packed({"w": {"data_offsets": [0, 8]}}, 8), "cannot be read: "),
        (lambda _: (100_000).to_bytes(8, "little") + b"[" * 100_000, "no whole safetensors file"),
        (None, "holds no weights"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path: Path, source: Path, change: Any, says: str) -> None:
    """Cut short, empty, something else, not there; nothing is written."""
    path = tmp_path / "w.safetensors"
    if change is not None:
        path.write_bytes(change((source / "export" / "model.safetensors").read_bytes()))
    with pytest.raises(Refused, match=says):
        pretrain(small(tmp_path / "run", weights=str(path)))
    assert not (tmp_path / "run").exists()


def test_weights_that_are_no_floating_numbers_are_refused(tmp_path: Path, source: Path) -> None:
    """Packed or quantised ones, which would be trained on as if they were numbers."""
    arrays: Any = mx.load(str(source / "export" / "model.safetensors"))
    mx.save_safetensors(str(tmp_path / "w.safetensors"), {path: a.astype(mx.int32) for path, a in arrays.items()})
    with pytest.raises(CheckpointError, match=r"is mlx\.core\.int32, which is no floating type") as caught:
        prepare(small(tmp_path / "run", weights=str(tmp_path / "w.safetensors")))
    assert len(caught.value.reasons) == len(arrays)


def test_weights_of_another_model_are_refused_with_every_path(tmp_path: Path, source: Path) -> None:
    """Another width and more layers."""
    with pytest.raises(CheckpointError) as caught:
        prepare(small(tmp_path / "run", weights=str(source / "export"), layers=2, width=64))
    said = {reason.field: reason.code for reason in caught.value.reasons}
    assert said["weights: lm_head.weight"] == "shape"
    assert said["weights: model.layers.1.mlp.up_proj.weight"] == "missing"


def test_a_study_refuses_what_it_would_not_read(tmp_path: Path) -> None:
    """All of them at once."""
    config = small(tmp_path / "run", dtype="bfloat16", max_grad_norm=1.0, grad_checkpoint=True, packing="documents")
    with pytest.raises(Refused) as caught:
        language_task(config, [32])
    assert [reason.field for reason in caught.value.reasons] == ["dtype", "grad_checkpoint", "packing", "max_grad_norm"]
