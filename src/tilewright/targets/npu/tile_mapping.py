"""Tile shapes and the order of loops of a sum of products, where its operands have to be read again.

The cores' buffers of a cluster count as one level, of which the operator has what is free; outside it lie the
free part of the shared buffer and main memory. What the mapper minimises as energy is the time of transfers
on the ports: a word costs as many pJ at a level as picoseconds on the port it takes. An operand that lives in
the cores has no axes, so that it costs nothing; one that lives in the shared buffer has its home in a level
of its own, of any size.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from tilewright.arrays import distinct
from tilewright.cost.count import Cost
from tilewright.errors import InfeasibleMapping
from tilewright.families import MAPPERS
from tilewright.hardware.machine import ALL_KINDS, Level, Machine, TensorKind, Unit
from tilewright.loops.mapping import Loop
from tilewright.loops.problem import Operand, Problem
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.checked import solved
from tilewright.mapping.constraints import UNCONSTRAINED, Constraints, NoLoop
from tilewright.mapping.factors import divisors, smooth
from tilewright.planning import UNLIMITED, Budget, Infeasible
from tilewright.targets.npu.mapped_products import MappedProducts
from tilewright.targets.npu.mapped_tiles import mapped_tiling
from tilewright.targets.npu.ports import Ports, ports_of
from tilewright.targets.npu.tiles import (
    NOTHING,
    PIECES,
    Moved,
    Passage,
    Tiler,
    TileRequest,
    Tiling,
    passage_of,
    passages_beside,
    tiling_of,
)

Array = np.ndarray[Any, Any]

_LOCAL, _SHARED, _HOME, _MAIN = "cores", "shared", "home", "main"
_UNLIMITED_WORDS = 1 << 40
_PS = 1e12
_MOST_TILES = 200_000  # of a problem, for which it is worth looking which of them capacities hold
_SMALLER = (1.0, 0.5, 0.25, 0.125)  # shares of the levels to plan for, for mappers whose answers may not fit


MapperName = Literal["exact", "cosa", "paper"]
"""Mappers that tile operands which have to be read again."""
MAPPER_NAMES: tuple[MapperName, ...] = get_args(MapperName)

# Extents are rounded up before, and a search that grows beyond a moment's work ends with the best it has.
_SPECS: MappingOf[MapperName, str] = {
    "exact": "exact{pads=false, max_search_states=300000}",
    "cosa": "cosa",
    "paper": "paper",
}


def tiler_of(machine: Machine, mapper: MapperName = "exact") -> Tiler:
    """Tiler of the steps on a machine.

    Raises:
        MachineError: the machine has no buffers of cores, or no rate for what it has to move.
    """
    ports = ports_of(machine)
    # The exact search stands in where a heuristic finds nothing because only a few elements fit.
    names: tuple[MapperName, ...] = ("exact",) if mapper == "exact" else (mapper, "exact")
    mappers = tuple(MAPPERS.get(_SPECS[name]) for name in names)
    return Tiler(machine.name, ports.local.name, MappedTiles(ports, mappers, is_whole=mapper == "exact"))


@dataclass(frozen=True, slots=True)
class MappedTiles:
    """Tiles of sums of products by the first of some mappers that finds any, on a machine with these ports.

    The exact search is asked once for all capacities that hold the same tiles, which it maps alike.
    `is_whole`: steps whose operands all come from main memory run the whole mapping of their products.
    """

    ports: Ports
    mappers: tuple[Mapper, ...]
    is_whole: bool = False
    _sizes: dict[Hashable, Array | None] = field(init=False, repr=False, default_factory=dict)
    _solutions: dict[Hashable, MappingSolution | None] = field(init=False, repr=False, default_factory=dict)

    def mapped(self, request: TileRequest, part: MappedProducts, num_cores: int) -> Tiling | None:
        """Tiles of a step that runs a whole mapping; None where that does not fit."""
        return mapped_tiling(request, self.ports, part, num_cores)

    def tiling(self, request: TileRequest) -> Tiling | None:
        """Tiles of a sum of products; None where none moves, or too little is left."""
        assert request.problem is not None
        view = _View.of(request, self.ports)
        if view is None:
            return None
        for mapper in self.mappers:
            solution = self._exactly(mapper, view) if mapper.name == "exact" else _solution(mapper, view)
            if solution is not None:
                return _tiling(request, view, solution, mapper.name)
        return None

    def _exactly(self, mapper: Mapper, view: _View) -> MappingSolution | None:
        view = self.rounded(view)
        kinds = view.kinds(is_main=True), view.kinds(is_main=False)
        key = view.problem, kinds, view.word_bytes, view.local_words, view.shared_words
        if key not in self._solutions:
            self._solutions[key] = _solution(mapper, view)
        return self._solutions[key]

    def rounded(self, view: _View) -> _View:
        """The same view with the least capacities that hold the same tiles."""
        local_words = self._rounded(view.problem, ALL_KINDS, view.local_words, counts_copies=True)
        shared_words = 0
        if view.passes_shared:
            # Whether anything passes the shared buffer goes by how many operands find a place there.
            least = min(view.shared_words, len(view.problem.operands) + 1)
            passing = view.kinds(is_main=True)
            shared_words = max(
                least, self._rounded(view.problem, passing, view.shared_words, counts_copies=False)
            )
        return replace(view, local_words=local_words, shared_words=shared_words)

    def _rounded(
        self, problem: Problem, kinds: tuple[TensorKind, ...], words: int, *, counts_copies: bool
    ) -> int:
        """As many words, of so many, as some tile of these kinds of tensor takes at once."""
        key = problem, kinds, counts_copies
        if key not in self._sizes:
            self._sizes[key] = _tile_words(problem, kinds, counts_copies=counts_copies)
        sizes = self._sizes[key]
        if sizes is None:
            return words
        place = int(np.searchsorted(sizes, words, side="right"))
        return int(sizes[place - 1]) if place else words


def _tile_words(problem: Problem, kinds: tuple[TensorKind, ...], *, counts_copies: bool) -> Array | None:
    """The words that tiles take whose extents divide the problem's, ascending; None of too many tiles."""
    lengths = {dim: divisors(extent) for dim, extent in problem.dims}
    if prod(len(listed) for listed in lengths.values()) > _MOST_TILES:
        return None
    grid = np.ix_(*(np.array(listed, np.int64) for listed in lengths.values()))
    tile = dict(zip(lengths, grid, strict=True))
    total: Array = np.zeros((1,) * len(tile), np.int64)
    for operand in problem.operands:
        if operand.kind in kinds:
            words: Array = np.full_like(total, operand.copies if counts_copies else 1)
            for axis in operand.axes:
                extent: Array = np.ones_like(total)
                for dim, step in axis:
                    extent = extent + step * (tile[dim] - 1)
                words = words * extent
            total = total + words
    return distinct(total)


def _solution(mapper: Mapper, view: _View) -> MappingSolution | None:
    # Heuristics know no constraints, and take no advantage of what these forbid.
    constraints = view.constraints if mapper.name == "exact" else UNCONSTRAINED
    for share in _SMALLER:
        try:
            task = MappingProblem(view.problem, view.machine(share), "energy", constraints=constraints)
            answer = solved(mapper, task, Budget(UNLIMITED))
        except InfeasibleMapping:
            continue
        if not isinstance(answer, Infeasible):
            return answer
    return None


@dataclass(frozen=True, slots=True)
class _View:
    """What a mapper sees of a step and of the machine.

    `local_words` are what tiles may take of the cores' buffers, `main_ps` and `local_ps` what a word takes on
    the ports. `beside` is what operands that are not in the products hold meanwhile.
    """

    problem: Problem
    moved: MappingOf[str, Moved]
    beside: MappingOf[int, Passage]
    local_words: int
    shared_words: int
    word_bytes: int
    main_ps: float
    local_ps: float

    @classmethod
    def of(cls, request: TileRequest, ports: Ports) -> _View | None:
        """The view of a request; None where what is free holds no tile."""
        assert request.problem is not None
        moved = {x.role: x for x in request.outside if x.role}
        beside = passages_beside(request)
        word_bytes = min(x.element_bytes for x in moved.values()) if moved else 1
        beside_bytes = sum(p.held_bytes for p in beside.values())
        free = request.local_bytes - 2 * beside_bytes
        problem = _reduced(request.problem, moved, word_bytes)
        # An element of each operand can be used even where the next one has no place beside it.
        least_words = sum(o.copies for o in problem.operands if o.name in moved)
        if not moved or beside_bytes + least_words * word_bytes > request.local_bytes:
            return None
        has_shared = ports.shared is not None
        num_in_cores = sum(o.name not in moved for o in problem.operands)
        return cls(
            problem,
            moved,
            beside,
            # The word of an operand in the cores takes nothing of what is free.
            max(free // 2 // word_bytes, least_words) + num_in_cores,
            request.shared_bytes // 2 // word_bytes if has_shared else 0,
            word_bytes,
            word_bytes / ports.main_bytes_per_s * _PS,
            word_bytes / ports.local_bytes_per_s * _PS if has_shared else 0.0,
        )

    def kinds(self, *, is_main: bool) -> tuple[TensorKind, ...]:
        """Kinds of tensor that live in main memory, or in the shared buffer."""
        return tuple(
            o.kind
            for o in self.problem.operands
            if (x := self.moved.get(o.name)) is not None and x.is_main == is_main
        )

    @property
    def passes_shared(self) -> bool:
        """Whether the shared buffer may hold tiles of what comes from main memory."""
        return bool(self.shared_words > len(self.problem.operands) and self.kinds(is_main=True)) and (
            self.main_ps > self.local_ps
        )

    @property
    def served_ps(self) -> float:
        """What a word takes that passes between main memory and the next level."""
        if not self.kinds(is_main=True):
            return self.local_ps
        if self.passes_shared:
            # A level is charged for what fills it, but that takes nothing of the cores' port.
            return self.main_ps - self.local_ps
        return self.main_ps + self.local_ps

    @property
    def has_home(self) -> bool:
        """Whether operands that live in the shared buffer are served from elsewhere than others."""
        return bool(self.kinds(is_main=True) and self.kinds(is_main=False))

    @property
    def constraints(self) -> Constraints:
        """What keeps the way of operands from main memory to their home, which no step takes, alike in all
        mappings: where windows leave gaps, tiles of the home would leave them out."""
        if not self.has_home:
            return UNCONSTRAINED
        extents = dict(self.problem.dims)
        skipping: dict[str, None] = {}
        for operand in self.problem.operands:
            x = self.moved.get(operand.name)
            for axis in operand.axes if x is not None and not x.is_main else ():
                for dim, step in axis:
                    reach = 1 + sum(s * (extents[other] - 1) for other, s in axis if s < step)
                    if step > reach:
                        skipping[dim] = None
        return Constraints(absent=tuple(NoLoop(_MAIN, dim) for dim in skipping))

    def home_ps(self, operand: Operand) -> float:
        """What every mapping takes for an operand on the way between main memory and its home."""
        return self.problem.num_words(operand) * (self.served_ps + self.local_ps)

    def machine(self, share: float) -> Machine:
        """The levels, with this share of what is free."""
        bits, local_ps = 8 * self.word_bytes, self.local_ps

        def level(name: str, words: int, holds: tuple[TensorKind, ...], ps: float) -> Level:
            capacity_bytes = max(1, words) * self.word_bytes
            return Level(
                name=name, capacity_bytes=capacity_bytes, holds=holds, word_bits=bits, read_pj=ps, write_pj=ps
            )

        levels = [level(_LOCAL, int(self.local_words * share), ALL_KINDS, 0.0)]
        if self.passes_shared:
            levels.append(level(_SHARED, int(self.shared_words * share), self.kinds(is_main=True), local_ps))
        if self.has_home:
            levels.append(level(_HOME, _UNLIMITED_WORDS, self.kinds(is_main=False), local_ps))
        levels.append(Level(name=_MAIN, word_bits=bits, read_pj=self.served_ps, write_pj=self.served_ps))
        return Machine(
            name="tiles",
            levels=tuple(levels),
            units=(Unit(name="mac", kind="mac", level=_LOCAL, macs_per_cycle={"int8": 1}),),
            energy_source="picoseconds on the ports",
        )


def _reduced(problem: Problem, moved: MappingOf[str, Moved], word_bytes: int) -> Problem:
    """The problem without operands that live in the cores, and without loops that move no other ones."""
    operands = []
    for operand in problem.operands:
        x = moved.get(operand.name)
        if x is None:
            operands.append(Operand(operand.name, operand.kind, ()))
        else:
            copies = x.num_copies * x.element_bytes // word_bytes
            operands.append(replace(operand, copies=copies))
    used = {dim for operand in operands for dim in operand.dims()}
    dims = tuple((dim, smooth(extent)) for dim, extent in problem.dims if dim in used and extent > 1)
    known = {dim for dim, _ in dims}
    # A loop of a single iteration moves nothing along its axis.
    operands = [
        replace(o, axes=tuple(axis for axis in (_axis_of(a, known) for a in o.axes) if axis))
        for o in operands
    ]
    return Problem(problem.name, dims, tuple(operands))


def _axis_of(axis: tuple[tuple[str, int], ...], known: set[str]) -> tuple[tuple[str, int], ...]:
    return tuple((dim, step) for dim, step in axis if dim in known)


def _tiling(request: TileRequest, view: _View, solution: MappingSolution, mapper: str) -> Tiling:
    cost, mapping = solution.cost, solution.mapping
    outside = [loop for level in mapping.levels if level.level != _LOCAL for loop in level.temporal]
    inside = [loop for level in mapping.levels if level.level == _LOCAL for loop in level.temporal]
    roles = {o.name: o for o in view.problem.operands}
    passages = []
    for place, x in enumerate(request.operands):
        if x.is_local or not x.size_bytes:
            passages.append(NOTHING)
        elif place in view.beside:
            passages.append(view.beside[place])
        else:
            passages.append(_mapped_passage(view, roles[x.role], x, cost, request.shared_bytes // PIECES))
    text = f"{_words(outside)} | {_words(inside)}"
    note = f" ({solution.quality.status})" if str(solution.quality.status) == "cut off" else ""
    return tiling_of(
        request,
        _result_axis(request, view.problem, outside),
        prod(loop.factor for loop in outside),
        passages,
        f"{mapper}: {text}{note}",
        _bound_s(request, view, solution),
        is_summed=any(loop.dim not in dict(request.result_axes) for loop in outside if loop.factor > 1),
    )


def _words(loops: list[Loop]) -> str:
    return " ".join(f"{loop.dim}{loop.factor}" for loop in loops) or "-"


def _mapped_passage(view: _View, operand: Operand, x: Moved, cost: Cost, passing_bytes: int) -> Passage:
    """What the cost model counts of an operand: words that enter the cores or leave them, and how many of
    them come from main memory."""
    by_level = {level.level: level.tensors.get(operand.name) for level in cost.levels}
    # The innermost level around the cores that holds it serves them.
    serving = next(c for name in (_SHARED, _HOME, _MAIN) if (c := by_level.get(name)) is not None)
    main, local = by_level[_MAIN], by_level[_LOCAL]
    assert main is not None
    assert local is not None
    whole = view.problem.num_words(operand)
    held = local.tile_words * view.word_bytes
    shared = by_level.get(_SHARED)
    return passage_of(
        x,
        (serving.reads + serving.updates) / whole,
        (main.reads + main.updates) / whole,
        held,
        is_kept=local.tile_words >= whole * operand.copies,
        outer=max(x.element_bytes, passing_bytes) if shared is None else shared.tile_words * x.element_bytes,
    )


def _result_axis(request: TileRequest, problem: Problem, outside: list[Loop]) -> int | None:
    """The axis of the main result that tiles complete one after another: that of the outermost loop, unless
    it sums."""
    axes = dict(request.result_axes)
    return axes.get(outside[0].dim) if outside else None


def _bound_s(request: TileRequest, view: _View, solution: MappingSolution) -> float:
    """Seconds that the busier port takes at least, weights aside that may lie in the shared buffer already.

    What the mapper proves is of both ports together, so that one of them has half of it at least.
    """
    bound_ps, cached_ps, share = solution.quality.bound, 0.0, 1.0
    for operand in view.problem.operands:
        x = view.moved.get(operand.name)
        if x is None:
            bound_ps -= 2 * (view.main_ps + view.local_ps)  # of its one word
            continue
        # Extents are rounded up, and what a window is padded with is not moved.
        words = x.size_bytes / view.word_bytes
        share = min(share, words / view.problem.num_words(operand))
        if not x.is_main and view.has_home:
            bound_ps -= view.home_ps(operand)
        elif x in request.weights and x.is_main and x.size_bytes <= request.shared_bytes:
            cached_ps += words * view.main_ps
    ports = 2 if view.local_ps else 1
    return max(0.0, (bound_ps * share - cached_ps) / ports / _PS)
