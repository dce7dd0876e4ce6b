"""One process's part of a run, from its first update or a checkpoint to the export."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import NonFiniteLoss
from .agreement import check_agreement, share_state, state_of
from .checkpoint import checkpoints, load_checkpoint, save_checkpoint
from .config import PretrainConfig
from .exporting import export_model
from .folder import RunFolder
from .interrupt import StopRequest
from .keeping import best, prune, validated_loss
from .loop import Position, Trainer
from .packing import packed_loss, targets_of
from .part import Part
from .prepare import Prepared
from .ranks import Ranks
from .report import Metrics, Reporter
from .run import Run
from .step import next_token_loss

HEAD = "losses in nats a token: in training, and in validation at x, the average, which is exported, or y as trained"


class Session(Part):
    """One process's part of a run."""

    metrics: Metrics | None = None
    name: str = ""
    stop: StopRequest

    def __init__(self, prepared: Prepared, folder: RunFolder, report: Reporter, ranks: Ranks) -> None:
        config, self.ranks = prepared.config, ranks
        self.config, self.prepared, self.folder, self.report = config, prepared, folder, report
        self.run = Run(folder.path)
        packed = config.packing == "documents"
        self.trainer = Trainer(
            prepared.model,
            prepared.optimizer,
            self._batch,
            accumulation=config.accumulation,
            loss=packed_loss if packed else next_token_loss,
            ranks=ranks,
            accumulation_weight=config.accumulation_weight,
            count=targets_of if packed else None,
        )
        self.validation = prepared.valid.evenly(config.eval_batches, config.batch_size)
        self.saved: Path | None = None
        self.validated = -1
        self.best = math.inf

    def _batch(self, number: int) -> Any:
        """Micro-batch by number; where it lies follows from the offset, so that another batch size goes on there."""
        position, config = self.trainer.position, self.config
        ahead = (number - position.micro_batches) * config.batch_size
        first = position.offset // config.seq_length + ahead
        return self.prepared.train.sequences(first, config.batch_size, config.seed)

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, which rank 0 reads and the others get from it."""
        self.ranks.first(self._restore)
        facts, leading, saved = self.ranks.first(lambda: (self._facts(), self.best, self.saved and str(self.saved)))
        if not self.ranks.is_first:
            self._take(facts, leading)
            self.saved = Path(saved) if saved else None
        share_state(self.ranks, self.prepared.model, self.prepared.optimizer)

    def _restore(self) -> None:
        path = self._newest()
        if path is None:
            return
        facts = load_checkpoint(path, self.prepared.model, self.prepared.optimizer)
        self.prepared.optimizer.learning_rate = self.prepared.plan.peak_lr
        found = checkpoints(self.folder.checkpoints)
        leader = best(found[: found.index(path) + 1], self.folder.saved().get("run"))  # later ones are damaged
        leading = None if leader is None else validated_loss(leader)
        self._take(facts, math.inf if leading is None else leading)
        self.saved = path
        self._say_going_on(path)
        if self._reached(self.config.update_limit):
            self.report.note(_enough(self.config, self.trainer.position.update))

    def _take(self, facts: Mapping[str, Any], leading: float) -> None:
        self.trainer.position = Position(**{"offset": facts["position"]["tokens"], **facts["position"]})
        self.best = leading
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
            self.name = self.folder.describe(self.config, prepared.identity(), prepared.plan.as_metadata())
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
        self._tell(self.report.note, HEAD)
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
        clock, tokens = time.monotonic(), position.tokens
        with self._blowing_up():
            loss = self.trainer.advance()
        position.seconds = before + time.monotonic() - started
        self.run.losses["loss"] = loss
        if position.update % config.report_every == 0 or self._reached(config.update_limit):
            self._record(self._progress(loss, time.monotonic() - clock, position.tokens - tokens))
        better = position.update % config.eval_every == 0 and self.validate("x")
        if (better or position.update % config.save_every == 0) and not self._reached(config.update_limit):
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

    def _progress(self, loss: float, seconds: float, tokens: int) -> dict[str, Any]:
        position, limit = self.trainer.position, self.config.update_limit
        return {
            "update": position.update,
            "loss": loss,
            "lr": self.prepared.optimizer.scheduled_lr.item(),
            "tokens": position.tokens,
            "tokens_per_second": tokens / seconds,
            "seconds": round(position.seconds, 3),
            "seconds_left": None if limit is None else round(seconds * (limit - position.update), 1),
            **self.trainer.measures(),
        }

    def _record(self, line: Mapping[str, Any], **known: float) -> None:
        """A line of the metrics; a person is told what is known from before beside it."""
        if self.metrics is not None:
            self.metrics.write(line)
        self._tell(self.report.record, {**line, **known})

    def validate(self, *points: str) -> bool:
        """Validation loss at ``x``, at ``y``, or both; one line of the metrics. Whether ``x`` was never better."""
        fresh = self.validated != self.trainer.position.update
        if fresh:
            self.run.losses.pop("valid_loss_y", None)
        with self._blowing_up():
            losses = {f"valid_loss_{at}": self.trainer.evaluate(self.validation, at=at) for at in points}
        self.run.losses.update(losses)
        self.validated = self.trainer.position.update
        x = {} if fresh else {"valid_loss_x": self.run.losses["valid_loss_x"]}
        self._record({"update": self.validated, "tokens": self.trainer.position.tokens, **losses}, **x)
        before, self.best = self.best, min(self.best, losses.get("valid_loss_x", math.inf))
        return self.best < before

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
            "run": self.name,
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


def _enough(config: PretrainConfig, made: int) -> str:
    """What a run says that has nothing to do."""
    updates = f"{made} update{'' if made == 1 else 's'}"
    if config.update_limit == made:
        return f"the run has made {updates} already; for more give --updates, --tokens or --max-time"
    asked = f"--updates {config.updates}" if config.updates == config.update_limit else f"--tokens {config.tokens}"
    return f"{asked} is not beyond the {updates} that the run has made; for more give a higher one"
