"""Thread mapping of a loop nest: which thread computes which elements, and how many at a time."""

from __future__ import annotations

from math import gcd, prod
from typing import Literal

from tilewright.records import dataclass
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.llvm.exprgen import storage_type
from tilewright.targets.llvm.refs import LinearNest, Ref

Workers = Literal["thread", "warp", "block"]

_VECTOR_BYTES = 16
_THREADS = 256
"""Threads of a block whose threads or warps each compute elements of their own."""
_MIN_WARP_STEPS = 32
"""Steps of a sum from which the threads of a warp share them."""
_MIN_BLOCK_STEPS = 4096
_FEW_ELEMENTS = 8192
"""Elements that leave most threads of a GPU idle, if each is one thread's."""
_FEW_BLOCKS = 1024
_NARROW = 4
"""Vectors of fewer elements than a warp times this are not worth their longer code."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """`workers` compute an element, or `lanes` neighbours of it along the last parallel loop, together."""

    workers: Workers
    lanes: int
    num_threads: int
    num_items: int

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        if self.workers == "block":
            return self.num_items
        per_block = self.num_threads // (WARP if self.workers == "warp" else 1)
        return -(-self.num_items // per_block)


def plan_loops(nest: LinearNest) -> LoopPlan:
    """The plan of a nest whose loops are simplified."""
    num_elements = prod(d.extent for d in nest.parallel)
    num_steps = prod(d.extent for d in nest.reduce)
    workers = _workers(nest, num_elements, num_steps)
    lanes = _lanes(nest, num_elements) if workers == "thread" else 1
    num_items = num_elements // lanes
    if workers == "thread":
        return LoopPlan(workers, lanes, min(_THREADS, -(-num_items // WARP) * WARP), num_items)
    if workers == "warp":
        return LoopPlan(workers, 1, WARP * min(_THREADS // WARP, num_items), num_items)
    return LoopPlan(workers, 1, _THREADS, num_items)


def _workers(nest: LinearNest, num_elements: int, num_steps: int) -> Workers:
    if num_steps < _MIN_WARP_STEPS:
        return "thread"
    if num_steps >= _MIN_BLOCK_STEPS and num_elements < _FEW_BLOCKS:
        return "block"
    innermost = nest.reduce[-1].name
    is_along = any(abs(ref.coefficient(innermost)) == 1 for ref in nest.refs)
    return "warp" if is_along or num_elements < _FEW_ELEMENTS else "thread"


def _lanes(nest: LinearNest, num_elements: int) -> int:
    """Neighbours that a thread computes: as many as sixteen bytes hold, where every access allows it."""
    if not nest.parallel:
        return 1
    dim = nest.parallel[-1]
    widest = max(storage_type(ref.operand.dtype).element_bytes for ref in (*nest.refs, nest.write))
    lanes = _VECTOR_BYTES // widest
    if lanes < 2 or dim.extent % lanes or num_elements < _NARROW * WARP * lanes:
        return 1
    if nest.write.coefficient(dim.name) != 1 or aligned_lanes(nest.write, dim.name, lanes) < lanes:
        return 1
    for ref in nest.all_refs():
        looked_up = ref.data or ref.tables or any(dim.name in g.form.dims() for g in ref.guards)
        if looked_up and dim.name in ref.names() | {n for t in ref.data for n in nest.depends(t.read)}:
            return 1
        if ref.coefficient(dim.name) not in (0, 1):
            return 1
    return lanes


def aligned_lanes(ref: Ref, dim: str, lanes: int) -> int:
    """Elements that an access along `dim` is aligned to, of `lanes`, where `dim` starts at multiples."""
    steps = [c for name, c in ref.form.terms if name != dim]
    steps += [offset for table in ref.tables for offset in table.offsets]
    steps += [term.stride for term in ref.data]
    return gcd(lanes, ref.form.offset, *steps)
