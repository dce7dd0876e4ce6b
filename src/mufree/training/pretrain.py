"""``mufree pretrain`` from Python: prepare, train, validate at ``x``, save, export."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from ..lm.export import check_replaceable
from .config import PretrainConfig
from .folder import RunFolder
from .interrupt import stop_on_signals
from .joining import joined
from .prepare import Prepared, prepare
from .ranks import ALONE, Ranks
from .report import Reporter, Silent
from .run import Run
from .session import Session


def pretrain(
    config: PretrainConfig, *, resume: bool = False, despite: Collection[str] = (), report: Reporter | None = None
) -> Run:
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
        despite: Names of settings that are meant to contradict the saved run's, when it goes on.
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
        fresh = ranks.first(folder.is_fresh, resume)
        prepared = ranks.together(lambda: prepare(config, ranks, fresh=fresh))
        return train_prepared(prepared, folder, resume=resume, despite=despite, report=report, ranks=ranks)


def train_prepared(
    prepared: Prepared,
    folder: RunFolder,
    *,
    resume: bool,
    report: Reporter,
    despite: Collection[str] = (),
    ranks: Ranks = ALONE,
) -> Run:
    """:func:`pretrain` from what :func:`~mufree.training.prepare.prepare` decided."""
    with ExitStack() as claim:
        notes = ranks.first(_open, prepared, folder, resume, despite, claim)
        session = Session(prepared, folder, report if ranks.is_first else Silent(), ranks)
        for text in (*notes, *prepared.notes):
            session.report.note(text)
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


def _open(
    prepared: Prepared, folder: RunFolder, resume: bool, despite: Collection[str], claim: ExitStack
) -> tuple[str, ...]:
    """Check the folder, and be the only process that writes to it until ``claim`` is closed; what to know."""
    notes = folder.check_same(prepared.config, prepared.identity(), despite) if resume else ()
    folder.check_parts()
    check_replaceable(folder.export)
    claim.enter_context(folder.claimed())
    if not resume:
        folder.check_free()
    return notes
