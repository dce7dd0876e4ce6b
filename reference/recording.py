"""Writing recorded numbers, with the versions that made them inside the file."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Recording = tuple[Mapping[str, Any], Mapping[str, Any]]  # arrays by name, and what they are of
DATA = Path(__file__).parent.parent / "tests" / "data"


def versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package."""
    return {name: importlib.metadata.version(name) for name in names}


def write(name: str, recording: Recording, *, packages: Sequence[str]) -> None:
    """Write ``tests/data/<name>.npz``: the arrays, and what was recorded with which versions as JSON text."""
    arrays, about = recording
    text = json.dumps({**about, "versions": versions(packages)})
    path = DATA / f"{name}.npz"
    np.savez_compressed(path, about=np.array(text), **arrays)
    print(f"{path}: {path.stat().st_size} bytes")
