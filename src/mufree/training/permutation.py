"""A random order of any length that takes no memory."""

from __future__ import annotations

from dataclasses import dataclass

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of ``0 … size − 1``, worked out entry by entry.

    A Feistel network over the smallest even number of bits that holds the size; an entry that falls outside is sent
    through again until it lies inside, which keeps it a bijection (Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains", cycle walking).

    Args:
        size: How many entries, at least 1.
        keys: One whole number a round, at least four (Luby and Rackoff 1988: four rounds look random).
    """

    size: int
    keys: tuple[int, ...]

    def __call__(self, index: int) -> int:
        """Where entry ``index`` goes."""
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        mask = (1 << half) - 1
        while True:
            left, right = index >> half, index & mask
            for key in self.keys:
                left, right = right, left ^ (_mixed(right ^ key) & mask)
            index = left << half | right
            if index < self.size:
                return index


def _mixed(value: int) -> int:
    """64 bits, each a function of all given ones: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
