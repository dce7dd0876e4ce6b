"""The YAML file of options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mufree import Refused
from mufree.cli.options import number, read_yaml, whole
from mufree.training import PretrainConfig


def read(path: Path, content: str | bytes) -> dict[str, object]:
    (path / "c.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return dict(read_yaml(path / "c.yaml", PretrainConfig))


def test_numbers_are_as_on_the_command_line(tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-3 for text; a person means the number. Text in quotes stays text."""
    given = read(tmp_path, "\ufefflr: 1e-3\neps: 2^-20\nmax-time: 5\nprompt: '1e-3'\nbeta1: x\n")
    assert given == {"lr": 1e-3, "eps": 2.0**-20, "max_time": 5, "prompt": "1e-3", "beta1": "x"}
    assert read(tmp_path, "") == read(tmp_path, "# nothing\n") == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("width: 64\nwidth: 32\n", "c.yaml: is not YAML .'width' is given twice"),
        ("base-width: 8\nbase_width: 16\n", "c.yaml: base_width: is there with a dash and an underscore"),
        ("model:\n  rope_theta: 1.0\n  rope_theta: 2.0\n", "c.yaml: is not YAML .'rope_theta' is given twice"),
        ("width: [\n", "is not YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "is not YAML"),
        (b"prompt: caf\xe9\n", "is not YAML"),
        ("- width\n", "holds a list"),
        ("128\n", "holds a int"),
    ],
)
def test_a_file_that_is_not_plain_options_is_refused(tmp_path: Path, content: str | bytes, says: str) -> None:
    """With its name; nothing is taken in silence."""
    with pytest.raises(Refused, match=says):
        read(tmp_path, content)


def test_numbers_on_the_command_line() -> None:
    """As people write rates; nothing complex, nothing half read."""
    assert [number(text) for text in ("2^-6", "2**-6", "1e-3", ".5")] == [2.0**-6, 2.0**-6, 1e-3, 0.5]
    assert whole("12") == 12
    for text in ("-2^0.5", "2^-6^2", "0^-1", "9^9999", "x", "", "^"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a number such as"):
            number(text)
    for text in ("1.5", "1e3", "", "9" * 5000):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number such as"):
            whole(text)
