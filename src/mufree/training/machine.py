"""What the bits of a result depend on besides its settings: MLX's version and device, the BLAS and its threads."""

from __future__ import annotations

import ctypes
import os
import platform
from importlib.metadata import version
from typing import Any

import mlx.core as mx


def arithmetic() -> dict[str, Any]:
    """What must be the same for two runs to agree bit for bit."""
    return {
        "mlx": version("mlx"),
        "device": str(mx.default_device().type).removeprefix("DeviceType."),
        "machine": platform.machine(),
        "blas": _blas(),
    }


def differences(saved: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Each difference between two :func:`arithmetic`, in words."""
    return [f"{name} was {saved.get(name)}, is {here[name]}" for name in here if saved.get(name) != here[name]]


def _blas() -> str:
    if platform.system() == "Darwin":
        return "Accelerate"
    try:
        library = ctypes.CDLL(None)
        library.openblas_get_config.restype = ctypes.c_char_p
        version = library.openblas_get_config().decode().split()[1]
        return f"OpenBLAS {version}, {library.openblas_get_num_threads()} threads"
    except (AttributeError, OSError, IndexError):
        threads = os.environ.get("OMP_NUM_THREADS")
        return "MLX's own" + (f", OMP_NUM_THREADS={threads}" if threads else "")
