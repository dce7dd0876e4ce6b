"""Tokenizer folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufree import Refused
from mufree.lm.tokenizer import byte_tokenizer, encode_documents, load_tokenizer, tokenizer_hash

BYTES = byte_tokenizer()


@given(st.text(max_size=60).filter(lambda text: "<|endoftext|>" not in text))
@settings(max_examples=60, deadline=None)
def test_bytes_go_there_and_back(text: str) -> None:
    """A document's tokens are its UTF-8 bytes and the end token; decoding gives the text again."""
    (ids,) = encode_documents(BYTES, [text])
    assert bytes(ids[:-1]) == text.encode()
    assert ids[-1] == 256
    assert BYTES.decode(ids[:-1]) == text


def test_a_folder_gives_the_same_tokenizer(tmp_path: Path) -> None:
    """Saved and loaded by transformers, it is the same, hash included; another one has another hash."""
    BYTES.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again("naïve 文 🙂").input_ids == BYTES("naïve 文 🙂").input_ids
    assert tokenizer_hash(again) == tokenizer_hash(BYTES)
    again.add_tokens(["more"])
    assert tokenizer_hash(again) != tokenizer_hash(BYTES)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """No hub is asked; the error says what is looked for."""
    with pytest.raises(Refused, match=r"has no tokenizer; give a folder with one of: tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(Refused, match="transformers cannot read"):
        load_tokenizer(tmp_path)
