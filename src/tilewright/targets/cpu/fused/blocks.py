"""Blocks of a group's result, and what each computes: blocks that differ only in their place share code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tilewright.ir.bounds import require_bounded_part
from tilewright.ir.contraction import ContractionForm, contractions
from tilewright.ir.fuse import NestGroup
from tilewright.ir.nest import Affine, Nest, Operand, dim_of, operands_of
from tilewright.ir.region import Region, intersect
from tilewright.ir.restrict import RestrictedNests, restrict
from tilewright.partition.form import Blocking
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Layout, Layouts, OperandKey


def blocked_result(group: NestGroup) -> OperandKey:
    """The result of which blocks are: the last. Blocks of others are what these need of them."""
    return "output", len(group.outputs) - 1


def row_axis(group: NestGroup) -> int | None:
    """The axis of that result along which a run may ask for the first places only; None where it may not.

    Every result must have such an axis: a block that is not asked for makes no part of any.
    """
    axes: dict[OperandKey, set[int | None]] = {}
    for nest in group.nests:
        if nest.write.operand.kind == "output":
            rows = {d.name for d in nest.dims if d.rows is not None}
            along = (axis for axis, index in enumerate(nest.write.index) if dim_of(index) in rows)
            axes.setdefault(nest.write.operand.key, set()).add(next(along, None))
    if any(len(held) > 1 or None in held for held in axes.values()):
        return None
    return next(iter(axes.get(blocked_result(group), ())), None)


@dataclass(frozen=True, slots=True)
class Move:
    """Elements of a temporary that stay: from `source` in the last block's window to `target` in this one."""

    key: OperandKey
    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Code that several blocks share: what stays of the block before, and the part that is then made."""

    part: RestrictedNests
    moves: tuple[Move, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockedWork:
    """Variants, and strip by strip for every block its variant and its part.

    `kept` are the temporaries that stay from block to block.
    """

    variants: tuple[Variant, ...]
    strips: tuple[tuple[tuple[int, RestrictedNests], ...], ...]
    kept: frozenset[OperandKey]


def cut(group: NestGroup, layouts: Layouts, blocking: Blocking, max_variants: int) -> BlockedWork | None:
    """What every block of the group's last result computes.

    Blocks that differ only in which part of the weights they use share code, too. None where blocks are not
    nests on windows, would need more than `max_variants` kinds of code, or would not make each element of the
    other results exactly once.
    """
    result = blocked_result(group)
    whole = whole_constants(group)
    shareable = passed_on(contractions(group.nests)) if blocking.strip > 1 else frozenset()
    numbers: dict[str, int] = {}
    variants: list[Variant] = []
    strips: list[tuple[tuple[int, RestrictedNests], ...]] = []
    for strip in blocking.strips(group.outputs[-1].shape):
        present: dict[OperandKey, Region] = {}
        blocks: list[tuple[int, RestrictedNests]] = []
        for region in strip:
            part = restrict(group.nests, {result: region}, whole, present)
            if part is None:
                return None
            moves = _moves(present, part.windows, layouts)
            if moves is None:
                return None
            key = _text(part.nests, moves)
            if key not in numbers:
                if len(variants) == max_variants:
                    return None
                require_bounded_part(part, present, "the cut into blocks")
                numbers[key] = len(variants)
                variants.append(Variant(part, moves, tuple(operands_of(part.nests))))
            blocks.append((numbers[key], part))
            present.update((k, w) for k, w in part.windows.items() if k in shareable)
        strips.append(tuple(blocks))
    parts = [part for blocks in strips for _, part in blocks]
    if not all(_is_tiled(v.shape, ("output", i), parts) for i, v in enumerate(group.outputs[:-1])):
        return None
    return BlockedWork(tuple(variants), tuple(strips), shareable)


def _is_tiled(shape: Sequence[int], key: OperandKey, parts: Sequence[RestrictedNests]) -> bool:
    """Whether every element of a result lies in the window of exactly one part."""
    windows = [part.windows.get(key) for part in parts]
    distinct = {window for window in windows if window is not None}
    if len(distinct) != len(windows):
        return False
    axes = [sorted({window[axis] for window in distinct}) for axis in range(len(shape))]
    for extent, intervals in zip(shape, axes, strict=True):
        ends = [stop for _, stop in intervals]
        if [start for start, _ in intervals] != [0, *ends[:-1]] or ends[-1] != extent:
            return False
    return len(distinct) == prod(map(len, axes))


def whole_constants(group: NestGroup) -> frozenset[OperandKey]:
    """Constants of which blocks are given all: no window can be said of what is read in another shape, or at
    indices that are data."""
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    return constants & {
        access.operand.key
        for nest in group.nests
        for access in nest.reads
        if access.view is not None or not all(isinstance(i, Affine) for i in access.index)
    }


def passed_on(products: Iterable[ContractionForm]) -> frozenset[OperandKey]:
    """Temporaries that one kernel writes and another reads: sums of products are kernels of their own."""
    nests = [form.nest for form in products]
    return frozenset(a.operand.key for n in nests for a in (*n.reads, n.write) if a.operand.kind == "local")


def _moves(
    present: Mapping[OperandKey, Region], windows: Mapping[OperandKey, Region], layouts: Layouts
) -> tuple[Move, ...] | None:
    """What of the windows is there already, and how it gets to its place; None if not as one piece each."""
    moves: list[Move] = []
    for key, old in present.items():
        new = windows.get(key)
        common = None if new is None else intersect(old, new)
        if new is None or common is None or old == new:
            continue
        order = [a for a in layouts[key].order if old[a] != new[a] or new[a][1] - new[a][0] > 1]
        if any(old[a] != new[a] for a in order[1:]):
            return None
        extents = [stop - start for start, stop in common]
        axis = order[0]
        line = prod(extents) // extents[axis]
        source, target = common[axis][0] - old[axis][0], common[axis][0] - new[axis][0]
        moves.append(Move(key, source * line, target * line, extents[axis] * line))
    return tuple(moves)


def _text(nests: Sequence[Nest], moves: Sequence[Move]) -> str:
    shapes = [(o.key, o.shape) for o in operands_of(nests)]
    tables = [i for n in nests for a in (*n.reads, n.write) for i in a.index]
    return "\n".join([*map(str, nests), str(shapes), str(tables), str(moves)])


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
