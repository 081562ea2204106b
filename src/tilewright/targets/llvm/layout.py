"""Where elements of operands lie, and a generator's refusal: what kernels of every target are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.records import dataclass

OperandKey = tuple[str, int]  # Operand.key: (kind, position)

REPORT_BYTES = 16
"""Of what a kernel notes for one of its checks of indices: the smallest and the largest that lies outside."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory: its axes from outermost to innermost, dense unless `steps` says otherwise.

    `steps` are the elements between neighbours along each axis of a tensor that is a window of another.

    >>> Layout((0, 2, 3, 1)).strides((1, 8, 5, 5))  # NCHW stored as NHWC
    (200, 1, 40, 8)
    """

    order: tuple[int, ...]
    steps: tuple[int, ...] | None = None

    @classmethod
    def row_major(cls, rank: int) -> Layout:
        """The layout of the logical shape itself."""
        return cls(tuple(range(rank)))

    @property
    def is_row_major(self) -> bool:
        """Whether elements lie in logical order. Accesses with a `view` need this."""
        return self.steps is None and self.order == tuple(range(len(self.order)))

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Elements between neighbours along each logical axis."""
        if self.steps is not None:
            return self.steps
        strides = [0] * len(shape)
        step = 1
        for axis in reversed(self.order):
            strides[axis] = step
            step *= shape[axis]
        return tuple(strides)


Layouts = Mapping[OperandKey, Layout]


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """Indices that are data along one axis of what a node of the group reads or writes."""

    node: int
    axis: int
    extent: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A generator's refusal, with the reason that `explain` prints."""

    reason: str
