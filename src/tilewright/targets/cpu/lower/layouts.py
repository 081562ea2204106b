"""Memory layouts for every tensor of a model: which axis is contiguous.

Tensors that nests walk in step, axis by axis, share a layout (a *component*); a component takes the
layout its contractions want: the output channels of a convolution contiguous, and the summed channels of
its input. Nothing here knows convolution: the wish is read off the accesses. Copies that permute axes, or
merge and split them besides, are then made free where one side has no wish of its own. Constants, empty
tensors and operands that are viewed under another shape stay row-major.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tilewright.ir.contraction import contraction_of
from tilewright.ir.expr import Read
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Value
from tilewright.ir.nest import Access, Affine, Indirect, Lookup, Nest, Operand
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.llvm.addresses import walk
from tilewright.targets.llvm.attention import NUM_NESTS, attention_run
from tilewright.tuning import Choice

LAYOUT: Final = "layout"
"""The name of a kernel's choice of the layout of what it makes for other kernels of its subgraph."""
BY_WISH, ROW_MAJOR = Choice(LAYOUT), Choice.of(LAYOUT, row_major=1)

# A tensor of the whole model: a graph value, or a temporary of one group.
Tensor = Value | tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class GroupTensors:
    """The tensors behind a group's operands."""

    index: int
    group: NestGroup

    def tensor(self, operand: Operand) -> Tensor | None:
        """The model-wide tensor of an operand; None for tables."""
        match operand.kind:
            case "input":
                return self.group.inputs[operand.position]
            case "output":
                return self.group.outputs[operand.position]
            case "local":
                return (self.index, operand.position)
        return None


def assign_layouts(groups: Sequence[NestGroup], fixed: frozenset[Value]) -> dict[Tensor, Layout]:
    """A layout for every tensor of the groups that is not row-major; `fixed` tensors and constants are."""
    numbered = [GroupTensors(index, group) for index, group in enumerate(groups)]
    ranks: dict[Tensor, int] = {}
    pinned: set[Tensor] = set(fixed)
    for owner in numbered:
        for operand, access in _accesses(owner.group):
            tensor = owner.tensor(operand)
            if tensor is None:
                continue
            ranks[tensor] = len(operand.shape)
            is_constant = isinstance(tensor, Value) and tensor.is_constant
            if access.view is not None or is_constant or operand.num_elements == 0:
                pinned.add(tensor)
        pinned.update(_grown_caches(owner))
    components = _Components(ranks)
    wishes: dict[Tensor, Counter[int]] = {}
    copies: list[tuple[Tensor, Tensor, tuple[int, ...]]] = []
    reshaping: list[tuple[Tensor, Tensor, tuple[int, ...]]] = []
    for owner in numbered:
        for nest in owner.group.nests:
            _join_aligned(owner, nest, components, pinned)
            _collect_wishes(owner, nest, wishes)
            copy = _permuting_copy(owner, nest)
            if copy is not None:
                copies.append(copy)
            elif (found := _reshaping_copy(owner, nest)) is not None:
                reshaping.append(found)
    layouts = _settle(components, wishes, pinned)
    _free_copies(copies, components, layouts, pinned)
    _free_reshaping(reshaping, components, layouts, pinned)
    return {t: layouts[r] for t in ranks if t not in pinned and (r := components.root(t)) in layouts}


def _grown_caches(owner: GroupTensors) -> Iterator[Tensor]:
    """Keys and values that an attention puts together: they lie as callers gave what they had before.

    What little is new has a layout of its own, in which nothing moves it.
    """
    nests = owner.group.nests
    for number in range(len(nests) - NUM_NESTS):
        run = attention_run(nests, number, grows=True) if nests[number].combine is None else None
        copies = () if run is None else run[:-NUM_NESTS]
        num_parts = Counter(owner.tensor(copy.write.operand) for copy in copies)
        yield from (tensor for tensor, count in num_parts.items() if tensor is not None and count > 1)


class _Components:
    """Union-find over tensors of equal rank, in a fixed order."""

    def __init__(self, ranks: Mapping[Tensor, int]) -> None:
        self._parent: dict[Tensor, Tensor] = {t: t for t in ranks}
        self.ranks = ranks

    def root(self, tensor: Tensor) -> Tensor:
        while self._parent[tensor] is not tensor:
            self._parent[tensor] = self._parent[self._parent[tensor]]
            tensor = self._parent[tensor]
        return tensor

    def join(self, a: Tensor, b: Tensor) -> None:
        self._parent[self.root(b)] = self.root(a)


def _accesses(group: NestGroup) -> Iterator[tuple[Operand, Access]]:
    for nest in group.nests:
        for access in (*nest.reads, nest.write):
            yield access.operand, access


def _axis_dims(access: Access, extents: Mapping[str, int]) -> list[frozenset[str]]:
    """For each axis the varying dims its index depends on."""
    result: list[frozenset[str]] = []
    for index in access.index:
        match index:
            case Affine():
                result.append(frozenset(d for d in index.dims() if extents[d] > 1))
            case Lookup(_, dim):
                result.append(frozenset({dim}))
            case Indirect():
                result.append(frozenset())
    return result


def _join_aligned(owner: GroupTensors, nest: Nest, components: _Components, pinned: set[Tensor]) -> None:
    """Join the written tensor with those read along the same axes."""
    target = owner.tensor(nest.write.operand)
    if target is None or target in pinned or len(nest.write.index) < 3:
        return
    extents = nest.extents
    parallel = {d.name for d in nest.parallel_dims}
    written = _axis_dims(nest.write, extents)
    factors = _factors(nest)
    for position, access in enumerate(nest.reads):
        tensor = owner.tensor(access.operand)
        if tensor is None or tensor in pinned or len(access.index) != len(written):
            continue
        if position in factors and not _is_windowed(nest, factors):
            continue
        read = [dims & parallel for dims in _axis_dims(access, extents)]
        aligned = all(not r or r == w for r, w in zip(read, written, strict=True))
        if aligned and sum(bool(r) for r in read) >= 2:
            components.join(target, tensor)


def _factors(nest: Nest) -> tuple[int, ...]:
    form = contraction_of(nest)
    return () if form is None else form.reads


def _is_windowed(nest: Nest, factors: Sequence[int]) -> bool:
    """Whether some index sums an output dim and a summed dim: a sliding window."""
    roles = {d.name: d.role for d in nest.dims}
    for position in factors:
        for index in nest.reads[position].index:
            if isinstance(index, Affine) and len({roles[d] for d in index.dims()}) == 2:
                return True
    return False


def _collect_wishes(owner: GroupTensors, nest: Nest, wishes: dict[Tensor, Counter[int]]) -> None:
    """The axis a contraction wants contiguous in its output, and in the factor it reads by scalars.

    The output's: the axis indexed by a dim of the constant factor. The input's: the axis of a summed dim
    that no window moves along, else (a sum per channel) the axis the output's wish selects.
    """
    factors = _factors(nest)
    if not factors:
        return
    constants = [
        f for f in factors if isinstance(t := owner.tensor(nest.reads[f].operand), Value) and t.is_constant
    ]
    if len(constants) != 1:
        return
    weight = nest.reads[constants[0]]
    data = nest.reads[factors[0] if constants[0] == factors[1] else factors[1]]
    extents = nest.extents
    weight_dims = frozenset().union(*_axis_dims(weight, extents))
    written = _axis_dims(nest.write, extents)
    read = _axis_dims(data, extents)
    reduce = {d.name for d in nest.reduce_dims}
    target, source = owner.tensor(nest.write.operand), owner.tensor(data.operand)
    work = nest.num_iterations
    own = [axis for axis, dims in enumerate(written) if dims & weight_dims]
    if own and target is not None and len(written) >= 3:
        wishes.setdefault(target, Counter())[own[-1]] += work
    if source is not None and len(read) >= 3:
        summed = [axis for axis, dims in enumerate(read) if dims and dims <= (reduce & weight_dims)]
        shared = [axis for axis, dims in enumerate(read) if dims & weight_dims and not dims & reduce]
        wanted = summed or shared
        if wanted:
            wishes.setdefault(source, Counter())[wanted[-1]] += work


def _settle(
    components: _Components, wishes: Mapping[Tensor, Counter[int]], pinned: set[Tensor]
) -> dict[Tensor, Layout]:
    """The heaviest wish of each component that is not already what row-major gives."""
    votes: dict[Tensor, Counter[int]] = {}
    for tensor, wish in wishes.items():
        if tensor not in pinned:
            votes.setdefault(components.root(tensor), Counter()).update(wish)
    layouts: dict[Tensor, Layout] = {}
    for root, counter in votes.items():
        axis = min(counter, key=lambda a: (-counter[a], -a))
        rank = components.ranks[root]
        layouts[root] = Layout((*(a for a in range(rank) if a != axis), axis))
    return layouts


def _permuting_copy(owner: GroupTensors, nest: Nest) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
    """Source, target and permutation of a transpose: target axis i is source axis permutation[i]."""
    if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
        return None
    source, target = owner.tensor(nest.reads[0].operand), owner.tensor(nest.write.operand)
    access, extents = nest.reads[0], nest.extents
    if source is None or target is None or access.fill is not None:
        return None
    if access.view is not None or nest.write.view is not None or len(access.index) != len(nest.write.index):
        return None
    axis_of: dict[str, int] = {}
    permutation: list[int] = []
    for axis, index in enumerate(access.index):
        if not isinstance(index, Affine) or index.offset or len(index.terms) > 1:
            return None
        for name, c in index.terms:
            if c != 1 or extents[name] != access.shape[axis]:
                return None
            axis_of[name] = axis
    unused = [a for a, e in enumerate(access.shape) if a not in axis_of.values()]
    if any(access.shape[a] != 1 for a in unused):
        return None
    for axis, index in enumerate(nest.write.index):
        if not isinstance(index, Affine) or index.offset or len(index.terms) > 1:
            return None
        if not index.terms:
            if nest.write.shape[axis] != 1 or not unused:
                return None
            permutation.append(unused.pop(0))
        else:
            ((name, c),) = index.terms
            if c != 1 or name not in axis_of:
                return None
            permutation.append(axis_of[name])
    return source, target, tuple(permutation)


def _reshaping_copy(owner: GroupTensors, nest: Nest) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
    """Of a copy one side of which merges axes of the other: that side, the other, and the other's axes in the
    order in which the copy moves nothing if the first side is row-major."""
    if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
        return None
    extents = nest.extents
    (read,) = nest.reads
    for merged, apart in ((nest.write, read), (read, nest.write)):
        steps = _steps_in_row_major(merged)
        axes = _dims_by_axis(apart, extents)
        first, second = owner.tensor(merged.operand), owner.tensor(apart.operand)
        if steps is None or axes is None or first is None or second is None:
            continue
        long = [axis for axis, extent in enumerate(apart.shape) if extent > 1]
        order = sorted(long, key=lambda axis: -steps.get(axes[axis], 0))
        dense = 1
        for axis in reversed(order):
            if steps.get(axes[axis], 0) != dense:
                break
            dense *= apart.shape[axis]
        else:
            if dense == merged.operand.num_elements and order != long:
                return first, second, (*(a for a in range(len(axes)) if a not in long), *order)
    return None


def _steps_in_row_major(access: Access) -> Mapping[str, int] | None:
    """Elements per step of each dim in a row-major tensor of which some axis is walked by several dims."""
    indices = [i for i in access.index if isinstance(i, Affine)]
    plain = access.view is None and access.fill is None and len(indices) == len(access.index)
    if not plain or all(len(i.terms) < 2 for i in indices) or any(i.offset for i in indices):
        return None
    found = walk(indices, Layout.row_major(len(access.shape)).strides(access.shape))
    return None if found is None else found[0]


def _dims_by_axis(access: Access, extents: Mapping[str, int]) -> tuple[str, ...] | None:
    """The dim that walks each axis of a whole tensor, "" along axes of one element."""
    if access.view is not None or access.fill is not None:
        return None
    names: list[str] = []
    for index, extent in zip(access.index, access.shape, strict=True):
        if not isinstance(index, Affine) or index.offset or len(index.terms) > 1:
            return None
        if any(c != 1 or extents[name] != extent for name, c in index.terms) or (
            not index.terms and extent != 1
        ):
            return None
        names.append(index.terms[0][0] if index.terms else "")
    return tuple(names)


def _free_reshaping(
    copies: Sequence[tuple[Tensor, Tensor, tuple[int, ...]]],
    components: _Components,
    layouts: dict[Tensor, Layout],
    pinned: set[Tensor],
) -> None:
    """Give the side whose axes are apart the order in which the copy moves nothing, where neither side has
    a wish."""
    for merged, apart, order in copies:
        root, other = components.root(apart), components.root(merged)
        known = layouts.get(other)
        is_row_major = merged in pinned or known is None or known.is_row_major
        if apart not in pinned and root not in layouts and root != other and is_row_major:
            layouts[root] = Layout(order)
            if merged not in pinned:
                layouts.setdefault(other, Layout.row_major(components.ranks[merged]))


def _free_copies(
    copies: Sequence[tuple[Tensor, Tensor, tuple[int, ...]]],
    components: _Components,
    layouts: dict[Tensor, Layout],
    pinned: set[Tensor],
) -> None:
    """Give one side of each transpose the layout in which it moves nothing, where that side has no wish."""
    free_members = _members_without_pins(components, pinned)
    for source, target, permutation in copies:
        rank = len(permutation)
        from_root, to_root = components.root(source), components.root(target)
        if from_root == to_root:
            continue
        from_layout = Layout.row_major(rank) if source in pinned else layouts.get(from_root)
        to_layout = Layout.row_major(rank) if target in pinned else layouts.get(to_root)
        axis_to = {axis: i for i, axis in enumerate(permutation)}
        if target not in pinned and to_layout is None and to_root in free_members:
            order = (from_layout or Layout.row_major(rank)).order
            layouts[to_root] = Layout(tuple(axis_to[a] for a in order))
            layouts.setdefault(from_root, from_layout or Layout.row_major(rank))
        elif source not in pinned and from_layout is None and from_root in free_members:
            order = (to_layout or Layout.row_major(rank)).order
            layouts[from_root] = Layout(tuple(permutation[a] for a in order))


def _members_without_pins(components: _Components, pinned: set[Tensor]) -> set[Tensor]:
    """Roots of components; pinned tensors were never joined, so every root that is not pinned is free."""
    return {components.root(t) for t in components.ranks if t not in pinned}
