"""What is exported is what stock mlx-lm and transformers read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import Refused
from mufree.lm.export import check_replaceable, export, sample
from mufree.lm.fusing import is_adapter_folder
from mufree.training import pretrain
from mufree.training.exporting import export_run
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from training_settings import tiny

# float32 through two implementations of a one-layer model whose logits are of order 1.
LOGITS = 1e-4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose x and y differ."""
    folder = tmp_path_factory.mktemp("run") / "run"
    # Widths of at least 64, which mlx-lm's quantisation groups ask for.
    pretrain(tiny(folder, width=64, base_width=32, head_dim=16, updates=5))
    return folder


def test_the_export_holds_x_bit_for_bit(run: Path) -> None:
    """Its weights are the checkpoint's x, which are not its y."""
    exported = mx.load(str(run / "export" / "model.safetensors"))
    x = mx.load(str(run / "checkpoints" / "00000005" / "x.safetensors"))
    y = mx.load(str(run / "checkpoints" / "00000005" / "y.safetensors"))
    assert exported.keys() == x.keys()
    assert all(mx.array_equal(exported[path], x[path]) for path in x)
    assert not any(mx.array_equal(exported[path], y[path]) for path in x)


def test_the_reloaded_model_has_the_loss_in_the_metrics(run: Path, tmp_path: Path) -> None:
    """``mlx_lm.load`` gives a model whose validation loss is the recorded one."""
    model, _ = mlx_lm.load(str(run / "export"))
    prepared = prepare(tiny(tmp_path / "other", width=64, base_width=32, head_dim=16))
    trainer = Trainer(model, prepared.optimizer, lambda _: None)
    loss = trainer.evaluate(prepared.valid.evenly(2, 2), at="y")
    notes = json.loads((run / "export" / "mufree.json").read_text())
    assert loss == pytest.approx(notes["losses"]["valid_loss_x"], rel=1e-6)
    assert notes["plan"]["optimizer"] == "AdamWScheduleFree"


def test_mlx_lm_generates_from_it_and_quantises_it(run: Path, tmp_path: Path) -> None:
    """A sample goes on from its prompt; ``mlx_lm.convert -q`` makes a model that generates too."""
    state = mx.random.state[0].tolist()
    text = sample(run / "export", "The ", tokens=8)
    assert text.startswith("The ")
    assert len(text) > 4
    assert sample(run / "export", "The ", tokens=8) == text
    assert sample(run / "export", "The ", tokens=8, seed=1) != text
    assert sample(run / "export", "The ", tokens=8, seed=1, temperature=0) == sample(
        run / "export", "The ", tokens=8, temperature=0
    )
    assert sample(run / "export", "", tokens=8)
    assert mx.random.state[0].tolist() == state
    command = ["mlx_lm.convert", "--hf-path", str(run / "export"), "--mlx-path", str(tmp_path / "q"), "-q"]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    assert json.loads((tmp_path / "q" / "config.json").read_text())["quantization"]["bits"] == 4
    assert sample(tmp_path / "q", "The ", tokens=8).startswith("The ")


def test_transformers_gives_the_same_logits(run: Path) -> None:
    """PyTorch's llama, loaded from the same folder, agrees."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, _ = mlx_lm.load(str(run / "export"))
    twin = transformers.AutoModelForCausalLM.from_pretrained(run / "export", dtype=torch.float32)
    ids = np.arange(40).reshape(2, 20) * 6 % 257
    ours = np.array(model(mx.array(ids)))
    with torch.no_grad():
        theirs = twin(torch.tensor(ids)).logits.numpy()
    assert np.abs(theirs).max() > 0.1
    assert np.abs(ours - theirs).max() < LOGITS


def test_no_multiplier_is_written(run: Path) -> None:
    """The readout's 1/m is in the weights: a reader that found one in the config would apply it twice."""
    config = json.loads((run / "export" / "config.json").read_text())
    assert not [
        name for name in config if "mup" in name or "multiplier" in name or "scal" in name.replace("rope_scaling", "")
    ]
    assert config["eos_token_id"] == 256
    card = (run / "export" / "README.md").read_text()
    assert "| μP | base width 32, width multiplier 2 |" in card
    assert "| learning rate | 0.015625 at the base width" in card
    assert "| weights | x, the schedule-free average, after 5 updates (160 tokens) |" in card
    assert "library_name: mlx" in card
    assert "validation loss" in card


def test_y_can_be_exported_too(run: Path, tmp_path: Path) -> None:
    """The other sequence, from the same checkpoint, without optimizer state."""
    folder = export_run(run, tmp_path / "y", weights="y")
    exported = mx.load(str(folder / "model.safetensors"))
    y = mx.load(str(run / "checkpoints" / "00000005" / "y.safetensors"))
    assert all(mx.array_equal(exported[path], y[path]) for path in y)
    assert json.loads((folder / "mufree.json").read_text())["sequence"] == "y"


def test_nothing_but_an_export_is_replaced(run: Path, tmp_path: Path) -> None:
    """A folder of something else is refused; an earlier export is replaced whole."""
    prepared = prepare(tiny(tmp_path / "r"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match="is not an export"):
        export(tmp_path / "mine", prepared.model, prepared.model_config, prepared.tokenizer)
    for number in range(2):
        export(tmp_path / "e", prepared.model, prepared.model_config, prepared.tokenizer, notes={"n": number})
    assert json.loads((tmp_path / "e" / "mufree.json").read_text()) == {"n": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "mine"]
    assert (
        dict(tree_flatten(prepared.model.parameters())).keys()
        == mx.load(str(tmp_path / "e" / "model.safetensors")).keys()
    )


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """As other places are, with the name."""
    with pytest.raises(Refused, match="cannot be a folder"):
        check_replaceable(tmp_path / name)
    assert not is_adapter_folder(tmp_path / name)


def test_a_run_without_a_checkpoint_cannot_be_exported(tmp_path: Path) -> None:
    """Neither can a folder that is no run."""
    with pytest.raises(Refused, match="holds no run"):
        export_run(tmp_path, tmp_path / "out")
