"""An order of any length without memory."""

from __future__ import annotations

import numpy as np
import pytest

from mufree.training import data
from mufree.training.data import TokenStream
from mufree.training.permutation import Permutation, _mixed

KEYS = (3, 1 << 60, 7, 11)

# Neighbours of a random order of n are n/3 apart on average; 5,000 draws scatter by less than 2 % of that.
SCATTER = 0.1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 100, 1000, 4097])
def test_every_entry_has_a_place_of_its_own(size: int) -> None:
    """A bijection, for sizes at and between powers of two."""
    assert sorted(map(Permutation(size, KEYS), range(size))) == list(range(size))


def test_neighbours_end_far_apart_and_keys_matter() -> None:
    """As in a random order, and also in one of 10^12 entries."""
    for size in (5000, 10**12):
        places = [Permutation(size, KEYS)(index) for index in range(5000)]
        assert np.mean(np.abs(np.diff(places))) == pytest.approx(size / 3, rel=SCATTER)
        assert places != [Permutation(size, (4, *KEYS[1:]))(index) for index in range(5000)]


def test_the_order_is_the_same_in_every_version() -> None:
    """A run that goes on reads its data in the order it started with; the mixing is SplitMix64's, seeded with 0."""
    assert [_mixed(n * 0x9E3779B97F4A7C15) for n in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert [Permutation(10**7, KEYS)(n) for n in range(6)] == [726827, 473027, 929493, 9687748, 279287, 7834286]
    assert [Permutation(100, KEYS)(n) for n in range(6)] == [9, 49, 25, 10, 19, 5]


def test_a_long_stream_shows_every_sequence_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the order worked out rather than drawn: each sequence once an epoch, another order in the next."""
    monkeypatch.setattr(data, "DRAWN", 10)
    data._epoch.cache_clear()
    stream = TokenStream(np.arange(403, dtype=np.int32), 4, "training")
    epochs = [stream.sequences(99 * epoch, 99, 5)[:, 0].tolist() for epoch in range(2)]
    data._epoch.cache_clear()
    for starts in epochs:
        assert set(np.diff(sorted(starts))) == {4}
        assert len(set(starts)) == 99
        assert starts != sorted(starts)
    assert epochs[0] != epochs[1]
