"""Blocks of a group's result, and what each computes: blocks that differ only in their place share code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tilewright.ir.fuse import NestGroup
from tilewright.ir.nest import Nest, Operand, operands_of
from tilewright.ir.region import Region
from tilewright.ir.restrict import Part, restrict
from tilewright.targets.cpu.kernel import Layout, OperandKey

RESULT: OperandKey = ("output", 0)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Extents of a block of the result, by logical axis; the last blocks along an axis may be smaller."""

    block: tuple[int, ...]

    def regions(self, shape: Sequence[int]) -> Iterator[Region]:
        """Every block of a result of this shape, in order."""
        cuts = [
            [(start, min(start + size, extent)) for start in range(0, extent, size)]
            for extent, size in zip(shape, self.block, strict=True)
        ]
        yield from product(*cuts)

    def num_blocks(self, shape: Sequence[int]) -> int:
        """How many."""
        count = 1
        for extent, size in zip(shape, self.block, strict=True):
            count *= -(-extent // size)
        return count


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Code that several blocks share: the part that the first of them computes."""

    part: Part
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockedWork:
    """Variants, and for every block its variant and the starts of its windows."""

    variants: tuple[Variant, ...]
    blocks: tuple[tuple[int, Part], ...]


def cut(group: NestGroup, blocking: Blocking, max_variants: int) -> BlockedWork | None:
    """What every block of the group's only result computes.

    None where blocks are not nests on windows, or would need more than `max_variants` kinds of code.
    """
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    variants: dict[str, int] = {}
    made: list[Variant] = []
    blocks: list[tuple[int, Part]] = []
    for region in blocking.regions(group.outputs[0].shape):
        part = restrict(group.nests, {RESULT: region}, constants)
        if part is None:
            return None
        key = _text(part.nests)
        if key not in variants:
            if len(variants) == max_variants:
                return None
            variants[key] = len(variants)
            made.append(Variant(part, tuple(operands_of(part.nests))))
        blocks.append((variants[key], part))
    return BlockedWork(tuple(made), tuple(blocks))


def _text(nests: Sequence[Nest]) -> str:
    shapes = [(o.key, o.shape) for o in operands_of(nests)]
    tables = [i for n in nests for a in (*n.reads, n.write) for i in a.index]
    return "\n".join([*map(str, nests), str(shapes), str(tables)])


def window_layout(layout: Layout, shape: Sequence[int], window: Region) -> Layout:
    """How a window of a tensor lies in memory: as a tensor of its own where its neighbours are as near."""
    extents = [stop - start for start, stop in window]
    strides = layout.strides(shape)
    dense = Layout(layout.order)
    if all(e == 1 or s == d for e, s, d in zip(extents, strides, dense.strides(extents), strict=True)):
        return dense
    return Layout(layout.order, tuple(strides))


def start_of(layout: Layout, shape: Sequence[int], window: Region) -> int:
    """Elements from the first of the tensor to the first of the window."""
    return sum(stride * start for stride, (start, _) in zip(layout.strides(shape), window, strict=True))
