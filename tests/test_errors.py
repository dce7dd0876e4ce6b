"""Errors say what to do, and where to read on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mufree.errors import SECTIONS, Reason, missing_package

README = Path(__file__).parents[1] / "README.md"

WITHOUT_MLX = """
import sys
sys.modules["mlx"] = None
import mufree
from mufree.cli import run
mufree.plan_optimizer(optimizer="adamw_torch", lr=0.1)
try:
    mufree.AdamWScheduleFree
except ImportError as error:
    print(error)
raise SystemExit(run(["pretrain", "--dry-run"]))
"""


def test_every_section_is_one_of_the_readme() -> None:
    """A reason never points at nothing."""
    headings = {line[3:] for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("## ")}
    assert set(SECTIONS.values()) <= headings
    assert Reason("impl", "impl", "…").section == "Questions"
    assert Reason("type", "lr", "…").section is None


def test_without_mlx_the_error_says_what_to_install() -> None:
    """In Python and on the command line; what is pure Python works."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_MLX], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "mlx[cpu]" in done.stdout
    assert "mlx[cpu]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ModuleNotFoundError("No module named 'mlx_lm'", name="mlx_lm"), "mufree[lm]"),
        (ImportError("libmlx.so: cannot open shared object file", name="mlx.core"), "mlx[cpu]"),
        (ModuleNotFoundError("No module named 'other'", name="other"), None),
    ],
)
def test_only_our_optional_parts_are_explained(error: ImportError, remedy: str | None) -> None:
    """Somebody else's missing module stays as it is."""
    explained = missing_package(error)
    assert (explained is None) if remedy is None else (remedy in str(explained))
