"""``mufree lora``: fine-tune on mlx-lm's own trainer, schedule-free unless something else is asked for."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import add_options, settings_of

if TYPE_CHECKING:
    from ..lm.tuning.prepare import Prepared
    from ..training.report import ConsoleReporter
    from ..training.run import Run

HELP = "fine-tune as mlx_lm.lora does, with its options and files, schedule-free unless an optimizer is named"
_LEAVE = ("config",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options: mlx-lm's, and a few of its own."""
    from ..lm.tuning.settings import FinetuneConfig

    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="mlx-lm's YAML file of settings; options win over it"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --adapter-path, also further than first asked"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    parser.add_argument("--json", action="store_true", help="print the result (with --dry-run: the plan) as JSON")
    add_options(parser, FinetuneConfig, leave=_LEAVE)


def run(options: argparse.Namespace) -> int:
    """Fine-tune, and show the plan before and what came of it after."""
    from .blas import prepare_machine

    told = prepare_machine()
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        result = _run(options, told)
    if options.json:
        import json

        print(json.dumps(result[1], indent=2))
    return result[0]


def _run(options: argparse.Namespace, told: str | None) -> tuple[int, dict[str, Any]]:
    """The exit status, and the result as JSON can hold it."""
    from ..lm.tuning.finetuning import tune_prepared
    from ..lm.tuning.folder import AdapterFolder, named_adapter_path
    from ..lm.tuning.mapping import from_mapping
    from ..lm.tuning.overview import overview
    from ..lm.tuning.prepare import prepare
    from ..lm.tuning.settings import FinetuneConfig
    from ..training.report import ConsoleReporter, OpenConsole

    settings = settings_of(options, FinetuneConfig, leave=_LEAVE)
    source = str(options.config or "options")
    report = ConsoleReporter(OpenConsole(stderr=options.json))
    with named_adapter_path():
        if options.resume:
            folder = AdapterFolder(Path(str(settings.get("adapter_path") or "adapters")))
            settings, source = folder.resumed(settings), str(folder.path)
        config = from_mapping(settings, source)
        if config.train and not options.resume:
            AdapterFolder(Path(config.adapter_path)).check_free()
    going_on = options.resume and not folder.is_fresh(resume=True)
    prepared = prepare(config, lazy=options.dry_run, going_on=going_on)
    if options.resume:
        with named_adapter_path():
            folder.check_going_on(config, prepared.identity(), prepared.plan())
    report.note(overview(prepared, report.width))
    if options.dry_run:
        if options.resume:
            report.note(f"note: {folder.place_to_go_on()}")
        return 0, _planned(prepared)
    if told and config.train:
        report.note(told)
    result = tune_prepared(prepared, resume=options.resume, report=report)
    _conclude(report, prepared, result)
    made = {"folder": str(result.folder), "update": result.update, **result.losses}
    if prepared.memory:
        made |= {"peak_memory": _peak(), "planned_memory": prepared.memory.total}
    made |= {"best": str(result.export)} if result.export else {}
    return 0 if result.signal is None else 128 + result.signal, made


def _planned(prepared: Prepared) -> dict[str, Any]:
    from ..lm.tuning.overview import trained_size

    trained, total = trained_size(prepared)
    sizes: dict[str, Any] = {"trained_parameters": trained, "parameters": total}
    sizes |= {"memory": prepared.memory.as_dict()} if prepared.memory else {}
    return {"plan": prepared.plan(), **sizes, "notes": list(prepared.notes), "settings": vars(prepared.args)}


def _peak() -> int:
    """Bytes that the run took at its peak."""
    import mlx.core as mx

    return int(mx.get_peak_memory())


def _conclude(report: ConsoleReporter, prepared: Prepared, result: Run) -> None:
    import math

    from ..lm.tuning.overview import peak_line

    config, path = prepared.config, shlex.quote(str(result.folder))
    if "test_loss" in result.losses:
        loss = result.losses["test_loss"]
        report.note(f"test loss {loss:.4f}, perplexity {math.exp(loss):.4g}")
    if not config.train:
        return
    if result.signal is not None:
        report.note(f"\nstopped after update {result.update}; everything is saved. Go on with:")
        report.note(f"  mufree lora --resume --adapter-path {path}")
    report.note(f"\n{peak_line(prepared, _peak())}")
    if result.export is not None:
        report.note(f"best validation loss {result.losses['best_valid_loss']:.4f}: {result.export}")
    report.note(f"further: mufree lora --resume --adapter-path {path} --iters {2 * config.iters}")
    report.note(f"use it:  mlx_lm.generate --model {shlex.quote(config.model)} --adapter-path {path} --prompt …")
