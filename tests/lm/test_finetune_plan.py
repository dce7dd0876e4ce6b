"""What the plan of a fine-tune shows before the run, and what it leaves out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mufree.cli import run as command
from mufree.lm import finetune
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.overview import overview
from mufree.lm.tuning.prepare import prepare
from tiny_finetune import settings


def shown(base: Any, out: Path, **changes: Any) -> str:
    return overview(prepare(from_mapping(settings(*base, out, **changes))))


def row(text: str, name: str) -> str:
    found = re.search(rf"^{name} +(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def test_everything_that_decides_a_schedule_free_run_is_shown(base: Any, tmp_path: Path) -> None:
    """Zeros and what is not given too; for mlx-lm's optimizers its own line says it."""
    text = shown(base, tmp_path / "out")
    assert row(text, "settings") == (
        "betas 0.9, 0.999; eps 1e-08; weight decay 0; no max_grad_norm; r 0; weight_lr_power 2"
    )
    own = {"schedule_free_adamw": {"betas": [0.95, 0.98], "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 1.0}}
    said = row(shown(base, tmp_path / "out", optimizer_config=own), "settings")
    assert said.startswith("betas 0.95, 0.98; eps 1e-06; weight decay 0.1; max_grad_norm 1; r 0;")
    assert row(shown(base, tmp_path / "out", optimizer="schedule_free_sgd"), "settings").startswith("momentum 0.9;")
    assert row(shown(base, tmp_path / "out", optimizer="adamw"), "settings") == ""


def test_a_name_nobody_asked_by_is_left_out(base: Any, tmp_path: Path) -> None:
    assert row(shown(base, tmp_path / "out"), "optimizer") == "AdamWScheduleFree (meaning: mufree)"
    schedule = {"name": "linear_schedule", "arguments": [1e-3, 1e-4, 5]}
    assert row(shown(base, tmp_path / "out", lr_schedule=schedule), "optimizer") == "Adam (meaning: mlx-lm)"
    named = row(shown(base, tmp_path / "out", optimizer="SGD"), "optimizer")
    assert named == "SGD (asked for as sgd; meaning: mlx-lm)"


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_the_disk_that_a_run_takes_is_what_it_took(optimizer: str | None, base: Any, tmp_path: Path) -> None:
    """Arrays alone; the files' headers are the rest, which is much for adapters this small."""
    out = tmp_path / "out"
    lora = {"rank": 32, "dropout": 0.0, "scale": 1.0}
    given = {"iters": 4, "save_every": 2, "lora_parameters": lora, "optimizer": optimizer}
    said = re.search("^disk +(.*)$", shown(base, out, **given), re.MULTILINE)
    assert said is not None
    found = re.fullmatch(
        r"2 checkpoints of about ([\d.]+) (kB|MB) each; adapters of ([\d.]+) (kB|MB) each: the last, the best, and 2 "
        "numbered",
        said[1],
    )
    assert found is not None, said[1]
    each, adapters = (float(found[n]) * {"kB": 1e3, "MB": 1e6}[found[n + 1]] for n in (1, 3))
    finetune(settings(*base, out, **given))
    assert len(list((out / "checkpoints").iterdir())) == 2
    took = sum(path.stat().st_size for path in (out / "checkpoints" / "00000004").iterdir())
    assert each == pytest.approx(took, rel=0.15)
    assert adapters == pytest.approx((out / "adapters.safetensors").stat().st_size, rel=0.15)
    assert len(list(out.glob("0*.safetensors"))) == 2


def test_adapters_that_a_run_replaces_are_named(base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the look at the plan too; numbered files stay."""
    out = tmp_path / "out"
    assert not any("replaces" in note for note in prepare(from_mapping(settings(*base, out))).notes)
    out.mkdir()
    for name in ("adapters.safetensors", "0000100_adapters.safetensors"):
        (out / name).write_bytes(b"mlx-lm's")
    (out / "adapter_config.json").write_text("{}")
    given = settings(*base, out, iters=2)
    says = f"replaces adapters that mlx_lm.lora wrote: {out / 'adapters.safetensors'} and adapter_config.json"
    more = "; its numbered files stay until the run has such numbers: 0000100_adapters.safetensors"
    assert [note for note in prepare(from_mapping(given)).notes if "replaces" in note] == [says + more]
    (file := tmp_path / "lora.yaml").write_text(json.dumps(given))
    assert command(["lora", "-c", str(file), "--dry-run"]) == 0
    assert re.search(f"^note +{re.escape(says)}", capsys.readouterr().out, re.MULTILINE)
    (out / "adapter_config.json").write_text('{"mufree": {}}')
    assert any(n.startswith("replaces adapters of another run of") for n in prepare(from_mapping(given)).notes)
    finetune(given)
    assert not any("replaces" in note for note in prepare(from_mapping(given)).notes)


def test_a_look_at_a_run_that_goes_on_says_from_where(
    base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its newest whole checkpoint, with those that were passed over; or that there is none."""
    out = tmp_path / "out"
    finetune(settings(*base, out, iters=4, save_every=2))
    words = ["lora", "--resume", "--adapter-path", str(out), "--dry-run"]
    assert command(words) == 0
    assert f"note: goes on from {out / 'checkpoints' / '00000004'}\n" in capsys.readouterr().out
    (out / "checkpoints" / "00000004" / "x.safetensors").write_bytes(b"")
    assert command(words) == 0
    said = capsys.readouterr().out
    assert "passed over a checkpoint: " in said
    assert f"; goes on from {out / 'checkpoints' / '00000002'}\n" in said
    for path in [*out.glob("checkpoints/*/*"), *out.glob("*/*.safetensors"), *out.glob("*.safetensors")]:
        path.unlink()
    for path in out.glob("checkpoints/*"):
        path.rmdir()
    assert command(words) == 0
    assert "note: has no checkpoint yet: starts anew\n" in capsys.readouterr().out
