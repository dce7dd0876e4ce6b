"""One process's part of a fine-tune: mlx-lm's ``train`` with its hooks, then the last validation and the files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.callbacks import get_reporting_callbacks
from mlx_lm.tuner.datasets import CacheDataset
from mlx_lm.tuner.trainer import TrainingArgs, default_loss, train

from ...errors import NonFiniteLoss
from ...training.checkpoint import load_checkpoint, save_checkpoint
from ...training.interrupt import StopRequest
from ...training.keeping import prune
from ...training.part import Part
from ...training.report import Metrics, Reporter
from ...training.run import Run
from .batches import Batches, Position
from .folder import KEPT, AdapterFolder, replace_adapters, save_adapters
from .periods import Since, WhenDue
from .prepare import Prepared
from .surroundings import Trained, left_as_it_was, mean_loss


class Session(Part):
    """Runs mlx-lm's trainer and is the callback that it reports to.

    Args:
        prepared: What was decided.
        folder: Where to write.
        report: Hears what happens.
        metrics: One JSON object a report; None where another rank writes.
    """

    folder: AdapterFolder
    _NOTHING = "the run has used {} micro-batches already; for more give --iters"

    def __init__(self, prepared: Prepared, folder: AdapterFolder, report: Reporter) -> None:
        self.prepared, self.folder, self.report = prepared, folder, report
        self.config, self.model, self.optimizer = prepared.config, prepared.model, prepared.optimizer
        self.averages = prepared.choice is not None and prepared.choice.schedule_free
        self.writes = mx.distributed.init().rank() == 0
        self.run = Run(folder.path)
        self.metrics: Metrics | None = None
        self.start: Position | None = None
        self.boundary: Position | None = None
        self.name = ""
        self.saved: tuple[int, int] = -1, -1
        self.ended = -1  # after how many iterations the last validation was made
        self.best: dict[str, Any] = {}
        self._others: Any = None
        self._loss = "valid_loss_x" if self.averages else "valid_loss"

    def restore(self) -> None:
        """Go on from the newest whole checkpoint."""
        path = self._newest()
        if path is None:
            return
        facts = load_checkpoint(path, Trained(self.model), self.optimizer)
        self.start = self.boundary = Position(**facts["position"])
        self.run.losses, self.best = dict(facts["losses"]), dict(facts["best"])
        self.ended = int(facts.get("ended", self.start.iteration))
        self.saved = self.start.iteration, self.ended
        self._say_going_on(path)

    @property
    def nothing_left(self) -> bool:
        """Whether the saved run has ended at this very length, and its adapters are in place."""
        return self.start is not None and self.ended == self.config.iters and self.folder.holds(self.ended)

    def train(self, stop: StopRequest) -> Run:
        """Train to the end, or until somebody asks to stop; then validate, save and test."""
        self.stop = stop
        self.batches = Batches(self._due, self._between, self.start)
        made = self.batches.iteration
        config = self.config
        if self.nothing_left:
            self._tell(self.report.note, self._NOTHING.format(self.ended))
            self.run.update = self._update()
            return self._conclude()
        if made < config.iters:
            self._others = get_reporting_callbacks(
                config.report_to,
                project_name=config.project_name,
                log_dir=config.adapter_path,
                config=vars(self.prepared.args),
            )
            self._tell(
                self.report.start,
                made // config.grad_accumulation_steps,
                config.iters // config.grad_accumulation_steps,
            )
            try:
                with left_as_it_was(self.model):
                    train(
                        self.model,
                        self.optimizer,
                        CacheDataset(self.prepared.train),
                        WhenDue(self.prepared.valid, self._validates),
                        self._trainer_settings(made),
                        loss=self.optimizer.at_y(default_loss) if self.averages else default_loss,
                        iterate_batches=self.batches,
                        training_callback=self,
                    )
            finally:
                self._tell(self.report.stop)
                self.folder.trainers_own.unlink(missing_ok=True)
        else:
            if self.start is not None:
                self.start.restore_random_state()
            self._tell(self.report.note, self._NOTHING.format(made))
        self._finish()
        return self._conclude()

    def _trainer_settings(self, made: int) -> TrainingArgs:
        config = self.config
        return TrainingArgs(
            batch_size=config.batch_size,
            iters=config.iters - made,
            val_batches=config.val_batches,
            steps_per_report=Since(config.steps_per_report, made),
            steps_per_eval=Since(config.steps_per_eval, made),
            steps_per_save=config.iters + 1,  # never: saved between iterations, under the run's own numbers
            max_seq_length=config.max_seq_length,
            adapter_file=str(self.folder.trainers_own),
            grad_checkpoint=config.grad_checkpoint,
            grad_accumulation_steps=config.grad_accumulation_steps,
            clear_cache_threshold=self.prepared.args.clear_cache_threshold,
        )

    def _due(self, iteration: int) -> bool:
        return iteration == 1 or iteration % self.config.steps_per_eval == 0

    def _validates(self) -> bool:
        iteration = self.batches.iteration
        return self._due(iteration) or iteration == self.config.iters

    def _between(self, made: int) -> bool:
        """Before an iteration: note where an update ended, save where it is time; False to stop."""
        if made % self.config.grad_accumulation_steps == 0:
            self.boundary = self.batches.position()
        if made and made % self.config.save_every == 0 and made != getattr(self.start, "iteration", -1):
            self._save(numbered=True)
        return not (self.stop and self.boundary is not None and self.boundary.iteration == made)

    def _update(self) -> int:
        return self.batches.iteration // self.config.grad_accumulation_steps

    def on_train_loss_report(self, told: dict[str, Any]) -> None:
        """From the trainer: the mean loss since the last report."""
        if not math.isfinite(told["train_loss"]):
            self._blown_up(f"the training loss at iteration {self.batches.iteration} is {told['train_loss']}")
        rate = self.optimizer.scheduled_lr.item() if self.averages else told["learning_rate"]
        told = {**told, "iteration": self.batches.iteration, "learning_rate": rate}
        before = self.start.tokens if self.start else 0
        told["trained_tokens"] += before
        if self._others is not None:
            self._others.on_train_loss_report(told)
        self.run.losses["loss"] = told["train_loss"]
        line = {"loss": told["train_loss"], "lr": rate, "tokens": told["trained_tokens"]}
        line |= {name: told[name] for name in ("tokens_per_second", "iterations_per_second")}
        line["peak_memory_gb"] = told["peak_memory"]
        self._record(self.batches.iteration, self._update(), line)

    def on_val_loss_report(self, told: dict[str, Any]) -> None:
        """From the trainer, before the iteration that it is about to make: the validation loss."""
        made = self.batches.iteration - 1
        if self._others is not None:
            self._others.on_val_loss_report({**told, "iteration": made})
        loss = told["val_loss"]
        self._record(made, made // self.config.grad_accumulation_steps, {self._loss: loss})
        self._keep_if_best(loss, made)

    def _record(self, iteration: int, update: int, line: Mapping[str, Any]) -> None:
        line = {"iteration": iteration, "update": update, **line}
        if self.metrics is not None:
            self.metrics.write(line)
        self._tell(self.report.record, line)

    def _keep_if_best(self, loss: float, made: int) -> None:
        if not math.isfinite(loss):
            self._blown_up(f"the validation loss after iteration {made} is {loss}")
        self.run.losses[self._loss] = loss
        if loss < self.best.get("loss", math.inf):
            self.best = {"loss": loss, "iteration": made}
            if self.writes:
                notes = self._notes(made, {self._loss: loss})
                replace_adapters(self.folder.export, self._weights(), self.prepared.args, notes)

    def _weights(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self.model.trainable_parameters()))

    def _notes(self, made: int, losses: Mapping[str, float]) -> dict[str, Any]:
        sequence = {"sequence": "x"} if self.averages else {}
        update = made // self.config.grad_accumulation_steps
        return {"plan": self.prepared.plan(), "iteration": made, "update": update, **sequence, "losses": dict(losses)}

    def _save(self, *, numbered: bool) -> None:
        """Adapters as they are, and a checkpoint of the last whole update's place in data and randomness."""
        if not self.writes or self.boundary is None:
            return
        weights, made = self._weights(), self.batches.iteration
        if not all(mx.all(mx.isfinite(array)).item() for array in weights.values()):
            self._blown_up(f"a weight after iteration {made} is infinite or not a number")
        notes = self._notes(made, self.run.losses)
        save_adapters(self.folder.path, weights, self.prepared.args, notes)
        if numbered:
            self.folder.keep_numbered(made)
        if (self.boundary.iteration, self.ended) == self.saved:
            return
        facts: dict[str, Any] = {"run": self.name, "position": self.boundary.as_dict(), "losses": self.run.losses}
        facts |= {"best": self.best, "ended": self.ended}
        path = self.folder.checkpoint(self.boundary.iteration)
        save_checkpoint(path, Trained(self.model), self.optimizer, {**facts, "plan": self.prepared.plan()})
        self.saved = self.boundary.iteration, self.ended
        prune(path, KEPT)

    def _blown_up(self, what: str) -> None:
        kept = (
            f"the last checkpoint is {self.folder.checkpoint(self.saved[0])}"
            if self.saved[0] >= 0
            else "there is no checkpoint yet"
        )
        raise NonFiniteLoss(f"{what}; {kept}. Start again in another folder, with a lower learning_rate or more warmup")

    def _finish(self) -> None:
        made = self.batches.iteration
        self.run.update, self.run.signal = self._update(), self.stop.signal if self.stop else None
        if made % self.config.grad_accumulation_steps == 0 and made != getattr(self.start, "iteration", -1):
            self.boundary = self.batches.position()
        if self.run.signal is not None:
            self._tell(self.report.note, f"stopping after update {self.run.update}: saving; a second time ends at once")
        elif self.prepared.valid and made != self.ended:
            self._last_validation(made)
        self.ended = made if self.run.signal is None else -1
        self._save(numbered=made % self.config.save_every == 0)

    def _conclude(self) -> Run:
        """What the run came to, and the loss on the test set."""
        if self.folder.export.is_dir():
            self.run.export = self.folder.export
            self.run.losses["best_valid_loss"] = self.best["loss"]
        if self.config.test and self.run.signal is None:
            self.run.losses["test_loss"] = mean_loss(self.prepared, self.prepared.test, self.config.test_batches)
        return self.run

    def _last_validation(self, made: int) -> None:
        """After the last update, at ``x`` and at ``y``, on the same rows; nothing is drawn or changed by it."""
        drawn = np.random.get_state()
        losses = {self._loss: self._evaluate()}
        self._keep_if_best(losses[self._loss], made)
        if self.averages:
            np.random.set_state(drawn)
            losses |= self._validate_at_y(made)
        np.random.set_state(drawn)
        self.run.losses |= losses
        self._record(made, self._update(), losses)
        gap = losses[self._loss] - losses.get("valid_loss_y", math.inf)
        if gap > 0:
            self._tell(
                self.report.note,
                f"y is better than the average x by {gap:.4f} nats: these are too few updates for the average. "
                f"Train on with --resume and more --iters, or use the adapters in {self.folder.at_y}",
            )

    def _validate_at_y(self, made: int) -> dict[str, float]:
        x = self.model.trainable_parameters()
        self.model.update(self.optimizer.gradient_point(x))
        try:
            losses = {"valid_loss_y": self._evaluate()}
            gap = self.run.losses[self._loss] - losses["valid_loss_y"]
            if self.writes:
                self.folder.forget_y()
            if gap > 0 and self.writes:
                notes = {**self._notes(made, losses), "sequence": "y"}
                replace_adapters(self.folder.at_y, self._weights(), self.prepared.args, notes)
            return losses
        finally:
            self.model.update(x)

    def _evaluate(self) -> float:
        return mean_loss(self.prepared, self.prepared.valid, self.config.val_batches)
