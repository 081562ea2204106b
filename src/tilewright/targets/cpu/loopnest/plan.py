"""Which loops of a nest become vectors, register tiles and straight code."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import FUNCTIONS, Acc, Call, Expr, Read, fold
from tilewright.ir.nest import Dim
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import L1_WAY_BYTES, Isa
from tilewright.targets.llvm.exprgen import COMPUTE_ELEMENTS, storage_type
from tilewright.targets.llvm.loads import MAX_THINNED_STRIDE
from tilewright.targets.llvm.refs import LinearNest, Ref
from tilewright.targets.llvm.values import vec

# Bodies emitted straight in one reduction step of a tile: enough to amortise the loop, few enough to decode.
MAX_STRAIGHT_BODIES = 96
_MAX_EDGE_LINES = 80
_MAX_STRAIGHT_EXTENT = 16
# Vectors of accumulators that are folded into one total.
_FOLDED_VECTORS = 4
# A gathered lane costs about this many vector loads.
_GATHER_COST = 1.0
# Rows of vectors that one shuffle puts side by side; four are turned as a square.
_MOST_INTERLEAVED = 3


@dataclass(frozen=True, slots=True)
class LoopNestPlan:
    """How one nest is emitted.

    `vector` is cut into vectors of `lanes`, `num_vectors` of them at a time; `rows` iterations of `row` share
    a register tile with them. Reduce loops in `straight` are unrolled; `outer` loops surround the tile.
    With `transposed`, vectors of some reads run along `row` and are turned in registers.
    """

    outer: tuple[str, ...]
    vector: str | None
    lanes: int
    num_vectors: int
    row: str | None
    rows: int
    straight: frozenset[str]
    reduces_lanes: bool
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a choice says of how nests run; None leaves it to the rules of this module and of `region.py`.

    `vector` and `row` are loops, cut as `LoopNestPlan` says; no more than `straight` of the innermost reduce
    loops are unrolled. An item has `block` iterations of the vector loop, 0 for all of them, or passes
    `item_rows` iterations of the last shared loop through several nests; items are cut into `chunks`.
    """

    vector: str | None = None
    lanes: int | None = None
    num_vectors: int | None = None
    row: str | None = None
    rows: int | None = None
    straight: int | None = None
    block: int | None = None
    item_rows: int | None = None
    chunks: int | None = None


NOTHING_CHOSEN = Chosen()


def plan_nest(
    nest: LinearNest,
    isa: Isa,
    fixed: frozenset[str] = frozenset(),
    plain: frozenset[str] = frozenset(),
    chosen: Chosen = NOTHING_CHOSEN,
) -> LoopNestPlan:
    """The plan for a nest whose `fixed` loops are bound by the caller; `plain` ones stay simple loops."""
    made = _plan_tile(nest, isa, fixed | plain, chosen)
    first = tuple(d.name for d in nest.parallel if d.name in plain - fixed)
    return replace(made, outer=(*first, *made.outer))


def _plan_tile(nest: LinearNest, isa: Isa, fixed: frozenset[str], chosen: Chosen) -> LoopNestPlan:
    parallel = tuple(d for d in nest.parallel if d.name not in fixed)
    widest = _widest_element(nest)
    vector = _best_vector(nest, parallel, isa, widest)
    if vector is not None and chosen.vector is not None:
        vector = next((d for d in vector_loops(nest, parallel) if d.name == chosen.vector), vector)
    lanes = 1 if vector is None else lanes_for(isa, widest, vector.extent)
    if chosen.lanes is not None and chosen.lanes in isa.lane_choices(widest):
        lanes = min(lanes, chosen.lanes)
    if vector is not None and vector.role == "reduce":
        names = tuple(d.name for d in parallel)
        num_vectors = chosen.num_vectors or _FOLDED_VECTORS
        return LoopNestPlan(names, vector.name, lanes, num_vectors, None, 1, frozenset(), True)
    others = tuple(d for d in parallel if d is not vector)
    turned = None
    if vector is not None and not nest.write.data:
        turned = _turning_row(nest, vector, others, lanes, most_written=MAX_THINNED_STRIDE)
    if turned is not None and vector is not None:
        edge = min(lanes, 16)
        outer = tuple(d.name for d in others if d is not turned)
        return LoopNestPlan(outer, vector.name, edge, 1, turned.name, edge, frozenset(), False, True)
    row = _row(nest, vector, others) if nest.combine is not None else _interleaved_row(nest, vector, others)
    if chosen.row is not None and nest.combine is not None:
        row = next((d for d in row_loops(nest, others) if d.name == chosen.row), row)
    num_vectors, rows = _tile(nest, isa, vector, lanes, row)
    if row is not None and nest.combine is None:
        num_vectors, rows = 1, row.extent
    if chosen.num_vectors is not None and vector is not None:
        num_vectors = min(chosen.num_vectors, max(1, vector.extent // lanes))
    if chosen.rows is not None and row is not None:
        rows = min(chosen.rows, row.extent)
    if row is not None and vector is not None:
        rows = min(rows, _rows_with_edges(nest, row, vector, lanes))
    # What is written side by side is one store of all rows.
    if row is not None and rows < (2 if nest.combine is not None else row.extent):
        row, rows = None, 1
    straight = _straight(nest, row, vector, rows * num_vectors, chosen.straight)
    outer = tuple(d.name for d in others if d is not row)
    return LoopNestPlan(
        outer,
        None if vector is None else vector.name,
        lanes,
        num_vectors,
        None if row is None else row.name,
        rows,
        straight,
        False,
    )


def _interleaved_row(nest: LinearNest, vector: Dim | None, others: tuple[Dim, ...]) -> Dim | None:
    """The loop over what few rows of vectors write side by side, as channels of an image last."""
    if vector is None or nest.write.data or nest.write.guards:
        return None
    count = nest.write.coefficient(vector.name)
    rows = (d for d in row_loops(nest, others) if nest.write.coefficient(d.name) == 1 and d.extent == count)
    return next(rows, None) if 2 <= count <= _MOST_INTERLEAVED else None


def vector_loops(nest: LinearNest, parallel: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Parallel loops along which vectors may run, whatever that takes."""
    if nest.write.guards or nest.write.data:
        return ()
    nonlinear = _nonlinear(nest, nest.write)
    return tuple(
        d for d in parallel if d.extent > 1 and d.name not in nonlinear and nest.write.coefficient(d.name)
    )


def row_loops(nest: LinearNest, others: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Of other parallel loops than the vectors' those that a register tile may have as its rows."""
    fixed_by_data = {n for r in nest.all_refs() for n in _nonlinear(nest, r)}
    return tuple(d for d in others if d.extent > 1 and d.name not in fixed_by_data)


def lanes_for(isa: Isa, element: str, extent: int) -> int:
    """Lanes of the narrowest vector that holds `extent` elements, else of the widest."""
    choices = isa.lane_choices(element)
    return min((c for c in choices if c >= extent), default=choices[0])


def _widest_element(nest: LinearNest) -> str:
    """The element type that decides how many lanes fit: the widest that the expressions compute with."""
    exprs: list[Expr] = [x for x in (nest.body, nest.init, nest.finish) if x is not None]
    # What is computed of loop indices alone is cheap at any width, however wide its elements.
    elements: set[str] = set()

    def is_moved(part: Expr, args: tuple[bool, ...]) -> bool:
        moved = isinstance(part, Read | Acc) or any(args)
        if moved:
            elements.add(COMPUTE_ELEMENTS[part.result])
        return moved

    fold(is_moved, *exprs)
    elements.add(COMPUTE_ELEMENTS[nest.write.operand.dtype])
    memory = {"i1": "i8"}
    named = sorted({memory.get(x, x) for x in elements})
    return max(named, key=lambda x: vec(x).element_bytes)


def _read_cost(nest: LinearNest, read: int, dim: str, lanes: int) -> float:
    """Vector loads that one vector of a read along `dim` costs."""
    if dim not in nest.depends(read):
        return 0.2
    ref = nest.refs[read]
    c = ref.coefficient(dim)
    if dim not in _nonlinear(nest, ref):
        if c == 1:
            return 1.0
        if c == -1 or 2 <= c <= MAX_THINNED_STRIDE:
            return 1.5 * abs(c)
    return _GATHER_COST * lanes


def _nonlinear(nest: LinearNest, ref: Ref) -> frozenset[str]:
    """Dims on which the address depends other than linearly."""
    found = {t.dim for t in ref.tables}
    for term in ref.data:
        found |= nest.depends(term.read)
    return frozenset(found)


def _best_vector(nest: LinearNest, parallel: tuple[Dim, ...], isa: Isa, element: str) -> Dim | None:
    """The loop with the fewest memory operations per element when vectors run along it."""
    if nest.write.guards or (nest.write.data and nest.combine is not None):
        return None
    if nest.write.data:
        # Lanes lie beside each other, so they never meet; the loops around them keep their order.
        parallel = tuple(d for d in parallel if nest.write.coefficient(d.name) == 1)
    best: tuple[float, int] | None = None
    chosen: Dim | None = None
    candidates = [*parallel, *(nest.reduce if nest.combine is not None else ())]
    num_reduced = 1
    for d in nest.reduce:
        num_reduced *= max(1, d.extent)
    for position, dim in enumerate(reversed(candidates)):
        if dim.extent < 2:
            continue
        lanes = lanes_for(isa, element, dim.extent)
        vectors = -(-dim.extent // lanes)
        loads = sum(_read_cost(nest, i, dim.name, lanes) for i in range(len(nest.refs)))
        if dim.role == "reduce":
            # Lanes are folded once per output element; a transposed copy of the accumulators costs less.
            cost = (loads + 0.5) * vectors / dim.extent + 12.0 / num_reduced
        else:
            c = nest.write.coefficient(dim.name)
            if dim.name in _nonlinear(nest, nest.write) or (c == 0 and dim.extent > 1):
                continue
            stores = 1.0 if c == 1 else _GATHER_COST * lanes
            if _turning_row(nest, dim, tuple(d for d in parallel if d is not dim), lanes) is not None:
                loads = 3.0
            cost = (loads + 0.5 + stores / num_reduced) * vectors / dim.extent
        if best is None or (cost, position) < best:
            best, chosen = (cost, position), dim
    if chosen is not None and chosen.role == "parallel" and nest.write.coefficient(chosen.name) != 1:
        return _written_nearby(nest, parallel, isa, element) or chosen
    return chosen


def _written_nearby(nest: LinearNest, parallel: tuple[Dim, ...], isa: Isa, element: str) -> Dim | None:
    """The longest loop that writes elements a few steps apart and can be turned in registers.

    Where lanes would write far apart otherwise: at steps of 4 KiB, as folding patches into images of 32 x 32
    has them, every element evicts the line of another.
    """
    near = [d for d in parallel if 1 < nest.write.coefficient(d.name) <= MAX_THINNED_STRIDE]
    near = [d for d in near if not nest.write.data and d.name not in _nonlinear(nest, nest.write)]

    def is_turned(dim: Dim) -> bool:
        others = tuple(d for d in parallel if d is not dim)
        lanes = lanes_for(isa, element, dim.extent)
        return _turning_row(nest, dim, others, lanes, most_written=MAX_THINNED_STRIDE) is not None

    return max(filter(is_turned, near), key=lambda d: d.extent, default=None)


def _turning_row(
    nest: LinearNest, vector: Dim, others: tuple[Dim, ...], lanes: int, *, most_written: int = 1
) -> Dim | None:
    """The loop along which reads are contiguous where they are far apart along `vector`.

    They may be a few steps apart if those along `vector` share a set of the first cache. Along `vector`
    elements are written side by side, or up to `most_written` apart.
    """
    is_near = 1 <= nest.write.coefficient(vector.name) <= most_written
    if nest.combine is not None or not is_near or lanes < 4:
        return None
    for row in others:
        turned = False
        for read, ref in enumerate(nest.refs):
            along, across = ref.coefficient(vector.name), ref.coefficient(row.name)
            if {vector.name, row.name} & (
                _nonlinear(nest, ref) | {n for g in ref.guards for n in g.form.dims()}
            ):
                break
            if vector.name not in nest.depends(read):
                continue
            step_bytes = abs(along) * storage_type(ref.operand.dtype).element_bytes
            most_across = MAX_THINNED_STRIDE if along and step_bytes % L1_WAY_BYTES == 0 else 1
            if 1 <= across <= most_across and abs(along) > 1:
                turned = True
            elif along != 1:
                break
        else:
            if turned and row.extent >= 4 and vector.extent >= 4:
                return row
    return None


def _row(nest: LinearNest, vector: Dim | None, others: tuple[Dim, ...]) -> Dim | None:
    """The second parallel loop of the register tile: where loads can be shared between its iterations."""
    best: tuple[int, int] | None = None
    chosen: Dim | None = None
    for position, dim in enumerate(row_loops(nest, others)):
        shared = sum(dim.name not in r.names() for r in nest.refs) + 2 * sum(
            slides(r, dim.name, nest) for r in nest.refs
        )
        if shared and (best is None or (shared, position) > best):
            best, chosen = (shared, position), dim
    return chosen


def slides(ref: Ref, dim: str, nest: LinearNest) -> bool:
    """Whether neighbouring iterations of `dim` read overlapping windows."""
    c = ref.coefficient(dim)
    return c != 0 and any(
        r.extent > 1 and ref.coefficient(r.name) != 0 and abs(ref.coefficient(r.name)) <= abs(c)
        and abs(c) % abs(ref.coefficient(r.name)) == 0
        and abs(c) < abs(ref.coefficient(r.name)) * r.extent
        for r in nest.reduce
    )  # fmt: skip


def _tile(nest: LinearNest, isa: Isa, vector: Dim | None, lanes: int, row: Dim | None) -> tuple[int, int]:
    """Vectors and rows of the register tile."""
    available = 1 if vector is None else max(1, vector.extent // lanes)
    size = body_size(nest)
    if nest.combine is None:
        return min(4 if size <= 24 else 2 if size <= 64 else 1, available), 1
    if size > 8:
        return 1, 1
    if row is None:
        return min(8, available, isa.preferred_accumulators), 1
    if any(slides(r, row.name, nest) for r in nest.refs):
        # Accumulators, and the row of loaded elements that they share, stay in registers.
        most = 8 if isa.num_vector_registers >= 32 else 4
        return 1, balanced(row.extent, most)
    num_vectors = min(3 if isa.num_vector_registers >= 32 else 2, available)
    return num_vectors, balanced(row.extent, max(1, isa.tile(num_vectors)))


def _rows_with_edges(nest: LinearNest, row: Dim, vector: Dim, lanes: int) -> int:
    """Rows that keep the text short where both the rows and the vectors meet padding.

    Then each combination of edge and interior is code of its own, with all taps of the window straight.
    """
    guards = [set(g.form.dims()) for r in nest.refs for g in r.guards]
    if not any(row.name in g for g in guards) or not any(vector.name in g for g in guards):
        return row.extent
    taps = 1
    for dim in nest.reduce:
        if any(dim.name in g for g in guards):
            taps *= dim.extent
    lines = 2 + sum(_read_cost(nest, i, vector.name, lanes) for i in range(len(nest.refs)))
    return int(_MAX_EDGE_LINES // (taps * lines))


def body_size(nest: LinearNest) -> int:
    """About how many instructions the body is."""
    return sum(FUNCTIONS[x.function].cost_flop for x in nest.body.walk() if isinstance(x, Call))


def balanced(extent: int, most: int) -> int:
    """The largest tile when `extent` is cut into as few tiles of at most `most` as it takes, evenly.

    >>> balanced(28, 8), balanced(14, 8), balanced(56, 8)
    (7, 7, 8)
    """
    return -(-extent // -(-extent // most))


def _straight(
    nest: LinearNest, row: Dim | None, vector: Dim | None, tile: int, most: int | None
) -> frozenset[str]:
    """Reduce loops to unroll: those that share padding with the tile, then short inner ones, `most` of them.

    Where that was chosen they may be longer.
    """
    is_chosen = most is not None
    tiled = {d.name for d in (row, vector) if d is not None}
    guards = [g for r in nest.refs for g in r.guards]
    must = {n for g in guards if tiled & set(g.form.dims()) for n in g.form.dims() if n not in tiled}
    bodies = tile * max(1, body_size(nest) // 2)
    chosen: set[str] = set()
    for dim in reversed(nest.reduce):
        others = {n for g in guards if dim.name in g.form.dims() for n in g.form.dims()} - {dim.name}
        if others - tiled and dim.name not in must:
            break  # its padding is left out by the loop's bounds
        fits = bodies * dim.extent <= MAX_STRAIGHT_BODIES * (2 if dim.name in must or is_chosen else 1)
        if not fits or (dim.name not in must and (dim.extent > _MAX_STRAIGHT_EXTENT or len(chosen) == most)):
            break
        bodies *= dim.extent
        chosen.add(dim.name)
    return frozenset(chosen)
