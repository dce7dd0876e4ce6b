"""A folder's cells are given back only for the very same functions, with all that they refer to."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from small_task import IN, OUT, batches, loss

from mufree import AdamWScheduleFree, Refused
from mufree.studies import coord_check, lr_transfer
from mufree.studies.fingerprint import TOLERANCE
from mufree.studies.references import CHANGES, references, steady

DECAY, GAIN = 0.1, [1.0]


def factory(wd: float) -> Any:
    return lambda rate, scales: AdamWScheduleFree(learning_rate=rate, scales=scales, weight_decay=wd)


def by_keyword(rate: float, scales: Any, wd: float = 0.1) -> Any:
    return AdamWScheduleFree(learning_rate=rate, scales=scales, weight_decay=wd)


def by_global(rate: float, scales: Any) -> Any:
    return helper(rate, scales)


def helper(rate: float, scales: Any) -> Any:
    return AdamWScheduleFree(learning_rate=rate, scales=scales, weight_decay=DECAY)


class Chosen:
    def __init__(self, wd: float) -> None:
        self.wd = wd

    def __call__(self, rate: float, scales: Any) -> Any:
        return by_keyword(rate, scales, self.wd)

    method = __call__


class Net(nn.Module):
    """A small net whose call can be exchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.head = [nn.Linear(IN, width)], nn.Linear(width, OUT)

    def __call__(self, x: mx.array) -> mx.array:
        return self.head(GAIN[0] * nn.relu(self.layers[0](x)))


def transfer(folder: Path, optimizer: Any, make: Any = Net, batch: Any = batches, value: Any = loss) -> Any:
    return lr_transfer(
        make, batch, value, base_width=4, widths=[8], rates=[0.01], optimizer=optimizer, updates=1, seeds=1,
        folder=folder, parametrisations=("mup",),
    )  # fmt: skip


PAIRS = {
    "a closure's variable": lambda wd: factory(wd),
    "a partial's argument": lambda wd: functools.partial(by_keyword, wd=wd),
    "an object's attribute": lambda wd: Chosen(wd),
    "a bound method's object": lambda wd: Chosen(wd).method,
    "a function in a closure": lambda wd: (lambda chosen: lambda rate, scales: chosen(rate, scales))(factory(wd)),
    "an array": lambda wd: (lambda a: lambda r, s: by_keyword(r, s, a.item()))(np.array([wd], np.float32)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_another_value_is_another_study(pair, tmp_path) -> None:
    """The same one again is the same; the refusal says which value it was."""
    transfer(tmp_path, PAIRS[pair](0.1))
    assert len(transfer(tmp_path, PAIRS[pair](0.1)).rows) == 2
    with pytest.raises(Refused, match=r"optimizer\.(.|\n)*contradicts(.|\n)*another folder"):
        transfer(tmp_path, PAIRS[pair](0.2))


def test_a_default_and_a_global_that_a_helper_uses(tmp_path, monkeypatch) -> None:
    """By their names."""
    transfer(tmp_path / "d", by_keyword)
    monkeypatch.setattr(by_keyword, "__defaults__", (0.2,))
    with pytest.raises(Refused, match=r"optimizer\.__defaults__: '\[0\.2\]' contradicts '\[0\.1\]'"):
        transfer(tmp_path / "d", by_keyword)
    transfer(tmp_path / "g", by_global)
    monkeypatch.setitem(globals(), "DECAY", 0.2)
    with pytest.raises(Refused, match=r"optimizer\.helper\.DECAY: '0\.2' contradicts '0\.1'"):
        transfer(tmp_path / "g", by_global)


def test_a_model_and_what_it_refers_to(tmp_path, monkeypatch) -> None:
    """Its weights at the start are the same."""
    transfer(tmp_path, by_keyword)
    monkeypatch.setitem(globals(), "GAIN", [3.0])
    with pytest.raises(Refused, match=r"make\.__call__\.GAIN: '\[3\.0\]' contradicts"):
        transfer(tmp_path, by_keyword)
    monkeypatch.undo()
    monkeypatch.setattr(Net, "__call__", lambda self, x: self.head(self.layers[0](x)))
    with pytest.raises(Refused, match=r"make\.__call__: "):
        transfer(tmp_path, by_keyword)


def test_another_of_the_first_batches(tmp_path) -> None:
    """Not the first of them, and of the same source."""
    values = [batches(n) for n in range(3)]
    transfer(tmp_path, by_keyword, batch=list(values))
    values[2] = batches(7)
    with pytest.raises(Refused, match="batches: "):
        transfer(tmp_path, by_keyword, batch=values)


def test_a_coordinate_check(tmp_path) -> None:
    """Its optimizer and its change of the scales too."""

    def check(wd: float, scales: Any = "mup") -> Any:
        made = functools.partial(by_keyword, 0.01, wd=wd)
        return coord_check(Net, batches, loss, base_width=4, widths=[4, 8], optimizer=lambda s: made(s), seeds=1,
                           updates=1, folder=tmp_path / str(scales != "mup"), scales=scales)  # fmt: skip

    def change(wd: float) -> Any:
        return lambda scales: scales if wd else None

    check(0.1)
    assert check(0.1).rows
    with pytest.raises(Refused, match=r"optimizer\.optimizer\.made\.keywords"):
        check(0.2)
    check(0.1, change(0.1))
    with pytest.raises(Refused, match=r"scales\.wd: '0\.2' contradicts '0\.1'"):
        check(0.1, change(0.2))


def test_what_nothing_written_shows_a_loss_does(tmp_path) -> None:
    """The first losses are kept and compared, with room for another machine's last bits."""

    class Hidden:
        __slots__ = ("factor",)

        def __init__(self, factor: float) -> None:
            self.factor = factor

    def loss_of(factor: float) -> Any:
        hidden = Hidden(factor)
        return lambda model, x, y: hidden.factor * loss(model, x, y)

    transfer(tmp_path, by_keyword, value=loss_of(1.0))
    kept = json.loads((tmp_path / "fingerprint.json").read_text())
    assert (kept["cell"]["width"], len(kept["losses"])) == (4, 3)
    transfer(tmp_path, by_keyword, value=loss_of(1 + TOLERANCE / 4))
    with pytest.raises(Refused, match=r"losses .*, and had .* \(allowed: 0\.001 .* give another folder"):
        transfer(tmp_path, by_keyword, value=loss_of(1.1))


def test_a_cache_tells_no_study_from_another(tmp_path) -> None:
    """What the calls change themselves is left out, whether it is full or empty by then."""
    cache: dict[int, Any] = {}

    def cached(number: int) -> Any:
        return cache.setdefault(number, batches(number))

    transfer(tmp_path, by_keyword, batch=cached)
    transfer(tmp_path, by_keyword, batch=cached)
    cache.clear()
    transfer(tmp_path, by_keyword, batch=cached)
    assert steady({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == {"a": "1", "b": CHANGES, "c": CHANGES}


def test_a_folder_of_an_earlier_version(tmp_path) -> None:
    """Its cells may be of other functions."""
    transfer(tmp_path, by_keyword)
    study = json.loads((tmp_path / "study.json").read_text())
    del study["settings"]["code"]
    (tmp_path / "study.json").write_text(json.dumps(study))
    with pytest.raises(Refused, match="a version that did not keep"):
        transfer(tmp_path, by_keyword)


def test_packages_are_not_followed_and_circles_end() -> None:
    """Functions that call each other, an object that holds itself, and MLX."""
    held: list[Any] = []
    held.append(held)

    def here(n: int) -> Any:
        return there(n), held, nn.relu, mx.array

    def there(n: int) -> Any:
        return here(n), AdamWScheduleFree

    found = references(root=here)
    assert found["root.held"] == "[as outside]"
    assert set(found) == {"root", "root.there", "root.there.AdamWScheduleFree", "root.there.here", "root.held"}
    assert all("0x" not in text for text in found.values())
