"""Tokenizer folders: the byte-level one that mufree makes, and the user's own, as transformers reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Reasons, refuse

END = "<|endoftext|>"
"""The token between documents of the byte-level tokenizer; its id is 256."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""One of these is in every tokenizer folder."""


def byte_tokenizer() -> Any:
    """A transformers tokenizer of 257 ids: the 256 bytes in order, then the end token.

    Source: the byte-to-character table is that of byte-level BPE (GPT-2), which ``tokenizers`` implements; with no
    merges every byte is a token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    tokenizer = Tokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False, model_max_length=1 << 20
    )


def load_tokenizer(folder: str | Path | None) -> Any:
    """The byte-level tokenizer, or the one in a local folder.

    Args:
        folder: A folder that transformers' ``AutoTokenizer`` reads, or None.

    Raises:
        Refused: If there is no such folder, no tokenizer in it, or the tokenizer has no end-of-text token.
    """
    if folder is None:
        return byte_tokenizer()
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not any((folder / name).is_file() for name in FILES):
        refuse("missing", "tokenizer", f"{folder} has no tokenizer; give a folder with one of: {', '.join(FILES)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and its Rust side raise what they like for a damaged file
        refuse("unreadable", "tokenizer", f"transformers cannot read {folder}: {_line(error)}")
    _check(tokenizer, folder)
    return tokenizer


def _check(tokenizer: Any, folder: Path) -> None:
    ids = set(tokenizer.get_vocab().values())
    reasons = Reasons()
    if tokenizer.eos_token_id is None:
        message = f"{folder} names no eos_token, which separates documents; add one to its config"
        reasons.add("missing", "tokenizer", message)
    if len(ids) <= len(set(tokenizer.all_special_ids)):
        reasons.add("empty", "tokenizer", f"{folder} has no token but the special ones; give a trained tokenizer")
    elif max(ids) + 1 != len(ids):
        message = f"{folder} has {len(ids)} tokens with ids up to {max(ids)}; give one whose ids have no gaps"
        reasons.add("gap", "tokenizer", message)
    reasons.refuse_if_any()


def tokenizer_hash(tokenizer: Any) -> str:
    """A hash of what a tokenizer does: its vocabulary, merges and end token (16 hex digits).

    How long it cuts or fills a text is left out: transformers changes that with every call.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    does = {**json.loads(backend.to_str()), "truncation": None, "padding": None} if backend else tokenizer.get_vocab()
    text = json.dumps(does, sort_keys=True)
    return hashlib.sha256(f"{text}|{tokenizer.eos_token_id}".encode()).hexdigest()[:16]


def encode_documents(tokenizer: Any, documents: Sequence[str]) -> list[list[int]]:
    """Token ids of each document, each followed by the end token; no other special tokens.

    Raises:
        Refused: If the tokenizer fails on them.
    """
    try:
        encoded = tokenizer(list(documents), add_special_tokens=False, return_attention_mask=False, verbose=False)
    except Exception as error:  # the Rust side raises a bare Exception, as for a word without an unknown token
        refuse("unreadable", "tokenizer", f"cannot encode the data: {_line(error)}")
    return [[*ids, tokenizer.eos_token_id] for ids in encoded["input_ids"]]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
