"""Folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from mufree.files import whole_folder


def write(folder: Path, text: str) -> None:
    with whole_folder(folder) as beside:
        (beside / "text").write_text(text)


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    """Its folder is replaced, again and again, and nothing is left over."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for text in ("one", "two", "three"):
        write(tmp_path / "link", text)
        assert (tmp_path / "disk/text").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    assert (tmp_path / "link").is_symlink()


def test_a_file_in_the_place_is_replaced_too(tmp_path: Path) -> None:
    """What is left of it does not stand in the way of the next time."""
    (tmp_path / "place").write_text("a file")
    for text in ("one", "two"):
        write(tmp_path / "place", text)
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
