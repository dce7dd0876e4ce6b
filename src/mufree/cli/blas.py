"""On Linux, a fast BLAS for MLX's CPU backend. Only the command line does this, never the library.

MLX's Linux wheel carries a reference BLAS whose matrix products are some thirty times slower than OpenBLAS's. Symbols
of a library that is loaded first, globally, win; so OpenBLAS has to come before ``mlx.core``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

LIBRARIES = ("libopenblas.so.0", "libopenblas.so", "libopenblaso.so.0")
CACHE_BYTES = 1 << 30
"""MLX's CPU buffer cache, enough to use an update's buffers again (its default on the CPU is 32 MB)."""


def prepare_machine() -> str | None:
    """Load OpenBLAS if that helps, and widen MLX's buffer cache; what to tell the person, or None.

    ``MUFREE_BLAS=off`` leaves the BLAS as it is, any other value names the library to load. Nothing happens on a Mac,
    or where MLX is loaded already.
    """
    if platform.system() != "Linux":
        return None
    told = _load_blas()
    try:
        import mlx.core as mx
    except ImportError:
        return told
    if mx.default_device() == mx.Device(mx.cpu):
        mx.set_cache_limit(CACHE_BYTES)
        return told
    return None


def _load_blas() -> str | None:
    chosen = os.environ.get("MUFREE_BLAS", "")
    if chosen.lower() == "off":
        return "BLAS: MLX's own, a slow one, as MUFREE_BLAS=off asks"
    if "mlx.core" in sys.modules:
        return None
    for name in [chosen] if chosen else LIBRARIES:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return f"BLAS: {name} in place of MLX's own, a slow one (MUFREE_BLAS=off: without it)"
    if chosen:
        return f"BLAS: MLX's own, a slow one; MUFREE_BLAS={chosen} cannot be loaded (give a library, or off)"
    return (
        "BLAS: MLX's own, a slow one; matrix products are about 30 times faster with OpenBLAS "
        "(Debian, Ubuntu: sudo apt-get install libopenblas0-pthread)"
    )
