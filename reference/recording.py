"""Writing recorded numbers, with the versions that made them inside the file."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent.parent / "tests" / "data"


def versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package."""
    return {name: importlib.metadata.version(name) for name in names}


def write(name: str, arrays: Mapping[str, Any], *, about: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Write ``tests/data/<name>.npz``: the arrays, and ``about`` with versions as JSON text."""
    text = json.dumps({**about, "versions": versions(packages)})
    path = DATA / f"{name}.npz"
    np.savez_compressed(path, about=np.array(text), **arrays)
    print(f"{path}: {path.stat().st_size} bytes")
