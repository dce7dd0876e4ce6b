"""Adapters of any fine-tune become a model folder that stock mlx-lm reads."""

from __future__ import annotations

import json
import shutil
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import mlx_lm.lora
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import save as save_mlx_model

from mufree import Refused, lm
from mufree.cli import run as mufree
from mufree.lm.configs import new_config
from mufree.lm.fusing import export_adapters
from mufree.lm.tokenizer import byte_tokenizer


class Rows(list[Any]):
    """A data set as mlx-lm's trainer takes one."""

    def process(self, row: Any) -> Any:
        return row


SENTENCES = Rows(([(start + 3 * k) % 250 for k in range(20)], 0) for start in range(8))
LOGITS = 1e-5  # float32: W + s·(A·B) in one product or in two, logits of order 1


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as mlx-lm has them."""
    config = new_config("llama", width=64, layers=2, head_dim=16, vocab_size=257, max_length=64)
    mx.random.seed(0)
    return lm.export(tmp_path_factory.mktemp("base") / "base", lm.build(config), config, byte_tokenizer())


@pytest.fixture(scope="module")
def packed(base: Path) -> Path:
    """The same in four bits."""
    model, tokenizer, config = mlx_lm.load(str(base), return_config=True)
    nn.quantize(model, 64, 4)
    folder = base.parent / "packed"
    save_mlx_model(folder, str(base), model, tokenizer, {**config, "quantization": {"group_size": 64, "bits": 4}})
    return folder


def tune(base: Path, folder: Path, kind: str) -> Path:
    """A fine-tune of four iterations by ``mlx_lm.lora``'s own function, and its folder."""
    model, _ = mlx_lm.load(str(base))
    given = {"adapter_path": str(folder), "model": str(base), "fine_tune_type": kind, "iters": 4, "num_layers": 1}
    given |= {"batch_size": 4, "learning_rate": 1e-2, "save_every": 4, "val_batches": 0, "max_seq_length": 32}
    given |= {"lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0}}
    mlx_lm.lora.train_model(types.SimpleNamespace(**{**mlx_lm.lora.CONFIG_DEFAULTS, **given}), model, SENTENCES, Rows())
    return folder


@pytest.fixture(scope="module")
def adapters(base: Path) -> Path:
    return tune(base, base.parent / "adapters", "lora")


def logits(folder: Path, adapter: Path | None = None) -> mx.array:
    model, _ = mlx_lm.load(str(folder), adapter_path=None if adapter is None else str(adapter))
    return model(mx.array([[5, 8, 11, 14, 17]])).astype(mx.float32)


def differ(one: mx.array, other: mx.array) -> float:
    return float(mx.abs(one - other).max().item())


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_the_fused_model_is_the_adapted_one(base: Path, tmp_path: Path, kind: str) -> None:
    """Loaded by stock mlx-lm: the logits of base and adapters, not those of the base; no adapter, no state is left."""
    adapted = tune(base, tmp_path / "adapters", kind)
    shutil.copy(adapted / "adapters.safetensors", adapted / "optimizer.safetensors")
    fused = export_adapters(adapted, tmp_path / "fused")
    assert differ(logits(fused), logits(base, adapted)) < LOGITS
    assert differ(logits(fused), logits(base)) > 1000 * LOGITS
    assert mx.load(str(fused / "model.safetensors")).keys() == mx.load(str(base / "model.safetensors")).keys()
    assert sorted(path.name for path in fused.glob("*.safetensors")) == ["model.safetensors"]
    notes = json.loads((fused / "mufree.json").read_text())
    assert (notes["sequence"], notes["base"], notes["adapters"]["fine_tune_type"]) == ("x", str(base), kind)
    assert mlx_lm.generate(*mlx_lm.load(str(fused)), "The ", max_tokens=4)


def test_a_quantised_base_stays_so_or_is_written_plainly(packed: Path, tmp_path: Path) -> None:
    """Packed again within what four bits cost, or plain and exact."""
    adapted = tune(packed, tmp_path / "adapters", "lora")
    expected = logits(packed, adapted)
    plain = export_adapters(adapted, tmp_path / "plain", dequantize=True)
    assert "quantization" not in json.loads((plain / "config.json").read_text())
    assert differ(logits(plain), expected) < LOGITS
    again = export_adapters(adapted, tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["quantization"]["bits"] == 4
    assert mx.load(str(again / "model.safetensors"))["lm_head.weight"].dtype == mx.uint32
    assert LOGITS < differ(logits(again), expected) < differ(logits(packed), expected)


def with_y(adapters: Path, folder: Path) -> Path:
    """The same adapters as a run of ours keeps them that was better at y."""
    shutil.copytree(adapters, folder)
    described = json.loads((folder / "adapter_config.json").read_text())
    (folder / "y").mkdir()
    for place, sequence in ((folder, "x"), (folder / "y", "y")):
        (place / "adapter_config.json").write_text(json.dumps({**described, "mufree": {"sequence": sequence}}))
    factors: Any = mx.load(str(folder / "adapters.safetensors"))
    halves = {path: array / 2 for path, array in factors.items()}
    mx.save_safetensors(str(folder / "y" / "adapters.safetensors"), halves)
    return folder


def test_y_where_it_was_kept(base: Path, adapters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command: x by default, y on demand, from the run's folder or from y's own."""
    ours = with_y(adapters, tmp_path / "ours")
    for words, expected in (([], ours), (["--weights", "y"], ours / "y")):
        assert mufree(["export", str(ours), *words]) == 0
        fused = Path(capsys.readouterr().out.strip())
        assert fused == ours / ("fused-y" if words else "fused")
        assert differ(logits(fused), logits(base, expected)) < LOGITS
        assert json.loads((fused / "mufree.json").read_text())["sequence"] == ("y" if words else "x")
    assert mufree(["export", str(ours / "y"), "--weights", "y", "--out", str(tmp_path / "out")]) == 0
    assert differ(logits(tmp_path / "out"), logits(base, ours / "y")) < LOGITS
    capsys.readouterr()
    assert mufree(["export", str(ours / "y"), "--out", str(tmp_path / "other")]) == 2
    assert "holds y alone" in capsys.readouterr().err
    assert mufree(["export", str(adapters), "--weights", "y"]) == 2
    assert "keeps no y" in capsys.readouterr().err
    assert not (adapters / "fused-y").exists()


def test_the_base_may_have_moved(base: Path, adapters: Path, tmp_path: Path) -> None:
    """Refused with the remedy where the adapters name a folder that is gone; given, it is taken."""
    moved = tmp_path / "moved"
    shutil.copytree(adapters, moved)
    described = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(json.dumps({**described, "model": str(tmp_path / "gone")}))
    with pytest.raises(Refused, match=r"gone, the base that .* names, does not exist; give it with --model"):
        export_adapters(moved, tmp_path / "fused")
    fused = export_adapters(moved, tmp_path / "fused", model=base)
    assert differ(logits(fused), logits(base, adapters)) < LOGITS
    del described["model"]
    (moved / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(Refused, match="names no base model"):
        export_adapters(moved, tmp_path / "fused")


def test_adapters_of_another_model_are_refused(adapters: Path, tmp_path: Path) -> None:
    """With what mlx-lm finds wrong."""
    config = new_config("llama", width=32, layers=2, head_dim=16, vocab_size=257, max_length=64)
    other = lm.export(tmp_path / "other", lm.build(config), config, byte_tokenizer())
    with pytest.raises(Refused, match=r"cannot be loaded, ValueError: .*incompatible tensors"):
        export_adapters(adapters, tmp_path / "fused", model=other)
    assert not (tmp_path / "fused").exists()


def test_folders_that_do_not_serve_are_refused(base: Path, adapters: Path, tmp_path: Path) -> None:
    """No adapters, half of them, no JSON; a place that is taken, or where it is made from."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Refused, match=r"(?s)holds no adapter_config\.json.*holds no adapters\.safetensors"):
        export_adapters(empty, tmp_path / "out")
    (empty / "adapters.safetensors").write_bytes(b"")
    for text, says in (("{", "no JSON file"), ("[" * 100_000, "no JSON file"), ("[]", "does not describe adapters")):
        (empty / "adapter_config.json").write_text(text)
        with pytest.raises(Refused, match=says):
            export_adapters(empty, tmp_path / "out")
    with pytest.raises(Refused, match="exists and is not an export"):
        export_adapters(adapters, tmp_path)
    with pytest.raises(Refused, match="what the export is made from"):
        export_adapters(adapters, base)
    holder = tmp_path / "export"
    shutil.copytree(adapters, holder / "adapters")
    (holder / "mufree.json").write_text("{}")
    with pytest.raises(Refused, match="holds, what the export is made from, and would be replaced"):
        export_adapters(holder / "adapters", holder)
    assert (holder / "adapters" / "adapters.safetensors").is_file()
    with pytest.raises(Refused, match="'z'; give 'x' or 'y'"):
        export_adapters(adapters, tmp_path / "out", weights="z")  # type: ignore[arg-type]


def test_a_run_has_no_base_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options for adapters alone are refused for a run, all at once."""
    assert mufree(["export", str(tmp_path), "--model", "b", "--dequantize"]) == 2
    told = capsys.readouterr().err
    assert "--model: is for adapters" in told
    assert "--dequantize: is for adapters" in told


def test_adapters_have_no_best_checkpoint(adapters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The option for runs alone is refused for adapters, and nothing is written."""
    assert mufree(["export", str(adapters), "--best", "--out", str(tmp_path / "out")]) == 2
    assert "--best: is for runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_random_state_is_kept(adapters: Path, tmp_path: Path) -> None:
    """mlx-lm draws factors before it loads them; nothing of that is left."""
    before = mx.random.state[0].tolist()
    export_adapters(adapters, tmp_path / "fused")
    assert mx.random.state[0].tolist() == before
    assert dict(tree_flatten(mlx_lm.load(str(tmp_path / "fused"))[0].parameters()))


@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda a: mx.full(a.shape, float("nan")), "holds an infinity"), (lambda a: a.astype(mx.int32), "no floating")],
)
def test_weights_that_no_training_leaves_are_not_fused(adapters: Path, tmp_path: Path, change: Any, told: str) -> None:
    """Each is named, and nothing is written."""
    harmed = shutil.copytree(adapters, tmp_path / "harmed")
    arrays = mx.load(str(harmed / "adapters.safetensors"))
    name = min(arrays)
    mx.save_safetensors(str(harmed / "adapters.safetensors"), {**arrays, name: change(arrays[name])})
    with pytest.raises(Refused, match=f"{name}.*{told}") as refused:
        export_adapters(harmed, tmp_path / "fused")
    assert len(refused.value.reasons) == 1
    assert not (tmp_path / "fused").exists()
