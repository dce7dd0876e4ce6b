"""Random sequences of training, validating, saving, being killed, damaged, resumed and exported.

Few in the usual suite; ``MUFREE_LONG=1`` runs many, longer ones.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mlx.utils import tree_flatten

from mufree import CheckpointError, files
from mufree.files import recover_all
from mufree.training import load_checkpoint, save_checkpoint
from mufree.training.checkpoint import checkpoints, verify
from mufree.training.exporting import export_model
from mufree.training.keeping import best, prune, validated_loss
from mufree.training.loop import Position, Trainer
from mufree.training.prepare import Prepared, prepare
from training_settings import small

LONG = bool(os.environ.get("MUFREE_LONG"))
EXAMPLES, STEPS = (25, 20) if LONG else (5, 10)
KEEP = 2
ARRAYS = ("x", "y", "optimizer")


def started() -> tuple[Prepared, Trainer]:
    """A run before its first update."""
    prepared = prepare(small(Path("nowhere"), width=16, eval_batches=1))
    batch: Callable[[int], Any] = lambda number: prepared.train.sequences(2 * number, 2, 0)  # noqa: E731
    return prepared, Trainer(prepared.model, prepared.optimizer, batch, accumulation=2)


def bits(model: Any, optimizer: Any) -> dict[str, dict[str, Any]]:
    """What a checkpoint of them holds."""
    y = model.parameters()
    trees = {"x": optimizer.average(y), "y": y, "optimizer": optimizer.state}
    return {name: {path: array.tolist() for path, array in tree_flatten(tree)} for name, tree in trees.items()}


@dataclass
class Undisturbed:
    """The run that nothing ever happens to, made as far as it is asked for."""

    def __post_init__(self) -> None:
        self.prepared, self.trainer = started()
        self.bits = [bits(self.trainer.model, self.trainer.optimizer)]
        self.losses = [0.0]
        self.valid = self.prepared.valid.evenly(1, 2)
        self.validated = [{at: self.trainer.evaluate(self.valid, at=at) for at in "xy"}]

    def reach(self, update: int) -> Undisturbed:
        while len(self.bits) <= update:
            self.losses.append(self.trainer.advance())
            self.bits.append(bits(self.trainer.model, self.trainer.optimizer))
            self.validated.append({at: self.trainer.evaluate(self.valid, at=at) for at in "xy"})
        return self


class Killed(BaseException):
    """What a process that is killed would not even see."""


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """The process dies at the ``number``-th thing it does to a file; after that it does nothing more."""
    done = 0

    def watched(function: Callable[..., Any], *, half: bool = False) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done < number:
                return function(*arguments, **options)
            if half and done == number:
                function(*arguments, **options)
                os.truncate(arguments[0], Path(arguments[0]).stat().st_size // 2)
            raise Killed

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "save_safetensors", watched(mx.save_safetensors, half=True))
        patch.setattr(files, "flush", watched(files.flush))
        patch.setattr(shutil, "rmtree", watched(shutil.rmtree))
        for name in ("rename", "replace", "mkdir", "write_text"):
            patch.setattr(Path, name, watched(getattr(Path, name)))
        yield


class Loop(RuleBasedStateMachine):
    """A run, and what must be true of its files whatever happens."""

    straight: Undisturbed

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.saves = self.folder / "checkpoints"
        self.flips: dict[Path, set[tuple[str, int]]] = {}
        self.resume()

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def damaged(self) -> set[Path]:
        """Checkpoints with a bit that is not what it was."""
        return {path for path, flips in self.flips.items() if flips and path.is_dir()}

    @property
    def update(self) -> int:
        return self.trainer.position.update

    @rule(updates=st.integers(1, 3))
    def train(self, updates: int) -> None:
        for _ in range(updates):
            loss = self.trainer.advance()
            assert loss == self.straight.reach(self.update).losses[self.update]

    @rule(at=st.sampled_from("xy"))
    def validate(self, at: str) -> None:
        before = bits(self.trainer.model, self.trainer.optimizer)
        loss = self.trainer.evaluate(self.straight.valid, at=at)
        assert loss == self.straight.reach(self.update).validated[self.update][at]
        assert bits(self.trainer.model, self.trainer.optimizer) == before
        if at == "x":
            self.losses, self.validated = {"valid_loss_x": loss}, self.update

    def facts(self) -> dict[str, Any]:
        return {
            "position": asdict(self.trainer.position),
            "losses": self.losses,
            "validated": self.validated,
            "settings": asdict(self.prepared.config),
            "plan": self.prepared.plan.as_metadata(),
        }

    @rule()
    def save(self) -> None:
        path = self.saves / f"{self.update:08}"
        save_checkpoint(path, self.trainer.model, self.trainer.optimizer, self.facts())
        self.flips.pop(path, None)
        prune(path, KEEP)
        kept = checkpoints(self.saves)
        assert kept[-1] == path
        assert len(kept) <= KEEP + 1
        measured = [loss for one in kept if (loss := validated_loss(one)) is not None]
        assert not measured or validated_loss(best(kept)) == min(measured)

    @rule(number=st.integers(1, 40), again=st.booleans())
    def killed_in_a_save(self, number: int, again: bool) -> None:
        if again:
            self.save()
        before = checkpoints(self.saves)
        try:
            with killed_at(number):
                self.save()
        except Killed:
            recover_all(self.saves)
            now = [path.name for path in checkpoints(self.saves)]
            assert now[-1:] in ([before[-1].name] if before else [], [f"{self.update:08}"]) or not before
            saved = self.saves / f"{self.update:08}"
            if saved.is_dir() and whole(saved):
                self.flips.pop(saved, None)  # it was replaced before the end
            self.resume()

    @precondition(lambda self: checkpoints(self.saves))
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(checkpoints(self.saves)))
        path = data.draw(st.sampled_from(sorted(checkpoint.iterdir())))
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        self.flips.setdefault(checkpoint, set()).symmetric_difference_update({(path.name, bit)})

    @rule()
    def resume(self) -> None:
        """All that was in memory is lost."""
        self.prepared, self.trainer = started()
        self.losses: dict[str, float] = {}
        self.validated = -1
        good = [path for path in checkpoints(self.saves) if path not in self.damaged]
        for path in checkpoints(self.saves):
            assert whole(path) == (path in good)
        if good:
            facts = load_checkpoint(good[-1], self.trainer.model, self.trainer.optimizer)
            self.trainer.position = Position(**facts["position"])
            assert (
                bits(self.trainer.model, self.trainer.optimizer) == self.straight.reach(self.update).bits[self.update]
            )

    @rule(weights=st.sampled_from("xy"))
    def export(self, weights: Any) -> None:
        optimizer, model = self.trainer.optimizer, self.trainer.model
        there = self.folder / "export"
        arguments = (there, model, self.prepared.model_config, self.prepared.tokenizer, self.facts())
        if weights == "x":
            with optimizer.averaged(model):
                export_model(*arguments, weights="x")
        else:
            export_model(*arguments, weights="y")
        found = {path: array.tolist() for path, array in mx.load(str(there / "model.safetensors")).items()}
        assert found == self.straight.reach(self.update).bits[self.update][weights]
        notes = json.loads((there / "mufree.json").read_text())
        assert (notes["position"]["update"], notes["sequence"]) == (self.update, weights)

    @invariant()
    def every_checkpoint_is_what_it_says(self) -> None:
        for path in checkpoints(self.saves):
            if path in self.damaged:
                continue
            verify(path)
            position = json.loads((path / "facts.json").read_text())["position"]
            assert position["update"] == int(path.name)
            assert position["micro_batches"] == 2 * position["update"]
            assert position["tokens"] == position["offset"] == 64 * position["update"]
            straight = self.straight.reach(position["update"]).bits[position["update"]]
            for name in ARRAYS:
                saved = mx.load(str(path / f"{name}.safetensors"))
                assert {one: array.tolist() for one, array in saved.items()} == straight[name]


def whole(checkpoint: Path) -> bool:
    """Whether it passes for one."""
    try:
        verify(checkpoint)
    except CheckpointError:
        return False
    return True


@pytest.mark.slow
def test_every_file_is_what_it_says_whatever_happens() -> None:
    """Losses, weights and files are those of the run that nothing ever happened to."""
    Loop.straight = Undisturbed()
    checked = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=tuple(Phase) if LONG else (Phase.generate,),  # making a failure smaller takes minutes
    )
    run_state_machine_as_test(Loop, settings=checked)
