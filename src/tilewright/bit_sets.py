"""Sets of small numbers as the bits of an integer, and the parts of such a set that are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


def bits(mask: int) -> Iterator[int]:
    """The members of a set, ascending.

    >>> list(bits(0b1010))
    [1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def union(masks: Iterable[int]) -> int:
    """All members of some sets."""
    found = 0
    for mask in masks:
        found |= mask
    return found


def reached(start: int, within: int, neighbours: Callable[[int], int]) -> int:
    """A set, and what is reached from it by way of others of a set."""
    found, border = 0, start
    while border:
        found |= border
        border = union(map(neighbours, bits(border))) & within & ~found
    return found


def components(mask: int, neighbours: Callable[[int], int]) -> Iterator[int]:
    """The connected parts of a set, by their first members, where each is a neighbour of its neighbours.
    O(members + their neighbours).

    >>> list(components(0b1011, (0b010, 0b101, 0b010, 0b000).__getitem__))
    [3, 8]
    """
    while mask:
        part = reached(mask & -mask, mask, neighbours)
        yield part
        mask &= ~part
