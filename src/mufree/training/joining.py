"""How a process joins the others that were started with it: by ``mlx.launch``, by MPI, or by hand."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import NonFiniteLoss, Refused, refuse
from .lifeline import Lifeline
from .ranks import ALONE, Ranks

_CONNECT_SECONDS = 3.0
_MEET_SECONDS = 15.0
_HELLO_BYTES = 64


def launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as one of several.

    ``mlx.launch`` sets MLX_RANK, for a single process too, which then has an empty host file; MPI sets its own.
    """
    if "MLX_RANK" in environment:
        hosts = environment.get("MLX_HOSTFILE")
        return hosts is None or not Path(hosts).is_file() or bool(Path(hosts).read_text(encoding="utf-8").strip())
    return any(int(environment.get(name, "1")) > 1 for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))


@contextmanager
def joined(note: Callable[[str], None] = lambda _: None) -> Iterator[Ranks]:
    """The ranks that train together; a single process, which was started as such, is alone.

    The backend is the one that MLX finds by the launcher's environment (ring, MPI, JACCL or NCCL). An exception inside
    ends the other ranks too, unless all raise it.

    Args:
        note: Is told at rank 0 what a person should know.

    Raises:
        Refused: If MLX cannot join the others.
    """
    if not launched():
        yield ALONE
        return
    if os.environ.get("MLX_RANK") == "0":
        note("joining the other ranks; while one is missing, this waits (Ctrl-C ends it)")
    ranks = Ranks(_group())
    if ranks.size > 1:
        ranks.lifeline = lifeline = _lifeline(ranks, note)
        try:
            yield ranks
        except BaseException as error:
            if isinstance(error, NonFiniteLoss) or (isinstance(error, Refused) and ranks.agreed):
                lifeline.leave()
            else:
                lifeline.fail(error)
            raise
        lifeline.leave()
    else:
        yield ranks


def _group() -> Any:
    import mlx.core as mx

    try:
        return mx.distributed.init(strict=True)
    except (RuntimeError, ValueError) as error:
        given = {name: os.environ.get(name) for name in ("MLX_RANK", "MLX_HOSTFILE")}
        refuse(
            "unreachable",
            "ranks",
            f"this is one of several processes ({given}), and MLX cannot join them: {error}; start all of them with "
            "mlx.launch, or each with MLX_RANK and the MLX_HOSTFILE of all",
        )


def _lifeline(ranks: Ranks, note: Callable[[str], None]) -> Lifeline:
    """Connect every rank with rank 0; MLX's own connections tell where it is and who may connect."""
    given = _ring_addresses()
    server = socket.create_server((given[0] if given else "", 0), backlog=ranks.size) if ranks.is_first else None
    offer = [given or _addresses(), server.getsockname()[1], secrets.token_hex(16)] if server else None
    addresses, port, token = ranks.gather(offer)[0]
    peers = _accept(server, ranks.size, token) if server else _connect(addresses, port, token, ranks.rank)
    missing = [rank for rank, found in enumerate(ranks.gather(bool(peers))) if rank and not found]
    if ranks.is_first and missing:
        note(f"ranks {missing} cannot reach rank 0 at {addresses}, port {port}: if one is lost, only MLX may tell")
    return Lifeline(ranks.rank, peers)


def _ring_addresses() -> list[str]:
    """Rank 0's own in the ring's host file, where it listens for its neighbour; empty with another backend."""
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts is None:
        return []
    return [entry.rsplit(":", 1)[0] for entry in json.loads(Path(hosts).read_text(encoding="utf-8"))[0]]


def _addresses() -> list[str]:
    """Where the others may reach this machine: what the launcher told the backend, else what its name stands for."""
    given = [os.environ.get("NCCL_HOST_IP", ""), os.environ.get("MLX_JACCL_COORDINATOR", "").rsplit(":", 1)[0]]
    with suppress(OSError):  # a machine whose name nobody resolves
        given += [socket.gethostname(), *socket.gethostbyname_ex(socket.gethostname())[2]]
    return list(dict.fromkeys(address for address in given if address))


def _hello(token: str, rank: int) -> bytes:
    return f"mufree {token} {rank}".encode().ljust(_HELLO_BYTES)


def _accept(server: socket.socket, size: int, token: str) -> dict[int, socket.socket]:
    """Rank 0: the connections of those who know the token."""
    peers: dict[int, socket.socket] = {}
    expected = {_hello(token, rank): rank for rank in range(1, size)}
    deadline = time.monotonic() + _MEET_SECONDS
    with server:
        while len(peers) < size - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
                connection.settimeout(_CONNECT_SECONDS)
                rank = expected.get(_read(connection))
                if rank is None:
                    connection.close()
                    continue
                connection.sendall(_hello(token, 0))
                peers[rank] = connection
            except OSError:
                continue
    return peers


def _connect(addresses: list[str], port: int, token: str, rank: int) -> dict[int, socket.socket]:
    """A later rank: the connection to rank 0, at the first address where it answers."""
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), _CONNECT_SECONDS)
            connection.sendall(_hello(token, rank))
            if _read(connection) == _hello(token, 0):
                return {0: connection}
            connection.close()
        except OSError:
            continue
    return {}


def _read(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _HELLO_BYTES and (more := connection.recv(_HELLO_BYTES - len(data))):
        data += more
    return data
