"""Where a run's tokens come from: text in memory, text that is tokenised once into files, or token files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import Reasons, refuse, shown
from ..lm.tokenizer import encode_documents, tokenizer_hash
from .config import PretrainConfig
from .data import VALIDATION_SHARE, Corpus, TokenStream, is_text, read_corpus, text_files, token_stream
from .packing import PackedStream
from .tokenised import tokenised
from .tokens import ENDINGS, MappedTokens, holds_tokens, token_files, token_paths

LARGE = 32 << 20
"""Bytes of text from which it is tokenised into files."""

Stream = TokenStream | PackedStream
Found = tuple[Corpus, Stream, Stream]
_OTHER_PARTS = ("val", "valid", "validation", "test", "eval")
_CUT = "the last tenth of the tokens is for validation"


def read_data(config: PretrainConfig, tokenizer: Any | None) -> Found | None:
    """What to train and to validate on; files of a folder that are neither are named in the corpus's note.

    Args:
        config: The settings.
        tokenizer: A transformers tokenizer, or None if it was refused: then only what needs none is looked at.

    Raises:
        Refused: With every reason that the data give.
    """
    found = _read(config, tokenizer)
    if found is None or config.data is None:
        return found
    corpus, train, valid = found
    notes = (corpus.note, _trained_on_too(Path(config.data)), _unread(Path(config.data)))
    return replace(corpus, note="; ".join(filter(None, notes))), train, valid


def _read(config: PretrainConfig, tokenizer: Any | None) -> Found | None:
    if config.data is not None and _holds_tokens(Path(config.data)):
        _check_one_kind(Path(config.data))
        return None if tokenizer is None else _from_token_files(config, tokenizer)
    if config.data is not None and (config.cache is not None or _bytes(Path(config.data)) > LARGE):
        return None if tokenizer is None else _from_large_text(config, tokenizer)
    corpus = read_corpus(config.data)
    if tokenizer is None:
        return None
    encode, length = _encoder(tokenizer), config.seq_length
    made = (
        lambda: token_stream(corpus.train, encode, length, "training"),
        lambda: token_stream(corpus.valid, encode, length, "validation"),
    )
    return _both(corpus, made, config, tokenizer)


def _holds_tokens(path: Path) -> bool:
    try:
        return path.exists() and holds_tokens(path)
    except OSError:
        return False  # what is wrong with it is told where it is read


def _check_one_kind(path: Path) -> None:
    texts = sorted(p.name for p in path.rglob("*") if is_text(p)) if path.is_dir() else ()
    if texts:
        tokens = next(p.name for p in sorted(path.iterdir()) if p.suffix.lower() in ENDINGS)
        refuse(
            "mixed", "data", f"{path} holds text ({texts[0]}) beside token files ({tokens}), and only one of them can "
            "be what is trained on; move the others out, or name a single file",
        )  # fmt: skip


def _trained_on_too(path: Path) -> str:
    """A sentence on the files of a folder that look as if they were for something else."""
    if not path.is_dir() or holds_tokens(path):
        return ""
    named = [p.name for p in text_files(path) if p.stem.lower() in _OTHER_PARTS]
    said = f"{shown(named)}: trained on like any other text, and split like it; move out what is not for that"
    return said if named else ""


def _unread(path: Path) -> str:
    """A sentence on the files of a folder that are not read, hidden ones aside."""
    if not path.is_dir():
        return ""
    read = set(token_paths(path)) if holds_tokens(path) else set(text_files(path))
    inside = (p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts))
    names = sorted(str(p.relative_to(path)) for p in inside if p.is_file() and p not in read)
    return f"not read: {shown(names)}" if names else ""


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in text_files(path))


def _from_token_files(config: PretrainConfig, tokenizer: Any) -> Found:
    train, valid = token_files(Path(config.data or ""), len(tokenizer))
    if not train:
        refuse("missing", "data", f"{config.data} holds no tokens to train on; give files that are not named val…")
    tokens = MappedTokens(train), MappedTokens(valid)
    return _from_mapped(Corpus(str(config.data), (), ()), *tokens, config, tokenizer)


def _from_large_text(config: PretrainConfig, tokenizer: Any) -> Found:
    files = text_files(Path(config.data or ""))
    cache = Path(config.cache) if config.cache is not None else Path(config.out).parent / "tokens"
    found = tokenised(files, cache, _encoder(tokenizer), tokenizer=tokenizer_hash(tokenizer), vocab_size=len(tokenizer))
    corpus = Corpus(str(config.data), (), (), f"tokenised into {found.folder}: {sum(found.documents):,} documents")
    return _from_mapped(corpus, *found.tokens, config, tokenizer)


def _from_mapped(
    corpus: Corpus, train: MappedTokens, valid: MappedTokens, config: PretrainConfig, tokenizer: Any
) -> Found:
    note = corpus.note
    if not len(valid):
        cut = len(train) - len(train) // VALIDATION_SHARE
        train, valid = train.part(0, cut), train.part(cut, len(train))
        note = "; ".join(filter(None, (note, _CUT)))
    made = (
        lambda: TokenStream(train, config.seq_length, "training"),
        lambda: TokenStream(valid, config.seq_length, "validation"),
    )
    return _both(Corpus(corpus.name, (), (), note), made, config, tokenizer)


def _both(corpus: Corpus, make: Sequence[Callable[[], TokenStream]], config: PretrainConfig, tokenizer: Any) -> Found:
    reasons = Reasons()
    made = [reasons.attempt(_stream, one, config, tokenizer) for one in make]
    reasons.refuse_if_any()
    train, valid = (one for one in made if one is not None)
    return corpus, train, valid


def _stream(make: Callable[[], TokenStream], config: PretrainConfig, tokenizer: Any) -> Stream:
    stream = make()
    if stream.lowest < 0 or stream.highest >= len(tokenizer):
        wrong = stream.lowest if stream.lowest < 0 else stream.highest
        message = (
            f"the {stream.name} part holds the id {wrong}, the tokenizer has {len(tokenizer)} tokens; "
            "give the tokenizer that made it (and see that a .bin file has the width of its ids in its name)"
        )
        refuse("out_of_range", "data", message)
    return PackedStream(stream, tokenizer.eos_token_id) if config.packing == "documents" else stream


def _encoder(tokenizer: Any) -> Any:
    return lambda documents: encode_documents(tokenizer, documents)
