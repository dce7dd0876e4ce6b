"""What is said of a fine-tune's data: where it was looked for, what its rows lack, what is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mufree import Refused
from mufree.lm.tuning import data, data_notes
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.prepare import prepare
from tiny_finetune import make_data, settings


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        prepare(from_mapping(given))
    return str(caught.value)


def raising(error: Exception) -> Any:
    def load(*_: Any) -> Any:
        raise error

    return load


def test_a_folder_that_is_not_there(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be no name on the hub is not asked for there; what can be says so, and what to install."""
    asked: list[Any] = []
    monkeypatch.setattr(data, "load_dataset", lambda *args: asked.append(args))
    for name in (str(tmp_path / "nodir"), "./nodir", "../data/text", "~/text", "text/"):
        said = refused(settings(base[0], Path("x"), tmp_path / "out") | {"data": name})
        assert said.startswith(f"data: {name!r} cannot be loaded: there is no such folder; give one with train.jsonl")
    assert asked == []
    missing = ModuleNotFoundError("No module named 'datasets'", name="datasets")
    monkeypatch.setattr(data, "load_dataset", raising(missing))
    assert refused(settings(base[0], Path("nodir"), tmp_path / "out")) == (
        "data: 'nodir' cannot be loaded, there is no folder nodir, so the hub was asked: "
        "ModuleNotFoundError: No module named 'datasets'; pip install datasets"
    )
    monkeypatch.setattr(data, "load_dataset", raising(ValueError("Not found")))
    assert refused(settings(base[0], Path("a/b"), tmp_path / "out")).endswith(
        "the hub was asked: ValueError: Not found"
    )


def test_a_hub_dataset_is_named_by_its_own_path(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And data beside it is said not to be read."""
    monkeypatch.setattr(data, "load_dataset", raising(ValueError("Not found")))
    for hub, says in (({"path": "a/b"}, "'a/b'"), ([{"path": "a/b"}, {"path": "c/d"}], "'a/b' or 'c/d'")):
        said = refused(settings(*base, tmp_path / "out", hf_dataset=hub))
        assert said == f"hf_dataset: {says} cannot be loaded, ValueError: Not found"
    config = from_mapping(settings(*base, tmp_path / "out", hf_dataset={"path": "a/b"}))
    says = f"not read: data {str(base[1])!r}, since hf_dataset is given"
    assert data_notes.data_notes(config, {}) == [says]
    given = {"model": "m", "train": True, "hf_dataset": {"path": "a/b"}}
    assert data_notes.data_notes(from_mapping(given), {}) == []


def test_rows_of_no_form_name_what_they_have(base: Any, tmp_path: Path) -> None:
    """And what they are asked to have, by the names given."""
    folder = make_data(tmp_path / "data")
    (folder / "train.jsonl").write_text('{"sentence": "a", "label": 1}\n' * 4)
    said = refused(settings(base[0], folder, tmp_path / "out"))
    assert (
        "train.jsonl:1: has the fields sentence, label; needed are prompt and completion, or messages, or text;" in said
    )
    assert "prompt_feature and completion_feature" in said
    said = refused(settings(base[0], folder, tmp_path / "out", text_feature="body"))
    assert "or messages, or body;" in said
    fine = settings(base[0], folder, tmp_path / "out", text_feature="sentence", val_batches=0)
    (folder / "valid.jsonl").unlink()
    (folder / "test.jsonl").unlink()
    assert len(prepare(from_mapping(fine)).train) == 4


def test_rows_that_are_cut_off_are_counted(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, for the sets that are used; a row of just the length is not cut."""
    folder = make_data(tmp_path / "data", train=0)
    rows = ["a" * 39, "b" * 40, "c" * 60, "d", "e" * 41, "f"]  # and one token for their end
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    given = settings(base[0], folder, tmp_path / "out")
    says = "rows longer than max_seq_length 40 lose their ends: train 3 of 6"
    assert [note for note in prepare(from_mapping(given)).notes if "lose their ends" in note] == [says]
    assert not any("lose their" in n for n in prepare(from_mapping({**given, "max_seq_length": 61})).notes)
    monkeypatch.setattr(data_notes, "_COUNTED", 2)
    assert any("lose their ends: at least train 2 of 6" in n for n in prepare(from_mapping(given)).notes)
    encoded: list[str] = []

    class Rows(list):  # type: ignore[type-arg]
        def process(self, row: str) -> tuple[str, int]:
            encoded.append(row)
            return row, 0

    config = SimpleNamespace(hf_dataset=None, max_seq_length=1000)
    data_notes.data_notes(config, {"train": Rows(["x", "y" * 900])})  # type: ignore[arg-type]
    assert encoded == ["y" * 900]
