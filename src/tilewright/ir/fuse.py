"""Loop nests of a subgraph, composed: what its nodes compute together, with fewer passes over memory.

`fuse_nodes` numbers the operands of all nodes within the group and then substitutes nests into each
other where that changes nothing but the traffic:

* forward: an element-wise nest that reads another nest's result at exactly the element just computed
  becomes that nest's `finish` (bias, activation, residual add, the write of a concatenation slice);
* backward: an element-wise nest is substituted into the one nest that reads it, through any affine
  access (transposes and slices cost nothing then; arithmetic only where nothing is computed twice).

Both work on accesses alone and know no operator. Between operators of a half type the composed nest keeps the
precision it computes in; a half value that leaves its type (a cast, a comparison) is rounded first.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.ir.expr import FUNCTIONS, Acc, Call, Expr, Iter, Read, cast, reads_of, substitute
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import (
    Access,
    Affine,
    Index,
    Indirect,
    Lookup,
    Nest,
    Nests,
    Opaque,
    Operand,
    OperandKind,
    Stepwise,
    affine,
)
from tilewright.ir.ops import describe
from tilewright.progress import checkpoint
from tilewright.records import dataclass

OperandKey = tuple[str, int]

MAX_FUSED_FLOP = 1024
"""Operations, weighted as in `FUNCTIONS`, of one element of a composed nest."""
MAX_FUSED_READS = 64
"""Tensors that a composed nest reads."""


@dataclass(frozen=True, slots=True, eq=False)
class NestGroup:
    """Nests in execution order; operand kinds index `inputs`, `outputs`, `locals` and `tables`.

    `local_values` are the values of the graph that the locals hold, None for an operator's own temporaries.
    """

    nests: tuple[Nest, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    locals: tuple[Operand, ...]
    tables: tuple[Operand, ...]
    local_values: tuple[Value | None, ...] = ()


def fuse_nodes(nodes: Sequence[Node], outputs: Sequence[Value]) -> NestGroup | Opaque:
    """Compose the nests of `nodes` (in topological order) into one group that produces `outputs`.

    Opaque if any node is.
    """
    numbered = _number_operands(nodes, outputs)
    if isinstance(numbered, Opaque):
        return numbered
    nests = _drop_dead(_compose(numbered.nests))
    return _renumber_locals(replace(numbered, nests=tuple(nests)))


def steps_group(node: Node) -> NestGroup:
    """The nests of all steps of a node that works step by step, under a group's names."""
    description = describe(node)
    assert isinstance(description, Stepwise)
    return _numbered([(node, description.nests)], tuple(node.results()))


class FusedNodes:
    """`fuse_nodes`, which remembers: pricing, joining and lowering a graph's nodes ask for the same groups.

    The graph must not change meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Node, ...], tuple[Value, ...]], NestGroup | Opaque] = {}

    def __call__(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> NestGroup | Opaque:
        """The group of these nodes."""
        key = tuple(nodes), tuple(outputs)
        if key not in self._known:
            self._known[key] = fuse_nodes(nodes, outputs)
        return self._known[key]


def _number_operands(nodes: Sequence[Node], outputs: Sequence[Value]) -> NestGroup | Opaque:
    described: list[tuple[Node, Nests]] = []
    for node in nodes:
        description = describe(node)
        if isinstance(description, Opaque):
            return description
        described.append((node, description))
    return _numbered(described, outputs)


def _numbered(described: Sequence[tuple[Node, Nests]], outputs: Sequence[Value]) -> NestGroup:
    produced = {value for node, _ in described for value in node.results()}
    operands: dict[Value, Operand] = {
        value: Operand("output", position, value.dtype, value.shape) for position, value in enumerate(outputs)
    }
    inputs: list[Value] = []
    locals_: list[Operand] = []
    tables: list[Operand] = []
    nests: list[Nest] = []

    def group_operand(value: Value) -> Operand:
        if value not in operands:
            if value in produced:
                operands[value] = Operand("local", len(locals_), value.dtype, value.shape)
                locals_.append(operands[value])
            else:
                operands[value] = Operand("input", len(inputs), value.dtype, value.shape)
                inputs.append(value)
        return operands[value]

    for number, (node, description) in enumerate(described):
        own: dict[OperandKey, Operand] = {}

        def translated(operand: Operand, node: Node = node, own: dict[OperandKey, Operand] = own) -> Operand:
            if operand.kind == "input":
                return group_operand(node.require(operand.position))
            if operand.kind == "output":
                value = node.outputs[operand.position]
                if value is not None:
                    return group_operand(value)
            if operand.key not in own:
                target = tables if operand.kind == "table" else locals_
                kind: OperandKind = "table" if operand.kind == "table" else "local"
                own[operand.key] = Operand(kind, len(target), operand.dtype, operand.shape, operand.data)
                target.append(own[operand.key])
            return own[operand.key]

        for nest in description:
            *reads, write = (
                replace(a, operand=translated(a.operand), index=_indices_of(a, number))
                for a in (*nest.reads, nest.write)
            )
            nests.append(replace(nest, reads=tuple(reads), write=write))
    held = {operand.key: value for value, operand in operands.items()}
    return NestGroup(
        tuple(nests),
        tuple(inputs),
        tuple(outputs),
        tuple(locals_),
        tuple(tables),
        tuple(held.get(operand.key) for operand in locals_),
    )


def _indices_of(access: Access, number: int) -> tuple[Index, ...]:
    """The indices of an access, those that are data with the number of their node in the group."""
    if not number:
        return access.index
    return tuple(
        replace(i, node=number) if isinstance(i, Indirect) and i.node is not None else i for i in access.index
    )


def _compose(nests: Sequence[Nest]) -> list[Nest]:
    """Substitute nests into each other until nothing more fits; each success removes one nest.

    Always the first nest that fits goes first. After a success only those are tried again whose reader, or
    number of readers, has changed: each is tried about as often as its reader grows.
    """
    table = _Table(nests)
    todo = list(range(len(nests)))
    queued = set(todo)
    while todo:
        checkpoint()
        position = heapq.heappop(todo)
        queued.discard(position)
        reader = table.only_reader(position)
        if reader is None:
            continue
        producer, consumer = table.nests[position], table.nests[reader]
        if table.writes_between(position, reader) or _loses_rounding(producer, consumer):
            continue
        if table.is_large(position, reader):
            continue
        merged = fuse_forward(producer, consumer) or fuse_backward(producer, consumer)
        if merged is None:
            continue
        affected = (reader, *table.producers(position), *table.producers(reader))
        table.merge(position, reader, merged)
        for again in affected:
            if again not in queued:
                queued.add(again)
                heapq.heappush(todo, again)
    return [table.nests[position] for position in sorted(table.nests)]


class _Table:
    """Nests by position, and the writers and readers of each operand."""

    def __init__(self, nests: Sequence[Nest]) -> None:
        self.nests = dict(enumerate(nests))
        self._cost_flop = {position: _cost_flop(nest) for position, nest in self.nests.items()}
        self._writers: dict[OperandKey, list[int]] = {}
        self._readers: dict[OperandKey, dict[int, None]] = {}
        for position, nest in self.nests.items():
            self._writers.setdefault(nest.write.operand.key, []).append(position)
            for access in nest.reads:
                self._readers.setdefault(access.operand.key, {})[position] = None

    def only_reader(self, position: int) -> int | None:
        """The nest that alone reads what alone this nest writes, if the value is not wanted otherwise."""
        nest = self.nests.get(position)
        if nest is None or nest.write.operand.kind != "local":
            return None
        key = nest.write.operand.key
        readers = self._readers.get(key, {})
        return next(iter(readers)) if len(readers) == 1 and len(self._writers[key]) == 1 else None

    def writes_between(self, first: int, last: int) -> bool:
        """Whether anything that `first` reads is written before `last`, so that it cannot move there."""
        for access in self.nests[first].reads:
            writers = self._writers.get(access.operand.key, [])
            after = bisect.bisect_right(writers, first)
            if after < len(writers) and writers[after] < last:
                return True
        return False

    def is_large(self, first: int, last: int) -> bool:
        """Whether two nests together are more than one kernel should compute."""
        reads = (*self.nests[first].reads, *self.nests[last].reads)
        if len(reads) > MAX_FUSED_READS and len({a.operand.key for a in reads}) > MAX_FUSED_READS:
            return True
        return self._cost_flop[first] + self._cost_flop[last] > MAX_FUSED_FLOP

    def merge(self, first: int, last: int, merged: Nest) -> None:
        """Put `merged` where `last` was, and remove `first`."""
        for position in (first, last):
            for access in self.nests[position].reads:
                self._readers[access.operand.key].pop(position, None)
        del self._writers[self.nests.pop(first).write.operand.key]
        self.nests[last] = merged
        for access in merged.reads:
            self._readers[access.operand.key][last] = None
        self._cost_flop[last] += self._cost_flop.pop(first)

    def producers(self, position: int) -> list[int]:
        """The nests that write what this one reads."""
        keys = dict.fromkeys(a.operand.key for a in self.nests[position].reads)
        return [writer for key in keys for writer in self._writers.get(key, []) if writer < position]


def _cost_flop(nest: Nest) -> int:
    """Operations of one element, each part of the expressions once."""
    return sum(FUNCTIONS[p.function].cost_flop for p in nest.parts() if isinstance(p, Call))


def _loses_rounding(producer: Nest, consumer: Nest) -> bool:
    """Whether a computed half value would become one of another type without having been rounded."""
    dtype = producer.write.operand.dtype
    if dtype.compute is dtype or consumer.write.operand.dtype is dtype:
        return False
    is_copy = isinstance(producer.body, Read) and producer.combine is None
    return not (is_copy and producer.reads[0].operand.dtype is dtype)


def fuse_forward(producer: Nest, consumer: Nest) -> Nest | None:
    """`consumer` as the epilogue of `producer`, or None where its reads are not the element just made."""
    if consumer.combine is not None:
        return None
    renamed = _same_element(producer, consumer)
    if renamed is None:
        return None
    target = producer.write.operand.key
    if any(isinstance(i, Indirect) for a in consumer.reads for i in a.index) or _iterates(consumer):
        return None
    moved = {i: _substitute_access(a, renamed) for i, a in enumerate(consumer.reads)}
    write = _substitute_access(consumer.write, renamed)
    if write is None:
        return None
    reads = list(producer.reads)
    known = {_place(a): i for i, a in reversed(list(enumerate(reads)))}
    number: dict[int, int] = {}
    for index, access in moved.items():
        if access is None:
            return None
        if access.operand.key != target:
            number[index] = known.setdefault(_place(access), len(reads))
            if number[index] == len(reads):
                reads.append(access)
    value: Expr
    if producer.combine is None:
        value = producer.body
    else:
        value = producer.finish if producer.finish is not None else Acc(producer.body.result)

    def translate(read: Read) -> Expr:
        return Read(number[read.index], read.dtype) if read.index in number else cast(value, read.dtype)

    body = substitute(consumer.body, translate)
    if producer.combine is None:
        return Nest(producer.dims, tuple(reads), write, body)
    return replace(producer, reads=tuple(reads), write=write, finish=body)


def _same_element(producer: Nest, consumer: Nest) -> dict[str, Affine] | None:
    """For each consumer dim the producer's index, if every read of the result is of the element just made."""
    target = producer.write.operand.key
    written = producer.write
    accesses = [a for a in consumer.reads if a.operand.key == target]
    renamed: dict[str, Affine] = {}
    extents, producer_extents = consumer.extents, producer.extents
    for access in accesses:
        if access.fill is not None or access.shape != written.shape:
            return None
        for ours, theirs in zip(access.index, written.index, strict=True):
            mapped = _plain_dim(ours, extents)
            if mapped is None or not isinstance(theirs, Affine):
                return None
            if mapped == "":
                if theirs.bounds(producer_extents) != (0, 0):
                    return None
                continue
            if theirs.bounds(producer_extents) != (0, extents[mapped] - 1):
                return None
            if renamed.setdefault(mapped, theirs) != theirs:
                return None
    # A consumer dim that does not select the element would read it again and again.
    for dim in consumer.dims:
        if dim.name not in renamed:
            if dim.extent != 1:
                return None
            renamed[dim.name] = affine()
    count = 1
    for dim in producer.parallel_dims:
        count *= dim.extent
    return renamed if count == consumer.num_iterations else None


def fuse_backward(producer: Nest, consumer: Nest) -> Nest | None:
    """`producer` substituted into `consumer`, or None where it would be computed more often than now."""
    if producer.combine is not None or _iterates(producer):
        return None
    by_dim = _indices_by_dim(producer)
    if by_dim is None:
        return None
    target = producer.write.operand.key
    accesses = [(i, a) for i, a in enumerate(consumer.reads) if a.operand.key == target]
    if any(isinstance(i, Indirect) for a in producer.reads for i in a.index):
        return None
    is_copy = isinstance(producer.body, Read) and len(producer.reads) == 1
    if not is_copy and any(set(a.dims()) != _varying(consumer) for _, a in accesses):
        return None
    if not is_copy and (len(accesses) > 1 or accesses[0][0] in _indirect_reads(consumer)):
        return None
    reads = list(consumer.reads)
    # Reductions keep reads apart: what is summed is recognised by them.
    known = {_place(a): i for i, a in enumerate(reads)} if consumer.combine is None else {}
    replacements: dict[int, Expr] = {}
    for position, access in accesses:
        if access.shape != producer.write.shape:
            return None
        if access.fill is not None and not (is_copy and _is_permutation(producer)):
            return None
        if access.fill is not None and _leaves_dropped_axes(access, by_dim, consumer.extents):
            return None
        if _is_checked_on_dropped_axes(access, by_dim):
            return None
        substitution = {dim: access.index[axis] for dim, axis in by_dim.items()}
        moved: dict[int, Expr] = {}
        for index, read in enumerate(producer.reads):
            composed = _substitute_access(read, substitution)
            if composed is None:
                return None
            if access.fill is not None:
                composed = replace(composed, fill=access.fill)
            found = known.get(_place(composed)) if consumer.combine is None else None
            if found is None:
                if not moved:
                    reads[position], found = composed, position
                else:
                    reads.append(composed)
                    found = len(reads) - 1
                if consumer.combine is None:
                    known[_place(composed)] = found
            moved[index] = Read(found, read.operand.dtype.compute)
        replacements[position] = substitute(producer.body, partial(_moved_read, moved))

    def translate(read: Read) -> Expr:
        return cast(replacements[read.index], read.dtype) if read.index in replacements else read

    merged = replace(
        consumer,
        reads=tuple(reads),
        body=substitute(consumer.body, translate),
        init=None if consumer.init is None else substitute(consumer.init, translate),
        finish=None if consumer.finish is None else substitute(consumer.finish, translate),
    )
    return _without_unused_reads(merged)


def _leaves_dropped_axes(access: Access, by_dim: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether a padded access goes outside along an axis of one element, which substitution forgets."""
    for axis, index in enumerate(access.index):
        if axis not in by_dim.values() and not (
            isinstance(index, Affine) and index.bounds(extents) == (0, 0)
        ):
            return True
    return False


def _is_checked_on_dropped_axes(access: Access, by_dim: Mapping[str, int]) -> bool:
    """Whether an index that is data, and must be looked at, stands on an axis that substitution forgets."""
    return any(
        isinstance(index, Indirect) and index.node is not None and axis not in by_dim.values()
        for axis, index in enumerate(access.index)
    )


def _place(access: Access) -> Hashable:
    """What decides the value of a read."""
    return access.operand.key, access.index, access.view, repr(access.fill)


def _moved_read(moved: Mapping[int, Expr], read: Read) -> Expr:
    return moved[read.index]


def _without_unused_reads(nest: Nest) -> Nest:
    """Drop reads that no expression and no indirect index mentions."""
    used = reads_of(nest.body, nest.init, nest.finish) | _indirect_reads(nest)
    if len(used) == len(nest.reads):
        return nest
    number = {old: new for new, old in enumerate(sorted(used))}

    def renumbered(access: Access) -> Access:
        index = tuple(replace(i, read=number[i.read]) if isinstance(i, Indirect) else i for i in access.index)
        return replace(access, index=index)

    def translate(read: Read) -> Expr:
        return Read(number[read.index], read.dtype)

    return replace(
        nest,
        reads=tuple(renumbered(a) for i, a in enumerate(nest.reads) if i in used),
        body=substitute(nest.body, translate),
        init=None if nest.init is None else substitute(nest.init, translate),
        finish=None if nest.finish is None else substitute(nest.finish, translate),
    )


def _indirect_reads(nest: Nest) -> set[int]:
    """Reads whose values are indices of other reads."""
    return {i.read for a in nest.reads for i in a.index if isinstance(i, Indirect)}


def _varying(nest: Nest) -> set[str]:
    return {d.name for d in nest.dims if d.extent > 1}


def _iterates(nest: Nest) -> bool:
    """Whether an expression uses loop indices as values (they would need translating, which we decline)."""
    return any(isinstance(part, Iter) for part in nest.parts())


def _plain_dim(index: Index, extents: Mapping[str, int]) -> str | None:
    """The dim if the index is just that dim, "" if it is always 0, None otherwise."""
    if not isinstance(index, Affine):
        return None
    terms = [(name, c) for name, c in index.terms if extents[name] > 1]
    if index.offset != 0 or len(terms) > 1:
        return None
    if not terms:
        return ""
    return terms[0][0] if terms[0][1] == 1 else None


def _indices_by_dim(producer: Nest) -> dict[str, int] | None:
    """Axis of the written tensor that each dim selects, if the nest writes every element once, in place."""
    extents = producer.extents
    axis_of: dict[str, int] = {}
    for axis, index in enumerate(producer.write.index):
        dim = _plain_dim(index, extents)
        if dim is None or dim in axis_of:
            return None
        if dim == "":
            if producer.write.shape[axis] != 1:
                return None
            continue
        if extents[dim] != producer.write.shape[axis]:
            return None
        axis_of[dim] = axis
    return axis_of if set(axis_of) == _varying(producer) else None


def _is_permutation(producer: Nest) -> bool:
    """Whether a copy reads each source element exactly once, in bounds, one dim an axis."""
    (access,) = producer.reads
    dims = [_plain_dim(i, producer.extents) for i in access.index]
    covers = all(
        d is not None and (producer.extents[d] if d else 1) == e
        for d, e in zip(dims, access.shape, strict=True)
    )
    return access.fill is None and covers and {d for d in dims if d} == _varying(producer)


def _substitute_access(access: Access, substitution: Mapping[str, Index]) -> Access | None:
    """The access with each dim replaced by an index expression of another nest."""
    composed: list[Index] = []
    for index in access.index:
        match index:
            case Affine(terms, offset):
                total: list[str | int | tuple[str, int]] = [offset]
                lookup: Lookup | None = None
                for name, c in terms:
                    inner = substitution.get(name, affine())
                    if isinstance(inner, Affine):
                        total.append(c * inner.offset)
                        total.extend((n, c * k) for n, k in inner.terms)
                    elif isinstance(inner, Lookup) and len(terms) == 1:
                        lookup = Lookup(tuple(c * t + offset for t in inner.table), inner.dim)
                    else:
                        return None
                composed.append(lookup if lookup is not None else affine(*total))
            case Lookup(table, dim):
                inner = substitution.get(dim, affine())
                if isinstance(inner, Affine) and not inner.terms:
                    composed.append(affine(table[inner.offset]))
                elif isinstance(inner, Affine) and inner.offset == 0 and [c for _, c in inner.terms] == [1]:
                    composed.append(Lookup(table, inner.terms[0][0]))
                elif isinstance(inner, Lookup):
                    composed.append(Lookup(tuple(table[t] for t in inner.table), inner.dim))
                else:
                    return None
            case Indirect():
                return None
    return replace(access, index=tuple(composed))


def _drop_dead(nests: Sequence[Nest]) -> list[Nest]:
    """Nests whose local result is never read are not computed (optional outputs that are not wanted)."""
    read: set[OperandKey] = set()
    kept: list[Nest] = []
    for nest in reversed(nests):
        if nest.write.operand.kind != "local" or nest.write.operand.key in read:
            kept.append(nest)
            read.update(a.operand.key for a in nest.reads)
    return kept[::-1]


def _renumber_locals(group: NestGroup) -> NestGroup:
    """Number the remaining locals and tables from 0 and drop inputs that are never read."""
    fresh: dict[OperandKey, Operand] = {}
    lists: dict[str, list[Operand]] = {"local": [], "table": []}
    inputs: list[Value] = []

    def renumbered(operand: Operand) -> Operand:
        if operand.kind == "output":
            return operand
        if operand.key not in fresh:
            if operand.kind == "input":
                position = len(inputs)
                inputs.append(group.inputs[operand.position])
            else:
                position = len(lists[operand.kind])
            fresh[operand.key] = replace(operand, position=position)
            if operand.kind != "input":
                lists[operand.kind].append(fresh[operand.key])
        return fresh[operand.key]

    nests = tuple(
        replace(
            nest,
            reads=tuple(replace(a, operand=renumbered(a.operand)) for a in nest.reads),
            write=replace(nest.write, operand=renumbered(nest.write.operand)),
        )
        for nest in group.nests
    )
    return NestGroup(
        nests,
        tuple(inputs),
        group.outputs,
        tuple(lists["local"]),
        tuple(lists["table"]),
        tuple(group.local_values[position] for kind, position in fresh if kind == "local"),
    )
