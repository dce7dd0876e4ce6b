"""Signals: noted once, at once the second time, ignored where they were."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mufree.training.interrupt import stop_on_signals

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", POLITE)
def test_the_first_signal_is_noted_and_the_second_acts(number: signal.Signals) -> None:
    """Afterwards every handler is the one from before."""
    heard: list[int] = []
    kept = {n: signal.signal(n, lambda n, _: heard.append(n)) for n in POLITE}
    before = {n: signal.getsignal(n) for n in POLITE}
    try:
        with stop_on_signals() as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop
            assert (stop.signal, heard) == (number, [])
            os.kill(os.getpid(), number)
            assert heard == [number]
        assert {n: signal.getsignal(n) for n in POLITE} == before
    finally:
        for n, handler in kept.items():
            signal.signal(n, handler)


def test_an_ignored_signal_stays_ignored() -> None:
    """As SIGHUP under nohup, or SIGINT in a shell's background."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_another_thread_can_train_too() -> None:
    """Python allows no handlers there."""
    seen: list[bool] = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
