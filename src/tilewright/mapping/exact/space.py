"""One problem on one machine as the search sees it: tables for each level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tilewright.arrays import distinct
from tilewright.cost.bound import level_capacities
from tilewright.errors import InfeasibleMapping, MachineError
from tilewright.hardware.machine import Level, TensorKind
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.exact import search_states, windows
from tilewright.mapping.exact.choices import Alike, Spatial
from tilewright.mapping.exact.lattice import Lattice
from tilewright.mapping.exact.ports import Port, PortBound, limited_ports
from tilewright.mapping.exact.rest import Entries, View, least_rest
from tilewright.mapping.launch import has_shape

Array = np.ndarray[Any, Any]
_MOST_SPREAD = 4_000_000  # tiles times choices, to see which must be cut before a level
_MOST_PAIRS = 1_000_000  # of choices outside a port and inside it
_PAIRS_AT_ONCE = 1 << 13  # arrays of so many stay in a processor's cache


@dataclass(frozen=True, slots=True)
class Tables:
    """What the search's loops know of one level; columns as `search_states` and `rest` say."""

    facts: Array
    totals: Array
    tail: Array
    rest: Array
    given: Array
    entering: Array
    closing: Array
    rounding_pj: float

    def without_ports(self) -> Tables:
        """The same where cycles do not matter."""
        facts = self.facts.copy()
        facts[:, (search_states.SERVE_PORT, search_states.FILL_PORT)] = -1
        return replace(
            self,
            facts=facts,
            tail=self.tail[:0],
            rest=self.rest[:, :1].copy(),
            given=self.given[:, :1].copy(),
            closing=self.closing[:0],
        )

    def without_energy(self) -> Tables:
        """The same where energy does not matter: partial mappings that differ in it only are equal."""
        facts, totals, entering = self.facts.copy(), self.totals.copy(), self.entering.copy()
        energies = (
            search_states.FILL_PJ,
            search_states.SERVE_PJ,
            search_states.REDUCE_PJ,
            search_states.TAIL_PJ,
        )
        facts[:, energies] = 0.0
        totals[1] = 0.0
        entering[:, 1] = 0.0
        rest, given = self.rest.copy(), self.given.copy()
        for costs in (rest, given):
            costs[:, 0] = np.where(np.isfinite(costs[:, 0]), 0.0, np.inf)
        return replace(
            self, facts=facts, totals=totals, entering=entering, rest=rest, given=given, rounding_pj=0.0
        )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Choices of spatial loops of several levels together, of which one alone has a choice: `number`, if
    any. The rest as `Spatial` has it."""

    number: int | None
    factors: Array
    weights: Array
    packed: Array


def _pass_over(tables: Sequence[Tables]) -> None:
    """Note of each level the operands that pass no limit of bandwidth there or further in."""
    counts: Array = np.zeros(len(tables[0].facts), np.bool_)
    for table in tables:
        ports = table.facts[:, (search_states.SERVE_PORT, search_states.FILL_PORT)]
        counts = counts | np.any(ports >= 0, axis=1)
        table.facts[:, search_states.COUNTS] = counts
        table.facts[~counts, search_states.HAS_NEXT] = 0


@dataclass(slots=True)
class Space:
    """Tables of a problem and a machine. Levels are numbered from the innermost."""

    task: MappingProblem
    lattice: Lattice
    levels: tuple[Level, ...] = field(init=False)
    output: int = field(init=False)  # the number of the operand that is accumulated
    kept: list[list[int]] = field(init=False)  # of each operand the levels that hold it, the outermost first
    num_instances: list[int] = field(init=False)  # of each level
    depends: Array = field(init=False)
    windows: Array = field(init=False)
    windowed: Array = field(init=False)
    steps: Array = field(init=False)
    commute: Array = field(init=False)  # bool [steps, steps]: loops whose order does not matter
    fits: list[Array] = field(init=False)
    phases: list[list[Array]] = field(init=False)  # of each level, exponents [points, steps] of its loops
    left_inside: Array = field(init=False)  # bool [points]: tiles that the innermost level's loops may cut
    spatial: list[Spatial] = field(init=False)
    closed: list[Array] = field(init=False)  # of each level, bool [operands, points], as `search_states` says
    least_cycles: float = field(init=False)  # of any mapping, by what the levels' ports and choices allow
    _tables: dict[tuple[bool, bool], tuple[Tables, ...]] = field(init=False, default_factory=dict)
    _alike: dict[int, Alike] = field(init=False, default_factory=dict)
    _most: dict[tuple[int, bytes], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.task.problem
        self.levels = self.task.machine.levels
        self.output = next(i for i, o in enumerate(problem.operands) if o.kind is TensorKind.OUTPUT)
        self.kept = [self._kept(operand.kind) for operand in problem.operands]
        self.num_instances = [self.task.machine.num_instances(level) for level in self.levels]
        names = list(problem.extents)
        self.depends = np.array([[name in o.dims() for name in names] for o in problem.operands])
        windows = []
        for number, operand in enumerate(problem.operands):
            for axis in operand.axes:
                for (a, step_a), (b, step_b) in pairwise(axis):
                    windows.append((number, names.index(a), step_a, names.index(b), step_b))
        self.windows = np.array(windows, np.int64).reshape(-1, 5)
        self.windowed = distinct(self.windows[:, 0])
        self.steps = np.array([(s.dim, s.factor, s.weight) for s in self.lattice.steps], np.int64).reshape(
            -1, 3
        )
        slides = np.zeros(len(names), np.bool_)
        slides[self.windows[:, (1, 3)]] = True
        moved = np.vstack([self.depends, np.diag(slides)])[:, self.steps[:, 0]]
        self.commute = np.all(moved[:, :, None] == moved[:, None], axis=0)
        self.fits = [self._fits(number) for number in range(len(self.levels))]
        if self.task.constraints and not self.fits[-1][self.lattice.whole]:
            raise InfeasibleMapping(
                f"level {self.levels[-1].name}: the outermost level holds all of every tensor; change the "
                "constraint on its tile."
            )
        self.phases = [self._phases(number) for number in range(len(self.levels))]
        has_no_loop = [dim for dim, is_there in enumerate(self._has_loops(0)) if not is_there]
        self.left_inside = np.all(self.lattice.tiles[:, has_no_loop] == 1, axis=1)
        self.spatial = [self._spatial(number) for number in range(len(self.levels))]
        self.closed = self._closed()
        self.least_cycles = self._take_cycles_of_choices()

    def fan_out(self, number: int) -> int:
        """Instances of the next inner level, or compute units, that one instance of a level feeds."""
        return self.task.machine.fan_out(number)

    def num_fed(self, outer: int, inner: int) -> int:
        """Instances of a level, -1 for the compute units, that factors let one of a level around it feed."""
        return prod(int(self.spatial[n].products[0]) for n in range(inner + 1, outer + 1))

    def num_served(self, operand: int, outer: int, inner: int) -> int:
        """How many of these one access to an operand may serve."""
        if operand in self.windowed:  # also where tiles meet by chance
            return self.num_fed(outer, inner)
        beside = ~self.depends[operand]
        return prod(self._most_spread(n, beside) for n in range(inner + 1, outer + 1))

    def _most_spread(self, number: int, dims: Array) -> int:
        """The most iterations of some dims that a level spreads."""
        key = number, dims.tobytes()
        if key not in self._most:
            self._most[key] = int(self.spatial[number].factors[:, dims].prod(axis=1).max())
        return self._most[key]

    def _kept(self, kind: TensorKind) -> list[int]:
        """The levels that hold a kind of operand, the outermost first.

        Raises:
            MachineError: the outermost level is none of them.
        """
        kept = [n for n in reversed(range(len(self.levels))) if kind in self.levels[n].holds]
        if not kept or kept[0] != len(self.levels) - 1:
            raise MachineError(f"level {self.levels[-1].name}: the outermost level must hold {kind}.")
        return kept

    def _fits(self, number: int) -> Array:
        lattice, task = self.lattice, self.task
        fits = np.ones(len(lattice.num_tiles), np.bool_)
        for kinds, words, _ in level_capacities(task.machine, self.levels[number], task.cost_options):
            inside = [i for i, o in enumerate(task.problem.operands) if o.kind in kinds]
            if inside:
                copies = [task.problem.operands[i].copies if number == 0 else 1 for i in inside]
                fits &= np.array(copies) @ lattice.volumes[inside] <= words
        names = list(task.problem.extents)
        for dim, extent in task.constraints.tile_at(self.levels[number].name, task.problem).items():
            fits &= lattice.tiles[:, names.index(dim)] == extent
        return fits

    def _phases(self, number: int) -> list[Array]:
        """What the loops of a level may take, phase after phase: loops of a later one are inside."""
        names = list(self.task.problem.extents)
        phases = self.task.constraints.phases_at(self.levels[number].name, self.task.problem)
        if len(phases) == 1 and len(phases[0]) == len(names):
            return [self.lattice.exponents]
        steps = self.lattice.steps
        masks = [np.array([names[step.dim] in dims for step in steps], np.int16) for dims in phases]
        return [self.lattice.exponents * mask for mask in masks]

    def _has_loops(self, number: int) -> list[bool]:
        """Of each dim, whether a level may have a temporal loop of it."""
        phases = self.task.constraints.phases_at(self.levels[number].name, self.task.problem)
        return [any(name in dims for dims in phases) for name in self.task.problem.extents]

    def _spatial(self, number: int) -> Spatial:
        limit, steps = self.fan_out(number), self.lattice.steps
        names = list(self.task.problem.extents)
        exponents, factors = np.zeros((1, len(steps)), np.int16), np.ones((1, len(names)), np.int64)
        products = np.ones(1, np.int64)
        for column, step in enumerate(steps):
            if not self.task.may_spread(names[step.dim], number):
                continue
            powers = step.factor ** np.arange(step.count + 1)
            together = np.multiply.outer(products, powers[powers <= limit])
            way, counts = np.nonzero(together <= limit)
            exponents, factors, products = exponents[way], factors[way], together[way, counts]
            exponents[:, column] = counts
            factors[:, step.dim] *= powers[counts]
        is_allowed = np.ones(len(products), np.bool_)
        block = self.task.block
        if block is not None and self.levels[number].name == block.shared:
            shapes = {int(product): has_shape(int(product), block) for product in distinct(products)}
            is_allowed &= np.array([shapes[product] for product in products.tolist()])
        axes = self.task.constraints.axes_at(self.levels[number].name)
        if axes is not None:
            along = [axes.axis_of(name, self.task.problem) for name in names]
            for axis, (_, size) in enumerate(axes.axes):
                is_allowed &= factors[:, [a == axis for a in along]].prod(axis=1) <= size
        fixed = self.task.constraints.spatial_at(self.levels[number].name, self.task.problem)
        for dim, factor in fixed.items():
            is_allowed &= factors[:, names.index(dim)] == factor
        if not is_allowed.any():
            said = ", ".join(f"{dim}={factor}" for dim, factor in fixed.items())
            raise InfeasibleMapping(
                f"level {self.levels[number].name}: spatial factors {said} do not divide the extents, or ask "
                f"for more than the {limit} instances that there are; change the constraint."
            )
        allowed = np.flatnonzero(is_allowed)
        order = allowed[np.argsort(-products[allowed], kind="stable")]
        exponents = exponents[order]
        weights = exponents.astype(np.int64) @ np.array([step.weight for step in steps], np.int64)
        packed = self.lattice.pack(exponents)
        return Spatial(factors[order], exponents, products[order], weights, packed, np.zeros(len(order)))

    # --- loops that must still come ---

    def _closed(self) -> list[Array]:
        """Of each level, for each operand and tile: whether a temporal loop that moves the operand must still
        come before its next level, as no tile that fits there is reached without."""
        operands = range(len(self.task.problem.operands))
        closed = [np.zeros((len(operands), len(self.lattice.num_tiles)), np.bool_) for _ in self.levels]
        for t in operands:
            kept = self.kept[t]
            for outer, inner in pairwise(kept):
                reached = self.fits[inner]
                for number in range(inner + 1, outer + 1):
                    reached = self._reached_without(t, number, reached)
                    closed[number][t] = ~reached
        return closed

    def _reached_without(self, operand: int, number: int, reached: Array) -> Array:
        """The tiles from which a level reaches others by spatial loops, and temporal ones that do not move an
        operand."""
        lattice = self.lattice
        moved = self.depends[operand, self.steps[:, 0]]
        exponents = self.spatial[number].exponents * moved  # others may as well be temporal
        packed = lattice.pack(exponents)
        order = np.argsort(packed, kind="stable")
        first = order[np.r_[True, packed[order[1:]] != packed[order[:-1]]]]
        if len(first) * len(reached) > _MOST_SPREAD:
            return np.ones(len(reached), np.bool_)
        weights = exponents[first].astype(np.int64) @ self.steps[:, 2]
        outside: Array = search_states.reached_by_spreading(
            reached, lattice.packed, lattice.guards, weights, packed[first]
        )
        for step, is_moved in zip(lattice.steps, moved, strict=True):
            if not is_moved:
                axis = outside.reshape(-1, step.count + 1, step.weight)
                np.logical_or.accumulate(axis, axis=1, out=axis)
        return outside

    # --- bandwidth ---

    def _take_cycles_of_choices(self) -> float:
        """Note what mappings with each choice of spatial loops take at least; gives the least of all.

        Where one level alone spreads loops outside a port, and one inside it.
        """
        lattice, least = self.lattice, 0.0
        for port in limited_ports(self.task.machine):
            if port.level == len(self.levels) - 1:
                continue  # the whole problem is what it moves, whatever is spread
            bound = PortBound(self.task, port)
            outside, inside = (self._spread(n) for n in (bound.levels_outside, bound.levels_inside))
            if outside is None or inside is None:
                continue
            if len(outside.packed) * len(inside.packed) > _MOST_PAIRS:
                continue
            of_one = bound.of_tiles(lattice.tiles)
            of_outside, of_inside = (np.full(len(side.packed), np.inf) for side in (outside, inside))
            num_rows = -(-_PAIRS_AT_ONCE // len(inside.packed))
            for start in range(0, len(outside.packed), num_rows):
                rows = slice(start, start + num_rows)
                left = (lattice.packed[-1] | lattice.guards) - outside.packed[rows, None] - inside.packed
                divides = left & lattice.guards == lattice.guards
                in_level = lattice.whole - outside.weights[rows]
                in_next = np.where(divides, in_level[:, None] - inside.weights, 0)
                cycles = bound.of_choices(of_one, in_level, in_next, inside.factors)
                cycles[~divides] = np.inf
                of_outside[rows] = cycles.min(axis=1)
                np.minimum(of_inside, cycles.min(axis=0), out=of_inside)
            for spread, cycles in ((outside, of_outside), (inside, of_inside)):
                if spread.number is not None:
                    of_choices = self.spatial[spread.number].cycles
                    np.maximum(of_choices, cycles, out=of_choices)
            least = max(least, float(of_outside.min()))
        return least

    def _spread(self, levels: Iterable[int]) -> _Spread | None:
        """What some levels spread; None where several of them have a choice."""
        spread = _Spread(
            None, np.ones((1, len(self.task.problem.dims)), np.int64), *np.zeros((2, 1), np.int64)
        )
        for number in levels:
            of_level = self.spatial[number]
            has_choice = len(of_level.products) > 1
            if has_choice and spread.number is not None:
                return None
            spread = _Spread(
                number if has_choice else spread.number,
                spread.factors * of_level.factors,
                spread.weights + of_level.weights,
                spread.packed + of_level.packed,
            )
        return spread

    def choices_within(self, most_cycles: float) -> tuple[list[Spatial], Alike]:
        """Choices of each level with which a mapping may take no longer; those of the innermost by what they
        cost."""
        spatial = [choices.within(most_cycles) for choices in self.spatial]
        num_left = len(spatial[0].products)  # the slowest go first
        if num_left not in self._alike:
            self._alike[num_left] = Alike.of(spatial[0], self.depends, self.windows)
        spatial[0] = self._alike[num_left].spatial
        return spatial, self._alike[num_left]

    # --- tables ---

    def tables(self, *, counts_cycles: bool, counts_energy: bool = True) -> tuple[Tables, ...]:
        """Of every level. Where cycles or energy do not matter, partial mappings that differ in them only are
        equal."""
        key = counts_cycles, counts_energy
        if key not in self._tables:
            if counts_cycles and counts_energy:
                tables = self._tables_of(limited_ports(self.task.machine))
            else:
                tables = self.tables(counts_cycles=True)
                if not counts_cycles:
                    tables = tuple(table.without_ports() for table in tables)
                if not counts_energy:
                    tables = tuple(table.without_energy() for table in tables)
                    _pass_over(tables)
            self._tables[key] = tables
        return self._tables[key]

    def _tables_of(self, limited: tuple[Port, ...]) -> tuple[Tables, ...]:
        entries = self._entries(limited)
        problem, lattice = self.task.problem, self.lattice
        skips_pixels = self.task.cost_options.skips_pixels
        rests = least_rest(View(lattice, self.depends, self.windows, self.fits, skips_pixels), entries)
        least = entries.least(lattice.touched, problem.num_macs)
        tables = []
        for number, (rest, given) in enumerate(rests):
            # What a search state serves or fills next it counts itself.
            further_in = entries.outer < number
            last = least[further_in & (entries.inner < 0)].sum(axis=0)
            if last.any():
                rest += last
                given += last
            tables.append(
                Tables(
                    self._facts(number, limited),
                    self._totals(number),
                    least[further_in, 1:].sum(axis=0),
                    rest,
                    given,
                    self._entering(number),
                    self._closing(number - 1, limited),
                    self._rounding_pj(number),
                )
            )
        return tuple(tables)

    def _facts(self, number: int, ports: tuple[Port, ...]) -> Array:
        """What a search state on this level knows of each operand; columns as `search_states` names them."""
        facts = np.zeros((len(self.task.problem.operands), search_states.NUM_FACTS))
        for t in range(len(facts)):
            is_output = t == self.output
            kept = self.kept[t]
            serving = min(n for n in kept if n >= number)
            inner = [n for n in kept if n < number]
            read_pj, write_pj = self._access_pj(serving)
            row = facts[t]
            row[search_states.SERVE_PJ] = write_pj if is_output else read_pj
            row[search_states.REDUCE_PJ] = read_pj if is_output else 0.0
            row[search_states.SERVE_BLOCK] = self.levels[serving].words_per_access
            row[search_states.SERVE_LIMIT] = self._charged(serving)
            row[search_states.HAS_NEXT] = bool(inner)
            row[search_states.COUNTS] = 1
            row[search_states.TOUCHED] = self.lattice.touched[t]
            row[search_states.FED] = self.num_served(t, number, -1)
            row[search_states.SERVE_PORT] = row[search_states.FILL_PORT] = -1
            for place, port in enumerate(ports):
                if port.level == serving:
                    row[search_states.SERVE_PORT] = 2 * place
                    cycles = port.cycles(*((0, 1) if is_output else (1, 0)))
                    row[search_states.SERVE_READS], row[search_states.SERVE_WRITES] = cycles
                    row[search_states.REDUCE_READS] = port.read_cycles if is_output else 0.0
                if inner and port.level == inner[0]:
                    row[search_states.FILL_PORT] = 2 * place
                    row[search_states.FILL_READS], row[search_states.FILL_WRITES] = port.cycles(0, 1)
            if inner:
                row[search_states.FILL_BLOCK] = self.levels[inner[0]].words_per_access
                row[search_states.FILL_PJ] = self._access_pj(inner[0])[1] * self._share(inner[0])
                row[search_states.FILL_SPREAD] = self.num_fed(number, inner[0])
                row[search_states.TAIL_PJ] = self._tail_pj(t, inner)
        return facts

    def _tail_pj(self, operand: int, inner: list[int]) -> float:
        """The least energy of what happens within the levels inside the next one."""
        words = float(self.lattice.touched[operand])
        is_output = operand == self.output
        total = 0.0
        for outer, level in pairwise(inner):
            read_pj, write_pj = self._access_pj(outer)
            filled, served = (max(words, self.levels[n].words_per_access) for n in (level, outer))
            total += filled * self._access_pj(level)[1] * self._share(level)
            total += served * (write_pj if is_output else read_pj) * self._share(outer)
        last = inner[-1]
        read_pj, write_pj = self._access_pj(last)
        served = self.task.problem.num_macs / self.num_served(operand, last, -1)
        whole = max(served, self.levels[last].words_per_access)
        if not is_output:
            return total + whole * read_pj * self._share(last)
        # Of the reads, the first partial sum of every instance's share is spared.
        spared = words * self.num_instances[last]
        return total + (whole * write_pj + max(0.0, served - spared) * read_pj) * self._share(last)

    def _entries(self, ports: tuple[Port, ...]) -> Entries:
        """What words cost that enter a level or the compute units."""
        ways = [
            (t, inner, outer)
            for t in range(len(self.task.problem.operands))
            for outer, inner in pairwise([*self.kept[t], -1])
        ]
        fill, serve, reduce = np.zeros((3, len(ways), 1 + 2 * len(ports)))
        num_outer, num_inner = (
            np.array([1 if n < 0 else self.num_instances[n] for n in numbers], float)
            for numbers in ([outer for _, _, outer in ways], [inner for _, inner, _ in ways])
        )
        for way, (t, inner, outer) in enumerate(ways):
            is_output = t == self.output
            read_pj, write_pj = (pj * self._share(outer) for pj in self._access_pj(outer))
            serve[way, 0], reduce[way, 0] = (write_pj, read_pj) if is_output else (read_pj, 0.0)
            if inner >= 0:
                fill[way, 0] = self._access_pj(inner)[1] * self._share(inner)
            for place, port in enumerate(ports):
                both = slice(1 + 2 * place, 3 + 2 * place)
                if port.level == inner:
                    fill[way, both] = port.cycles(0, 1 / num_inner[way])
                if port.level == outer:
                    share = 1 / num_outer[way]
                    serve[way, both] = port.cycles(*((0, share) if is_output else (share, 0)))
                    reduce[way, both.start] = port.read_cycles * share if is_output else 0.0
        operands, inner_levels, outer_levels = np.array(ways, np.int64).T.copy()
        num_served = np.array([self.num_served(t, outer, inner) for t, inner, outer in ways], float)
        stays = np.array([self._stays(inner) for _, inner, _ in ways])
        return Entries(
            operands, inner_levels, outer_levels, num_served, num_outer, num_inner, stays, fill, serve, reduce
        )

    def _stays(self, inner: int) -> list[bool]:
        """Of each dim, whether none of its loops may be spread over instances of a level."""
        outside = [n for n in range(inner + 1, len(self.levels)) if self.fan_out(n) > 1]
        return [not any(self.task.may_spread(dim, n) for n in outside) for dim in self.task.problem.extents]

    def _access_pj(self, number: int) -> tuple[float, float]:
        """Energy of a word: (read, written)."""
        level = self.levels[number]
        return level.read_access_pj / level.words_per_access, level.write_access_pj / level.words_per_access

    def _charged(self, number: int) -> float:
        """Instances that an access is charged for at most."""
        return self.num_instances[number] / self.levels[number].num_instances_per_access

    def _share(self, number: int) -> float:
        """The least share of the used instances that is charged."""
        return min(1.0, 1 / self.levels[number].num_instances_per_access)

    def _rounding_pj(self, number: int) -> float:
        """The most that whole accesses of more instances cost, of all that search states on a level still
        count."""
        total = 0.0
        for t in range(len(self.task.problem.operands)):
            kept = self.kept[t]
            serving = min(n for n in kept if n >= number)
            for n in kept:
                level = self.levels[n]
                if n > serving or level.words_per_access == 1 or self.num_instances[n] == 1:
                    continue
                access_pj = level.read_access_pj + (level.write_access_pj if t == self.output else 0.0)
                if n < serving:
                    access_pj += level.write_access_pj  # of what enters it
                total += self._charged(n) * access_pj
        return total

    def _entering(self, number: int) -> Array:
        """For each operand: whether a level keeps it, and prices; columns as `search_states.enter` reads
        them."""
        _, write_pj = self._access_pj(number)
        prices = np.zeros((len(self.task.problem.operands), 3))
        for t in range(len(prices)):
            prices[t] = (number in self.kept[t], write_pj, self._charged(number))
        return prices

    def _closing(self, entered: int, ports: tuple[Port, ...]) -> Array:
        """For each column of the ports: whether nothing comes to it once a level is entered."""
        closing = np.zeros(2 * len(ports), np.bool_)
        for place, port in enumerate(ports):
            held = (kept for kept in self.kept if port.level in kept)
            served = [max((n for n in kept if n < port.level), default=-1) for kept in held]
            closing[2 * place : 2 * place + 2] = bool(served) and min(served) >= entered >= 0
        return closing

    def _totals(self, number: int) -> Array:
        """Multiply-accumulates, their energy, units that spatial loops of this level and inside can feed."""
        macs = self.task.problem.num_macs
        return np.array([macs, macs * self.task.machine.mac_pj, self.num_fed(number, -1)], np.float64)

    def root(self, num_ports: int) -> Array:
        """The search state of the whole problem in the outermost level."""
        num_operands, num_windowed = len(self.task.problem.operands), len(self.windowed)
        row = np.ones(search_states.num_columns(num_operands, num_windowed, num_ports))
        first_window = search_states.FIRST + 3 * num_operands
        row[first_window:] = row[search_states.ENERGY] = row[search_states.CYCLES] = 0.0
        for u in range(num_windowed):
            windows.forget(row, first_window + u * windows.NUM_COLUMNS)
        row[search_states.FIRST_SUMS] = self.lattice.touched[self.output]
        return row

    def least(self, objective: int, cap_cycles: float = np.inf) -> float:
        """A lower bound before any search, of mappings of the lattice's tiles."""
        tables = self.tables(counts_cycles=True)[-1]
        energy, cycles = search_states.least(
            self.root(len(tables.tail) // 2),
            self.lattice.whole,
            tables.facts,
            self.lattice.copies,
            tables.totals,
            tables.tail,
            tables.rest,
            np.empty(len(tables.tail)),
        )
        cycles = max(cycles, self.least_cycles)
        return float(search_states.value(objective, energy, cycles, cap_cycles))
