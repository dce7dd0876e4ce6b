"""Tokenizer folders."""

from __future__ import annotations

import json
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


def folder_with(path: Path, vocabulary: dict[str, int], config: dict[str, object]) -> Path:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("vocabulary", "config", "says"),
    [
        ({"the": 0, "end": 1}, {}, "names no eos_token"),
        ({"the": 0, "end": 7}, {"eos_token": "end"}, "has 2 tokens with ids up to 7; give one whose ids have no gaps"),
        ({"end": 0}, {"eos_token": "end"}, "has no token but the special ones"),
    ],
)
def test_a_tokenizer_that_no_model_can_be_trained_with_is_refused(
    tmp_path: Path, vocabulary: dict[str, int], config: dict[str, object], says: str
) -> None:
    """No end token, ids that mean nothing, no words."""
    with pytest.raises(Refused, match=says):
        load_tokenizer(folder_with(tmp_path, vocabulary, config))


def test_a_text_that_it_cannot_encode_is_refused(tmp_path: Path) -> None:
    """A word outside the vocabulary, and no token for such words."""
    tokenizer = load_tokenizer(folder_with(tmp_path, {"the": 0, "end": 1}, {"eos_token": "end"}))
    assert encode_documents(tokenizer, ["the the"]) == [[0, 0, 1]]
    with pytest.raises(Refused, match=r"cannot encode the data: .*UNK"):
        encode_documents(tokenizer, ["the cat"])


def test_a_tokenizer_that_cuts_texts_does_not_cut_documents(tmp_path: Path) -> None:
    """Nor does it fill them; and its hash is the same before and after."""
    cutting = byte_tokenizer()
    cutting.backend_tokenizer.enable_truncation(4)
    cutting.backend_tokenizer.enable_padding(length=50)
    before = tokenizer_hash(cutting)
    assert [len(row) for row in encode_documents(cutting, ["0123456789", "a"])] == [11, 2]
    assert tokenizer_hash(cutting) == before == tokenizer_hash(BYTES)
