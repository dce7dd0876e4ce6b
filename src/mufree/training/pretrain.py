"""``mufree pretrain`` from Python: prepare, train, validate at ``x``, save, export."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import NonFiniteLoss
from ..lm.export import check_replaceable
from .agreement import check_agreement, share_state, state_of
from .checkpoint import load_checkpoint, prune, save_checkpoint, saved_arithmetic
from .config import PretrainConfig
from .exporting import export_model
from .folder import RunFolder
from .interrupt import StopRequest, stop_on_signals
from .joining import joined
from .loop import Position, Trainer
from .machine import arithmetic, differences
from .prepare import Prepared, prepare
from .ranks import ALONE, Ranks
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

    Started as several processes, by ``mlx.launch`` or by hand, each calls this with the same settings. They make the
    updates of one process up to rounding; rank 0 alone writes and reads the folder, and any number of ranks can go on
    with it. When one is lost the others end with status 3, saying after which update and from which checkpoint to go
    on.

    Args:
        config: The settings.
        resume: Go on from the newest whole checkpoint in ``config.out``.
        report: Hears what happens, at rank 0.

    Returns:
        Where it ended; the export is None but at rank 0.

    Raises:
        Refused: For settings, data or a folder that do not work, before anything is written.
        CheckpointError: If the run to go on with is another one, or none of its checkpoints is whole.
        NonFiniteLoss: If the loss blows up; the last checkpoint is kept and named.
    """
    folder, report = RunFolder(Path(config.out)), report or Silent()
    with joined(report.note) as ranks:
        if not resume:
            ranks.first(folder.check_free)
        prepared = ranks.together(prepare, config, ranks)
        return train_prepared(prepared, folder, resume=resume, report=report, ranks=ranks)


def train_prepared(
    prepared: Prepared, folder: RunFolder, *, resume: bool, report: Reporter, ranks: Ranks = ALONE
) -> Run:
    """:func:`pretrain` from what :func:`~mufree.training.prepare.prepare` decided."""
    with ExitStack() as claim:
        ranks.first(_open, prepared, folder, resume, claim)
        session = _Session(prepared, folder, report if ranks.is_first else Silent(), ranks)
        if resume:
            session.restore()
        session.meet()
        try:
            with stop_on_signals() as stop:
                session.train(stop)
            return session.run
        finally:
            if session.metrics is not None:
                session.metrics.close()


def _open(prepared: Prepared, folder: RunFolder, resume: bool, claim: ExitStack) -> None:
    """Check the folder, and be the only process that writes to it until ``claim`` is closed."""
    if resume:
        folder.check_same(prepared.config, prepared.identity())
    folder.check_parts()
    check_replaceable(folder.export)
    claim.enter_context(folder.claimed())
    if not resume:
        folder.check_free()


class _Session:
    """One process's part of a run."""

    metrics: Metrics | None = None
    stop: StopRequest

    def __init__(self, prepared: Prepared, folder: RunFolder, report: Reporter, ranks: Ranks) -> None:
        config, self.ranks = prepared.config, ranks
        self.config, self.prepared, self.folder, self.report = config, prepared, folder, report
        self.run = Run(folder.path)
        self.trainer = Trainer(
            prepared.model,
            prepared.optimizer,
            lambda number: prepared.train.shuffled(number, config.batch_size, config.seed),
            accumulation=config.accumulation,
            ranks=ranks,
        )
        self.validation = prepared.valid.evenly(config.eval_batches, config.batch_size)
        self.saved: Path | None = None
        self.validated = -1

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, which rank 0 reads and the others get from it."""
        self.ranks.first(self._restore)
        facts = self.ranks.first(lambda: self._facts() | {"saved": self.saved and str(self.saved)})
        if not self.ranks.is_first:
            self._take(facts)
            self.saved = Path(facts["saved"]) if facts["saved"] else None
        share_state(self.ranks, self.prepared.model, self.prepared.optimizer)

    def _restore(self) -> None:
        path, damaged = self.folder.latest()
        for text in damaged:
            self.report.note(text)
        if path is None:
            self.report.note("the run has no checkpoint yet; it starts again from its beginning")
            return
        facts = load_checkpoint(path, self.prepared.model, self.prepared.optimizer)
        self._take(facts)
        self.saved = path
        for text in differences(saved_arithmetic(path), arithmetic()):
            self.report.note(f"not bit for bit as one uninterrupted run: {text}")
        self.report.note(f"going on from {path}")
        if self._reached(self.config.update_limit):
            made = self.trainer.position.update
            self.report.note(
                f"the run has made {made} updates already; for more give --updates, --tokens or --max-time"
            )

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.trainer.position = Position(**facts["position"])
        self.run.losses = dict(facts["losses"])
        self.validated = facts.get("validated", -1)

    def meet(self) -> None:
        """Check that all ranks start alike; then rank 0 starts the run's files."""
        prepared, ranks = self.prepared, self.ranks
        check_agreement(ranks, self.config, prepared.identity(), state_of(prepared.model, prepared.optimizer))
        if ranks.lifeline is not None:
            ranks.lifeline.whereabouts = self._whereabouts
            ranks.lifeline.saved = str(self.saved) if self.saved else None
        if ranks.is_first:
            self.folder.describe(self.config, prepared.identity(), prepared.plan.as_metadata())
            self.metrics = Metrics(self.folder.metrics, self.trainer.position.update)
        if ranks.size > 1:
            rows = self.config.batch_size // ranks.size
            self.report.note(f"{ranks.size} ranks, each with {rows} sequences of every micro-batch")

    def _whereabouts(self) -> str:
        """What to know when another rank is lost; said by the thread that then ends the process."""
        self.report.stop()
        saved = self.ranks.lifeline and self.ranks.lifeline.saved
        going_on = f"mufree pretrain --resume --out {shlex.quote(str(self.folder.path))}"
        kept = f"the last checkpoint is {saved}. Go on with: {going_on}" if saved else "there is no checkpoint yet"
        return f"after update {self.trainer.position.update}; {kept}"

    def train(self, stop: StopRequest) -> None:
        """Train to the limit, or until somebody asks to stop, or the loss blows up."""
        position, limit = self.trainer.position, self.config.update_limit
        self.stop = stop
        self._tell(self.report.start, position.update, limit)
        started, before = time.monotonic(), position.seconds
        deadline = None if self.config.max_time is None else started + 60 * self.config.max_time
        try:
            if position.update == 0:
                self.validate("x")
            while not self._ending(deadline) and not self._reached(limit):
                self._advance(started, before)
            self.finish()
        finally:
            self._tell(self.report.stop)

    def _tell(self, say: Callable[..., None], *told: Any) -> None:
        """Report; when nobody can hear it any more, as in ``mufree pretrain | head``, say no more and ask to stop."""
        try:
            say(*told)
        except OSError:
            self.report = Silent()
            self.stop.signal = self.stop.signal or signal.SIGPIPE

    def _ending(self, deadline: float | None = None) -> bool:
        """Whether a signal came at any rank, or the time is over by rank 0's clock; the same at every rank."""
        late = self.ranks.is_first and deadline is not None and time.monotonic() >= deadline
        number, over = self.ranks.highest(self.stop.signal or 0, int(late))
        if number:
            self.stop.signal = number
        return bool(number or over)

    def _reached(self, limit: int | None) -> bool:
        return limit is not None and self.trainer.position.update >= limit

    def _advance(self, started: float, before: float) -> None:
        position, config = self.trainer.position, self.config
        clock = time.monotonic()
        with self._blowing_up():
            loss = self.trainer.advance()
        position.seconds = before + time.monotonic() - started
        self.run.losses["loss"] = loss
        if position.update % config.report_every == 0 or self._reached(config.update_limit):
            self._record(self._progress(loss, time.monotonic() - clock))
        if position.update % config.eval_every == 0:
            self.validate("x")
        if position.update % config.save_every == 0 and not self._reached(config.update_limit):
            self.save()

    @contextmanager
    def _blowing_up(self) -> Iterator[None]:
        """Say what is left and what to do when a loss is not finite."""
        try:
            yield
        except NonFiniteLoss as error:
            advice = "Start again in another folder, with a lower lr or more warmup"
            raise NonFiniteLoss(f"{error}; {self._kept()}. {advice}") from None

    def _kept(self) -> str:
        return f"the last checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"

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
        if self.metrics is not None:
            self.metrics.write(line)
        self._tell(self.report.record, line)

    def validate(self, *points: str) -> None:
        """Validation loss at ``x``, at ``y``, or both; one line of the metrics."""
        if self.validated != self.trainer.position.update:
            self.run.losses.pop("valid_loss_y", None)
        with self._blowing_up():
            losses = {f"valid_loss_{at}": self.trainer.evaluate(self.validation, at=at) for at in points}
        self.run.losses.update(losses)
        self.validated = self.trainer.position.update
        self._record({"update": self.validated, "tokens": self.trainer.position.tokens, **losses})

    def save(self) -> None:
        """Write a checkpoint, and drop the ones that are too many."""
        with self._blowing_up():
            self.trainer.check_finite()
        path = self.folder.checkpoint(self.trainer.position.update)
        if self.ranks.is_first:
            try:
                save_checkpoint(path, self.prepared.model, self.prepared.optimizer, self._facts())
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}; {self._kept()}", error.filename) from error
            if self.ranks.lifeline is not None:
                self.ranks.lifeline.tell_saved(str(path))
            prune(path, self.config.keep)
        self.saved = path

    def _facts(self) -> dict[str, Any]:
        return {
            "position": asdict(self.trainer.position),
            "losses": self.run.losses,
            "validated": self.validated,
            "settings": asdict(self.config),
            "plan": self.prepared.plan.as_metadata(),
        }

    def finish(self) -> None:
        """Save, compare ``x`` with ``y`` unless somebody is waiting, and export ``x``."""
        position, losses = self.trainer.position, self.run.losses
        stopped = self._ending()
        self.run.update, self.run.signal = position.update, self.stop.signal
        if stopped:
            self._tell(
                self.report.note,
                f"stopping after update {position.update}: saving, exporting; a second time ends at once",
            )
        else:
            self.validate(*("y" if self.validated == position.update else "xy"))
        if self.saved != self.folder.checkpoint(position.update):
            self.save()
        if "valid_loss_y" in losses and losses["valid_loss_y"] < losses["valid_loss_x"]:
            gap = losses["valid_loss_x"] - losses["valid_loss_y"]
            self._tell(
                self.report.note,
                f"y is better than the average x by {gap:.4f} nats: these are too few updates for the average. "
                f"Train on, or export y: mufree export {shlex.quote(str(self.folder.path))} --weights y",
            )
        if self.ranks.is_first:
            self.run.export = self.export()

    def export(self) -> Path:
        """Export the average, so that it can be used at any moment."""
        prepared = self.prepared
        with prepared.optimizer.averaged(prepared.model):
            config, tokenizer = prepared.model_config, prepared.tokenizer
            return export_model(self.folder.export, prepared.model, config, tokenizer, self._facts(), weights="x")
