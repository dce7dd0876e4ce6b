"""The processes that train one model together, and what they exchange.

Every rank holds the whole model and makes the same updates from the mean of all ranks' gradients, each of its own rows
of the batch. Invariant: whatever decides what happens next (a loss, a signal, a clock, a refusal) is exchanged first,
so that all ranks take the same way and none is left waiting for another. A single process is the group of one, which
exchanges nothing and imports no MLX here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from ..errors import Reason, Refused, refuse

if TYPE_CHECKING:
    from .lifeline import Lifeline

_T = TypeVar("_T")


class Ranks:
    """This process's place among those that train together.

    Args:
        group: MLX's group, or None for a single process.
        lifeline: Tells the others of this one's end, and this one of theirs.
    """

    def __init__(self, group: Any = None, lifeline: Lifeline | None = None) -> None:
        self.rank: int = group.rank() if group is not None else 0
        self.size: int = group.size() if group is not None else 1
        self.lifeline = lifeline
        self.agreed = False
        """Whether a refusal was exchanged: every rank raises it, and the first one says it."""
        self._group = group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes, prints, and reads the clock."""
        return self.rank == 0

    def check_batch(self, batch_size: int) -> None:
        """Refuse a batch that cannot be split evenly.

        Raises:
            Refused: If so. Uneven parts would weigh some rows more than others.
        """
        if batch_size % self.size:
            less = batch_size - batch_size % self.size
            fits = f"{less} or {less + self.size}" if less else f"{self.size}"
            message = f"{batch_size} sequences cannot be split evenly over {self.size} ranks; give {fits}"
            refuse("indivisible", "batch_size", message)

    def part(self, batch: Any) -> Any:
        """This rank's rows of a batch: the rank-th of ``size`` equal runs of rows.

        Args:
            batch: An array of any kind, shape (rows, …), or a tuple or list of them.

        Raises:
            Refused: If the rows cannot be split evenly.
        """
        if self.size == 1:
            return batch
        if isinstance(batch, tuple | list):
            return tuple(map(self.part, batch))
        self.check_batch(len(batch))
        rows = len(batch) // self.size
        return batch[self.rank * rows : (self.rank + 1) * rows]

    def mean_tree(self, tree: Any) -> Any:
        """The mean over the ranks of a tree of arrays, the same bits on each; may be traced."""
        if self.size == 1:
            return tree
        import mlx.nn as nn

        return nn.average_gradients(tree, self._group)

    def mean(self, number: float) -> float:
        """The mean of one number over the ranks, float64; not finite if one is not."""
        return number if self.size == 1 else sum(row[0] for row in self.numbers(number)) / self.size

    def highest(self, *values: int) -> tuple[int, ...]:
        """For each value the highest that a rank gave."""
        if self.size == 1:
            return values
        return tuple(int(max(column)) for column in zip(*self.numbers(*values), strict=True))

    def spread(self, function: Callable[[_T], float], items: Sequence[_T]) -> list[float]:
        """``function`` of every item, each worked out by one rank only."""
        own = [function(item) for item in items[self.rank :: self.size]]
        if self.size == 1:
            return own
        rows = self.gather(own)
        return [rows[place % self.size][place // self.size] for place in range(len(items))]

    def together(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """What a function returns here, once no rank refuses.

        Raises:
            Refused: On every rank, with the reasons of all; those that only a later rank has are named by it.
        """
        refused: Refused | None = None
        try:
            value = function(*arguments)
        except Refused as error:
            if self.size == 1:
                raise
            refused = error
        if self.size > 1:
            self._refuse_together(refused)
        return value

    def _refuse_together(self, refused: Refused | None) -> None:
        rows = [[r.code, r.field, r.message] for r in refused.reasons] if refused else []
        reasons: list[Reason] = []
        kinds = set()
        for rank, (kind, said) in enumerate(self.gather([type(refused).__name__, rows])):
            kinds.update([kind] if said else [])
            new = [Reason(*row) for row in said if Reason(*row) not in reasons]
            reasons += [Reason(r.code, f"rank {rank}: {r.field}", r.message) for r in new] if rank else new
        if reasons:
            self.agreed = True
            raise getattr(errors, kinds.pop() if len(kinds) == 1 else "Refused")(reasons)

    def first(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns at rank 0, where alone it is called; JSON-ready.

        Raises:
            Refused: On every rank, if it does there.
        """
        value = self.together(function, *arguments) if self.is_first else self.together(lambda: None)
        return value if self.size == 1 else self.gather(value)[0]

    def gather(self, value: Any) -> list[Any]:
        """A JSON-ready value of every rank, by rank."""
        data = json.dumps(value).encode()
        lengths = [int(row[0]) for row in self.numbers(len(data))]
        parts = self._exchange(data.ljust(max(lengths)))
        return [json.loads(part[:length]) for part, length in zip(parts, lengths, strict=True)]

    def numbers(self, *values: float) -> list[tuple[float, ...]]:
        """Some numbers of every rank, float64, by rank."""
        form = f"<{len(values)}d"
        return [struct.unpack(form, part) for part in self._exchange(struct.pack(form, *values))]

    def _exchange(self, data: bytes) -> list[bytes]:
        """As many bytes of every rank, by rank."""
        if self.size == 1:
            return [data]
        import mlx.core as mx

        # Bytes, not floats: no backend or device rounds them.
        found = mx.distributed.all_gather(mx.array(list(data), mx.uint8), group=self._group)
        mx.eval(found)
        whole = bytes(memoryview(found))  # type: ignore[arg-type]
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    def from_first(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of rank 0, bit for bit; the other ranks' give names, shapes and types."""
        import mlx.core as mx

        given = {}
        for path, array in arrays.items():
            bits = array.reshape(-1).view(mx.uint8)
            # A sum in which the others are zero: a gather would take the memory of all ranks' arrays.
            bits = mx.distributed.all_sum(bits if self.is_first else mx.zeros_like(bits), group=self._group)
            given[path] = bits.view(array.dtype).reshape(array.shape)
            mx.eval(given[path])
        return given


ALONE = Ranks()
"""A single process."""


def digest(arrays: Iterable[tuple[str, Any]]) -> str:
    """A checksum of arrays by path, shape, type and bits (16 hex digits), worked out where they are."""
    import hashlib

    import mlx.core as mx

    found = hashlib.sha256()
    for path, array in sorted(arrays):
        words = array.reshape(-1).view({1: mx.uint8, 2: mx.uint16}.get(array.itemsize, mx.uint32))
        # By place, so that exchanged entries show; odd factors, so that no bit is lost.
        weighed = mx.sum(words.astype(mx.uint32) * (2 * mx.arange(words.size, dtype=mx.uint32) + 1))
        found.update(f"{path} {array.shape} {array.dtype} {weighed.item()}\n".encode())
    return found.hexdigest()[:16]
