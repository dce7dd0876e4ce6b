"""The structure: imports point one way, and the pure part needs neither MLX nor NumPy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mufree

PACKAGE = Path(mufree.__file__).parent
LAYERS = (
    ("errors", "files", "sums"),
    ("sizes",),
    ("plan", "schedules", "recipe", "mup", "schedule_free", "random_state"),
    ("build",),
    ("lm", "training"),
    ("studies",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = (
    "errors",
    "sizes",
    "plan",
    "schedules",
    "recipe",
    "mup.shapes",
    "mup.kinds",
    "mup.rules",
    "mup.verdict",
    "training.config",
    "lm.tuning.settings",
    "lm.tuning.nested",
    "lm.tuning.choice",
)
ARRAYS = ("mlx", "mlx_lm", "numpy", "torch", "transformers")


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name != "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module named in an import statement anywhere in a file, absolute."""
    here = ["mufree", *path.relative_to(PACKAGE).with_suffix("").parts]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """A module imports only its own part and those to the left of it; mup and schedule_free do not know each other."""
    own = part(path)
    for name in imported(path):
        pieces = name.split(".")
        if pieces[0] != "mufree" or len(pieces) == 1 or pieces[1] not in RANK:
            continue
        other = pieces[1]
        allowed = other == own or RANK[other] < RANK[own] or {own, other} <= {"lm", "training"}
        allowed = allowed or (own in ("plan", "recipe") and other in ("schedules", "plan"))
        assert allowed, f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_lm_imports_mlx_lm(path: Path) -> None:
    """Everything that depends on mlx-lm is in one package."""
    if part(path) != "lm":
        assert not {n for n in imported(path) if n.split(".")[0] in ("mlx_lm", "transformers")}


def existing(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.joinpath("__init__.py").exists()


@pytest.mark.parametrize("name", [n for n in PURE if existing(n)])
def test_pure_modules_import_without_arrays(name: str) -> None:
    """Names, shapes and numbers are worked out on a machine that has neither MLX nor NumPy."""
    block = f"import sys; sys.modules.update(dict.fromkeys({ARRAYS!r}))"
    subprocess.run([sys.executable, "-c", f"{block}; import mufree.{name}"], check=True)


def test_every_public_name_is_listed_once_and_loads() -> None:
    """``__all__`` is the stub's list, and each name resolves."""
    assert len(set(mufree.__all__)) == len(mufree.__all__)
    for name in mufree.__all__:
        assert getattr(mufree, name) is not None
