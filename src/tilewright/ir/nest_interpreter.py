"""Runs loop nests directly: the meaning of `nest.py`, vectorised with numpy over blocks of iterations.

It exists to be obviously right: code generators and references are compared with it. Beside computing,
it enforces the contract of nests: addresses stay inside unless a fill value is given, types agree,
nothing is read before it is written, and every output element is written exactly once. Only a nest whose
write is addressed by data (`Indirect`) may overwrite what an earlier nest wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.arrays import Array, distinct
from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Read, evaluate, reads_of, substitute
from tilewright.ir.graph import Node
from tilewright.ir.nest import (
    Access,
    Affine,
    Combine,
    Dim,
    Indirect,
    Lookup,
    Nest,
    Opaque,
    Operand,
    Stepwise,
    affine,
    format_access,
    outside_axis,
)
from tilewright.ir.ops.registry import describe

OutputSpec = tuple[DType, tuple[int, ...]]

# Iterations evaluated at once: a few arrays of this many elements are alive at any time.
_BLOCK_ITERATIONS = 1 << 21

_UFUNCS: dict[Combine, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def run_nests(
    nests: Sequence[Nest],
    inputs: Sequence[Array | None],
    outputs: Sequence[OutputSpec | None],
    *,
    name: str = "nests",
) -> list[Array | None]:
    """What the nests write to the outputs (type and shape each; None for an omitted one).

    `name` is the node's, for errors.

    Raises:
        InternalError: the nests break their contract; says which nest and how.
        InputError: an index that is data lies outside its axis.
    """
    return _run(nests, inputs, outputs, name, ())


def run_steps(
    description: Stepwise,
    inputs: Sequence[Array | None],
    outputs: Sequence[OutputSpec | None],
    *,
    name: str = "nests",
) -> list[Array | None]:
    """The same of nests that run step by step.

    Raises:
        InternalError: the nests break their contract; says which nest and how.
    """
    dim, nests = description.dim, description.nests
    stepping = [nest for nest in nests if dim in nest.extents]
    order = [at_step(nest, dim, step) for step in range(description.num_steps) for nest in stepping]
    order += [nest for nest in nests if dim not in nest.extents]
    return _run(order, inputs, outputs, name, tuple(nest.write.operand for nest in nests))


def at_step(nest: Nest, dim: str, step: int) -> Nest:
    """What a nest does in one iteration of one of its dims."""

    def moved(access: Access) -> Access:
        index = tuple(
            affine(*(term for term in i.terms if term[0] != dim), i.offset + step * i.coefficient(dim))
            if isinstance(i, Affine)
            else i
            for i in access.index
        )
        return replace(access, index=index)

    def fixed(expr: Expr | None) -> Expr | None:
        if expr is None:
            return None
        return substitute(expr, iters=lambda i: Const(step, i.result) if i.dim == dim else i)

    body = fixed(nest.body)
    assert body is not None
    return Nest(
        tuple(d for d in nest.dims if d.name != dim),
        tuple(moved(access) for access in nest.reads),
        moved(nest.write),
        body,
        nest.combine,
        fixed(nest.init),
        fixed(nest.finish),
    )


def _run(
    nests: Sequence[Nest],
    inputs: Sequence[Array | None],
    outputs: Sequence[OutputSpec | None],
    name: str,
    made: Sequence[Operand],
) -> list[Array | None]:
    """Memory for what is `made`, which may be read as padding before the first write, and every nest."""
    machine = _Machine(list(inputs), name)
    for operand in made:
        machine.allocate(operand)
    for position, spec in enumerate(outputs):
        if spec is not None:
            machine.allocate(Operand("output", position, *spec))
    for nest in nests:
        machine.run(nest)
    for key, tensor in machine.tensors.items():
        if key[0] == "output" and not tensor.written.all():
            missing = np.argwhere(~tensor.written)[0].tolist()
            raise InternalError(f"output {key[1]}: no nest writes element {missing}")
    return [
        None if spec is None else machine.tensors["output", position].data
        for position, spec in enumerate(outputs)
    ]


def run_described(node: Node, inputs: Sequence[Array | None]) -> list[Array | None]:
    """Outputs of a node through its own nests.

    Raises:
        InternalError: the node is opaque, or its nests break their contract.
        InputError: an index that is data lies outside its axis.
    """
    description = describe(node)
    specs = [None if v is None else (v.dtype, v.shape) for v in node.outputs]
    if isinstance(description, Stepwise):
        return run_steps(description, inputs, specs, name=f"{node.op_type} {node.name!r}")
    if isinstance(description, Opaque):
        raise InternalError(f"{node.op_type} {node.name!r} has no nests: {description.reason}")
    return run_nests(description, inputs, specs, name=f"{node.op_type} {node.name!r}")


@dataclass(slots=True)
class _Tensor:
    data: Array
    written: Array


@dataclass(slots=True)
class _Machine:
    """Memory of one node: its inputs, and the outputs and temporaries its nests write."""

    inputs: list[Array | None]
    name: str
    tensors: dict[tuple[str, int], _Tensor] = field(default_factory=dict)

    def allocate(self, operand: Operand) -> _Tensor:
        tensor = self.tensors.get(operand.key)
        if tensor is None:
            data = np.zeros(operand.shape, operand.dtype.numpy)
            tensor = _Tensor(data, np.zeros(operand.shape, np.bool_))
            self.tensors[operand.key] = tensor
        if tensor.data.shape != operand.shape or tensor.data.dtype != operand.dtype.numpy:
            raise InternalError(f"{operand} disagrees with {tensor.data.dtype}{list(tensor.data.shape)}")
        return tensor

    def source(self, operand: Operand) -> tuple[Array, Array | None]:
        """Data of an operand and, where it is computed here, which elements exist already."""
        if operand.kind == "table":
            assert operand.data is not None, f"{operand} has no data"
            return operand.data, None
        if operand.kind == "input":
            array = self.inputs[operand.position]
            if array is None or array.shape != operand.shape:
                given = "nothing" if array is None else list(array.shape)
                raise InternalError(f"{operand} is read, but given is {given}")
            return array, None
        if operand.key not in self.tensors:
            raise InternalError(f"{operand} is read before any nest writes it")
        tensor = self.tensors[operand.key]
        return tensor.data, tensor.written

    def run(self, nest: Nest) -> None:
        _check_form(nest)
        target = self.allocate(nest.write.operand)
        indirect = any(isinstance(i, Indirect) for i in nest.write.index)
        # Parallel dims come first, so that reductions are over trailing axes.
        order = (*nest.parallel_dims, *nest.reduce_dims)
        num_parallel = len(nest.parallel_dims)
        split = _split(order)
        fresh = np.zeros_like(target.written)
        for outer in itertools.product(*split[:num_parallel]):
            total = self._accumulate(nest, order, outer, split[num_parallel:])
            corner = (*outer, *((0, 1) for _ in nest.reduce_dims))
            block = _Block(self, nest, order, corner)
            if nest.init is not None:
                assert nest.combine is not None
                total = _UFUNCS[nest.combine](block.evaluate(nest.init), total)
            if nest.finish is not None:
                total = block.evaluate(nest.finish, total)
            self._store(nest, block, target, fresh, np.asarray(total), indirect)
        target.written |= fresh

    def _accumulate(
        self,
        nest: Nest,
        order: tuple[Dim, ...],
        outer: tuple[tuple[int, int], ...],
        reduced: Sequence[Sequence[tuple[int, int]]],
    ) -> Array:
        """Body of one parallel block, combined over all reduce dims, which stay as axes of extent 1."""
        if nest.combine is None:
            block = _Block(self, nest, order, outer)
            return np.broadcast_to(block.evaluate(nest.body), block.shape)
        ufunc = _UFUNCS[nest.combine]
        axes = tuple(range(len(outer), len(order)))
        parallel = tuple(stop - start for start, stop in outer)
        dtype = nest.body.result.numpy
        total = np.full((*parallel, *(1 for _ in axes)), _neutral(nest.combine, dtype), dtype)
        for inner in itertools.product(*reduced):
            block = _Block(self, nest, order, (*outer, *inner))
            value = np.broadcast_to(block.evaluate(nest.body), block.shape)
            part = _reduce(ufunc, value, axes) if axes else value
            with np.errstate(all="ignore"):
                total = ufunc(total, part.astype(dtype, copy=False))
        return total

    def _store(
        self, nest: Nest, block: _Block, target: _Tensor, fresh: Array, total: Array, indirect: bool
    ) -> None:
        address, outside = block.address(nest.write)
        if outside is not None and outside.any():
            raise InternalError(f"{nest}: writes outside {list(nest.write.shape)}")
        view = target.data.reshape(nest.write.shape)
        marks = fresh.reshape(nest.write.shape)
        if not indirect:
            self._refuse_overwriting(nest, block, target, marks, address)
        # A scalar has no index arrays, and its one element no axes.
        value = np.broadcast_to(total, block.shape).reshape(block.shape if address else ())
        with np.errstate(all="ignore"):
            view[address] = value.astype(view.dtype, copy=False)
        marks[address] = True

    def _refuse_overwriting(
        self, nest: Nest, block: _Block, target: _Tensor, marks: Array, address: tuple[Array, ...]
    ) -> None:
        flat = np.zeros(block.shape, np.int64)
        if address:
            flat = flat + np.ravel_multi_index(address, nest.write.shape)
        flat = flat.ravel()
        repeated = len(distinct(flat)) != flat.size
        earlier = target.written.ravel()[flat].any() or marks.ravel()[flat].any()
        if repeated or earlier:
            raise InternalError(f"{nest}: writes an element of {format_access(nest.write)} more than once")


@dataclass(slots=True)
class _Block:
    """A box of iterations: one index array per dim, shaped to broadcast over the box."""

    machine: _Machine
    nest: Nest
    order: tuple[Dim, ...]
    ranges: tuple[tuple[int, int], ...]
    loaded: dict[int, Array] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.ranges)

    def counter(self, dim: str) -> Array:
        for axis, (d, (start, stop)) in enumerate(zip(self.order, self.ranges, strict=False)):
            if d.name == dim:
                shape = [1] * len(self.ranges)
                shape[axis] = stop - start
                return np.arange(start, stop, dtype=np.int64).reshape(shape)
        raise InternalError(f"{self.nest}: dim {dim!r} does not exist")

    def evaluate(self, expr: Expr, acc: Array | None = None) -> Array:
        used = reads_of(expr)
        values = [self.load(i) if i in used else None for i in range(len(self.nest.reads))]
        iters = {d.name: self.counter(d.name) for d in self.order[: len(self.ranges)]}
        return np.asarray(evaluate(expr, values, acc, iters))

    def load(self, position: int) -> Array:
        """Values of a read over the box, as an array that broadcasts over it."""
        if position not in self.loaded:
            access = self.nest.reads[position]
            data, written = self.machine.source(access.operand)
            address, outside = self.address(access)
            if written is not None and not self._is_written(written.reshape(access.shape)[address], outside):
                raise InternalError(f"{self.nest}: {format_access(access)} is read before it is written")
            value = data.reshape(access.shape)[address]
            if not address:
                value = np.asarray(value).reshape((1,) * len(self.ranges))
            if outside is not None and outside.any():
                if access.fill is None:
                    raise InternalError(f"{self.nest}: {format_access(access)} leaves {list(access.shape)}")
                value = np.where(outside, np.asarray(access.fill).astype(value.dtype), value)
            self.loaded[position] = value
        return self.loaded[position]

    @staticmethod
    def _is_written(written: Array, outside: Array | None) -> bool:
        """Whether all that is read inside the tensor is there."""
        return bool((written if outside is None else written | outside).all())

    def address(self, access: Access) -> tuple[tuple[Array, ...], Array | None]:
        """Indices clipped to the tensor, and where they were outside (None: the access has no axes)."""
        if len(access.index) != len(access.shape):
            raise InternalError(f"{self.nest}: {format_access(access)} does not index {list(access.shape)}")
        clipped: list[Array] = []
        outside: Array | None = None
        for axis, (index, extent) in enumerate(zip(access.index, access.shape, strict=True)):
            value = self._index(index, axis, extent)
            beyond = (value < 0) | (value >= extent)
            outside = beyond if outside is None else outside | beyond
            clipped.append(np.clip(value, 0, max(0, extent - 1)))
        return tuple(np.broadcast_arrays(*clipped)) if clipped else (), outside

    def _index(self, index: Affine | Lookup | Indirect, axis: int, extent: int) -> Array:
        ones = np.zeros((1,) * len(self.ranges), np.int64)
        match index:
            case Affine(terms, offset):
                value = ones + offset
                for name, coefficient in terms:
                    value = value + coefficient * self.counter(name)
                return value
            case Lookup(table, dim):
                return np.asarray(table, np.int64)[self.counter(dim)]
            case Indirect(read):
                data = self.load(read).astype(np.int64)
                bad = data[(data < -extent) | (data >= extent)]
                if bad.size:
                    worst = int(bad.max() if bad.max() > 0 else bad.min())
                    raise outside_axis(self.machine.name, worst, axis, extent)
                return np.where(data < 0, data + extent, data)


def _check_form(nest: Nest) -> None:
    """What must hold of any nest whatever the data."""
    reduced = {d.name for d in nest.reduce_dims}
    if len(nest.extents) != len(nest.dims):
        raise InternalError(f"{nest}: two dims have one name")
    if nest.combine is None and (reduced or nest.init is not None or nest.finish is not None):
        raise InternalError(f"{nest}: reduces without a combine")
    if reduced & set(nest.write.dims()):
        raise InternalError(f"{nest}: writes through a reduce dim")
    for i in reads_of(nest.init, nest.finish):
        if reduced & set(nest.reads[i].dims()):
            raise InternalError(f"{nest}: init or finish reads r{i}, which depends on a reduce dim")
    stored = (nest.finish or nest.body).result
    if stored is not nest.write.operand.dtype.compute:
        raise InternalError(f"{nest}: computes {stored} for an operand of {nest.write.operand.dtype}")
    if nest.init is not None and nest.init.result is not nest.body.result:
        raise InternalError(f"{nest}: init is {nest.init.result}, body is {nest.body.result}")
    for expr in filter(None, (nest.body, nest.init, nest.finish)):
        for part in expr.walk():
            _check_read(nest, part)


def _check_read(nest: Nest, part: Expr) -> None:
    if isinstance(part, Read):
        compute = nest.reads[part.index].operand.dtype.compute
        if part.dtype is not compute:
            raise InternalError(f"{nest}: r{part.index} is read as {part.dtype}, but holds {compute}")


def _split(dims: Sequence[Dim]) -> list[list[tuple[int, int]]]:
    """Ranges per dim such that no box of them exceeds the block size, if possible."""
    sizes = [d.extent for d in dims]
    for axis in range(len(sizes)):
        total = int(np.prod(sizes, dtype=np.int64))
        if total <= _BLOCK_ITERATIONS:
            break
        sizes[axis] = max(1, sizes[axis] * _BLOCK_ITERATIONS // total)
    return [list(_ranges(d.extent, size)) for d, size in zip(dims, sizes, strict=True)]


def _ranges(extent: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, extent, max(1, step)):
        yield start, min(extent, start + max(1, step))


def _reduce(ufunc: np.ufunc, value: Array, axes: tuple[int, ...]) -> Array:
    with np.errstate(all="ignore"):
        if ufunc in (np.add, np.multiply):
            # A plain reduce widens small integers; sums here wrap in their own type.
            return np.asarray(ufunc.reduce(value, axis=axes, keepdims=True, dtype=value.dtype))
        return np.asarray(ufunc.reduce(value, axis=axes, keepdims=True))


def _neutral(combine: Combine, dtype: np.dtype[Any]) -> Any:
    if combine in ("sum", "prod"):
        return 0 if combine == "sum" else 1
    if dtype.kind == "b":
        return combine in ("and", "min")
    if combine in ("and", "or"):
        return ~np.zeros((), dtype) if combine == "and" else 0
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if combine == "max" else np.iinfo(dtype).max
    return -np.inf if combine == "max" else np.inf
