"""Plots: made from kept rows alone, told apart without colour; what they look like is for eyes."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from mufree import Refused
from mufree.studies import CoordCheck, Transfer
from mufree.studies.horizon import Horizon
from mufree.studies.plots import check_plotting

matplotlib = pytest.importorskip("matplotlib")
PNG = b"\x89PNG"


def transfer() -> Transfer:
    rows = [
        {
            "width": width,
            "rate": 2.0**power,
            "seed": 0,
            "parametrisation": kind,
            "losses": {"loss": None if power == -3 and kind == "sp" else 2 + 0.1 * (power + 6) ** 2 - width / 1000},
        }
        for width in (64, 128)
        for power in range(-8, -2)
        for kind in ("mup", "sp")
    ]
    return Transfer(rows=rows, base_width=64)


def coordinates() -> CoordCheck:
    rows = [
        {"width": w, "seed": 0, "module": m, "update": 1, "statistic": "mean_abs", "at": at, "value": 0.5}
        for w in (64, 128)
        for m in ("layers.0", "output")
        for at in ("y", "x")
    ]
    return CoordCheck(rows=rows)


def horizon() -> Horizon:
    rows = [
        {
            "schedule": schedule,
            "rate": rate,
            "seed": seed,
            "updates": updates,
            "losses": {"valid_loss": 1.5 + rate},
            "measured": {"1": {"valid_loss": 2.0}},
        }
        for schedule, updates in (("schedule_free", 2), ("cosine", 1), ("cosine", 2))
        for rate in (0.1, 0.2)
        for seed in (0, 1)
    ]
    return Horizon(rows=rows, horizons=(1, 2))


@pytest.mark.parametrize("study", [transfer, coordinates, horizon])
def test_every_study_draws_itself(study: Any, tmp_path: Path) -> None:
    """Into a folder that is made for it; as PNG, and as SVG whose words are words."""
    assert study().plot(tmp_path / "new" / "p.png").read_bytes()[:4] == PNG
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = study().plot(tmp_path / "p.svg").read_text(encoding="utf-8")
    for words in {
        transfer: ("μP", "SP: MLX", "learning rate at the base width, log₂", "loss at x, nats a token", "width"),
        coordinates: ("width", "mean |entry| after 1 updates", "at y", "at x", "layers.0"),
        horizon: ("horizon, updates", "validation loss, nats a token", "schedule-free at x", "cosine"),
    }[study]:
        assert words in text


def test_mup_is_filled_and_solid_and_sp_hollow_and_dashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that a print in grey tells them apart; widths by their markers."""
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _path, **_options: drawn.append(figure))
    transfer().plot(tmp_path / "p.png")
    left, right = drawn[0].axes
    sp, mup = ([c.lines[0] for c in panel.containers] for panel in (left, right))
    assert {line.get_linestyle() for line in mup} == {"-"}
    assert {line.get_linestyle() for line in sp} == {"--"}
    assert {line.get_markerfacecolor() for line in sp} == {"white"}
    assert "white" not in {str(line.get_markerfacecolor()) for line in mup}
    assert [line.get_marker() for line in mup] == ["o", "s"]
    assert left.get_ylim() == right.get_ylim()


def test_a_file_type_that_matplotlib_does_not_write(tmp_path: Path) -> None:
    """Is refused with those that it does."""
    with pytest.raises(Refused, match="png"):
        transfer().plot(tmp_path / "p.docx")


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is trained."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Refused, match=r"pip install 'mufree\[plot\]'"):
        check_plotting()
