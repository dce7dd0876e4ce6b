"""The README's own examples and commands run, one after the other as a reader would."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mufree.cli import run

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")

SMALL = {
    "pretrain": "--updates 4 --layers 1 --seq-length 16 --batch-size 2 --eval-batches 1",
    "pretrain --resume": "--updates 6",
    "pretrain --recipe": "--updates 4",
    "transfer": "--widths 64,128 --rates 2^-8..2^-2 --updates 12 --warmup 2 --seq-length 16 --batch-size 2 --jobs 1",
    "coord-check": "--widths 64,128 --seeds 1 --updates 2 --seq-length 16 --batch-size 2 --jobs 1",
    "plan": "",
    "lora": "--iters 4 --num-layers 1 --batch-size 1 --val-batches 1 --steps-per-eval 4",
    "export": "",
}
"""What makes each command small: the last of two options wins."""

SET_UP = "python3 -m venv"
"""The two set-up commands are what ``.ci/run`` runs."""


def blocks(language: str) -> list[str]:
    """The README's code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands() -> Iterator[tuple[list[str], str]]:
    """Every command but those of the set-up, in words, with its comment."""
    for block in blocks("sh"):
        for line in block.splitlines():
            if line and not line.startswith(SET_UP):
                command, _, comment = line.partition("  #")
                yield shlex.split(command), comment


def small(words: list[str]) -> list[str]:
    """The words of a mufree command, made small."""
    longer = " ".join(words[:2])
    return [*words, *shlex.split(SMALL[longer if longer in SMALL else words[0]])]


def test_the_python_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one session: what one example leaves, the next one finds."""
    monkeypatch.chdir(tmp_path)
    session: dict[str, Any] = {}
    for example in blocks("python"):
        exec(compile(example, str(README), "exec"), session)  # noqa: S102


@pytest.mark.slow
def test_every_command_runs_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but small; each ends with the status that it says."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("train", "valid"):
        rows = [json.dumps({"text": f"the {name} text, number {number}, is short."}) for number in range(8)]
        Path(f"data/{name}.jsonl").write_text("\n".join(rows))
    for words, comment in commands():
        if words[0] == "mufree":
            allowed = {2} if "status 2" in comment else {0, 1} if words[1] in ("transfer", "coord-check") else {0}
            assert run(small(words[1:])) in allowed, words
        else:
            tool, _, part = words[0].partition(".")
            more = ["--max-tokens", "2"] if part == "generate" else []
            subprocess.run([sys.executable, "-m", tool, part, *words[1:], *more], check=True, capture_output=True)


def test_every_figure_is_there() -> None:
    """Pictures are named by paths in this repository."""
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT):
        assert (README.parent / path).is_file(), path
