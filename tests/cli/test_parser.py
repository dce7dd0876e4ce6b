"""What the command line says to words that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from mufree.cli import COMMANDS, run


def ended(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What is said on stderr by a parser that ends with status 2."""
    with pytest.raises(SystemExit) as caught:
        run(words)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pretrain", "--updats", "20"], "mufree pretrain: --updats is no option; did you mean --updates?"),
        (["pretrain", "--updats=20"], "mufree pretrain: --updats is no option; did you mean --updates?"),
        (["pretrain", "--learning-rate", "1"], "mufree pretrain: --learning-rate is no option; did you mean --lr?"),
        (["lora", "--lr", "1"], "mufree lora: --lr is no option; did you mean --learning-rate?"),
        (["lora", "--out", "x"], "mufree lora: --out is no option; did you mean --adapter-path?"),
        (["transfer", "--qiuck"], "mufree transfer: --qiuck is no option; did you mean --quick?"),
        (["plan", "--zzz"], "mufree plan: --zzz is no option; see mufree plan --help"),
        (["pretrain", "more"], "mufree pretrain: more belongs to no option; see mufree pretrain --help"),
        (
            ["pretrain", "--lr", "foo"],
            "mufree pretrain: --lr: 'foo' is not a number such as 0.01, 1e-3 or 2^-6; see mufree pretrain --help",
        ),
        (
            ["pretain"],
            f"mufree: pretain is no command; did you mean pretrain? The commands are: {', '.join(COMMANDS)}",
        ),
        (["zzz"], f"mufree: zzz is no command; the commands are: {', '.join(COMMANDS)}"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command, what was given, and what was probably meant; no usage before it."""
    assert ended(capsys, words) == says + "\n"


def test_every_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """All at once, a line each."""
    said = ended(capsys, ["pretrain", "--updats", "20", "--widht", "3"])
    assert [line.split()[-1] for line in said.splitlines()] == ["--updates?", "--width?"]


def test_no_command_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """With every command in it."""
    said = ended(capsys, [])
    assert said.startswith("usage: mufree")
    assert all(f"    {command}" in said for command in COMMANDS)


@pytest.mark.parametrize(
    ("command", "key", "meant"),
    [
        ("pretrain", "lerning_rate", "lr"),
        ("lora", "lr", "learning_rate"),
        ("transfer", "seds", "seeds"),
        ("coord-check", "width", None),
        ("plan", "learning_rate", "lr"),
    ],
)
def test_a_misspelt_key_of_a_file(
    command: str, key: str, meant: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is refused with the option that was probably meant; one that the command sets itself with that."""
    (tmp_path / "c.yaml").write_text(f"{key}: 1\n")
    assert run([command, "-c", str(tmp_path / "c.yaml")]) == 2
    says = f"c.yaml: {key}: no such" if meant else f"{key}: is the check's here"
    said = next(line for line in capsys.readouterr().err.splitlines() if says in line)
    assert meant is None or f"did you mean {meant}?" in said or f"word is {meant}" in said


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("plan", {"FILE": "config training-arguments out"}),
        ("pretrain", {"FILE": "config recipe", "FOLDER": "out tokenizer cache", "PATH": "data weights"}),
        ("lora", {"FILE": "config resume-adapter-file", "FOLDER": "adapter-path data", "PATH": "tuned-on"}),
        ("transfer", {"FILE": "config save plot", "FOLDER": "out tokenizer cache", "PATH": "data"}),
        ("coord-check", {"FILE": "config plot", "FOLDER": "out tokenizer cache", "PATH": "data"}),
        ("export", {"FOLDER": "out", "MODEL": "model"}),
    ],
)
def test_files_and_folders_are_called_so_everywhere(
    command: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """FILE, FOLDER, or PATH where it may be either."""
    with pytest.raises(SystemExit):
        run([command, "--help"])
    said = capsys.readouterr().out
    for metavar, names in options.items():
        assert all(f"--{name} {metavar}" in said for name in names.split())


def test_a_refusal_names_the_section_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    """In quotes, for its name is a phrase."""
    assert run(["plan", "--optimizer", "adamm", "--lr", "1"]) == 2
    assert capsys.readouterr().err.endswith('see "Moving from" in the README\n')
