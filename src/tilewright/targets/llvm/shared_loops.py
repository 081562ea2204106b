"""Loops that nests have in common, so that an item of them runs through all the nests.

Softmax, layer normalisation and their like are nests that hand each other temporaries row by row. Loops that
every nest of a run has, and that index the values passed between them in the same place, are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.nest import Access, Affine, Nest
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.targets.llvm.layout import OperandKey
from tilewright.targets.llvm.refs import LinearNest, Ref, map_refs


@dataclass(frozen=True, slots=True)
class SharedLoop:
    """One loop of all nests: its name in each, and the axis it walks in each value passed between them."""

    names: tuple[str, ...]
    extent: int
    axes: Mapping[OperandKey, int]


def form_groups(nests: Sequence[Nest]) -> list[list[int]]:
    """Positions of the nests, cut into runs that share loops; a nest that shares none stands alone."""
    groups: list[list[int]] = []
    for position in range(len(nests)):
        checkpoint()
        if groups and shared_loops([nests[i] for i in (*groups[-1], position)]):
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def passed_values(nests: Sequence[Nest]) -> tuple[OperandKey, ...]:
    """Values that one of the nests writes and one reads."""
    written = {n.write.operand.key for n in nests}
    return tuple(dict.fromkeys(a.operand.key for n in nests for a in n.reads if a.operand.key in written))


def shared_loops(nests: Sequence[Nest]) -> tuple[SharedLoop, ...]:
    """Loops that all nests have in common, outermost of the first nest first."""
    passed = set(passed_values(nests))
    if any(_views_differ(nests, key) for key in passed) or len(nests) < 2:
        return ()
    found = []
    for dim in nests[0].parallel_dims:
        loop = _follow(nests, passed, dim.name, dim.extent)
        if loop is not None and dim.extent > 1:
            found.append(loop)
    return tuple(found)


def accesses_of(nest: Nest, key: OperandKey) -> list[Access]:
    """Where a nest reads or writes an operand."""
    return [a for a in (nest.write, *nest.reads) if a.operand.key == key]


def _views_differ(nests: Sequence[Nest], key: OperandKey) -> bool:
    return len({a.shape for n in nests for a in accesses_of(n, key)}) != 1


def _walks(access: Access, dim: str) -> int | None:
    """The axis whose index is exactly `dim`, if `dim` occurs nowhere else in the access."""
    axis = None
    for position, index in enumerate(access.index):
        if not isinstance(index, Affine):
            return None
        if dim in index.dims():
            if index.terms != ((dim, 1),) or index.offset or axis is not None:
                return None
            axis = position
    return axis


def _follow(nests: Sequence[Nest], passed: set[OperandKey], dim: str, extent: int) -> SharedLoop | None:
    """Which loop of each nest `dim` of the first one is, through the values passed between them."""
    names: dict[int, str] = {0: dim}
    axes: dict[OperandKey, int] = {}
    changed = True
    while changed:
        changed = False
        for position, nest in enumerate(nests):
            for access in (nest.write, *nest.reads):
                key = access.operand.key
                if key not in passed:
                    continue
                if position in names:
                    axis = _walks(access, names[position])
                    if axis is None or axes.setdefault(key, axis) != axis:
                        return None
                elif key in axes:
                    index = access.index[axes[key]]
                    if not isinstance(index, Affine) or len(index.terms) != 1:
                        return None
                    names[position] = index.terms[0][0]
                    changed = True
    for position, nest in enumerate(nests):
        if position not in names:
            return None
        own = {d.name: d for d in nest.parallel_dims}.get(names[position])
        if own is None or own.extent != extent:
            return None
        if names[position] not in nest.write.dims():
            return None
    # Axes that became known late must hold for every access.
    for position, nest in enumerate(nests):
        for access in (nest.write, *nest.reads):
            if access.operand.key in passed and _walks(access, names[position]) != axes.get(
                access.operand.key
            ):
                return None
    return SharedLoop(tuple(names[i] for i in range(len(nests))), extent, axes)


def renamed(nest: LinearNest, mapping: Mapping[str, str]) -> LinearNest:
    """The nest with loops under other names."""
    change = {old: Affine(((new, 1),)) for old, new in mapping.items()}
    dims = [replace(d, name=mapping.get(d.name, d.name)) for d in nest.dims]
    made = map_refs(nest, change, dims)

    def tables(ref: Ref) -> Ref:
        return replace(ref, tables=tuple(replace(t, dim=mapping.get(t.dim, t.dim)) for t in ref.tables))

    return replace(made, refs=tuple(tables(r) for r in made.refs), write=tables(made.write))
