"""What a kernel has to do at least: operations that count, and bytes that it touches.

The limits of a machine are compared with this, so nothing is counted that a good kernel leaves out: products
with padding, rows of a table that no index names, elements that a stride jumps over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nest_flops
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Acc, Call, Expr, Iter, Read, fold
from tilewright.ir.graph import Value
from tilewright.ir.nest import Access, Affine, Nest, access_dims
from tilewright.targets.cpu.kernel import KernelArg, OperandKey, Packed
from tilewright.targets.cpu.lower.lowered import (
    KernelLaunch,
    LoweredModel,
    NumRows,
    PackedTensor,
    Reports,
    Storage,
    Table,
)

# Iterations of the dims that one index depends on: more are not looked at one by one.
_MAX_ITERATIONS = 1 << 22


@dataclass(frozen=True, slots=True)
class BenchmarkWork:
    """Of one launch. `product_flop` and `other_flop` count as `derive.flops` does, padding included.

    `product_share` is the part of the products that do not meet padding, `vector_flop` what the others take
    at least, in operations of float32. `constants` are bytes of weights and tables by a name that is the same
    wherever the same arrangement of the same constant is read.
    """

    product_flop: int
    other_flop: int
    product_share: float
    vector_flop: float
    constants: Mapping[str, int]
    activation_bytes: int

    @classmethod
    def of(cls, launch: KernelLaunch, lowered: LoweredModel) -> BenchmarkWork:
        """Count."""
        products = [nest for nest in launch.nests if contraction_of(nest) is not None]
        planned = sum(nest.num_iterations for nest in products)
        needed = sum(nest.num_iterations * needed_share(nest) for nest in products)
        constants: dict[str, int] = {}
        activations: dict[Storage, int] = {}
        for arg, storage in zip(launch.kernel.args, launch.args, strict=True):
            if isinstance(storage, Reports | NumRows):
                continue
            touched = _touched_bytes(arg, storage, launch.nests, lowered)
            name = _constant_name(storage)
            if name is not None:
                constants[name] = max(touched, constants.get(name, 0))
            else:
                activations[storage] = max(touched, activations.get(storage, 0))
        return cls(
            product_flop=2 * launch.kernel.macs,
            other_flop=sum(map(_other_flop, launch.nests)),
            product_share=needed / planned if planned else 1.0,
            vector_flop=sum(map(_vector_flop, launch.nests)),
            constants=constants,
            activation_bytes=sum(activations.values()),
        )


def total_constant_bytes(works: Iterable[BenchmarkWork]) -> int:
    """Bytes of constants that the launches read, each once."""
    largest: dict[str, int] = {}
    for work in works:
        for name, size in work.constants.items():
            largest[name] = max(size, largest.get(name, 0))
    return sum(largest.values())


def _other_flop(nest: Nest) -> int:
    """Operations that are no products: of a sum of products those of its finish."""
    whole = nest_flops(nest)
    return whole if contraction_of(nest) is None else whole - nest_flops(replace(nest, finish=None))


def _vector_flop(nest: Nest) -> float:
    """Least operations that are no products, each as long as its elements are wider than float32.

    What does not depend on a dim is computed once for all of its iterations; elements narrower than float32
    share a vector.
    """
    operations = 0 if nest.finish is None else _hoisted_flop(nest.finish, nest)
    if contraction_of(nest) is None:
        operations += _hoisted_flop(nest.body, nest)
        if nest.combine is not None:
            operations += round(nest.num_iterations * needed_share(nest))
    narrowest = min(a.operand.dtype.size_bytes for a in (*nest.reads, nest.write))
    return operations * narrowest / DType.FLOAT32.size_bytes


def _hoisted_flop(expr: Expr, nest: Nest) -> int:
    """Operations of an expression, each once for what it depends on."""
    extents = nest.extents
    total = 0

    def dims_of(part: Expr, args: tuple[frozenset[str], ...]) -> frozenset[str]:
        nonlocal total
        match part:
            case Read():
                return frozenset(access_dims(nest, nest.reads[part.index]))
            case Iter():
                return frozenset({part.dim})
            case Acc():
                return frozenset(d.name for d in nest.parallel_dims)
        dims = frozenset[str]().union(*args)
        if isinstance(part, Call) and FUNCTIONS[part.function].rule != "cast":
            total += FUNCTIONS[part.function].cost_flop * prod(extents[d] for d in dims)
        return dims

    fold(dims_of, expr)
    return total


def needed_share(nest: Nest) -> float:
    """The part of a reduction's iterations in which no read is outside its tensor."""
    share = 1.0
    for inside in _inside(nest):
        share *= inside.share
    return share


@dataclass(frozen=True, slots=True)
class _Inside:
    """Where an index stays in its tensor: share of the iterations, and for each dim in how many it can."""

    share: float
    extents: Mapping[str, int]


def _inside(nest: Nest) -> list[_Inside]:
    """Of each index that may leave its tensor. Only a reduction can leave such iterations out."""
    found: list[_Inside] = []
    seen: set[str] = set()
    padded = [a for a in nest.reads if a.fill is not None] if nest.combine is not None else []
    for access in padded:
        for index, size in zip(access.index, access.shape, strict=True):
            if not isinstance(index, Affine) or seen & set(index.dims()):
                continue
            inside = _inside_axis(index, size, nest.extents)
            if inside is not None:
                seen |= set(index.dims())
                found.append(inside)
    return found


def _inside_axis(index: Affine, size: int, extents: Mapping[str, int]) -> _Inside | None:
    low, high = index.bounds(extents)
    shape = [extents[dim] for dim in index.dims()]
    if (low >= 0 and high < size) or prod(shape) > _MAX_ITERATIONS:
        return None
    position = np.full((), index.offset)
    for dim, coefficient in index.terms:
        position = np.add.outer(position, coefficient * np.arange(extents[dim]))
    is_inside = (position >= 0) & (position < size)
    axes = range(is_inside.ndim)
    counts = {
        dim: int(is_inside.any(axis=tuple(a for a in axes if a != axis)).sum())
        for axis, dim in enumerate(index.dims())
    }
    return _Inside(float(is_inside.mean()), counts)


def _touched_bytes(arg: KernelArg, storage: Storage, nests: Sequence[Nest], lowered: LoweredModel) -> int:
    """Bytes of an argument that the nests can reach; all of it where they do not say."""
    operand = arg.source if isinstance(arg, Packed) else arg
    whole = _size_bytes(storage, lowered)
    accesses = [(nest, a) for nest in nests for a in _accesses(nest, operand.key)]
    if not accesses or not operand.num_elements:
        return whole
    elements = sum(_touched_elements(nest, access) for nest, access in accesses)
    return round(whole * min(1.0, elements / operand.num_elements))


def _accesses(nest: Nest, key: OperandKey) -> list[Access]:
    return [a for a in (*nest.reads, nest.write) if a.operand.key == key]


def _touched_elements(nest: Nest, access: Access) -> int:
    extents = dict(nest.extents)
    for inside in _inside(nest):
        extents |= inside.extents
    return min(prod(extents[d] for d in access_dims(nest, access)), access.operand.num_elements)


def _constant_name(storage: Storage) -> str | None:
    match storage:
        case PackedTensor():
            return f"{storage.value.name} {storage.packed.arrangement}"
        case Table():
            return f"table {id(storage.operand.data)}"
        case Value():
            return storage.name if storage.is_constant else None
    return None


def _size_bytes(storage: Storage, lowered: LoweredModel) -> int:
    match storage:
        case PackedTensor():
            return storage.packed.size_bytes
        case Table():
            return storage.operand.num_elements * storage.operand.dtype.size_bytes
        case Value():
            return storage.size_bytes
        case Reports() | NumRows():
            return 0
    local = lowered.locals[storage]
    return local.num_elements * local.dtype.size_bytes
