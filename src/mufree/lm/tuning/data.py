"""The data of a fine-tune: mlx-lm's loader, and what it would say too late or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from mlx_lm.tuner.datasets import load_dataset

from ...errors import Reasons, refuse
from .settings import FinetuneConfig

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
DEFAULTS = {"prompt": "prompt", "completion": "completion", "chat": "messages", "text": "text"}


def check_folder(config: FinetuneConfig) -> None:
    """Look at a data folder's files, before anything is loaded.

    Raises:
        Refused: For a path that leads nowhere, each file that is needed and missing, and the first wrong row of each
            that is there.
    """
    folder = Path(config.data)
    if config.hf_dataset:
        return
    if not folder.exists():
        if not _HUB_NAME.fullmatch(config.data):
            message = f"{config.data!r} cannot be loaded: there is no such folder; give one with train.jsonl"
            refuse("missing", "data", f"{message} and valid.jsonl, or the name of a data set on the hub")
        return
    reasons = Reasons()
    needed = {"train": config.train, "valid": config.train and config.val_batches != 0, "test": config.test}
    remedies = {
        "train": "give a folder with train.jsonl and valid.jsonl",
        "valid": "add it, or train without validation and without a best adapter: val_batches 0",
        "test": "add it, or leave test out",
    }
    for name, wanted in needed.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            if wanted:
                reasons.add("missing", "data", f"{folder} has no {name}.jsonl; {remedies[name]}")
        else:
            _check_rows(reasons, path, config)
    reasons.refuse_if_any()


def _check_rows(reasons: Reasons, path: Path, config: FinetuneConfig) -> None:
    """Keep the first fault: mlx-lm decides by the first row what all rows are, and reads them while it trains."""
    wanted: tuple[str, ...] = ()
    number = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                reasons.add("unreadable", where, f"is no JSON ({error}); write one object a line")
                return
            if not isinstance(row, Mapping):
                reasons.add("type", where, f"holds a {type(row).__name__}; write one object a line")
                return
            wanted = wanted or _form(row, config)
            if not wanted:
                reasons.add("unknown", where, _no_form(row, config))
                return
            missing = [name for name in wanted if name not in row]
            if missing:
                message = f"has no {' and no '.join(missing)}, which the first row has; give all rows one form"
                reasons.add("missing", where, message)
                return
            fault = _fault({name: row[name] for name in wanted}, config)
            if fault is not None:
                reasons.add("type", where, fault)
                return
    if not number:
        reasons.add("empty", str(path), "has no row; add some, or remove the file")


def _names(config: FinetuneConfig) -> dict[str, str]:
    return {kind: getattr(config, f"{kind}_feature") or default for kind, default in DEFAULTS.items()}


def _no_form(row: Mapping[str, Any], config: FinetuneConfig) -> str:
    """What a row has in place of the fields that mlx-lm reads."""
    names = _names(config)
    has = f"has the fields {', '.join(map(str, row))}" if row else "has no field"
    needed = f"needed are {names['prompt']} and {names['completion']}, or {names['chat']}, or {names['text']}"
    remedy = "or say what they are called: prompt_feature and completion_feature, or chat_feature, or text_feature"
    return f"{has}; {needed}; name them so, {remedy}"


def _form(row: Mapping[str, Any], config: FinetuneConfig) -> tuple[str, ...]:
    """The keys by which mlx-lm reads rows like this one; none if it does not read them."""
    names = _names(config)
    forms = ((names["prompt"], names["completion"]), (names["chat"],), (names["text"],))
    return next((form for form in forms if all(name in row for name in form)), ())


def _fault(row: Mapping[str, Any], config: FinetuneConfig) -> str | None:
    """What is wrong with the values by which mlx-lm reads a row."""
    for name, value in row.items():
        if name == (config.chat_feature or DEFAULTS["chat"]):
            if not (isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value)):
                return f"{name} is {str(value)[:80]!r}; give a list of messages, each with a role and a content"
        elif not isinstance(value, str):
            return f"{name} is {str(value)[:80]!r} ({type(value).__name__}); give text"
        elif any("\ud800" <= letter <= "\udfff" for letter in value):
            return f"{name} holds half of a surrogate pair, which is no Unicode text; take it out"
    return None


class Readable:
    """A set of mlx-lm's, which reads a row as training asks for it, and refuses one that its tokenizer cannot read.

    Args:
        rows: The set.
        name: What it is, for the errors.
    """

    def __init__(self, rows: Any, name: str) -> None:
        self._rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def digest(self) -> str:
        """A hash of the rows (16 hex digits), gone through once."""
        found = hashlib.sha256()
        for row in self:
            found.update(json.dumps(row, sort_keys=True, default=str).encode())
        return found.hexdigest()[:16]

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def process(self, row: Any) -> Any:
        """Token ids of a row, and how many of them are its prompt.

        Raises:
            Refused: If the tokenizer or its chat template fails on it.
        """
        try:
            return self._rows.process(row)
        except Exception as error:  # templates and tokenizers raise what they like; mlx-lm IndexError for no token
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            message = f"the tokenizer cannot read {str(row)[:120]!r} of the {self._name} set, {told}; mend or remove it"
            refuse("unreadable", "data", message)


def _refuse_sets(config: FinetuneConfig, error: Exception) -> NoReturn:
    """Refuse what mlx-lm's loader could not load."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    install = "; pip install datasets" if isinstance(error, ImportError) and error.name == "datasets" else ""
    if config.hf_dataset:
        entries = config.hf_dataset if isinstance(config.hf_dataset, list | tuple) else [config.hf_dataset]
        paths = " or ".join(repr(entry.get("path")) for entry in entries)
        refuse("unreadable", "hf_dataset", f"{paths} cannot be loaded, {told}{install}")
    asked = "" if Path(config.data).exists() else f"there is no folder {config.data}, so the hub was asked: "
    refuse("unreadable", "data", f"{config.data!r} cannot be loaded, {asked}{told}{install}")


def load_sets(config: FinetuneConfig, args: SimpleNamespace, tokenizer: Any) -> tuple[Any, Any, Any]:
    """Training, validation and test set, by mlx-lm's own loader.

    Raises:
        Refused: For what mlx-lm refuses, and for sets too small for one batch.
    """
    try:
        train, valid, test = load_dataset(args, tokenizer)
    except Exception as error:  # the loaders raise what they like, a missing package and the hub's errors among it
        _refuse_sets(config, error)
    reasons = Reasons()
    wanted = {"training": train if config.train else None, "test": test if config.test else None}
    wanted["validation"] = valid if config.train and config.val_batches != 0 else None
    for name, rows in wanted.items():
        if rows is not None and len(rows) < config.batch_size:
            message = f"{config.batch_size} is more than the {len(rows)} rows of the {name} set; give a smaller one"
            reasons.add("few_rows", "batch_size", message)
    reasons.refuse_if_any()
    sets = {name: Readable(rows, name) for name, rows in (("training", train), ("validation", valid), ("test", test))}
    for name, rows in sets.items():
        # the first row, for a template that fits none of them, and rows of nothing, which only some tokenizers read
        for number in range(len(rows)) if wanted[name] is not None else ():
            if number == 0 or (isinstance(rows[number], Mapping) and "" in rows[number].values()):
                rows.process(rows[number])
    return sets["training"], sets["validation"] if config.val_batches != 0 else Readable([], "validation"), sets["test"]
