"""``mufree pretrain`` from Python: prepare, train, validate at ``x``, save, export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from ..errors import NonFiniteLoss
from ..lm.card import model_card
from ..lm.export import export
from .checkpoint import load_checkpoint, prune, save_checkpoint, saved_arithmetic
from .config import PretrainConfig
from .folder import RunFolder
from .interrupt import StopRequest, stop_on_signals
from .loop import Position, Trainer
from .machine import arithmetic, differences
from .prepare import Prepared, prepare
from .report import Metrics, Reporter, Silent


@dataclass(slots=True)
class Run:
    """What a run has come to.

    Args:
        folder: Its folder.
        update: Updates made.
        losses: Last losses by name: ``loss``, ``valid_loss_x``, ``valid_loss_y``; nats a token.
        export: The exported model.
        signal: The signal that stopped it, or None.
    """

    folder: Path
    update: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    export: Path | None = None
    signal: int | None = None


def pretrain(config: PretrainConfig, *, resume: bool = False, report: Reporter | None = None) -> Run:
    """Train a language model from scratch, or go on with the run in ``config.out``.

    Two runs whose settings differ only in how long they go, how often they report or where they write, make the same
    updates bit for bit on the same machine, however often they were stopped or killed.

    Args:
        config: The settings.
        resume: Go on from the newest whole checkpoint in ``config.out``.
        report: Hears what happens.

    Returns:
        Where it ended.

    Raises:
        Refused: For settings, data or a folder that do not work, before anything is written.
        CheckpointError: If the run to go on with is another one, or none of its checkpoints is whole.
        NonFiniteLoss: If the loss blows up; the last checkpoint is kept and named.
    """
    folder = RunFolder(Path(config.out))
    if not resume:
        folder.check_free()
    return train_prepared(prepare(config), folder, resume=resume, report=report or Silent())


def train_prepared(prepared: Prepared, folder: RunFolder, *, resume: bool, report: Reporter) -> Run:
    """:func:`pretrain` from what :func:`~mufree.training.prepare.prepare` decided."""
    session = _Session(prepared, folder, report)
    if resume:
        folder.check_same(prepared.config, prepared.identity())
        session.restore()
    folder.claim(prepared.config, prepared.identity(), prepared.plan.as_metadata())
    metrics = Metrics(folder.metrics, session.trainer.position.update)
    session.metrics = metrics
    try:
        with stop_on_signals() as stop:
            session.train(stop)
        return session.run
    finally:
        metrics.close()


class _Session:
    """One process's part of a run."""

    metrics: Metrics

    def __init__(self, prepared: Prepared, folder: RunFolder, report: Reporter) -> None:
        config = prepared.config
        self.config, self.prepared, self.folder, self.report = config, prepared, folder, report
        self.run = Run(folder.path)
        self.trainer = Trainer(
            prepared.model,
            prepared.optimizer,
            lambda number: prepared.train.shuffled(number, config.batch_size, config.seed),
            accumulation=config.accumulation,
        )
        self.validation = prepared.valid.evenly(config.eval_batches, config.batch_size)
        self.saved: Path | None = None
        self.validated = -1

    def restore(self) -> None:
        path, damaged = self.folder.latest()
        for text in damaged:
            self.report.note(text)
        if path is None:
            self.report.note("the run has no checkpoint yet; it starts again from its beginning")
            return
        facts = load_checkpoint(path, self.prepared.model, self.prepared.optimizer)
        self.trainer.position = Position(**facts["position"])
        self.run.losses = dict(facts["losses"])
        self.saved = path
        for text in differences(saved_arithmetic(path), arithmetic()):
            self.report.note(f"not bit for bit as one uninterrupted run: {text}")
        self.report.note(f"going on from {path}")

    def train(self, stop: StopRequest) -> None:
        """Train to the limit, or until somebody asks to stop, or the loss blows up."""
        position, limit = self.trainer.position, self.config.update_limit
        self.report.start(position.update, limit)
        started, before = time.monotonic(), position.seconds
        deadline = None if self.config.max_time is None else started + 60 * self.config.max_time
        try:
            if position.update == 0:
                self.validate("x")
            while not stop and not self._reached(limit) and not (deadline and time.monotonic() >= deadline):
                self._advance(started, before)
            self.finish(stop)
        finally:
            self.report.stop()

    def _reached(self, limit: int | None) -> bool:
        return limit is not None and self.trainer.position.update >= limit

    def _advance(self, started: float, before: float) -> None:
        position, config = self.trainer.position, self.config
        clock = time.monotonic()
        try:
            loss = self.trainer.advance()
        except NonFiniteLoss as error:
            kept = f"the last checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"
            raise NonFiniteLoss(f"{error}; {kept}. Lower the rate, or give more warmup") from None
        position.seconds = before + time.monotonic() - started
        self.run.losses["loss"] = loss
        if position.update % config.report_every == 0 or self._reached(config.update_limit):
            self._record(self._progress(loss, time.monotonic() - clock))
        if position.update % config.eval_every == 0:
            self.validate("x")
        if position.update % config.save_every == 0:
            self.save()

    def _progress(self, loss: float, seconds: float) -> dict[str, Any]:
        position, limit = self.trainer.position, self.config.update_limit
        return {
            "update": position.update,
            "loss": loss,
            "lr": self.prepared.optimizer.scheduled_lr.item(),
            "tokens": position.tokens,
            "tokens_per_second": self.config.tokens_an_update / seconds,
            "seconds": round(position.seconds, 3),
            "seconds_left": None if limit is None else round(seconds * (limit - position.update), 1),
        }

    def _record(self, line: Mapping[str, Any]) -> None:
        self.metrics.write(line)
        self.report.record(line)

    def validate(self, *points: str) -> None:
        """Validation loss at ``x``, at ``y``, or both; one line of the metrics."""
        losses = {f"valid_loss_{at}": self.trainer.evaluate(self.validation, at=at) for at in points}
        self.run.losses.update(losses)
        self.validated = self.trainer.position.update
        self._record({"update": self.validated, "tokens": self.trainer.position.tokens, **losses})

    def save(self) -> None:
        """Write a checkpoint, and drop the ones that are too many."""
        position = self.trainer.position
        facts = {
            "position": asdict(position),
            "losses": self.run.losses,
            "settings": asdict(self.config),
            "plan": self.prepared.plan.as_metadata(),
        }
        self.saved = self.folder.checkpoint(position.update)
        save_checkpoint(self.saved, self.prepared.model, self.prepared.optimizer, facts)
        prune(self.folder.checkpoints, self.config.keep)

    def finish(self, stop: StopRequest) -> None:
        """Save, compare ``x`` with ``y`` unless somebody is waiting, and export ``x``."""
        position, losses = self.trainer.position, self.run.losses
        self.run.update, self.run.signal = position.update, stop.signal
        if not stop:
            self.validate(*("y" if self.validated == position.update else "xy"))
        if self.saved != self.folder.checkpoint(position.update):
            self.save()
        if not stop and losses["valid_loss_y"] < losses["valid_loss_x"]:
            gap = losses["valid_loss_x"] - losses["valid_loss_y"]
            self.report.note(
                f"y is better than the average x by {gap:.4f} nats: these are too few updates for the average. "
                "Train on, or export y: mufree export --weights y"
            )
        self.run.export = self.export()

    def export(self) -> Path:
        """Export the average, so that it can be used at any moment."""
        prepared, position = self.prepared, self.trainer.position
        notes = {
            "sequence": "x",
            "position": asdict(position),
            "losses": self.run.losses,
            "settings": asdict(self.config),
            "plan": prepared.plan.as_metadata(),
            **({"recipe": self.config.recipe} if self.config.recipe else {}),
        }
        with prepared.optimizer.averaged(prepared.model):
            return export(
                self.folder.export,
                prepared.model,
                prepared.model_config,
                prepared.tokenizer,
                notes=notes,
                card=_card(prepared, position, self.run.losses),
            )


def _card(prepared: Prepared, position: Position, losses: Mapping[str, float]) -> str:
    config = prepared.config
    parameters = sum(array.size for _, array in tree_flatten(prepared.model.parameters()))
    return model_card(
        {
            "name": f"{config.model_type}, width {config.width}",
            "model_type": config.model_type,
            "parameters": parameters,
            "width": config.width,
            "layers": config.layers,
            "optimizer": prepared.plan.optimizer_name,
            "sequence": "x, the schedule-free average",
            "updates": position.update,
            "tokens": position.tokens,
            "loss": f"{losses['valid_loss_x']:.4f}" if "valid_loss_x" in losses else "not measured",
            "data": prepared.corpus.name,
            "base_width": config.base_width,
            "multiplier": config.width / config.base_width,
            "lr": config.lr,
        }
    )
