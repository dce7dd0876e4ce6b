"""The command line's one service to slow Linux machines."""

from __future__ import annotations

import ctypes
import platform
import sys

import pytest

from mufree.cli import blas


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
    assert "libopenblas.so, loaded before MLX" in str(blas._load_blas())
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
    assert "libopenblas.so, loaded" in str(blas._load_blas())
    monkeypatch.setenv("MUFREE_BLAS", "on")
    assert "MUFREE_BLAS=on cannot be loaded" in str(blas._load_blas())
    assert loaded == ["libopenblas.so"]


def test_a_mac_is_left_alone(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """There MLX has Accelerate and Metal."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert blas.prepare_machine() is None
    assert loaded == []
