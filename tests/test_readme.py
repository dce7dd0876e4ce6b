"""The README's own examples and commands run, one after the other as a reader would."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mufree.cli import COMMANDS, run

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

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path)}
"""The environment of a command, wherever it is started."""

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
    Path("path/to/data").mkdir(parents=True)
    for name in ("train", "valid"):
        rows = [json.dumps({"text": f"the {name} text, number {number}, is short."}) for number in range(8)]
        Path(f"path/to/data/{name}.jsonl").write_text("\n".join(rows))
    assert run(small(["pretrain", "--out", "base"])) == 0
    Path("base/export").rename("path/to/model")
    for words, comment in commands():
        if words[0] == "mufree":
            allowed = {2} if "status 2" in comment else {0, 1} if words[1] in ("transfer", "coord-check") else {0}
            assert run(small(words[1:])) in allowed, words
        elif words[0] == "python":
            subprocess.run([sys.executable, str(README.parent / words[1]), *words[2:]], check=True, env=HERE)
        else:
            tool, _, part = words[0].partition(".")
            more = ["--max-tokens", "2"] if part == "generate" else []
            subprocess.run([sys.executable, "-m", tool, part, *words[1:], *more], check=True, env=HERE)
    for config in blocks("yaml"):
        Path("lora.yaml").write_text(config)
        assert run(small(["lora", "-c", "lora.yaml", "--adapter-path", "from-yaml"])) == 0


def recorded() -> Iterator[tuple[str, bool]]:
    """Every command of the terminal recordings, made small, and whether Ctrl-C ends it."""
    for block in blocks("console"):
        lines = block.splitlines()
        for number, line in enumerate(lines):
            if line.startswith("$ "):
                following = next((text for text in lines[number + 1 :] if text[:2] in ("$ ", "^C")), "")
                command = line[2:].replace("mufree pretrain", f"mufree pretrain {SMALL['pretrain']}")
                yield command, following == "^C"


@pytest.mark.slow
def test_every_recorded_command_runs_in_its_order(tmp_path: Path) -> None:
    """In a shell, as they were typed; Ctrl-C where it was pressed; equal hashes where they were equal."""
    shim = tmp_path / "bin" / "mufree"
    shim.parent.mkdir()
    shim.write_text(f"#!{sys.executable}\nfrom mufree.__main__ import main\nraise SystemExit(main())\n")
    shim.chmod(0o755)
    path = os.pathsep.join([str(shim.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**HERE, "PATH": path}
    hashes: list[str] = []
    waiting: list[subprocess.Popen[str]] = []
    for command, interrupted in recorded():
        process = subprocess.Popen(
            ["bash", "-c", "exec " * interrupted + command.removesuffix(" &")],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        waiting.append(process)
        if command.endswith(" &"):
            continue
        if interrupted:
            folder = re.search(r"--out (\S+)", command)
            assert folder, command
            while not (tmp_path / folder[1] / "metrics.jsonl").exists() and process.poll() is None:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
        for one in waiting:
            said = one.communicate(timeout=300)[0]
            assert one.returncode == (130 if interrupted else 0), (command, said)
        waiting.clear()
        if command.startswith("sha256sum"):
            hashes = [line.split()[0] for line in said.splitlines()]
    assert len(hashes) == 2
    assert len(set(hashes)) == 1


def test_nothing_typed_goes_unread() -> None:
    """No block is in a language that is not run, and every command and extra named in the text is one."""
    assert {*re.findall(r"^```(\w+)$", TEXT, re.MULTILINE)} == {"sh", "python", "yaml", "console"}
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    typed = [words.split() for words in re.findall(r"`mufree ([^`]+)`", prose)]
    assert {words[0] for words in typed if not words[0].startswith("-")} <= {*COMMANDS}
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"pip install (?:-e )?'\.\[([^]]+)\]'", TEXT):
        assert {*extras.split(",")} <= {*project["optional-dependencies"]}


def test_every_figure_is_there() -> None:
    """Pictures are named by paths in this repository."""
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT):
        assert (README.parent / path).is_file(), path
