"""The scripts in ``reference``: each explains itself, and the package knows none of them."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest

import mufree

REFERENCE = Path(__file__).parents[2] / "reference"
SCRIPTS = sorted(path for path in REFERENCE.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


def need_torch() -> None:
    for package in ("torch", "schedulefree", "mup", "transformers", "accelerate"):
        pytest.importorskip(package)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_has_help(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for it does nothing else."""
    need_torch()
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert "usage: " in told
    assert len(told.splitlines()) > 6


def test_the_pair_shows_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rate / m and decay × m for the one matrix that grows both ways; the base's for all at the base width."""
    need_torch()
    out = tmp_path / "groups.json"
    command = ["it", "--updates", "10", "--width", "32", "--base-width", "16", "--lr", "0.5", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(REFERENCE / "mu_adamw_schedule_free.py"), run_name="__main__")
    assert stopped.value.code == 0
    base, wide = json.loads(out.read_text())
    assert [(group["lr"], group["weight_decay"]) for group in base["groups"]] == [(0.5, 0.1)]
    by_name = {tuple(group["parameters"]): (group["lr"], group["weight_decay"]) for group in wide["groups"]}
    assert by_name.pop(("two.weight",)) == (0.25, 0.2)
    assert list(by_name.values()) == [(0.5, 0.1)]


def test_the_package_imports_none_of_it() -> None:
    """Nor PyTorch, nor what it is compared with."""
    foreign = {path.stem for path in REFERENCE.iterdir()} | {"torch", "schedulefree", "mup"}
    for path in Path(mufree.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module or "")
            assert not {name.split(".")[0] for name in names} & foreign, path
