"""How long loop nests take on one core: operations over lanes, loads, and the bytes that move."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nest_flops
from tilewright.ir.nest import Access, Affine, Nest, access_dims
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Layout, Layouts, OperandKey
from tilewright.targets.cpu.template import overlapped, transfer_cycles

# Vector operations, and vector loads and stores, that a core gets done in a cycle.
_OPERATIONS_PER_CYCLE = 1.6
_LOADS_PER_CYCLE = 2.0
# Of an element that is fetched alone, where what lanes want does not lie side by side.
_ELEMENT_CYCLES = 1.2


def nests_cycles(nests: Sequence[Nest], layouts: Layouts, isa: Isa) -> float:
    """Estimated cycles of one kernel that runs these nests one after the other.

    Temporaries that one of them hands to another stay in the private cache.
    """
    written = {n.write.operand.key for n in nests if n.write.operand.kind == "local"}
    passed = written & {a.operand.key for n in nests for a in n.reads}
    moved: dict[OperandKey, int] = {}
    compute = 0.0
    for nest in nests:
        accesses = (*nest.reads, nest.write)
        iterations = [prod(nest.extents[d] for d in access_dims(nest, a)) for a in accesses]
        compute += _compute_cycles(nest, accesses, iterations, layouts, isa)
        for access, count in zip(accesses, iterations, strict=True):
            operand = access.operand
            if operand.key not in passed and operand.kind != "table":
                size_bytes = min(count, operand.num_elements) * operand.dtype.size_bytes
                moved[operand.key] = max(size_bytes, moved.get(operand.key, 0))
    return overlapped(compute, transfer_cycles(moved.values(), isa))


def _compute_cycles(
    nest: Nest, accesses: Sequence[Access], iterations: Sequence[int], layouts: Layouts, isa: Isa
) -> float:
    """Operations or loads, whichever take longer, along the dim that is best for vectors."""
    lanes = isa.vector_bytes[0] // max(a.operand.dtype.compute.size_bytes for a in accesses)
    operations = nest_flops(nest)
    if contraction_of(nest) is not None:
        operations -= nest.num_iterations  # a product and its sum are one instruction
    innermost = [_innermost(a, nest, layouts) for a in accesses]

    def loads(vector: str) -> float:
        total = 0.0
        for access, count, dims in zip(accesses, iterations, innermost, strict=True):
            is_contiguous = vector in dims or vector not in access_dims(nest, access)
            total += count / lanes / _LOADS_PER_CYCLE if is_contiguous else count * _ELEMENT_CYCLES
        return total

    candidates = dict.fromkeys(d for dims in innermost for d in dims) or {"": None}
    return max(operations / lanes / _OPERATIONS_PER_CYCLE, min(map(loads, candidates)))


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
