"""Ranks for tests: as threads of this process, one after the other in it, and as processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mufree.training.ranks import Ranks

WAIT_SECONDS = 240
"""Patience with a busy machine; a run takes a few seconds on an idle one."""

LAUNCHER = (sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()")


class ThreadRanks(Ranks):
    """Ranks that exchange through a list in memory instead of MLX's group."""

    def __init__(self, rank: int, size: int, table: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size, self._table, self._barrier = rank, size, table, barrier

    def _exchange(self, data: bytes) -> list[bytes]:
        self._table[self.rank] = data
        self._barrier.wait()
        found = list(self._table)
        self._barrier.wait()
        return found


def as_threads(size: int, function: Callable[[Ranks], Any]) -> list[Any]:
    """What a function returns, or raises, at each rank."""
    table, barrier, found = [None] * size, threading.Barrier(size, timeout=10), [None] * size

    def work(rank: int) -> None:
        try:
            found[rank] = function(ThreadRanks(rank, size, table, barrier))
        except Exception as error:
            found[rank] = error
            if isinstance(error, threading.BrokenBarrierError):
                barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class _Waiting(BaseException):
    """What another rank gives is not there yet."""


class ReplayedRanks(Ranks):
    """Ranks of which each runs again from its start whenever the others have given what it waited for.

    Slow, and for functions that do the same every time; but all in the main thread, where alone MLX may compute: after
    other threads have, it aborts some processes as they end.

    Attributes:
        dtypes: Of the arrays that were averaged.
    """

    def __init__(self, rank: int, size: int, rounds: list[list[Any]]) -> None:
        super().__init__()
        self.rank, self.size, self._rounds, self._made = rank, size, rounds, 0
        self.dtypes: set[Any] = set()

    def _exchange(self, data: Any) -> list[Any]:
        if self._made == len(self._rounds):
            self._rounds.append([None] * self.size)
        row = self._rounds[self._made]
        row[self.rank] = data
        if any(given is None for given in row):
            raise _Waiting
        self._made += 1
        return list(row)

    def mean_tree(self, tree: Any) -> Any:
        """As MLX's sums do, but not to be traced: see :func:`replayed`."""
        flat = tree_flatten(tree)
        self.dtypes |= {array.dtype for _, array in flat}
        rows = self._exchange([np.array(array) for _, array in flat])
        means = [mx.array(sum(arrays) / self.size) for arrays in zip(*rows, strict=True)]
        return tree_unflatten([(path, mean) for (path, _), mean in zip(flat, means, strict=True)])


def replayed(size: int, function: Callable[[Ranks], Any]) -> list[Any]:
    """What a function returns, or raises, at each rank; nothing is compiled meanwhile."""
    rounds: list[list[Any]] = []
    found: dict[int, Any] = {}
    mx.disable_compile()
    try:
        while len(found) < size:
            for rank in set(range(size)) - found.keys():
                try:
                    found[rank] = function(ReplayedRanks(rank, size, rounds))
                except _Waiting:
                    continue
                except Exception as error:
                    found[rank] = error
    finally:
        mx.enable_compile()
    return [found[rank] for rank in range(size)]


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on."""
    while True:
        sockets = [socket.socket() for _ in range(count)]
        try:
            sockets[0].bind(("127.0.0.1", 0))
            first = sockets[0].getsockname()[1]
            for place, other in enumerate(sockets[1:], 1):
                other.bind(("127.0.0.1", first + place))
        except (OSError, OverflowError):
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()


class Processes:
    """Commands that are running, ended with the block however it ends."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def start(self, *arguments: Sequence[str], folder: Path) -> list[subprocess.Popen[str]]:
        """``mufree`` started by hand once for each rank, with its arguments."""
        port, hosts = free_ports(len(arguments)), folder / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port + rank}"] for rank in range(len(arguments))]))
        return [
            self._run([sys.executable, "-m", "mufree", *words], {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)})
            for rank, words in enumerate(arguments)
        ]

    def launch(self, arguments: Sequence[str], ranks: int = 2) -> subprocess.Popen[str]:
        """``mlx.launch -n RANKS -- mufree ARGUMENTS``."""
        words = ["-n", str(ranks), "-p", str(free_ports(ranks)), "--", sys.executable, "-m", "mufree", *arguments]
        return self._run([*LAUNCHER, *words], {})

    def _run(self, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,  # not at its end, at which the launcher reads without pause
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process


def launched_ranks(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids by rank of what a launcher has started (Linux)."""
    children = Path(f"/proc/{launcher.pid}/task").glob("*/children")
    found = {}
    for pid in " ".join(path.read_text() for path in children).split():
        for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            if entry.startswith("MLX_RANK="):
                found[int(entry.removeprefix("MLX_RANK="))] = int(pid)
    return found


def wait_until(condition: Callable[[], Any], processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until something holds, as long as the processes run."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        assert all(process.poll() is None for process in processes), "it has ended"
        time.sleep(0.02)
