"""Whole documents in padded sequences."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mufree.training import packing, pretrain
from mufree.training.data import TokenStream
from mufree.training.packing import PackedStream, packed_loss, targets_of
from mufree.training.prepare import prepare
from mufree.training.report import read_metrics
from mufree.training.step import next_token_loss
from training_settings import tiny

END = 9

# float32 sums of a dozen terms in another order.
SAME = 1e-6


def packed(*lengths: int, seq_length: int = 5) -> PackedStream:
    """Documents of so many tokens, end token included, each of a token of its own."""
    ids = [token for number, length in enumerate(lengths) for token in [*[number] * (length - 1), END]]
    return PackedStream(TokenStream(np.array(ids, np.int32), seq_length, "training"), END)


@pytest.mark.parametrize("chunk", [1 << 20, 4, 1])
def test_no_document_is_cut_that_fits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many whole ones as fit; one longer than a sequence in pieces; none lost but single tokens."""
    monkeypatch.setattr(packing, "_CHUNK", chunk)
    stream = packed(2, 3, 4, 6, 14, 3, 1, 1, 5)
    rows = list(zip(stream.starts.tolist(), stream.lengths.tolist(), strict=True))
    assert rows == [(0, 5), (5, 4), (9, 6), (15, 6), (21, 6), (27, 6), (33, 6)]


def test_a_row_is_its_documents_then_padding() -> None:
    """Padding is the end token; the targets are all tokens but the first."""
    ids, targets = packed(2, 3, 4).evenly(1, 5)[0]
    assert ids.tolist() == [[0, END, 1, 1, END, END], [2, 2, 2, END, END, END]]
    assert targets.tolist() == [4, 3]


def test_an_epoch_shows_every_row_once() -> None:
    """In another order than the next."""
    stream = packed(*[6] * 40)
    epochs = [stream.sequences(40 * epoch, 40, 1)[0][:, 0].tolist() for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(number for number in range(40))
    assert epochs[0] != epochs[1]


def test_padding_is_not_learned_from() -> None:
    """The loss is that of the real targets alone, and of full rows the usual one."""
    ids = mx.array(np.random.default_rng(0).integers(0, 10, (2, 6)))
    logits = mx.random.normal((2, 5, 10))
    full = (ids, mx.array([5, 5]))
    assert packed_loss(lambda _: logits, full).item() == pytest.approx(
        next_token_loss(lambda _: logits, ids).item(), SAME
    )
    one = next_token_loss(lambda _: logits[:1, :2], ids[:1, :3]).item() * 2
    two = next_token_loss(lambda _: logits[1:, :4], ids[1:, :5]).item() * 4
    batch = (ids, mx.array([2, 4]))
    assert packed_loss(lambda _: logits, batch).item() == pytest.approx((one + two) / 6, rel=SAME)
    assert targets_of(batch) == 6


def test_a_run_packs_and_counts_what_it_learns_from(tmp_path: Path) -> None:
    """Tokens are targets, the position goes by sequences, and it goes on bit for bit."""
    text = "\n".join(f'{{"text": "{"ab" * (number % 9 + 1)}"}}' for number in range(400))
    (tmp_path / "d.jsonl").write_text(text)
    settings = {
        "data": str(tmp_path / "d.jsonl"),
        "packing": "documents",
        "accumulation": 2,
        "accumulation_weight": "tokens",
    }
    pretrain(tiny(tmp_path / "a", **settings))
    pretrain(tiny(tmp_path / "b", **{**settings, "updates": 3}))
    pretrain(tiny(tmp_path / "b", **settings), resume=True)
    a, b = ((tmp_path / run / "checkpoints/00000006/optimizer.safetensors").read_bytes() for run in "ab")
    assert a == b
    stream = prepare(tiny(tmp_path / "c", **settings)).train
    learned = stream.sequences(0, 24, 0)[1].sum()
    last = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "loss" in line][-1]
    assert last["tokens"] == learned < 24 * 16
