"""What ranks exchange, and what they agree on before the first update."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mufree.errors import CheckpointError, Refused, refuse
from mufree.training.agreement import check_agreement, check_whole
from mufree.training.joining import joined, launched
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from mufree.training.ranks import ALONE, Ranks, digest
from rank_processes import as_threads, replayed
from training_settings import tiny


def test_parts_of_a_batch_are_all_of_it() -> None:
    """Each rank's rows follow the last one's; a tuple of arrays is split alike; one rank has the batch as it is."""
    batch = np.arange(24).reshape(6, 4)
    parts = as_threads(3, lambda ranks: ranks.part(batch))
    assert [len(part) for part in parts] == [2, 2, 2]
    assert np.array_equal(np.concatenate(parts), batch)
    assert [one.tolist() for one in as_threads(2, lambda ranks: ranks.part((batch, batch[:, 0])))[1]] == [
        batch[3:].tolist(),
        [12, 16, 20],
    ]
    assert ALONE.part(batch) is batch


@pytest.mark.parametrize(("size", "fits"), [(7, "6 or 9"), (2, "give 3")])
def test_a_batch_that_cannot_be_split_evenly_is_refused(size: int, fits: str, tmp_path: Path) -> None:
    """With the sizes next to it, by every rank, with the other reasons that the settings give."""
    for error in as_threads(3, lambda ranks: ranks.check_batch(size)):
        assert fits in str(error)
    config = tiny(tmp_path / "run", batch_size=size, layers=2, head_dim=5)
    with pytest.raises(Refused) as caught:
        prepare(config, as_threads(3, lambda ranks: ranks)[0])
    assert {reason.field for reason in caught.value.reasons} >= {"batch_size", "width"}


def test_numbers_are_exchanged_exactly() -> None:
    """Means and highest values are float64 and the same at every rank; one that is not finite makes the mean so."""
    values = [0.1, 0.7, 1e-17]
    assert as_threads(3, lambda ranks: ranks.mean(values[ranks.rank])) == [sum(values) / 3] * 3
    assert all(map(math.isnan, as_threads(2, lambda ranks: ranks.mean([1.0, math.nan][ranks.rank]))))
    assert as_threads(3, lambda ranks: ranks.highest(ranks.rank * 5, 2 - ranks.rank)) == [(10, 2)] * 3
    assert (ALONE.mean(0.1), ALONE.highest(3, 0)) == (0.1, (3, 0))


def test_values_of_any_length_are_gathered() -> None:
    """JSON-ready values, by rank; rank 0's alone where it decides."""
    texts = ["x", "βγ" * 50, None]
    assert as_threads(3, lambda ranks: ranks.gather(texts[ranks.rank])) == [texts] * 3
    assert as_threads(3, lambda ranks: ranks.first(lambda: {"rank": ranks.rank})) == [{"rank": 0}] * 3


@pytest.mark.parametrize("count", [0, 1, 5])
def test_work_is_spread(count: int) -> None:
    """Every item is worked out once, and every rank has all results in order."""
    done: list[int] = []

    def square(item: int) -> float:
        done.append(item)
        return item * item

    assert as_threads(2, lambda ranks: ranks.spread(square, range(count))) == [[n * n for n in range(count)]] * 2
    assert sorted(done) == list(range(count))


def test_one_ranks_refusal_is_everybodys() -> None:
    """With the reasons of all, once each, those of a later rank by its name; of one kind if all are."""

    def choose(ranks: Ranks) -> None:
        if ranks.rank < 2:
            refuse("type", "lr", "is text", CheckpointError)
        refuse("missing", "data", "is not there", CheckpointError)

    found = as_threads(3, lambda ranks: ranks.together(choose, ranks))
    assert {type(error) for error in found} == {CheckpointError}
    assert {str(error) for error in found} == {"lr: is text\nrank 2: data: is not there"}
    assert as_threads(2, lambda ranks: ranks.together(lambda: ranks.rank)) == [0, 1]
    first = as_threads(2, lambda ranks: ranks.first(lambda: refuse("occupied", "out", "is taken")))
    assert [str(error) for error in first] == ["out: is taken"] * 2


def test_a_digest_sees_every_bit() -> None:
    """A value, its place, its type, its path."""
    values = mx.arange(6, dtype=mx.float32)
    seen = {
        digest([(path, array)])
        for path, array in [
            ("w", values),
            ("w", values[::-1]),
            ("w", values.reshape(2, 3)),
            ("w", values.astype(mx.bfloat16)),
            ("w", values.view(mx.int32)),
            ("b", values),
            ("w", mx.where(values == 5, np.nextafter(np.float32(5), np.float32(6)), values)),
        ]
    }
    assert len(seen) == 7
    two = [("w", values), ("step", mx.array(3, mx.uint64)), ("on", mx.array(True))]
    assert digest(two) == digest(two[::-1])


ALIKE: dict[str, Any] = {"weights": mx.ones(3)}


@pytest.mark.parametrize(
    ("settings", "identity", "shift", "says"),
    [
        ({"seed": 1, "eps": 1e-7}, "a", 1.0, ["seed: rank 1 has 1, rank 0 has 0", "eps: rank 1 has 1e-07"]),
        ({}, "b", 1.0, ["train_tokens: rank 1 has 'b', rank 0 has 'a'"]),
        ({}, "a", 1.0, ["weights: rank 1 has "]),
        ({"data": "elsewhere"}, "a", 0.0, []),
    ],
)
def test_ranks_that_differ_are_refused(
    settings: dict[str, Any], identity: str, shift: float, says: list[str], tmp_path: Path
) -> None:
    """The cause is named, not what follows from it; where the files lie may differ."""
    configs = [tiny(tmp_path / "run"), tiny(tmp_path / "run", **settings)]
    states = [[("weights", mx.ones(3))], [("weights", mx.ones(3) + shift)]]
    mx.eval(states)

    def check(ranks: Ranks) -> None:
        name = ["a", identity][ranks.rank]
        check_agreement(ranks, configs[ranks.rank], {"train_tokens": name}, states[ranks.rank])

    for error in replayed(2, check):
        lines = str(error).split("\n") if error else []
        assert len(lines) == len(says)
        assert all(line.startswith(said) for line, said in zip(lines, says, strict=True))


class TwoRanks:
    """Stands for a group where only its size is asked for."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("kind", ["fully_shard", "linear"])
def test_a_sharded_model_is_refused(kind: str) -> None:
    """Before training, with the module's path and what to give instead."""
    from mlx.nn.layers.distributed import AllToShardedLinear

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    sharded: Any = AllToShardedLinear(4, 4) if kind == "linear" else nn.fully_shard(inner, group=TwoRanks())
    model = nn.Sequential(nn.Linear(4, 4), sharded)
    with pytest.raises(Refused, match=r"layers\.1: \w+ holds one rank's part .* give the whole model"):
        Trainer(model, nn, lambda _: mx.zeros((2, 4)))
    check_whole(inner)


def test_who_is_launched(tmp_path: Path) -> None:
    """By MLX's launcher or MPI, as more than one; a launcher's single process is alone."""
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.write_text("\n")
    full.write_text('[["127.0.0.1:1"], ["127.0.0.1:2"]]')
    assert launched({"MLX_RANK": "1", "MLX_HOSTFILE": str(full)})
    assert launched({"MLX_RANK": "0"})
    assert launched({"OMPI_COMM_WORLD_SIZE": "2"})
    for alone in ({}, {"MLX_RANK": "0", "MLX_HOSTFILE": str(empty)}, {"OMPI_COMM_WORLD_SIZE": "1"}):
        assert not launched(alone)


def test_a_rank_without_the_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was started as one of several and has no way to them does not train on its own."""
    monkeypatch.setenv("MLX_RANK", "1")
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    with pytest.raises(Refused, match=r"ranks: .*'MLX_RANK': '1'.* start all of them with mlx\.launch"), joined():
        pass
