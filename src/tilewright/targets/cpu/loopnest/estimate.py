"""How long loop nests take on one core: operations over lanes, loads, and the bytes that move."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nest_flops
from tilewright.ir.nest import Access, Affine, Nest, access_dims
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import L1_WAY_BYTES, Isa
from tilewright.targets.cpu.kernel import Layout, Layouts, OperandKey
from tilewright.targets.cpu.template import overlapped, transfer_cycles

# Vector operations, and vector loads and stores, that a core gets done in a cycle.
_OPERATIONS_PER_CYCLE = 1.6
_LOADS_PER_CYCLE = 2.0
# Of an element that is fetched alone, where what lanes want does not lie side by side.
_ELEMENT_CYCLES = 1.2


@dataclass(frozen=True, slots=True)
class LoopCycles:
    """Of one core: what operations, loads and stores, and the bytes that move take, each by themselves.

    `compute` is the longer of the first two, nest by nest. Of the elements that are not side by side for the
    lanes, `gathered` are read and `scattered` written one by one, `conflicting` of both at steps that fall
    into one set of the first cache. `least_vector` is the shortest loop that lanes go along.
    """

    compute: float
    operations: float
    loads: float
    transfers: float
    gathered: int
    scattered: int
    conflicting: int
    least_vector: int

    @property
    def total(self) -> float:
        """Of arithmetic with the transfers beside it."""
        return overlapped(self.compute, self.transfers)


@dataclass(frozen=True, slots=True)
class _Loads:
    """Of a nest whose lanes go along one dim; see `LoopCycles`."""

    cycles: float
    gathered: int
    scattered: int
    conflicting: int
    vector: int


def loop_cycles(nests: Sequence[Nest], layouts: Layouts, isa: Isa) -> LoopCycles:
    """Estimated cycles of one kernel that runs these nests one after the other.

    Temporaries that one of them hands to another stay in the private cache.
    """
    written = {n.write.operand.key for n in nests if n.write.operand.kind == "local"}
    passed = written & {a.operand.key for n in nests for a in n.reads}
    moved: dict[OperandKey, int] = {}
    compute = all_operations = 0.0
    all_loads: list[_Loads] = []
    for nest in nests:
        accesses = (*nest.reads, nest.write)
        iterations = [prod(nest.extents[d] for d in access_dims(nest, a)) for a in accesses]
        operations, loads = _compute_cycles(nest, accesses, iterations, layouts, isa)
        compute += max(operations, loads.cycles)
        all_operations += operations
        all_loads.append(loads)
        for access, count in zip(accesses, iterations, strict=True):
            operand = access.operand
            if operand.key not in passed and operand.kind != "table":
                size_bytes = min(count, operand.num_elements) * operand.dtype.size_bytes
                moved[operand.key] = max(size_bytes, moved.get(operand.key, 0))
    return LoopCycles(
        compute,
        all_operations,
        sum(x.cycles for x in all_loads),
        transfer_cycles(moved.values(), isa),
        sum(x.gathered for x in all_loads),
        sum(x.scattered for x in all_loads),
        sum(x.conflicting for x in all_loads),
        min((x.vector for x in all_loads), default=0),
    )


def _compute_cycles(
    nest: Nest, accesses: Sequence[Access], iterations: Sequence[int], layouts: Layouts, isa: Isa
) -> tuple[float, _Loads]:
    """Cycles of operations, and loads along the dim that is best for vectors."""
    lanes = isa.vector_bytes[0] // max(a.operand.dtype.compute.size_bytes for a in accesses)
    operations = nest_flops(nest)
    if contraction_of(nest) is not None:
        operations -= nest.num_iterations  # a product and its sum are one instruction
    innermost = [_innermost(a, nest, layouts) for a in accesses]

    def cycles(vector: str) -> float:
        total = 0.0
        for access, count, dims in zip(accesses, iterations, innermost, strict=True):
            is_contiguous = vector in dims or vector not in access_dims(nest, access)
            total += count / lanes / _LOADS_PER_CYCLE if is_contiguous else count * _ELEMENT_CYCLES
        return total

    candidates = dict.fromkeys(d for dims in innermost for d in dims) or {"": None}
    vector = min(candidates, key=cycles)
    gathered = scattered = conflicting = 0
    for access, count, dims in zip(accesses, iterations, innermost, strict=True):
        if vector in dims or vector not in access_dims(nest, access):
            continue
        if access is nest.write:
            scattered += count
        else:
            gathered += count
        if _step_bytes(access, vector, layouts) % L1_WAY_BYTES == 0:
            conflicting += count
    loads = _Loads(cycles(vector), gathered, scattered, conflicting, nest.extents.get(vector, 1))
    return operations / lanes / _OPERATIONS_PER_CYCLE, loads


def _step_bytes(access: Access, dim: str, layouts: Layouts) -> int:
    """Between neighbours along a dim of the loops; 1 where data or another shape decide it."""
    if access.view is not None:
        return 1
    layout = layouts.get(access.operand.key, Layout.row_major(len(access.shape)))
    strides = layout.strides(access.shape)
    terms = [(a, i.terms) for a, i in enumerate(access.index) if isinstance(i, Affine)]
    elements = sum(c * strides[axis] for axis, known in terms for name, c in known if name == dim)
    return elements * access.operand.dtype.size_bytes if elements else 1


def _innermost(access: Access, nest: Nest, layouts: Layouts) -> tuple[str, ...]:
    """Looping dims that walk from one element in memory to the next."""
    layout = Layout.row_major(len(access.shape))
    if access.view is None:
        layout = layouts.get(access.operand.key, layout)
    for axis in reversed(layout.order):
        if access.shape[axis] > 1:
            index = access.index[axis]
            terms = index.terms if isinstance(index, Affine) else ()
            return tuple(name for name, step in terms if step == 1 and nest.extents[name] > 1)
    return ()
