"""The command line's one service to slow Linux machines."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path

import pytest

from mufree.cli import blas, run
from tiny_finetune import make_data, make_model
from training_settings import SMALL, flags


class Loaded(list[str]):
    def __call__(self, name: str, mode: int = 0) -> None:
        assert mode == ctypes.RTLD_GLOBAL
        if name != self.present:
            raise OSError(name)
        self.append(name)

    present = "libopenblas.so"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    loads = Loaded()
    monkeypatch.setattr(ctypes, "CDLL", loads)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.delenv("MUFREE_BLAS", raising=False)
    for name in [name for name in sys.modules if name == "mlx.core"]:
        monkeypatch.delitem(sys.modules, name)
    return loads


def test_openblas_is_loaded_before_mlx_and_told(loaded: Loaded) -> None:
    """The first that the machine has, and one line says so."""
    assert "libopenblas.so in place of MLX's own" in str(blas._load_blas())
    assert loaded == ["libopenblas.so"]


def test_without_one_there_is_a_tip(loaded: Loaded) -> None:
    """One line says what to install."""
    loaded.present = "none"
    assert "apt-get install libopenblas0-pthread" in str(blas._load_blas())


def test_it_can_be_turned_off(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """``MUFREE_BLAS=off`` leaves MLX's own."""
    monkeypatch.setenv("MUFREE_BLAS", "off")
    assert "MLX's own" in str(blas._load_blas())
    assert loaded == []


def test_another_library_can_be_named(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone is tried, and if it cannot be loaded that is said."""
    monkeypatch.setenv("MUFREE_BLAS", "libopenblas.so")
    assert "libopenblas.so in place" in str(blas._load_blas())
    monkeypatch.setenv("MUFREE_BLAS", "on")
    assert "MUFREE_BLAS=on cannot be loaded" in str(blas._load_blas())
    assert loaded == ["libopenblas.so"]


def test_a_mac_is_left_alone(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """There MLX has Accelerate and Metal."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert blas.prepare_machine() is None
    assert loaded == []


TOLD = "BLAS: as it is"
GRID = ["--base-width", "16", "--head-dim", "8", "--layers", "1", "--seq-length", "16", "--batch-size", "2"]
GRID += ["--widths", "16,32", "--seeds", "1", "--updates", "1", "--jobs", "1", "--data", SMALL]


@pytest.mark.parametrize("command", ["pretrain", "transfer", "coord-check", "lora"])
def test_it_is_told_where_something_is_trained(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once, after the plan; neither where settings are refused nor where a plan is all that was asked for."""
    monkeypatch.setattr(blas, "prepare_machine", lambda: TOLD)
    monkeypatch.setattr("mufree.cli.pretrain.prepare_machine", lambda: TOLD)
    out = tmp_path / "out"
    if command == "lora":
        data = ["--model", str(make_model(tmp_path / "model")), "--data", str(make_data(tmp_path / "data"))]
        words = [*data, "--train", "--adapter-path", str(out), "--iters", "1", "--num-layers", "-1"]
    else:
        words = flags(out, data=SMALL, updates=1) if command == "pretrain" else [*GRID, "--out", str(out)]
        words += ["--rates", "2^-6..2^-5"] if command == "transfer" else []
    assert run([command, *words, "--batch-size", "0"]) == 2
    dry = command in ("pretrain", "lora")
    if dry:
        assert run([command, *words, "--dry-run"]) == 0
    streams = capsys.readouterr()
    assert TOLD not in streams.out + streams.err
    assert run([command, *words]) in (0, 1)
    said = capsys.readouterr().out.splitlines()
    assert said.count(TOLD) == 1
    assert said.index(TOLD) > 5 or not dry
