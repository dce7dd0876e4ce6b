"""Text, tokenised once."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mufree import Refused
from mufree.training import pretrain, sources, texts, tokenised
from mufree.training.prepare import prepare
from mufree.training.tokens import MappedTokens
from training_settings import tiny

END = 256


class Encoder:
    """Bytes and an end token, counting what it was given."""

    def __init__(self) -> None:
        self.encoded = 0

    def __call__(self, documents: Sequence[str]) -> list[list[int]]:
        self.encoded += len(documents)
        return [[*text.encode(), END] for text in documents]


def made(cache: Path, files: Sequence[Path], encode: Encoder | None = None) -> Any:
    return tokenised.tokenised(files, cache, encode or Encoder(), tokenizer="t", vocab_size=257)


def documents(found: Any) -> tuple[set[bytes], set[bytes]]:
    sides = []
    for side in (found.train, found.valid):
        ids = MappedTokens(side)[:].tolist()
        text, texts_ = bytearray(), set()
        for one in ids:
            if one == END:
                texts_.add(bytes(text))
                text.clear()
            else:
                text.append(one)
        assert not text
        sides.append(texts_)
    return sides[0], sides[1]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """200 documents, ten of them twice."""
    texts_ = [f"document {number % 190}\nwith two lines" for number in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts_))
    return tmp_path / "a.jsonl"


def test_every_document_is_there_once_and_on_one_side(tmp_path: Path, lines: Path) -> None:
    """Some tenth of them for validation, chosen by their text."""
    found = made(tmp_path / "cache", [lines])
    train, valid = documents(found)
    assert train | valid == {f"document {number}\nwith two lines".encode() for number in range(190)}
    assert not train & valid
    assert 5 < len(valid) < 40
    assert sum(found.documents) == 200


def test_it_is_done_once_and_again_only_where_it_must(
    tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the same text, though it was moved; for another text or tokenizer; and where the cache was damaged."""
    monkeypatch.setattr(tokenised, "SHARD", 1000)
    encode = Encoder()
    first = made(tmp_path / "cache", [lines], encode)
    moved = lines.rename(lines.with_name("b.jsonl"))
    assert made(tmp_path / "cache", [moved], encode) == first
    assert encode.encoded == 200
    assert len(first.train) > 3
    other = tokenised.tokenised([moved], tmp_path / "cache", encode, tokenizer="u", vocab_size=257)
    assert (encode.encoded, other.folder == first.folder) == (400, False)
    content = bytearray(first.train[1].path.read_bytes())
    content[7] ^= 1
    first.train[1].path.write_bytes(content)
    assert documents(made(tmp_path / "cache", [moved], encode)) == documents(other)
    assert encode.encoded == 600
    first.train[0].path.unlink()
    assert documents(made(tmp_path / "cache", [moved], encode)) == documents(other)


def test_a_process_killed_while_tokenising_leaves_nothing_half(tmp_path: Path, lines: Path) -> None:
    """The folder is not there; the next one makes it whole."""

    class Killed(Encoder):
        def __call__(self, documents: Sequence[str]) -> list[list[int]]:
            raise SystemExit

    with pytest.raises(SystemExit):
        made(tmp_path / "cache", [lines], Killed())
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert len(documents(made(tmp_path / "cache", [lines]))[0]) > 100


def test_two_at_once_do_it_once(tmp_path: Path, lines: Path) -> None:
    """The second waits for the first."""
    encode = Encoder()
    threads = [threading.Thread(target=made, args=(tmp_path / "cache", [lines], encode)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert encode.encoded == 200


def test_a_long_text_is_cut_into_pieces_and_stays_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One end token, every byte in order, a byte order mark left out; its last tenth is for validation."""
    monkeypatch.setattr(texts, "PIECE", 50)
    text = "".join(f"line {number}\n" for number in range(1000))
    (tmp_path / "long.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    encode = Encoder()
    found = made(tmp_path / "cache", [tmp_path / "long.txt"], encode)
    assert documents(found)[0] | documents(found)[1] == {text.encode()}
    assert encode.encoded > 100
    prepared = prepare(tiny(tmp_path / "run", data=str(tmp_path / "long.txt"), cache=str(tmp_path / "cache")))
    ids = [*prepared.train.ids[:].tolist(), *prepared.valid.ids[:].tolist()]
    assert bytes(ids[:-1]) == text.encode()
    assert len(prepared.valid.ids) == len(ids) // 10


def test_a_large_text_is_tokenised_beside_the_run(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the run goes on from there, bit for bit, without its text being tokenised again."""
    monkeypatch.setattr(sources, "LARGE", 1000)
    pretrain(tiny(tmp_path / "runs" / "a", data=str(lines), updates=4))
    assert [path.name for path in (tmp_path / "runs").iterdir()].count("tokens") == 1
    pretrain(tiny(tmp_path / "runs" / "b", data=str(lines), updates=2))
    monkeypatch.setattr(tokenised, "_write", None)
    pretrain(tiny(tmp_path / "runs" / "b", data=str(lines), updates=4), resume=True)
    a, b = ((tmp_path / "runs" / run / "checkpoints/00000004/y.safetensors").read_bytes() for run in "ab")
    assert a == b


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("latin.txt", b"fine\ncaf\xe9\n", r"latin.txt:2 is not UTF-8 text \(byte 3 of the line\)"),
        ("bad.jsonl", b'{"text": "fine"}\n[]\n', "bad.jsonl:2 is not an object"),
        ("blank.jsonl", b"\n\n", "has 0 tokens"),
    ],
)
def test_text_that_cannot_be_read_is_refused_by_place(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """File and line; no half-made folder stays."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=says):
        prepare(tiny(tmp_path / "run", data=str(tmp_path / name), cache=str(tmp_path / "cache")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["taken", "taken/inside", "x" * 300])
def test_a_cache_that_cannot_be_written_to_is_refused(tmp_path: Path, lines: Path, place: str) -> None:
    """As the option that it is, with what to do."""
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(Refused, match=r"cache: .* cannot be written to: .*; give another folder"):
        made(tmp_path / place, [lines])
