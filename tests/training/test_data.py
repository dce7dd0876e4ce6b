"""Documents, their split, and batches by number."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from mufree import Refused
from mufree.training.data import Corpus, TokenStream, read_corpus, token_stream


def stream(length: int, seq_length: int = 4) -> TokenStream:
    return TokenStream(np.arange(length, dtype=np.int32), seq_length, "training")


def whole(corpus: Corpus) -> list[str]:
    """The few documents that were read, each of its two parts put together again."""
    assert "few or unequal" in corpus.note
    return sorted(map("".join, zip(corpus.train, corpus.valid, strict=True)))


def test_the_embedded_corpus_is_split_by_document() -> None:
    """One document in ten is for validation; none is in both."""
    corpus = read_corpus(None)
    assert len(corpus.valid) == len({*corpus.train, *corpus.valid}) // 10
    assert not corpus.note
    assert not set(corpus.train) & set(corpus.valid)
    assert sum(map(len, corpus.train)) > 300_000


def test_a_text_that_occurs_twice_is_on_one_side(tmp_path: Path) -> None:
    """Validation shows no text that was trained on."""
    lines = [json.dumps({"text": f"text {number % 20}"}) for number in range(100)]
    (tmp_path / "twice.jsonl").write_text("\n".join(lines))
    corpus = read_corpus(tmp_path / "twice.jsonl")
    assert not set(corpus.train) & set(corpus.valid)
    assert (len(corpus.train), len(corpus.valid)) == (90, 2)


def test_text_folder_and_lines_are_read(tmp_path: Path) -> None:
    """A folder's files are documents, and so are the lines of a .jsonl file; other files are left alone."""
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.jsonl").write_text(json.dumps({"text": "second"}) + "\n\n" + json.dumps({"text": "third"}))
    (tmp_path / "c.png").write_bytes(b"\xff\x00")
    assert whole(read_corpus(tmp_path)) == ["first", "second", "third"]


@pytest.mark.parametrize(("large", "small"), [(149_056, 856), (50_000, 49_000), (856, 149_056)])
def test_few_or_unequal_documents_give_their_last_tenths(tmp_path: Path, large: int, small: int) -> None:
    """One of two would be most of the text, or hardly any, and a text that is there three times is not lost."""
    long, short = (random.Random(size).randbytes(size // 2).hex() for size in (large, small))
    for number in range(3):
        (tmp_path / f"long{number}.txt").write_text(long)
    (tmp_path / "short.txt").write_text(short)
    corpus = read_corpus(tmp_path)
    assert corpus.valid == (long[-(large // 10) :], short[-(small // 10) :])
    assert corpus.train == (*[long[: -(large // 10)]] * 3, short[: -(small // 10)])
    assert "few or unequal documents" in corpus.note


def test_a_single_document_gives_its_last_tenth(tmp_path: Path) -> None:
    """There is nothing to split by document, and the corpus says so."""
    (tmp_path / "one.txt").write_text("0123456789" * 10)
    corpus = read_corpus(tmp_path / "one.txt")
    assert corpus.valid == ("0123456789",)
    assert len(corpus.train[0]) == 90
    assert "last tenth" in corpus.note


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nothing.txt", None, "does not exist"),
        ("empty.txt", b"", "is empty"),
        ("blank.txt", b" \n ", "is empty"),
        ("latin.txt", b"caf\xe9", "not UTF-8 text \\(byte 3\\)"),
        ("bad.jsonl", b'{"text": "fine"}\n{"words": 1}\n[]\n', "bad.jsonl:2(.|\n)*bad.jsonl:3"),
        ("half.jsonl", b'{"text": "\\ud800"}\n', "half.jsonl:1 is not an object"),
        ("deep.jsonl", b"[" * 100_000, "deep.jsonl:1 is not an object"),
        ("types.jsonl", b'{"text": 5}\n{"text": null}\n"text"\n5\n', "types.jsonl:1(.|\n)*:2(.|\n)*:3(.|\n)*:4"),
        ("many.jsonl", b"{}\n" * 1000, "many.jsonl:10 .*\n.*and 990 more like these$"),
        ("a" * 5000, None, "cannot be read: File name too long"),
    ],
)
def test_unreadable_data_is_refused_by_place(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    """Every file and line at fault is named."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=says):
        read_corpus(tmp_path / name)


def test_a_text_shorter_than_a_sequence_is_refused() -> None:
    """It says how long it is and how long it has to be."""
    assert stream(5).shuffled(0, 1, 0).shape == (1, 5)
    with pytest.raises(Refused, match="has 4 tokens, a sequence takes 5"):
        stream(4)


def test_an_epoch_shows_every_sequence_once() -> None:
    """Within an epoch no token is a target twice, and the next one has another order and offset."""
    tokens = stream(103)
    per_epoch = 24
    epochs = [[tokens.shuffled(n + epoch * per_epoch, 1, 7)[0] for n in range(per_epoch)] for epoch in range(2)]
    for rows in epochs:
        starts = sorted(int(row[0]) for row in rows)
        assert len(set(starts)) == per_epoch
        assert {b - a for a, b in itertools.pairwise(starts)} == {4}
        assert all(list(row) == list(range(row[0], row[0] + 5)) for row in rows)
    assert [int(row[0]) for row in epochs[0]] != [int(row[0]) for row in epochs[1]]


def test_a_batch_depends_on_its_number_alone() -> None:
    """Asked for in any order, in any process, batch 5 is batch 5; another seed has another one."""
    first = stream(1000).shuffled(5, 3, 0)
    other = stream(1000)
    for number in (9, 0, 700):
        other.shuffled(number, 3, 0)
    assert np.array_equal(first, other.shuffled(5, 3, 0))
    assert not np.array_equal(first, stream(1000).shuffled(5, 3, 1))


def test_validation_is_spread_over_the_text() -> None:
    """Eight sequences out of many reach from the first to near the last; a short text gives what it has."""
    starts = [int(row[0]) for batch in stream(801).evenly(4, 2) for row in batch]
    assert starts == [0, 100, 200, 300, 400, 500, 600, 700]
    assert [len(batch) for batch in stream(13).evenly(4, 2)] == [2, 1]


def test_documents_are_laid_end_to_end() -> None:
    """The encoder's rows follow each other."""
    tokens = token_stream(["ab", "c"], lambda texts: [[ord(c) for c in text] + [0] for text in texts], 2, "training")
    assert tokens.ids.tolist() == [97, 98, 0, 99, 0]


def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path: Path) -> None:
    """A pipe or a device would be read for ever, or once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="is neither a file nor a folder"):
        read_corpus(tmp_path / "pipe")


def test_marks_and_line_ends_of_other_systems_are_no_text(tmp_path: Path) -> None:
    """A byte-order mark is dropped and CR LF is a line end, in text and in JSON lines, whatever the ending's case."""
    (tmp_path / "a.TXT").write_bytes(b"\xef\xbb\xbffirst\r\nline")
    (tmp_path / "b.JSONL").write_bytes(b'\xef\xbb\xbf{"text": "second"}\r\n{"text": "third"}\r\n')
    assert whole(read_corpus(tmp_path)) == ["first\nline", "second", "third"]


def test_a_json_line_ends_at_a_line_feed_only(tmp_path: Path) -> None:
    """JSON text may hold U+2028 and U+0085 as they are."""
    (tmp_path / "a.jsonl").write_text('{"text": "one\u2028two\u0085three"}\n{"text": "four"}')
    assert whole(read_corpus(tmp_path / "a.jsonl")) == ["four", "one\u2028two\u0085three"]
