"""A thread that ends this process, with a message, when another rank is gone.

MLX's collectives do not promise to: the ring raises an error in a rank that is waiting for a killed neighbour, in a
rank farther away and in the other backends the wait has no end, and no Python code of the main thread runs meanwhile.
So every rank keeps a TCP connection to rank 0 and a thread that reads from it. The kernel closes it when a process is
killed, and its keepalive finds a machine or a network that is gone; a rank that is slow or suspended is waited for.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

LOST_STATUS = 3
"""Exit status of a process that ends because another rank was lost."""

SILENCE_SECONDS = 20
"""After so long without an answer of the other machine it counts as gone."""

_PROBE_SECONDS = 5
_GRACE_SECONDS = 2.0
"""A killed rank's connections close together, to within the time that a thread takes to be woken."""


class Lifeline:
    """The connections of one rank that tell of the end of others.

    Args:
        rank: This process's rank.
        peers: A connected socket by rank: every other rank's at rank 0, only rank 0's elsewhere.
        end: Ends the process with a message.
    """

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], end: Callable[[str], None] | None = None) -> None:
        self._rank = rank
        self._peers = dict(peers)
        self._end = end or _end
        self._lock = threading.Lock()
        self._closed = False
        self._first_left = threading.Event()
        self.whereabouts: Callable[[], str] = lambda: "before the first update"
        """Says what this rank is doing, for the message."""
        self.saved: str | None = None
        """The last checkpoint that rank 0 has written."""
        for peer in self._peers.values():
            _keep_alive(peer)
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self._thread.start()

    def tell_saved(self, checkpoint: str) -> None:
        """Rank 0: a checkpoint is whole; the others name it if this one should be gone."""
        self.saved = checkpoint
        self._send({"saved": checkpoint})

    def leave(self) -> None:
        """This rank has done its part. The later ones wait for rank 0, which still writes.

        Were they to end before, with the status of a signal, a launcher would kill rank 0 as it saves.
        """
        self._send({"left": True})
        if self._rank and self._peers:
            self._first_left.wait()
        self._close()

    def fail(self, error: BaseException) -> None:
        """This rank ends by an exception, which the others have not met.

        An error of MLX may be another rank's end; that one's message comes first then, and ends this process.
        """
        if isinstance(error, RuntimeError):
            self._thread.join(_GRACE_SECONDS)
        text = str(error).split("\n")[0]
        self._send({"failed": f"{type(error).__name__}: {text}" if text else type(error).__name__})
        self._close()

    def _close(self) -> None:
        self._closed = True
        for peer in self._peers.values():
            with suppress(OSError):  # closed by the other side
                peer.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Mapping[str, Any], skip: int = -1) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            for rank, peer in self._peers.items():
                with suppress(OSError):  # the watching thread sees it too, and knows what to do
                    if rank != skip:
                        peer.sendall(data)

    def _watch(self) -> None:
        unread = dict.fromkeys(self._peers, b"")
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    try:
                        data, why = key.fileobj.recv(4096), "its connection was closed"  # type: ignore[union-attr]
                    except OSError as error:
                        data, why = b"", error.strerror or str(error)
                    *lines, unread[key.data] = (unread[key.data] + data).split(b"\n")
                    heard = [self._hear(key.data, json.loads(line)) for line in lines]
                    if any(heard):
                        selector.unregister(key.fileobj)
                    elif not data:
                        self._lost(key.data, f"rank {key.data} is gone ({why})")
                        return

    def _hear(self, rank: int, message: Mapping[str, Any]) -> bool:
        """Take in a message; True if it is the last of that rank."""
        self.saved = message.get("saved", self.saved)
        if "left" in message:
            self._first_left.set()
        elif "failed" in message:
            self._lost(rank, f"rank {rank} ended by an error ({message['failed']})")
        elif "lost" in message:
            self._lost(rank, message["lost"])
        return "left" in message

    def _lost(self, rank: int, text: str) -> None:
        if self._closed:
            return
        if self._rank == 0:
            self._send({"lost": text}, skip=rank)
        try:
            where = self.whereabouts()
        except Exception as error:  # ending matters more than how it is told
            where = f"where this rank is cannot be said ({error})"
        self._end(f"mufree: rank {self._rank} ends: {text}, {where}")


def _end(message: str) -> None:
    """End at once: the main thread may be waiting in MLX, where no exception reaches it."""
    try:
        os.write(2, f"\n{message}\n".encode())  # a line of its own: MLX may be in the middle of one
    finally:
        os._exit(LOST_STATUS)


def _keep_alive(connection: socket.socket) -> None:
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = SILENCE_SECONDS // _PROBE_SECONDS - 1
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _PROBE_SECONDS),  # Linux's name and macOS's
        (("TCP_KEEPINTVL",), _PROBE_SECONDS),
        (("TCP_KEEPCNT",), probes),
        (("TCP_USER_TIMEOUT",), 1000 * SILENCE_SECONDS),
        (("TCP_NODELAY",), 1),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
