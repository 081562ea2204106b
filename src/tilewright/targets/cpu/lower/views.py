"""Tensors that are windows of other tensors: concatenations and slices that copy nothing.

A copy nest can be left out when its source is computed where the copy would put it (an operand of a
concatenation, written into its slice), or when its target is only a strided look at its source (a slice,
a split). Both need the contiguous axis to stay contiguous: else copying once is cheaper than reading
strided again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilewright.ir.expr import Read
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Value
from tilewright.ir.nest import Access, Affine, Nest, Operand
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.llvm.addresses import looping, walk


@dataclass(frozen=True, slots=True)
class View:
    """A tensor inside another's memory: `offset` elements from its start, `steps` elements along an axis."""

    parent: Tensor
    offset: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CopyNest:
    """A nest that moves every element of one box: `source` and `target` are affine in the same dims."""

    source: Tensor
    target: Tensor
    source_access: Access
    target_access: Access
    extents: Mapping[str, int]


# The tensor behind an operand of a group (None for tables).
TensorOf = Callable[[Operand], Tensor | None]
Layouts = Mapping[Tensor, Layout]


def find_views(
    groups: Sequence[tuple[NestGroup, TensorOf]], layouts: Layouts, fixed: frozenset[Tensor]
) -> dict[Tensor, View]:
    """Views for as many copies as possible; tensors in `fixed` keep memory of their own.

    Readers come first: a concatenation is placed before its operands, so that nested ones share one buffer.
    """
    search = _Search(layouts, fixed)
    for group, tensor_of in reversed(groups):
        parts_of: dict[Tensor, list[CopyNest]] = {}
        writes_of: dict[Tensor | None, list[Nest]] = {}
        for nest in group.nests:
            writes_of.setdefault(tensor_of(nest.write.operand), []).append(nest)
            copy = _copy_of(nest, tensor_of)
            if copy is not None:
                parts_of.setdefault(copy.target, []).append(copy)
        written = set(writes_of)
        for target, parts in parts_of.items():
            writes = writes_of[target]
            # More writes than elements: some are written twice, and which comes last matters.
            if len(parts) < 2 or sum(map(_num_written, writes)) != writes[0].write.operand.num_elements:
                continue
            if len(parts) < len(writes) or not search.place_whole(target, parts):
                search.place_parts(parts, written)
    for group, tensor_of in groups:
        num_writes = Counter(tensor_of(nest.write.operand) for nest in group.nests)
        for nest in group.nests:
            copy = _copy_of(nest, tensor_of)
            if copy is not None and num_writes[copy.target] == 1:
                search.look_at_source(copy)
    return search.views


def _copy_of(nest: Nest, tensor_of: TensorOf) -> CopyNest | None:
    """The nest as a copy of equal types between different tensors, or None."""
    if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
        return None
    (read,) = nest.reads
    source, target = tensor_of(read.operand), tensor_of(nest.write.operand)
    if source is None or target is None or source == target:
        return None
    if read.operand.dtype is not nest.write.operand.dtype or read.fill is not None:
        return None
    if read.view is not None or nest.write.view is not None:
        return None
    if not all(isinstance(i, Affine) for i in (*read.index, *nest.write.index)):
        return None
    return CopyNest(source, target, read, nest.write, nest.extents)


def _num_written(nest: Nest) -> int:
    return prod(d.extent for d in nest.parallel_dims)


class _Search:
    def __init__(self, layouts: Layouts, fixed: frozenset[Tensor]) -> None:
        self._layouts = layouts
        self._fixed = fixed
        self.views: dict[Tensor, View] = {}

    def place_whole(self, target: Tensor, parts: Sequence[CopyNest]) -> bool:
        """Make `target` a view if all its parts lie in one buffer already, where it would put them."""
        if target in self._fixed or target in self.views:
            return False
        first = self.views.get(parts[0].source)
        if first is None:
            return False
        steps = self._target_steps(parts[0], first)
        if steps is None:
            return False
        inside = sum(s * i.offset for s, i in zip(steps, _affine(parts[0].target_access), strict=True))
        start = first.offset + _start(parts[0].source_access, first.steps) - inside
        view = View(first.parent, start, steps)
        for part in parts:
            found = self.views.get(part.source)
            if found is None or found.parent != view.parent:
                return False
            reads = _walk(part.source_access, found.steps, part.extents, found.offset)
            if reads != _walk(part.target_access, view.steps, part.extents, view.offset):
                return False
        self.views[target] = view
        return True

    def _target_steps(self, part: CopyNest, source: View) -> tuple[int, ...] | None:
        """Steps of the target's axes if it lies around `source` in the same memory."""
        axis_of = _axis_by_dim(part.source_access, part.extents)
        if axis_of is None:
            return None
        steps: list[int] = []
        for axis, index in enumerate(_affine(part.target_access)):
            moving = [d for d, c in index.terms if part.extents[d] > 1]
            if not moving:
                # Nothing moves along this axis; any step does if the axis has one element.
                if part.target_access.shape[axis] != 1:
                    return None
                steps.append(0)
            elif len(moving) == 1 and index.coefficient(moving[0]) == 1 and moving[0] in axis_of:
                steps.append(source.steps[axis_of[moving[0]]])
            else:
                return None
        return tuple(steps)

    def place_parts(self, parts: Sequence[CopyNest], written: set[Tensor | None]) -> None:
        """Let the sources of a concatenation be computed inside the target."""
        for part in parts:
            source = part.source
            if source in self._fixed or source in self.views or source in written:
                continue
            axis_of = _axis_by_dim(part.source_access, part.extents)
            if axis_of is None or not _covers(part.source_access, axis_of, part.extents):
                continue
            parent, offset, steps = self._memory_of(part.target, part.target_access.shape)
            moved, _ = _walk(part.target_access, steps, part.extents, 0)
            shape = part.source_access.shape
            dim_of = {axis: dim for dim, axis in axis_of.items()}
            own = tuple(moved.get(dim_of.get(axis, ""), 0) for axis in range(len(shape)))
            if self._stays_contiguous(source, shape, own):
                start = offset + _start(part.target_access, steps)
                self.views[source] = View(parent, start, own)

    def look_at_source(self, copy: CopyNest) -> None:
        """Let a slice be a strided look at the tensor it is taken from."""
        target = copy.target
        if target in self._fixed or target in self.views:
            return
        if isinstance(copy.source, Value) and copy.source.is_constant:
            return
        axis_of = _axis_by_dim(copy.target_access, copy.extents)
        if axis_of is None or not _covers(copy.target_access, axis_of, copy.extents):
            return
        parent, offset, steps = self._memory_of(copy.source, copy.source_access.shape)
        if parent == target:
            return
        moved, _ = _walk(copy.source_access, steps, copy.extents, 0)
        dim_of = {axis: dim for dim, axis in axis_of.items()}
        shape = copy.target_access.shape
        own = tuple(moved.get(dim_of.get(axis, ""), 0) for axis in range(len(shape)))
        if all(s > 0 for s, e in zip(own, shape, strict=True) if e > 1) and self._stays_contiguous(
            target, shape, own
        ):
            self.views[target] = View(parent, offset + _start(copy.source_access, steps), own)

    def _memory_of(self, tensor: Tensor, shape: Sequence[int]) -> tuple[Tensor, int, tuple[int, ...]]:
        view = self.views.get(tensor)
        if view is not None:
            return view.parent, view.offset, view.steps
        return tensor, 0, self._layout(tensor, len(shape)).strides(shape)

    def _layout(self, tensor: Tensor, rank: int) -> Layout:
        return self._layouts.get(tensor, Layout.row_major(rank))

    def _stays_contiguous(self, tensor: Tensor, shape: Sequence[int], steps: Sequence[int]) -> bool:
        """Whether the axis that is contiguous in the tensor's own layout is so in the view."""
        order = self._layout(tensor, len(shape)).order
        inner = next((axis for axis in reversed(order) if shape[axis] > 1), None)
        return inner is not None and steps[inner] == 1


def _affine(access: Access) -> list[Affine]:
    return [i for i in access.index if isinstance(i, Affine)]


def _start(access: Access, steps: Sequence[int]) -> int:
    return sum(s * i.offset for s, i in zip(steps, _affine(access), strict=True))


def _walk(
    access: Access, steps: Sequence[int], extents: Mapping[str, int], base: int
) -> tuple[dict[str, int], int]:
    """Elements moved per dim, and the first element."""
    found = walk(access.index, steps)
    assert found is not None
    return looping(found[0], extents), base + found[1]


def _axis_by_dim(access: Access, extents: Mapping[str, int]) -> dict[str, int] | None:
    """The axis each dim walks along, if every axis is walked by at most one dim and with coefficient one."""
    result: dict[str, int] = {}
    for axis, index in enumerate(_affine(access)):
        moving = [(d, c) for d, c in index.terms if extents[d] > 1]
        if len(moving) > 1 or any(c != 1 or d in result for d, c in moving):
            return None
        for dim, _ in moving:
            result[dim] = axis
    return result


def _covers(access: Access, axis_of: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether the access visits every element of its tensor."""
    walked = {axis: extents[dim] for dim, axis in axis_of.items()}
    whole = all(walked.get(axis, 1) == extent for axis, extent in enumerate(access.shape))
    varying = {d for d, e in extents.items() if e > 1}
    return whole and varying == set(axis_of) and all(i.offset == 0 for i in _affine(access))
