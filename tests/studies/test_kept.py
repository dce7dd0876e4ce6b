"""A study's result in its folder."""

from __future__ import annotations

from pathlib import Path

from mufree.studies.coordinates import STUDY, CoordCheck
from mufree.studies.kept import save_result


def found(*widths: int) -> CoordCheck:
    """A check of these widths."""
    row = {"seed": 0, "module": "output", "update": 1, "statistic": "mean_abs", "at": "y", "value": 1.0}
    return CoordCheck(rows=[row | {"width": width} for width in widths])


def widths(path: Path) -> list[int]:
    return [row["width"] for row in CoordCheck.load(path).rows]


def test_a_result_of_other_cells_is_kept_under_another_name(tmp_path: Path) -> None:
    """Each of them; one that lies within the new one is replaced, and what is no result too."""
    path = tmp_path / "result.json"
    path.write_text("{")
    assert save_result(found(8, 16), STUDY, path) is None
    assert save_result(found(8, 16, 32), STUDY, path) is None
    assert save_result(found(8, 16), STUDY, path) == tmp_path / "result-1.json"
    assert save_result(found(32, 64), STUDY, path) == tmp_path / "result-2.json"
    assert [widths(tmp_path / f"result{part}.json") for part in ("", "-1", "-2")] == [[32, 64], [8, 16, 32], [8, 16]]
    assert len(list(tmp_path.iterdir())) == 3
