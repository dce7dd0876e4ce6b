"""Token ids in files, mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mufree import Refused
from mufree.training import pretrain
from mufree.training.data import TokenStream
from mufree.training.prepare import prepare
from mufree.training.tokens import MappedTokens, bin_file, digest_and_range, token_files
from training_settings import tiny

HEADER = "{'descr': '<u2', 'fortran_order': False, 'shape': %s}"
IDS = np.random.default_rng(0).integers(0, 257, 4000)


def with_header(header: str) -> bytes:
    """A .npy file with a header of one's own, of ids that are fine."""
    line = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + IDS.astype("<u2").tobytes()


def resident(kind: str = "Rss") -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"Vm{kind.upper()}:"))


def shards(folder: Path, *cuts: int) -> list[Path]:
    """The ids in files that end at the cuts, in three formats by turns."""
    folder.mkdir(exist_ok=True)
    edges, found = [0, *cuts, len(IDS)], []
    for number in range(len(edges) - 1):
        part = IDS[edges[number] : edges[number + 1]]
        name = folder / f"{number}{('.bin', '.uint32.bin', '.npy')[number % 3]}"
        if number % 3 == 2:
            np.save(name, part)
        else:
            part.astype("<u4" if number % 3 else "<u2").tofile(name)
        found.append(name)
    return found


def test_files_are_one_row_of_ids(tmp_path: Path) -> None:
    """Any slice, across files of every format, is that of the ids; so is the hash."""
    shards(tmp_path / "t", 1000, 1001, 2500)
    train, valid = token_files(tmp_path / "t", 257)
    mapped = MappedTokens(train)
    assert (len(mapped), valid) == (len(IDS), [])
    for start, stop in ((0, 10), (995, 1005), (999, 2600), (0, 4000), (3990, 9999), (5, 5)):
        assert mapped[start:stop].tolist() == IDS[start:stop].tolist()
        assert mapped[start:stop].dtype == np.int32
    part = MappedTokens(train, 990, 1010)
    assert part[:].tolist() == IDS[990:1010].tolist()
    assert part[5:100].tolist() == IDS[995:1010].tolist()
    assert digest_and_range(mapped) == digest_and_range(IDS.astype(np.int32)) == (*digest_and_range(mapped)[:1], 0, 256)


@pytest.mark.parametrize("name", ["TRAIN.BIN", "train.UINT32.BIN", "Train.Npy"])
def test_capitals_in_a_name_change_nothing(tmp_path: Path, name: str) -> None:
    """Bytes of ids are mostly valid text: a token file that is not known for one would be trained on as such."""
    with (tmp_path / name).open("wb") as file:
        if name == "Train.Npy":
            np.save(file, IDS)
        else:
            IDS.astype("<u4" if "32" in name else "<u2").tofile(file)
    for place in (tmp_path / name, tmp_path):
        prepared = prepare(tiny(tmp_path / "run", data=str(place)))
        assert len(prepared.train.ids) + len(prepared.valid.ids) == len(IDS)


def test_a_run_on_files_is_the_run_on_the_same_ids_in_memory(tmp_path: Path) -> None:
    """The same batches, one file or several; val… is for validation, otherwise the last tenth is."""
    shards(tmp_path / "one")
    shards(tmp_path / "three", 700, 2100)
    memory = TokenStream(IDS[:3600].astype(np.int32), 16, "training")
    for name in ("one", "three"):
        prepared = prepare(tiny(tmp_path / "run", data=str(tmp_path / name)))
        assert np.array_equal(prepared.train.sequences(0, 300, 4), memory.sequences(0, 300, 4))
        assert prepared.valid.ids[:].tolist() == IDS[3600:].tolist()
        assert "last tenth" in prepared.corpus.note
    IDS[:500].astype("<u2").tofile(tmp_path / "one" / "val.bin")
    prepared = prepare(tiny(tmp_path / "run", data=str(tmp_path / "one")))
    assert (len(prepared.train.ids), len(prepared.valid.ids)) == (4000, 500)
    assert prepared.valid.ids[:].tolist() == IDS[:500].tolist()


def test_a_file_is_the_same_data_whatever_its_format(tmp_path: Path) -> None:
    """Trained on .bin, gone on with the same ids as .npy, elsewhere."""
    IDS.astype("<u2").tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", IDS.astype(np.uint16))
    pretrain(tiny(tmp_path / "run", data=str(tmp_path / "a.bin"), updates=2))
    assert pretrain(tiny(tmp_path / "run", data=str(tmp_path / "b.npy"), updates=3), resume=True).update == 3


@pytest.mark.parametrize(
    ("name", "write", "says"),
    [
        ("odd.bin", lambda p: p.write_bytes(b"12345"), "no whole number of 2-byte ids"),
        ("empty.bin", lambda p: p.write_bytes(b""), "has 0 tokens"),
        ("short.bin", lambda p: p.write_bytes(bytes(20)), "a sequence takes 17"),
        ("high.bin", lambda p: np.full(99, 257, "<u2").tofile(p), r"holds the id 257, the tokenizer has 257 tokens"),
        ("low.npy", lambda p: np.save(p, np.full(99, -1)), "holds the id -1"),
        ("huge.npy", lambda p: np.save(p, np.full(99, 2**40)), "holds the id 1099511627776"),
        ("float.npy", lambda p: np.save(p, np.zeros(99)), "holds float64 of shape"),
        ("two.npy", lambda p: np.save(p, np.zeros((9, 9), int)), r"shape \(9, 9\)"),
        ("objects.npy", lambda p: np.save(p, np.array([{}]), allow_pickle=True), "holds object"),
        ("wraps.npy", lambda p: np.save(p, IDS - 2**32), "holds the id -429"),
        ("less.npy", lambda p: p.write_bytes(with_header(HEADER % "(-5,)")), r"shape \(-5,\)"),
        ("open.npy", lambda p: p.write_bytes(with_header((HEADER % "(5,")[:-1])), "is no .npy file"),
        ("keys.npy", lambda p: p.write_bytes(with_header("{1: 2, 'shape': 3}")), "is no .npy file"),
        ("list.npy", lambda p: p.write_bytes(with_header("{[]: 1}")), "is no .npy file"),
        ("pipe.bin", os.mkfifo, "neither a file nor a folder"),
        ("text.npy", lambda p: p.write_text("hello"), "is no .npy file"),
        ("cut.npy", lambda p: (np.save(p, IDS), p.write_bytes(p.read_bytes()[:-1])), "shorter than its header says"),
    ],
)
def test_what_holds_no_tokens_is_refused(tmp_path: Path, name: str, write: Any, says: str) -> None:
    """With the file, before anything is written."""
    write(tmp_path / name)
    with pytest.raises(Refused, match=says):
        prepare(tiny(tmp_path / "run", data=str(tmp_path / name)))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("place", [0, 1, 1999, -1])
def test_every_token_is_in_the_hash(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last of every chunk, too."""
    monkeypatch.setattr("mufree.training.tokens._CHUNK", 2000)
    changed = IDS.astype(np.int32)
    changed[place] += 1
    assert digest_and_range(changed)[0] != digest_and_range(IDS.astype(np.int32))[0]


@pytest.mark.parametrize("text", ["a.txt", "README.md", "deep/more.jsonl"])
def test_text_beside_token_files_is_refused(tmp_path: Path, text: str) -> None:
    """Neither is left out in silence."""
    shards(tmp_path / "corpus", 2000)
    (tmp_path / "corpus/deep").mkdir()
    (tmp_path / "corpus" / text).write_text("some text")
    with pytest.raises(Refused, match=rf"holds text \({Path(text).name}\) beside token files \(0.bin\)"):
        prepare(tiny(tmp_path / "run", data=str(tmp_path / "corpus")))


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    """Of token folders and of text folders, hidden ones aside; in the plan that is printed."""
    shards(tmp_path / "ids", 2000)
    (tmp_path / "ids/vocabulary.csv").touch()
    (tmp_path / "ids/.hidden").touch()
    assert prepare(tiny(tmp_path / "run", data=str(tmp_path / "ids"))).corpus.note.endswith("not read: vocabulary.csv")
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("what is read " * 999)
    tiny_text = tiny(tmp_path / "run", data=str(folder))
    assert "not read" not in prepare(tiny_text).corpus.note
    for name in ("b.txt.gz", "c.csv", "d.parquet", "deep/ids.bin"):
        (folder / name).write_bytes(bytes(8))
    assert prepare(tiny_text).corpus.note.endswith("; not read: b.txt.gz, c.csv, d.parquet and 1 more")


def test_files_named_for_something_else_are_told(tmp_path: Path) -> None:
    """A fine-tune's folder is read whole, and the plan says so."""
    for name in ("train", "valid", "test"):
        rows = [f'{{"text": "{name}, line {number}"}}' for number in range(200)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    note = prepare(tiny(tmp_path / "run", data=str(tmp_path))).corpus.note
    assert "test.jsonl, valid.jsonl: trained on like any other text" in note


def test_reading_leaves_nothing_resident(tmp_path: Path) -> None:
    """64 MB read from end to end leave less than a tenth of that in memory."""
    np.zeros(32 << 20, "<u2").tofile(tmp_path / "large.bin")
    mapped = MappedTokens([bin_file(tmp_path / "large.bin", 257)])
    before = resident()
    digest_and_range(mapped)
    for start in range(0, len(mapped), 65536):
        mapped[start : start + 65]
    assert resident() - before < 16 << 20


def test_ids_are_gone_through_once_for_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked for, and of a part that is all of them; another part has its own."""
    (tmp_path / "a.bin").write_bytes(np.arange(100, dtype="<u2").tobytes())
    mapped = MappedTokens([bin_file(tmp_path / "a.bin", 257)])
    first = digest_and_range(mapped)
    rest = mapped.part(10, 100)
    assert digest_and_range(rest) == digest_and_range(np.arange(10, 100, dtype=np.int32))
    assert rest[:3].tolist() == [10, 11, 12]
    monkeypatch.setattr(MappedTokens, "__getitem__", None)  # nothing is read any more
    assert digest_and_range(mapped) == digest_and_range(mapped.part(0, 100)) == first
