"""What ranks learn of each other's end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mufree.errors import NonFiniteLoss
from mufree.training import joining
from mufree.training.lifeline import SILENCE_SECONDS, Lifeline
from mufree.training.ranks import Ranks
from rank_processes import as_threads

SOON = 5.0
"""Seconds within which a thread has surely been woken."""

QUIET = 0.2
"""Seconds to see that nothing happens."""


class Crew:
    """Three ranks in this process, with what each would have said as it ended."""

    def __init__(self) -> None:
        pairs = {rank: tcp_pair() for rank in (1, 2)}
        self.ends = {rank: pair[1] for rank, pair in pairs.items()}
        self.said: dict[int, str] = {}
        self.told = {rank: threading.Event() for rank in range(3)}
        self.lifelines = [Lifeline(0, {rank: pair[0] for rank, pair in pairs.items()}, self._end(0))]
        self.lifelines += [Lifeline(rank, {0: pairs[rank][1]}, self._end(rank)) for rank in (1, 2)]

    def _end(self, rank: int):  # type: ignore[no-untyped-def]
        def end(message: str) -> None:
            self.said.setdefault(rank, message)
            self.told[rank].set()

        return end

    def heard(self, rank: int) -> str:
        assert self.told[rank].wait(SOON)
        return self.said[rank]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    for line in made.lifelines:
        line._close()
        line._thread.join(SOON)
        assert not line._thread.is_alive()
        for peer in line._peers.values():
            peer.close()


def test_a_killed_rank_ends_the_others(crew: Crew) -> None:
    """Each says which rank is gone, also one that was not connected to it, and where it was itself."""
    crew.lifelines[0].whereabouts = lambda: "after update 7; the last checkpoint is runs/a"
    crew.ends[2].shutdown(socket.SHUT_RDWR)
    wanted = "mufree: rank 0 ends: rank 2 is gone (its connection was closed), after update 7; the last checkpoint is"
    assert crew.heard(0) == f"{wanted} runs/a"
    assert crew.heard(1) == "mufree: rank 1 ends: rank 2 is gone (its connection was closed), before the first update"


def test_the_others_name_the_checkpoint_that_rank_0_wrote(crew: Crew) -> None:
    """It is told when it is whole, and known when rank 0 is lost."""
    line = crew.lifelines[1]
    line.whereabouts = lambda: f"from {line.saved}"
    crew.lifelines[0].tell_saved("runs/a/00000010")
    crew.lifelines[0].fail(OSError(28, "No space left on device"))
    assert crew.heard(1).endswith(
        "rank 0 ended by an error (OSError: [Errno 28] No space left on device), from runs/a/00000010"
    )
    assert "No space left" in crew.heard(2)


def test_an_error_of_mlx_waits_for_the_rank_that_caused_it(crew: Crew) -> None:
    """A neighbour's broken collective is told as that rank's end, not as this one's error."""
    crew.ends[2].shutdown(socket.SHUT_RDWR)
    crew.lifelines[1].fail(RuntimeError("[ring] connection to a peer was lost"))
    assert "rank 2 is gone" in crew.heard(0)
    assert "rank 2 is gone" in crew.heard(1)


def test_ranks_that_have_done_their_part_wait_for_the_first(crew: Crew) -> None:
    """Their end is no loss; they end once rank 0 has written everything."""
    leaving = [threading.Thread(target=crew.lifelines[rank].leave) for rank in (1, 2)]
    for thread in leaving:
        thread.start()
    leaving[0].join(QUIET)
    assert all(thread.is_alive() for thread in leaving)
    crew.lifelines[0].leave()
    for thread in leaving:
        thread.join(SOON)
        assert not thread.is_alive()
    assert not crew.said


def test_a_rank_that_cannot_say_where_it_is_ends_all_the_same(crew: Crew) -> None:
    """A broken terminal keeps nobody alive."""

    def broken() -> str:
        raise BrokenPipeError

    crew.lifelines[0].whereabouts = broken
    crew.ends[1].shutdown(socket.SHUT_RDWR)
    assert "rank 1 is gone" in crew.heard(0)


def test_a_machine_that_does_not_answer_is_found_in_time(crew: Crew) -> None:
    """The kernel's probes and its patience with unanswered data are within the bound."""
    peer = next(iter(crew.lifelines[0]._peers.values()))

    def option(name: str) -> int:
        return peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle = option("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE")
    assert idle + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") == SILENCE_SECONDS
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert option("TCP_USER_TIMEOUT") == 1000 * SILENCE_SECONDS


def test_only_who_knows_the_token_is_connected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Strangers on the port are sent away; the ranks meet where the host file says that rank 0 is."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text('[["127.0.0.1:1"], ["127.0.0.1:2"], ["127.0.0.1:3"]]')
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    accept = joining._accept

    def accept_after_a_stranger(server: socket.socket, size: int, token: str) -> dict[int, socket.socket]:
        assert server.getsockname()[0] == "127.0.0.1"
        with socket.create_connection(server.getsockname()) as stranger:
            stranger.sendall(joining._hello("0" * 32, 1))
            return accept(server, size, token)

    monkeypatch.setattr(joining, "_accept", accept_after_a_stranger)
    notes: list[str] = []
    lines = as_threads(3, lambda ranks: joining._lifeline(ranks, notes.append))
    assert [sorted(line._peers) for line in lines] == [[1, 2], [0], [0]]
    assert not notes
    left = [threading.Thread(target=line.leave) for line in lines]
    for thread in left:
        thread.start()
    for thread in left:
        thread.join(SOON)
        assert not thread.is_alive()
    for line in lines:
        line._thread.join(SOON)
        for peer in line._peers.values():
            peer.close()


def test_ranks_that_cannot_meet_are_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They train, and a person knows that only MLX may notice a loss."""
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    monkeypatch.setattr(joining, "_MEET_SECONDS", QUIET)
    monkeypatch.setattr(joining, "_connect", lambda *_: {})
    notes: list[str] = []
    lines = as_threads(2, lambda ranks: joining._lifeline(ranks, notes.append))
    assert "ranks [1] cannot reach rank 0" in notes[0]
    for line in lines:
        line.leave()


class Recorded(Lifeline):
    """A lifeline that keeps how it was left."""

    def __init__(self) -> None:
        super().__init__(0, {}, None)
        self.left: list[str] = []

    def leave(self) -> None:
        self.left.append("leave")

    def fail(self, error: BaseException) -> None:
        self.left.append("fail")


@pytest.mark.parametrize(
    ("error", "left"), [(None, "leave"), (NonFiniteLoss("nan"), "leave"), (OSError("disk"), "fail")]
)
def test_an_error_that_all_ranks_meet_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, left: str
) -> None:
    """Each of them says what happened, or leaves it to rank 0; any other error ends the others."""
    line = Recorded()

    class Group:
        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 2

    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    monkeypatch.setattr(joining, "_group", Group)
    monkeypatch.setattr(joining, "_lifeline", lambda *_: line)

    def train() -> None:
        with joining.joined() as ranks:
            assert isinstance(ranks, Ranks)
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            train()
    else:
        train()
    assert line.left == [left]
