"""What an axis may be, as people write it: `8`, `1..8`, `128|256|512`, or `?` for anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.errors import UsageError
from tilewright.records import dataclass

Axis = int | str
"""A number, or the text of `Extents`."""

ANY = "?"
SCALAR = "scalar"
"""What stands in place of axes where there are none."""
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents that an axis may have: those of some ranges, first and last; any where there are none."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, axis: Axis) -> Extents:
        """Read an axis.

        Raises:
            UsageError: any other text, a negative or huge number, or a range that ends before it begins.

        >>> Extents.of("1..4|8")
        Extents(ranges=((1, 4), (8, 8)))
        """
        if axis == ANY:
            return cls()
        ranges = []
        for part in str(axis).split("|"):
            first, dots, last = part.strip().partition("..")
            ends = (first, last) if dots else (first, first)
            if not all(map(_is_number, ends)) or int(ends[0]) > int(ends[1]):
                raise UsageError(
                    f"shapes {axis!r}: expected a number, 1..8, 128|256|512, or ? for any extent."
                )
            ranges.append((int(ends[0]), int(ends[1])))
        return cls(tuple(sorted(set(ranges))))

    @property
    def is_any(self) -> bool:
        """Whether every extent will do."""
        return not self.ranges

    @property
    def num_values(self) -> int:
        """How many extents there are, those of overlapping ranges counted once; 0 where any will do."""
        return sum(last - first + 1 for first, last in _merged(self.ranges))

    def __contains__(self, extent: int) -> bool:
        return self.is_any or any(first <= extent <= last for first, last in self.ranges)

    def __and__(self, other: Extents) -> Extents | None:
        """What both allow; None where that is nothing. What has a name in either keeps it.

        >>> Extents.of("1..8") & Extents.of("4|16")
        Extents(ranges=((4, 4),))
        >>> str(Extents.of("6|7|8") & Extents.of("6..8"))
        '6|7|8'
        """
        if self.is_any or other.is_any:
            return other if self.is_any else self
        both = {
            (max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges if max(a, c) <= min(b, d)
        }
        return Extents(tuple(sorted(both))) if both else None

    def values(self) -> Iterator[int]:
        """All of them, ascending.

        >>> list(Extents.of("4|1..2").values())
        [1, 2, 4]
        """
        for first, last in _merged(self.ranges):
            yield from range(first, last + 1)

    def __str__(self) -> str:
        if self.is_any:
            return ANY
        return "|".join(str(first) if first == last else f"{first}..{last}" for first, last in self.ranges)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def canonical_axis(axis: Axis) -> Axis:
    """A number where an axis is fixed, else the text of its extents.

    Raises:
        UsageError: as for `Extents.of`.

    >>> canonical_axis("8"), canonical_axis("2|1..2")
    (8, '1..2|2')
    """
    if isinstance(axis, int):
        return axis
    extents = Extents.of(axis)
    return next(extents.values()) if extents.num_values == 1 else str(extents)


def axes_text(axes: Sequence[Axis | None]) -> str:
    """Axes as people write them; unknown ones are anything.

    >>> axes_text((1, "1..8", None)), axes_text(())
    ('1x1..8x?', 'scalar')
    """
    return "x".join(ANY if axis is None else str(axis) for axis in axes) or SCALAR


def fixed_shape(axes: Sequence[Axis]) -> tuple[int, ...] | None:
    """The shape, if each of its axes is a number.

    >>> fixed_shape((1, 3)), fixed_shape((1, "1..8"))
    ((1, 3), None)
    """
    numbers = tuple(axis for axis in axes if isinstance(axis, int))
    return numbers if len(numbers) == len(axes) else None


def _merged(ranges: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """The same extents as ranges that do not overlap."""
    begun: tuple[int, int] | None = None
    for first, last in sorted(ranges):
        if begun is not None and first <= begun[1] + 1:
            begun = begun[0], max(begun[1], last)
            continue
        if begun is not None:
            yield begun
        begun = first, last
    if begun is not None:
        yield begun
