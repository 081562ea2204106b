"""How long loop nests take on one core: operations over lanes, loads, and the bytes that move."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nest_flops
from tilewright.ir.nest import Access, Affine, Indirect, Nest, access_dims, operands_of
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Layout, Layouts
from tilewright.targets.cpu.template import operand_bytes, overlapped, transfer_cycles

# Vector operations and vector loads that a core gets done in a cycle, with the addresses and branches around.
_OPERATIONS_PER_CYCLE = 1.0
_LOADS_PER_CYCLE = 1.0
# Of an element that is fetched alone: through an index that is data, or strided where lanes lie side by side.
_ELEMENT_CYCLES = 1.2


def nests_cycles(nests: Sequence[Nest], layouts: Layouts, isa: Isa) -> float:
    """Estimated cycles of one kernel that runs these nests one after the other.

    Temporaries that one of them hands to another stay in the private cache.
    """
    written = {n.write.operand.key for n in nests if n.write.operand.kind == "local"}
    passed = written & {a.operand.key for n in nests for a in n.reads}
    moved = [operand_bytes(o) for o in operands_of(nests) if o.key not in passed and o.kind != "table"]
    return overlapped(sum(_compute_cycles(n, layouts, isa) for n in nests), transfer_cycles(moved, isa))


def _compute_cycles(nest: Nest, layouts: Layouts, isa: Isa) -> float:
    lanes = isa.vector_bytes[0] // max(a.operand.dtype.compute.size_bytes for a in (*nest.reads, nest.write))
    operations = nest_flops(nest)
    if contraction_of(nest) is not None:
        operations -= nest.num_iterations  # a product and its sum are one instruction
    extents = nest.extents
    vector = next((d for d in _innermost(nest.write, layouts) if extents[d] > 1), None)
    loads = 0.0
    for access in (*nest.reads, nest.write):
        iterations = prod(extents[d] for d in access_dims(nest, access))
        by_data = any(isinstance(i, Indirect) for i in access.index)
        is_contiguous = vector is None or vector not in access.dims() or vector in _innermost(access, layouts)
        if is_contiguous and not by_data:
            loads += iterations / lanes / _LOADS_PER_CYCLE
        else:
            loads += iterations * _ELEMENT_CYCLES
    return operations / lanes / _OPERATIONS_PER_CYCLE + loads


def _innermost(access: Access, layouts: Layouts) -> tuple[str, ...]:
    """Dims that walk from one element in memory to the next."""
    rank = len(access.shape)
    layout = Layout.row_major(rank)
    if access.view is None:
        layout = layouts.get(access.operand.key, layout)
    for axis in reversed(layout.order):
        if access.shape[axis] > 1:
            index = access.index[axis]
            return index.dims() if isinstance(index, Affine) else ()
    return ()
