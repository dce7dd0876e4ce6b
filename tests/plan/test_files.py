"""Settings from files: numbers are numbers, and no key is read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from mufree import Refused
from mufree.plan.files import read_file


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    """PyYAML makes strings of ``1e-3``."""
    path = written(tmp_path, "plan.yaml", "lr: 1e-3\neps: 1.5E-8\noptimizer: adamw\nbetas: [0.9, .95]\n")
    assert read_file(path) == {"lr": 1e-3, "eps": 1.5e-8, "optimizer": "adamw", "betas": [0.9, 0.95]}


@pytest.mark.parametrize("name", ["plan.yaml", "plan.json"])
@pytest.mark.parametrize(
    "text", ["- 1\n", "3", "a: [", "{", "[" * 1_500, '{"lr": 1, "lr": 2}', '{"a": {"b": 1, "b": 2}}']
)
def test_a_file_that_is_no_mapping_or_says_a_thing_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """By its name; the readers take the last of two."""
    with pytest.raises(Refused) as caught:
        read_file(written(tmp_path, name, text))
    assert [reason.field for reason in caught.value.reasons] == [str(tmp_path / name)]


def test_a_key_given_twice_is_named(tmp_path: Path) -> None:
    """Block style too."""
    with pytest.raises(Refused, match="'lr' is given twice"):
        read_file(written(tmp_path, "plan.yaml", "lr: 1\noptimizer: sgd\nlr: 2\n"))


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    """As some editors write it."""
    assert read_file(written(tmp_path, "plan.json", '\ufeff{"lr": 1}')) == {"lr": 1}


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    """In YAML; JSON has no empty document."""
    assert read_file(written(tmp_path, "plan.yaml", "# nothing yet\n")) == {}
    with pytest.raises(Refused, match=r"plan\.json"):
        read_file(written(tmp_path, "plan.json", ""))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(Refused, match=r"none\.yaml: cannot be read"):
        read_file(tmp_path / "none.yaml")
