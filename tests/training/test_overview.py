"""The plan of a run, as a person reads it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from mufree.cli import run
from mufree.training.folder import RunFolder
from mufree.training.layout import named_lines, table_lines
from mufree.training.overview import _counted, overview
from mufree.training.prepare import prepare
from mufree.training.report import ConsoleReporter, OpenConsole
from training_settings import SMALL, flags, small

NARROW = 60
"""Columns that the table of the groups does not fit in."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The plan in a pipe, and on a narrow terminal; of widths that do not divide."""
    out = tmp_path_factory.mktemp("plan") / "run"
    prepared = prepare(small(out, width=16, base_width=24))
    return overview(prepared, RunFolder(out)), overview(prepared, RunFolder(out), NARROW)


@pytest.mark.parametrize("where", [0, 1], ids=["in a pipe", "on a narrow terminal"])
def test_no_number_is_cut(plan: tuple[str, str], where: int) -> None:
    """The rate at m_in 2/3 is there to three digits, wherever it is shown; no line ends in blanks."""
    hidden = next(line for line in plan[where].splitlines() if line.startswith("hidden"))
    assert hidden.split()[1] == "0.667"
    assert hidden.split()[-3:] == ["0.0234", "1.5e-08", "0.0667"]
    assert "…" not in plan[where]
    assert all(line == line.rstrip() for line in plan[where].splitlines())


def test_a_terminal_wraps_between_words_and_a_pipe_does_not(plan: tuple[str, str]) -> None:
    """The same words; continued lines start under the text, and only a word that does not fit is longer."""
    assert plan[0].split() == plan[1].split()
    wrapped = plan[1].splitlines()[plan[1].splitlines().index("") :]
    assert all(len(line) <= NARROW for line in wrapped if len(line.split()) > 2)
    assert any(len(line) > NARROW for line in plan[0].splitlines())


def test_the_heads_are_one_word_a_column_and_explained(plan: tuple[str, str]) -> None:
    """So that nobody counts more columns, or fewer, than there are."""
    lines = plan[0].splitlines()
    head, hidden = (next(line for line in lines if line.startswith(name)) for name in ("kind", "hidden"))
    assert len(re.split(" {2,}", head)) == len(head.split()) == len(hidden.split())
    for name in ("kind", "m_in", "std", "factor"):
        assert any(re.match(f"{name} +\\S+ \\S+ ", line) for line in lines if line != head)


def test_the_command_prints_it_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe, whatever COLUMNS says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        assert run(["pretrain", *flags(tmp_path / "run", width=16, base_width=24, data=SMALL), "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("hidden") and line.endswith("0.0234  1.5e-08  0.0667") for line in said)


def test_only_a_terminal_has_a_width() -> None:
    """The console's own guess for a pipe is none."""
    assert ConsoleReporter(OpenConsole(file=io.StringIO(), width=70)).width is None
    assert ConsoleReporter(OpenConsole(file=io.StringIO(), width=70, force_terminal=True)).width == 70


def test_lines_of_a_table_and_of_names() -> None:
    """Columns move together where they must; a word is never broken, nor a name without a text padded."""
    rows = [["a", "100"], ["bcd", "2"]]
    assert table_lines(["k", "n"], rows) == ["k      n", "a    100", "bcd    2"]
    assert table_lines(["k", "n"], rows, width=7) == ["k     n", "a   100", "bcd   2"]
    assert named_lines([("one", ""), ("", "x-y " * 12)], width=20) == [
        "one", *["     " + "x-y " * 9 + "x-y", "     x-y x-y"],
    ]  # fmt: skip


def test_the_data_is_counted_in_words(plan: tuple[str, str]) -> None:
    """One document is one, and what is for validation says what it counts."""
    line = next(line for line in plan[0].splitlines() if line.startswith("data"))
    counted = r"training [\d,]+ tokens of 1 document, validation [\d,]+ tokens of 1 document$"
    assert re.search(counted, line), line
    assert _counted(1149057, "token") == "1,149,057 tokens"
