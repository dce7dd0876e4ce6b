"""Errors say what to do, and where to read on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mufree.errors import SECTIONS, Reason, Reasons, Refused, missing_package, shown

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


def test_an_unknown_name_is_told_with_the_nearest_or_the_hint() -> None:
    """And with all that are known, in the order given."""
    reasons = Reasons()
    reasons.add_unknown("a.yaml: widht", "widht", ("width", "depth"), "option")
    reasons.add_unknown("a.yaml: 7", 7, ("width", "depth"), "option")
    reasons.add_unknown("lora.alpha", "alpha", ("rank", "scale"), "key", "the word here is scale.")
    assert [str(reason) for reason in reasons.found] == [
        "a.yaml: widht: no such option; did you mean width? The options are: width, depth",
        "a.yaml: 7: no such option; the options are: width, depth",
        "lora.alpha: no such key; the word here is scale. The keys are: rank, scale",
    ]


def test_a_value_is_settled_only_when_nothing_was_refused() -> None:
    """Then it is what the attempt returned."""
    reasons = Reasons()
    assert reasons.settled(reasons.attempt(int, "7")) == 7
    reasons.add("type", "lr", "is none")
    with pytest.raises(Refused, match="lr: is none"):
        reasons.settled(7)


def test_a_long_list_is_cut_with_its_count() -> None:
    """And a short one is not."""
    assert [shown("abcde"[:size]) for size in (1, 3, 4, 5)] == [
        "a",
        "a, b, c",
        "a, b, c and 1 more",
        "a, b, c and 2 more",
    ]
