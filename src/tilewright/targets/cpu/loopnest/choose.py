"""How loop nests may run beside what the rules say: their choices, and which of them are worth measuring.

A `Choice` of the template `loop-nest` overrides rules where a measurement knew better. Parameters: `axis` and
`row_axis` are the loops of vectors and of a register tile's rows, by position among the parallel loops;
`lanes`, `vectors` and `rows` are the tile, `straight` is the most reduce loops in straight code; `block`
iterations of the vector loop are an item, or `item_rows` rows of nests that share loops; items are cut into
`chunks` for threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product, zip_longest
from math import prod
from typing import Final

from tilewright.ir.nest import Affine, Dim
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Loops
from tilewright.targets.cpu.loopnest.plan import (
    NOTHING_CHOSEN,
    Chosen,
    LoopNestPlan,
    balanced,
    plan_nest,
    row_loops,
    vector_loops,
)
from tilewright.targets.cpu.loopnest.region import can_block, nest_operations, num_places, single_region
from tilewright.targets.llvm.loads import MAX_THINNED_STRIDE
from tilewright.targets.llvm.refs import LinearNest, linearise, simplify
from tilewright.tuning import Choice

TEMPLATE: Final = "loop-nest"
# The largest values of a choice: it may come from a file, and decides how long the code is.
_MOST: Mapping[str, int] = {
    "lanes": 64,
    "vectors": 8,
    "rows": 16,
    "straight": 8,
    "block": 1 << 30,
    "item_rows": 64,
    "chunks": 64,
}
# Of a core: rates, the latency of a multiply-add, tiles that it works on at a time; and what a tile, and a
# load that is hidden, takes all the same. They rank tiles.
_FMAS_PER_CYCLE, _FMA_CYCLES, _LOADS_PER_CYCLE, _TILES_IN_FLIGHT = 2, 4, 2, 2
_TILE_CYCLES, _LOAD_CYCLES = 1.0, 0.1
_MOST_VECTORS = 4
# Of tiles, blocks and numbers of chunks the first are worth a measurement in any case; more of them together.
_NUM_LISTED_TILES, _NUM_LISTED_BLOCKS = 4, 3
_NUM_VARIED_TILES, _MAX_CHOICES = 10, 96
_BLOCK_TILES = (4, 16, 2, 8)
_CHUNKS_OF_SEVERAL_THREADS = (2, 1, 4, 8, 32)
_ITEM_ROWS = (1, 2, 4, 8)


def chosen_of(choice: Choice | None, nest: LinearNest | None = None) -> Chosen:
    """What a choice says of a nest, or of several; what makes no sense there is left to the rules."""
    if choice is None or choice.template != TEMPLATE:
        return NOTHING_CHOSEN

    def value(name: str) -> int | None:
        number = choice.get(name)
        least = 0 if name in ("block", "straight") else 1
        return number if number is not None and least <= number <= _MOST[name] else None

    def loop(name: str) -> str | None:
        position = choice.get(name)
        loops = () if nest is None else nest.parallel
        return loops[position].name if position is not None and 0 <= position < len(loops) else None

    return Chosen(
        vector=loop("axis"),
        lanes=value("lanes"),
        num_vectors=value("vectors"),
        row=loop("row_axis"),
        rows=value("rows"),
        straight=value("straight"),
        block=value("block"),
        item_rows=value("item_rows"),
        chunks=value("chunks"),
    )


def loop_choices(loops: Loops, isa: Isa, *, divides: bool) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
    """Other ways to run nests than by the rules: those worth measuring in any case, and more, best first.

    Unless the work `divides`, it runs on one thread. There are none for nests that tables or data direct.
    """
    if not all(isinstance(i, Affine) for n in loops.nests for a in (*n.reads, n.write) for i in a.index):
        return (), ()
    if len(loops.nests) > 1:
        return _of_several(loops, divides=divides)
    linear = linearise(loops.nests[0], loops.layouts)
    if isinstance(linear, Declined):
        return (), ()
    nest = simplify(linear)
    plan, region = plan_nest(nest, isa), single_region(nest, isa)
    chunks = [n for n in _numbers_of_chunks(divides=divides) if n != region.num_chunks]
    if not divides and region.num_chunks == 1:
        chunks = []
    tiles, blocks = list(_tiles(nest, plan, isa)), list(_blocks(nest, plan))
    # On one thread chunks only cost: the best of all else is tried without them.
    usual = chunks[:1] if not divides else []
    listed = [{"chunks": n} for n in chunks[:3]]
    turns = zip_longest(blocks[:_NUM_LISTED_BLOCKS], tiles[:_NUM_LISTED_TILES])
    some = (parameters for turn in turns for parameters in turn if parameters is not None)
    listed += [{**parameters, **_as_chunks(usual)} for parameters in some]
    lists = (
        [{}, *tiles[:_NUM_VARIED_TILES]],
        [{}, *blocks],
        [_as_chunks(usual), *(_as_chunks([n]) for n in chunks if [n] != usual)],
        [{}, *_unrolled(nest, plan)],
    )
    # Combinations of what is first in its list come first.
    ranked = sorted(product(*map(enumerate, lists)), key=lambda some: sum(rank for rank, _ in some))
    varied = (dict(pair for _, parameters in some for pair in parameters.items()) for some in ranked)
    first = _distinct(listed, nest, isa, ())
    return first, _distinct(varied, nest, isa, first)


def _of_several(loops: Loops, *, divides: bool) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
    is_small = choose_num_chunks(1 << 30, sum(map(nest_operations, loops.nests))) == 1
    if is_small and not divides:
        return (), ()
    chunks = _numbers_of_chunks(divides=divides)
    first = tuple(Choice.of(TEMPLATE, chunks=n) for n in chunks[:3])
    usual = {} if divides else {"chunks": 1}
    more = [{"vectors": n, **usual} for n in (1, 2, 8)] + [{"item_rows": n, **usual} for n in _ITEM_ROWS]
    return first, tuple(Choice.of(TEMPLATE, **parameters) for parameters in more)


def _numbers_of_chunks(*, divides: bool) -> tuple[int, ...]:
    return _CHUNKS_OF_SEVERAL_THREADS if divides else (1,)


def _as_chunks(numbers: Sequence[int]) -> dict[str, int]:
    return {"chunks": numbers[0]} if numbers else {}


def _distinct(
    found: Iterable[Mapping[str, int]], nest: LinearNest, isa: Isa, before: Sequence[Choice]
) -> tuple[Choice, ...]:
    """The first choice of each way to run, none for those known `before` or that of the rules."""
    plans: dict[Chosen, LoopNestPlan] = {}

    def way(choice: Choice) -> object:
        chosen = chosen_of(choice, nest)
        tile = replace(chosen, block=None, chunks=None)
        if tile not in plans:
            plans[tile] = plan_nest(nest, isa, chosen=tile)
        return plans[tile], chosen.block, chosen.chunks

    seen = {way(choice) for choice in (Choice(TEMPLATE), *before)}
    choices: list[Choice] = []
    for parameters in found:
        choice = Choice.of(TEMPLATE, **parameters)
        made = way(choice)
        if made not in seen:
            seen.add(made)
            choices.append(choice)
        if len(choices) == _MAX_CHOICES:
            break
    return tuple(choices)


def _tiles(nest: LinearNest, plan: LoopNestPlan, isa: Isa) -> Iterator[dict[str, int]]:
    """Register tiles, the best by estimate first, along these and along other loops."""
    if plan.vector is None or plan.transposed:
        return
    position = {dim.name: number for number, dim in enumerate(nest.parallel)}
    if plan.reduces_lanes or nest.combine is None:
        yield from ({"vectors": n} for n in (2, 1, 8, 4) if n != plan.num_vectors)
    else:
        apart = tuple(d for d in nest.parallel if d.name != plan.vector)
        rows = sorted(row_loops(nest, apart), key=lambda d: d.name != plan.row)
        ranked = sorted(
            (cycles, number, size, vectors)
            for number, row in enumerate(rows)
            for size in dict.fromkeys(balanced(row.extent, most) for most in range(1, 13))
            for vectors, cycles in enumerate(_cycles_per_vector(nest, plan, replace(row, extent=size)), 1)
            if size * vectors + vectors < isa.num_vector_registers - 2
        )
        best = {vectors: (number, size, vectors) for _, number, size, vectors in reversed(ranked)}
        tiles = [(number, size, vectors) for _, number, size, vectors in ranked]
        # Of each width the best first: tiles of one width are much alike.
        for number, size, vectors in dict.fromkeys((*sorted(best.values(), key=tiles.index), *tiles)):
            along = {} if rows[number].name == plan.row else {"row_axis": position[rows[number].name]}
            yield {"rows": size, "vectors": vectors, **along}
    for dim in vector_loops(nest, nest.parallel):
        if dim.name != plan.vector and all(_is_near(nest, number, dim) for number in range(len(nest.refs))):
            yield {"axis": position[dim.name]}
    if plan.lanes > 4:
        yield {"lanes": plan.lanes // 2}


def _is_near(nest: LinearNest, read: int, dim: Dim) -> bool:
    """Whether vectors of a read along a loop come from neighbouring elements, or are one element."""
    return (
        dim.name not in nest.depends(read) or abs(nest.refs[read].coefficient(dim.name)) <= MAX_THINNED_STRIDE
    )


def _cycles_per_vector(nest: LinearNest, plan: LoopNestPlan, row: Dim) -> Iterator[float]:
    """What register tiles of 1, 2, ... vectors and these rows take for each vector of results.

    That is operations, loads, or the latency of sums where nothing else is left to do.
    """
    num_steps = prod(dim.extent for dim in nest.reduce)
    places = [num_places(ref, (*nest.reduce, row)) for ref in nest.refs]
    is_vector = [plan.vector in ref.names() for ref in nest.refs]
    for num_vectors in range(1, _MOST_VECTORS + 1):
        loads = sum(
            count * (num_vectors if along else 1) for count, along in zip(places, is_vector, strict=True)
        )
        num_results = row.extent * num_vectors
        issue = max(num_steps * num_results / _FMAS_PER_CYCLE, loads / _LOADS_PER_CYCLE)
        latency = num_steps * _FMA_CYCLES / _TILES_IN_FLIGHT
        yield (max(issue, latency) + _TILE_CYCLES + _LOAD_CYCLES * loads) / num_results


def _blocks(nest: LinearNest, plan: LoopNestPlan) -> Iterator[dict[str, int]]:
    """Sizes of blocks of the vector loop, and none."""
    if plan.vector is None or plan.transposed or not can_block(nest, plan):
        return
    yield {"block": 0}
    extent, unit = nest.extents[plan.vector], plan.lanes * plan.num_vectors
    for tiles in _BLOCK_TILES:
        if tiles * unit < extent:
            yield {"block": tiles * unit}


def _unrolled(nest: LinearNest, plan: LoopNestPlan) -> Iterator[dict[str, int]]:
    """More and fewer reduce loops in straight code."""
    if nest.combine is not None and not plan.reduces_lanes:
        yield from ({"straight": n} for n in range(len(nest.reduce) + 1) if n != len(plan.straight))
