"""Fine-tunes as cells of a study: small models of ours, pretrained on one domain of text and adapted to another.

Every Python ships both: the help topics that a base model is pretrained on (English), and the source of its own
standard library (Python) that it is adapted to. What depends on the Python is among a study's settings, as a hash.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mufree import lm
from mufree.errors import refuse
from mufree.lm.configs import at_width
from mufree.studies.cells import Cell
from mufree.studies.language import KEPT, cell_optimizer
from mufree.studies.task import Task
from mufree.training import PretrainConfig, pretrain
from mufree.training.config import WHILE_GOING_ON
from mufree.training.prepare import prepare
from mufree.training.step import next_token_loss

SOURCES = (
    "argparse.py",
    "ast.py",
    "bdb.py",
    "calendar.py",
    "configparser.py",
    "datetime.py",
    "difflib.py",
    "doctest.py",
    "enum.py",
    "fractions.py",
    "ftplib.py",
    "heapq.py",
    "inspect.py",
    "mailbox.py",
    "optparse.py",
    "pickle.py",
    "pickletools.py",
    "platform.py",
    "shutil.py",
    "smtplib.py",
    "statistics.py",
    "tarfile.py",
    "textwrap.py",
    "threading.py",
    "typing.py",
    "zipfile.py",
)
"""The new domain, below the standard library's folder; one that a Python lacks is left out."""

LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}
"""mlx-lm's defaults, on every linear layer of every block."""


def new_domain(path: Path) -> Path:
    """Write the new domain as ``.jsonl``, a statement at the top level of a module a line, and return where."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [text for name in SOURCES for text in _statements(library / name)]
    if not texts:
        refuse("missing", "data", f"{library} holds no source; run this with a Python that ships it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts), encoding="utf-8")
    return path


def _statements(path: Path) -> list[str]:
    if not path.is_file():
        return []
    source = path.read_text(encoding="utf-8")
    found = (ast.get_source_segment(source, node) for node in ast.parse(source).body)
    return [text for text in found if text and len(text) > 200]


def pretrained(config: PretrainConfig, folder: Path) -> dict[str, mx.array]:
    """The weights of a base model, which is pretrained in ``folder`` unless it was: at ``x``, by path."""
    export = folder / "export"
    if not _finished(config, export):
        run = pretrain(replace(config, out=str(folder)), resume=(folder / "run.json").is_file())
        if run.export is None:
            refuse("unfinished", str(folder), "the base model's pretraining was stopped; start again, and it goes on")
    return dict(mx.load(str(export / "model.safetensors")))


def _finished(config: PretrainConfig, export: Path) -> bool:
    """Whether a base model was exported after all its updates, by the same settings."""
    if not (export / "mufree.json").is_file():
        return False
    notes = json.loads((export / "mufree.json").read_text(encoding="utf-8"))
    wanted = {name: value for name, value in asdict(config).items() if name not in WHILE_GOING_ON}
    same = all(notes["settings"].get(name) == value for name, value in wanted.items())
    return same and notes["position"]["update"] == config.updates


def finetune_task(
    config: PretrainConfig,
    base: PretrainConfig,
    widths: Sequence[int],
    folder: Path,
    *,
    measured: Sequence[int] = (),
    ratio: float | None = None,
) -> Task:
    """A task whose cells adapt pretrained models of several widths to the new domain.

    Under ``mup`` the adapters are scaled relative to the narrowest model, without it every parameter has one rate.

    Args:
        config: Settings of the fine-tune; its data is the new domain. Rate, seed and length come from the cells.
        base: Settings of the pretraining, of which the width varies.
        widths: Every width that will be asked for.
        folder: Keeps the base models and the new domain.
        measured: Updates after which a cell is evaluated besides the last.
        ratio: LoRA+'s ratio at the narrowest width.
    """
    from mlx_lm.tuner.utils import linear_to_lora_layers

    weights = {width: pretrained(replace(base, width=width), folder / f"width-{width}") for width in widths}
    config = replace(config, data=str(new_domain(folder / "domain.jsonl")), base_width=min(widths), width=min(widths))
    found = prepare(config)

    def make(width: int) -> Any:
        model = lm.build(at_width(found.model_config, width))
        model.load_weights(list(weights[width].items()))
        model.freeze()
        linear_to_lora_layers(model, config.layers, LORA)
        return model

    def optimizer(cell: Cell, model: Any, scales: Any) -> Any:
        return cell_optimizer(config, cell, model, scales)

    return Task(
        make=make,
        batch=lambda number, seed: found.train.shuffled(number, config.batch_size, seed),
        loss=next_token_loss,
        shapes=lm.base_shapes(found.model_config, config.base_width),
        scales=lambda model: lm.lora_scales(model, config.base_width, config=_at_this(model, found), ratio=ratio),
        optimizer=optimizer,
        evaluation={
            "loss": found.train.evenly(config.eval_batches, config.batch_size),
            "valid_loss": found.valid.evenly(config.eval_batches, config.batch_size),
        },
        measured=tuple(measured),
        settings={
            **{name: value for name, value in found.identity().items() if name != "tokenizer"},
            **{name: getattr(config, name) for name in KEPT},
            "base_width": config.base_width,
            "lora": LORA,
            "ratio": ratio,
            "bases": {str(width): _digest(one) for width, one in weights.items()},
            "measured": list(measured),
        },
    )


def _at_this(model: Any, found: Any) -> dict[str, Any]:
    return at_width(found.model_config, model.args.hidden_size)


def _digest(weights: dict[str, mx.array]) -> str:
    import numpy as np

    found = hashlib.sha256()
    for path, value in sorted(weights.items()):
        found.update(path.encode() + np.array(value).tobytes())
    return found.hexdigest()[:16]
