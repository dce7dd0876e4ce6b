"""``mufree lora`` from Python."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...training.interrupt import stop_on_signals
from ...training.report import Metrics, Reporter, Silent
from ...training.run import Run
from .folder import AdapterFolder, named_adapter_path
from .mapping import from_mapping, with_file
from .prepare import Prepared, prepare
from .session import Session
from .settings import FinetuneConfig
from .surroundings import mean_loss


def finetune(
    config: FinetuneConfig | Mapping[str, Any] | str | PathLike[str],
    *,
    resume: bool = False,
    report: Reporter | None = None,
) -> Run:
    """Fine-tune a model on mlx-lm's own trainer, or go on with the run in ``adapter_path``.

    Without ``optimizer`` and ``lr_schedule`` the run is schedule-free: a constant rate, the model holds the average
    ``x`` at every moment, and so do validation and every adapter file.

    Args:
        config: mlx-lm's keys, with mlx-lm's meaning, or the path of a YAML file of them. A mapping may name one as
            ``config``, over which the other keys win. Where neither ``train`` nor ``test`` is said, it trains.
        resume: Go on from the newest whole checkpoint in ``adapter_path``: optimizer state, numbering, data order and
            random state, bit for bit. Settings that are left out are the saved run's.
        report: Hears what happens.

    Returns:
        Where it ended: ``folder`` holds the last adapters, ``export`` the best by validation loss.

    Raises:
        Refused: For settings, data, model or adapters that do not work, all at once, before anything is written.
        CheckpointError: If the run to go on with is another one, or none of its checkpoints is whole.
        NonFiniteLoss: If the loss blows up; the best adapters and the last checkpoint are kept.
    """
    given = config.given() if isinstance(config, FinetuneConfig) else with_file(config)
    if not isinstance(config, FinetuneConfig) and not resume:
        config = from_mapping({"train": not given.get("test"), **given})
    with named_adapter_path():
        if resume:
            folder = AdapterFolder(Path(str(given.get("adapter_path") or FinetuneConfig(train=True).adapter_path)))
            config = from_mapping(folder.resumed(given), str(folder.path))
        going_on = resume and not folder.is_fresh(resume)
        return tune_prepared(prepare(config, going_on=going_on), resume=resume, report=report or Silent())  # type: ignore[arg-type]


def tune_prepared(prepared: Prepared, *, resume: bool, report: Reporter) -> Run:
    """:func:`finetune` from what :func:`~mufree.lm.tuning.prepare.prepare` decided."""
    config = prepared.config
    folder = AdapterFolder(Path(config.adapter_path))
    if not config.train:
        return Run(folder.path, losses={"test_loss": mean_loss(prepared, prepared.test, config.test_batches)})
    identity, plan = prepared.identity(), prepared.plan()
    with named_adapter_path(), ExitStack() as stack:
        session = Session(prepared, folder, report)
        if resume:
            folder.check_going_on(config, identity, plan)
        else:
            folder.check_free()
        folder.check_parts()
        if session.writes:
            stack.enter_context(folder.claimed())
        if resume:
            session.restore()
        if session.writes:
            session.name = folder.describe(config, identity, plan)
            made = session.start.iteration if session.start else 0
            made = session.ended if session.nothing_left else made
            session.metrics = Metrics(folder.metrics, made, counter="iteration")
            stack.callback(session.metrics.close)
        mx.reset_peak_memory()
        return session.train(stack.enter_context(stop_on_signals()))
