"""A recording that is stale turns red: other versions than the pinned or installed ones, other cases, other numbers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from recording import DATA, PINNED, other_numbers, other_versions, pinned, read, write

NAMES = sorted(path.stem for path in DATA.glob("*.npz"))
AGAIN = "stale: run python reference/record.py {}, and look at what changed"


def test_every_recording_is_looked_at() -> None:
    """Also by the script."""
    assert len(NAMES) == 4
    pytest.importorskip("torch")
    assert sorted(importlib.import_module("record").SCRIPTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_was_made_with_the_pinned_versions(name: str) -> None:
    """Of every package that the requirements name; needs none of them."""
    about = read(name)[1]
    assert len(about["versions"].keys() & pinned().keys()) >= 2, PINNED
    assert other_versions(about, pinned()) == [], AGAIN.format(name)


def test_the_trajectories_are_those_of_the_installed_packages() -> None:
    """The versions, the cases, and every number; the standard path's are in ``test_standard_live``."""
    for package in ("torch", "schedulefree", "mup"):
        pytest.importorskip(package)
    record, trajectories = (importlib.import_module(name) for name in ("record", "trajectories"))
    assert record.check(trajectories.NAME, trajectories) == [], AGAIN.format(trajectories.NAME)


def recording() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"a": np.arange(3.0), "b": np.ones(2)}, {"cases": {"one": [1, 2.5]}}


def test_what_is_read_is_what_was_written(tmp_path) -> None:
    """And is not stale."""
    write("it", recording(), packages=("numpy",), folder=tmp_path)
    recorded = read("it", tmp_path)
    assert other_numbers(recorded, recording(), 0.0) == []
    assert recorded[1]["versions"] == {"numpy": np.__version__}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda arrays, _: arrays["a"].__setitem__(1, 1.1), "a is off by 0.05"),
        (lambda arrays, _: arrays.update(c=np.ones(1)), "1 arrays are only"),
        (lambda arrays, _: arrays.update(a=np.ones(4)), "a is off by inf"),
        (lambda arrays, _: arrays["a"].__setitem__(1, np.nan), "a is off by nan"),
        (lambda _, about: about["cases"]["one"].append(3), "other cases or settings"),
    ],
)
def test_each_kind_of_staleness_is_told(change, told, tmp_path) -> None:
    """Against what the script would record now."""
    write("it", recording(), packages=("numpy",), folder=tmp_path)
    now = recording()
    change(*now)
    (sentence,) = other_numbers(read("it", tmp_path), now, 1e-3)
    assert told in sentence


def test_another_version_is_told_but_not_another_build() -> None:
    """A local version part says where torch runs, not what it computes."""
    about = {"versions": {"torch": "2.13.0+cpu", "mup": "1.0.0", "numpy": "1"}}
    assert other_versions(about, {"torch": "2.13.0", "mup": "1.0.0"}) == []
    assert other_versions(about, {"torch": "2.14.0+cpu"}) == ["recorded with torch 2.13.0+cpu, now it is 2.14.0+cpu"]
