"""Writing recorded numbers, with the versions that made them inside the file, and seeing whether they are stale."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Recording = tuple[Mapping[str, Any], Mapping[str, Any]]  # arrays by name, and what they are of
DATA = Path(__file__).parent.parent / "tests" / "data"
PINNED = Path(__file__).parent / "requirements.txt"


def versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package, without the build that it is (``+cpu``)."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in names}


def pinned() -> dict[str, str]:
    """The version of each package that ``requirements.txt`` asks for, those in its comments too."""
    words = PINNED.read_text(encoding="utf-8").split()
    return dict(word.split("==") for word in words if "==" in word)


def write(name: str, recording: Recording, *, packages: Sequence[str], folder: Path = DATA) -> Path:
    """Write ``<name>.npz``: the arrays, and what was recorded with which versions as JSON text."""
    arrays, about = recording
    text = json.dumps({**about, "versions": versions(packages)})
    path = folder / f"{name}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, about=np.array(text), **arrays)
    return path


def read(name: str, folder: Path = DATA) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What :func:`write` wrote: the arrays, and the rest."""
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("about")))


def other_versions(about: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """A sentence for each package that the recording was made with another version of than it is now.

    Args:
        about: What was recorded.
        now: Versions to compare with; packages that are not in it are not looked at.
    """
    return [
        f"recorded with {name} {version}, now it is {now[name]}"
        for name, version in about["versions"].items()
        if name in now and version.partition("+")[0] != now[name].partition("+")[0]
    ]


def other_numbers(recorded: Recording, recording: Recording, tolerance: float) -> list[str]:
    """A sentence for whatever would be recorded otherwise now.

    Args:
        recorded: From the file.
        recording: Of today.
        tolerance: Largest difference of two arrays over the largest number in them.
    """
    (then, about), (arrays, today) = recorded, recording
    found = []
    kept = {key: value for key, value in about.items() if key != "versions"}
    if kept != json.loads(json.dumps(today)):
        found.append("the script records other cases or settings")
    if then.keys() != arrays.keys():
        found.append(f"{len(then.keys() ^ arrays.keys())} arrays are only in the file or only recorded now")
    apart = {key: difference(arrays[key], then[key]) for key in then.keys() & arrays.keys()}
    worst = max(apart, key=lambda key: (math.isnan(apart[key]), apart[key]), default=None)  # NaN is the worst of all
    if worst is not None and not apart[worst] <= tolerance:
        found.append(f"{worst} is off by {apart[worst]:.2g} of its largest number")
    return found


def difference(one: Any, other: Any) -> float:
    """The largest difference over the largest number; infinite for other shapes."""
    one, other = (np.asarray(a, dtype=np.float64) for a in (one, other))
    if one.shape != other.shape:
        return float("inf")
    largest = np.abs(one - other).max(initial=0.0)
    return float(largest and largest / np.abs(other).max())


def command(doc: str | None, name: str, record: Callable[[], Recording], packages: Sequence[str]) -> None:
    """What a recording's own script does: write its file, or say what it would write."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: %(default)s)")
    folder = parser.parse_args().out
    path = write(name, record(), packages=packages, folder=folder)
    print(f"{path}: {path.stat().st_size} bytes")
