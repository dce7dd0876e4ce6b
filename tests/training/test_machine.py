"""What the bits of a result depend on."""

from __future__ import annotations

import ctypes
import platform
from types import SimpleNamespace
from typing import Any

import pytest

from mufree.training.machine import arithmetic, differences


class Function:
    """A C function of no arguments."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def library(threads: int) -> SimpleNamespace:
    return SimpleNamespace(
        openblas_get_config=Function(b"OpenBLAS 0.3.21 NO_LAPACKE Haswell"), openblas_get_num_threads=Function(threads)
    )


def test_the_blas_its_version_and_its_threads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One against two threads change bits, so a resume has to tell them apart."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, threads=threads: library(threads))
        found.append(arithmetic())
    assert found[0]["blas"] == "OpenBLAS 0.3.21, 1 threads"
    told = differences(found[0], found[1])
    assert told == ["blas was OpenBLAS 0.3.21, 1 threads, is OpenBLAS 0.3.21, 2 threads"]
    assert differences(found[0], found[0]) == []
    assert len(differences({}, found[0])) == len(found[0])


def test_without_openblas_it_is_mlxs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its threads, where they are set."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert arithmetic()["blas"] == "MLX's own, OMP_NUM_THREADS=3"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert arithmetic()["blas"] == "Accelerate"
