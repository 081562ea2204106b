"""Which tensors may share memory: copies that move nothing, results that are made in place of an operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ir.expr import Read
from tilewright.ir.graph import Value
from tilewright.ir.in_place import reads_where_it_writes
from tilewright.ir.nest import Access, Nest, Operand
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, OperandKey
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.lower.tensors import ModelTensors, Names
from tilewright.targets.llvm.addresses import Walk, access_walk, looping


def make_alias(nest: Nest, names: Names, tensors: ModelTensors) -> bool:
    """Whether the nest copies elements to where they are already; then remember the alias."""
    if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
        return False
    source, target = names.tensor(nest.reads[0].operand), names.tensor(nest.write.operand)
    if source is None or target is None or nest.reads[0].operand.dtype is not nest.write.operand.dtype:
        return False
    if isinstance(source, Value) and source.is_constant:
        return False
    layouts = names.layouts([nest])
    written = _place(nest.write, nest, layouts)
    read = _place(nest.reads[0], nest, layouts)
    if written is None or read is None:
        return False
    if tensors.root(source) == tensors.root(target):
        starts = [tensors.root_offset(t) for t in (source, target)]
        return (read[0], read[1] + starts[0]) == (written[0], written[1] + starts[1])
    if target in tensors.alias or read != written or not tensors.is_dense(source):
        return False
    if nest.num_iterations != nest.write.operand.num_elements:
        return False
    if nest.reads[0].operand.num_elements != nest.write.operand.num_elements:
        return False
    if target in tensors.graph.outputs and tensors.is_given(tensors.root(source)):
        return False
    if names.num_writes(nest.write.operand.key) != 1:
        return False  # what is written over the copy would be written over its source
    tensors.alias[target] = source
    return True


def may_overwrite(nest: Nest, kernel: Kernel, names: Names, tensors: ModelTensors) -> tuple[Tensor, ...]:
    """Operands read only at exactly the element being written: their memory may become the result's.

    Loop nests that reduce, or read another operand across the lanes of the result, may write an element
    twice (blocks of a transpose overlap at the edge), so nothing may lie under their result.
    """
    layouts = names.layouts([nest])
    written = _place(nest.write, nest, layouts)
    passed = {a.key for a in kernel.args if isinstance(a, Operand)}
    if written is None or nest.write.operand.key not in passed:
        return ()
    if kernel.template == "loop-nest" and not _reads_along(nest, written[0], layouts):
        return ()
    result: list[Tensor] = []
    for access in nest.reads:
        tensor = names.tensor(access.operand)
        same = [a for a in nest.reads if a.operand.key == access.operand.key]
        if tensor is None or access.operand.key not in passed:
            continue
        if access.operand.dtype.size_bytes != nest.write.operand.dtype.size_bytes:
            continue
        target = names.tensor(nest.write.operand)
        if target is None or not tensors.is_dense(tensor) or not tensors.is_dense(target):
            continue
        if reads_where_it_writes(nest, same, lambda access: _place(access, nest, layouts)):
            result.append(tensor)
    return tuple(dict.fromkeys(result))


def _place(access: Access, nest: Nest, layouts: Layouts) -> Walk | None:
    """The walk of the dims that loop, for comparing accesses; None if it is not affine or padded."""
    found = None if access.fill is not None else access_walk(access, layouts)
    if found is None or isinstance(found, Declined):
        return None
    return looping(found[0], nest.extents), found[1]


def _reads_along(nest: Nest, written: Mapping[str, int], layouts: Layouts) -> bool:
    """Whether an elementwise nest reads every operand along the dim in which its result is contiguous."""
    if nest.combine is not None:
        return False
    contiguous = [dim for dim, step in written.items() if step == 1]
    for access in nest.reads:
        read = _place(access, nest, layouts)
        if read is None or any(step == 1 and dim not in contiguous for dim, step in read[0].items()):
            return False
    return True


class SharedMemory:
    """Which results of a group one segment writes and another reads, under whatever name."""

    def __init__(self) -> None:
        self._parent: dict[OperandKey, OperandKey] = {}
        self._writers: dict[OperandKey, set[int]] = {}
        self._readers: dict[OperandKey, set[int]] = {}

    def join(self, nest: Nest) -> None:
        """The operands of a copy that moves nothing lie in the same memory."""
        (read,) = nest.reads
        if read.operand.kind != "input":
            source, target = self._root(read.operand.key), self._root(nest.write.operand.key)
            if source != target:
                self._parent[target] = source

    def use(self, nest: Nest, segment: int) -> None:
        """A segment has this nest."""
        self._writers.setdefault(self._root(nest.write.operand.key), set()).add(segment)
        for access in nest.reads:
            self._readers.setdefault(self._root(access.operand.key), set()).add(segment)

    def passed_on(self) -> Iterator[OperandKey]:
        """All names of results that lie between segments."""
        writers, readers = self._by_root(self._writers), self._by_root(self._readers)
        for key in {**self._writers, **self._readers, **self._parent}:
            root = self._root(key)
            if root in writers and root in readers and len(writers[root] | readers[root]) > 1:
                yield key

    def _by_root(self, users: Mapping[OperandKey, set[int]]) -> dict[OperandKey, set[int]]:
        by_root: dict[OperandKey, set[int]] = {}
        for key, segments in users.items():
            by_root.setdefault(self._root(key), set()).update(segments)
        return by_root

    def _root(self, key: OperandKey) -> OperandKey:
        while key in self._parent:
            key = self._parent[key]
        return key
