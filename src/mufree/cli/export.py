"""``mufree export``: a run, or a fine-tune's adapters fused into their base, as a folder for ``mlx_lm.load``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Reasons

HELP = "export a run's newest checkpoint, or fuse a fine-tune's adapters, as a model folder: the average x or y"

SEQUENCES = {"x": "the average", "y": "where gradients were taken"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "run", type=Path, metavar="FOLDER", help="a run of mufree pretrain, or adapters of mufree lora or mlx_lm.lora"
    )
    parser.add_argument("--weights", choices=("x", "y"), default="x", help="the average, or where gradients were taken")
    parser.add_argument("--best", action="store_true", help="runs: the checkpoint with the lowest validation loss")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: FOLDER/export or FOLDER/fused, with -y for --weights y"
    )
    parser.add_argument("--model", metavar="MODEL", help="adapters: the base model, if it is not where they say")
    parser.add_argument("--dequantize", action="store_true", help="adapters: write a quantised base in plain weights")


def run(options: argparse.Namespace) -> int:
    """Export, and print the folder."""
    from ..lm.fusing import export_adapters, is_adapter_folder

    suffix = "" if options.weights == "x" else "-y"
    if is_adapter_folder(options.run):
        message = f"is for runs, and {options.run} holds adapters (a fine-tune keeps its best ones in its folder best)"
        reasons = Reasons()
        _add_unused(reasons, options, ("best",), message)
        reasons.refuse_if_any()
        out = options.out or options.run / f"fused{suffix}"
        given = {"model": options.model, "dequantize": options.dequantize}
        print(export_adapters(options.run, out, weights=options.weights, **given))
        return 0
    from ..files import there
    from ..lm.export import read_notes
    from ..training.exporting import export_run
    from ..training.folder import RunFolder

    reasons = Reasons()
    if not there(RunFolder(options.run).description):
        message = "holds neither a run of mufree pretrain nor a fine-tune's adapters; give the folder of one"
        reasons.add("missing", str(options.run), message)
    _add_unused(reasons, options, ("model", "dequantize"), f"is for adapters, and {options.run} holds none")
    reasons.refuse_if_any()
    out = options.out or options.run / f"export{suffix}"
    written = export_run(options.run, out, weights=options.weights, best=options.best, say=_say)
    _say(_exported(read_notes(written)))
    print(written)
    return 0


def _exported(notes: Mapping[str, Any]) -> str:
    """Which weights an export holds, as it says itself."""
    at, update, losses = notes["sequence"], notes["position"]["update"], notes["losses"]
    measured, loss = notes.get("validated", update), losses.get(f"valid_loss_{at}")
    known = "not measured" if loss is None else f"{loss:.4f}"
    when = "" if loss is None or measured == update else f" after update {measured}"
    return f"exported: update {update}, {at}, {SEQUENCES[at]}; validation loss {known}{when}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _add_unused(reasons: Reasons, options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(options, name):
            reasons.add("unused", f"--{name}", f"{why}; leave it out")
