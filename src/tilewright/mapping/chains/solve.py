"""The best way to run a chain: which stages are tiled together, and which run one by one.

Of every run of neighbouring stages the best joint tiling is searched; the cuts between them follow by dynamic
programming. Stages mapped one by one are among the answers, so no answer is worse than these.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from tilewright.cost.base import Objective
from tilewright.cost.bound import transfer_cycles
from tilewright.cost.objective import rank
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, MachineError
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.hardware.operator_view import operator_view
from tilewright.ir.derive import is_complex, macs
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import full_region, input_regions, volume
from tilewright.mapping.base import MappingSolution
from tilewright.mapping.chains.chain import MAX_LAYERS, CannotFuse, Chain, Reaches, chain_of
from tilewright.mapping.chains.check import USUAL_WORDS, TooLong, check_cuts, check_plan
from tilewright.mapping.chains.check_nested import check_tree
from tilewright.mapping.chains.nested import NestedPlan, straight_run
from tilewright.mapping.chains.nested_search import best_tree
from tilewright.mapping.chains.plan import check_countable, compulsory_words, least_macs, least_of_cuts
from tilewright.mapping.chains.price import ChainCost, Pricer, read_pj, write_pj
from tilewright.mapping.chains.runs import Stage, alike_key, stages_of
from tilewright.mapping.chains.search import ChainLimits, RankedPlan, Ranking, rank_plans, words_moved
from tilewright.mapping.chains.separate import (
    added_words,
    cost_of_stage,
    map_stage,
    multiplied,
    outside,
    traffic_view,
    words_left,
)
from tilewright.planning import Bound, Quality, Rule, Space, Violation
from tilewright.planning.checking import require_right

TILINGS = Space("joint tilings")
"""All cuts of a chain and all tiles of what is tiled jointly."""
SEARCHED_TILES = Rule("of the tiles that are searched")
SINGLE_UNPADDED = Rule("with mappings of single operators whose factors divide the extents")
ChainObjective = Literal["traffic", "latency", "energy"]
"""What is minimised: words past the outermost level, cycles, or energy."""
_NUM_PRICED = 6  # joint tilings of one run, the most promising ones
_UNITS: dict[ChainObjective, str] = {"traffic": "words", "latency": "cycles", "energy": "pJ"}
_STEPS_IN_TIME = 4  # shares of steps that are mapped in the time of one joint tiling, where that ends them


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages that run together: under a joint tiling, which may be nested, or of a single stage also under
    mappings of its own.

    A stage without either, which sums no products, streams what it reads and writes. There is no cost where
    only traffic counts.
    """

    nodes: tuple[Node, ...]
    num_stages: int
    moved_words: int
    num_macs: int
    cost: ChainCost | None = None
    chain: Chain | None = None
    tiling: RankedPlan | None = None
    nested: NestedPlan | None = None
    mappings: tuple[MappingSolution, ...] = ()

    def rank(self, objective: ChainObjective) -> tuple[float, float]:
        """What is minimised, then what decides between equals."""
        if objective == "traffic":
            return float(self.moved_words), float(self.num_macs)
        assert self.cost is not None
        return rank(objective, self.cost.cycles, self.cost.energy_pj)


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """How a chain runs: its segments, and the stages as they run one by one.

    No joint tiling, whatever its tiles, moves fewer than `bound_words`: what comes in and goes out, once. Nor
    takes it less than `bound` in the objective's unit: words, cycles or pJ. `quality` has that bound, then
    that of the tiles that are searched, for all cuts. `is_whole` says that all of these were looked at; where
    cycles or energy count the most promising ones were mapped. `num_tilings` were looked at.
    """

    objective: ChainObjective
    segments: tuple[Segment, ...]
    separate: tuple[Segment, ...]
    bound_words: int
    bound: float
    quality: Quality
    is_whole: bool
    num_tilings: int
    seconds: float = field(compare=False)

    @property
    def moved_words(self) -> int:
        """Of all segments."""
        return sum(segment.moved_words for segment in self.segments)

    @property
    def separate_words(self) -> int:
        """Of stages that run one by one."""
        return sum(segment.moved_words for segment in self.separate)

    @property
    def value(self) -> float:
        """Words, cycles or pJ of all segments."""
        return self.quality.cost

    @property
    def separate_value(self) -> float:
        """Words, cycles or pJ of stages that run one by one."""
        return sum(segment.rank(self.objective)[0] for segment in self.separate)

    @property
    def saved(self) -> float:
        """The share that joint tilings save of what separate stages take."""
        return 1 - self.value / self.separate_value if self.separate_value else 0.0


class _Answer(NamedTuple):
    """The best segment of some stages, if there is one, and its lower bound; whether all joint
    tilings were looked at, or time ended the search."""

    segment: Segment | None
    bound: float
    is_whole: bool = True
    is_cut_off: bool = False
    num_tilings: int = 0


_NONE = _Answer(None, inf)


class ChainSolver:
    """Solves chains on one machine; segments that are alike are searched once.

    `deadline_s` is for each joint tiling that is searched, again for mapping its steps, and for each operator
    that is mapped alone. `verify`: joint tilings that are only compared are checked, too, however long that
    takes.

    Raises:
        MachineError: no level on chip can hold what passes between operators, or the machine has threads.
    """

    def __init__(
        self,
        machine: Machine,
        objective: ChainObjective = "traffic",
        *,
        recomputed: float = 1.0,
        deadline_s: float = 10.0,
        cost_options: CostOptions = TIMELOOP,
        verify: bool = False,
    ) -> None:
        if machine.threads is not None:
            raise MachineError(
                f"machine {machine.name!r}: chains on blocks of threads are not tiled; give one without "
                "threads."
            )
        self.objective, self.deadline_s, self.cost_options = objective, deadline_s, cost_options
        self.view = operator_view(machine).machine
        self.level = fusing_level(self.view)
        self.limits = ChainLimits(_words(self.level), TensorKind.WEIGHT in self.level.holds, recomputed)
        self.pricer: Pricer | None = None
        if objective != "traffic":
            share_s = deadline_s / _STEPS_IN_TIME
            self.pricer = Pricer(self.view, self.level, objective, cost_options, share_s)
        self._reaches = Reaches()
        self._known: dict[Hashable, _Answer] = {}
        self.verify = verify
        self._checked: set[int] = set()

    def solve(self, nodes: Sequence[Node], results: frozenset[Value] = frozenset()) -> ChainSolution:
        """The best segments of a chain; `results` are values that must leave.

        Raises:
            InfeasibleMapping: an operator does not fit the machine.
            InternalError: a check finds a fault in them.
        """
        started = time.perf_counter()
        stages = stages_of(nodes)
        best: list[tuple[float, float, tuple[Segment, ...]]] = [(0.0, 0.0, ())]
        bounds, answers = [0.0], []
        for end in range(1, len(stages) + 1):
            ways, least = [], inf
            for start in range(end):
                if end - start > 1 and sum(is_complex(stage[0]) for stage in stages[start:end]) > MAX_LAYERS:
                    continue
                answer = self._alike(stages[start:end], results)
                answers.append(answer)
                least = min(least, bounds[start] + answer.bound)
                if answer.segment is not None:
                    value, second = answer.segment.rank(self.objective)
                    before = best[start]
                    ways.append((before[0] + value, before[1] + second, (*before[2], answer.segment)))
            best.append(min(ways, key=lambda way: way[:2]))
            bounds.append(least)
        bound_words, bound = self._bounds(nodes, results)
        quality = Quality.of(
            best[-1][0],
            Bound(bound, TILINGS, "work and compulsory traffic"),
            Bound(max(bound, bounds[-1]), TILINGS.keeping(SEARCHED_TILES, SINGLE_UNPADDED), "search"),
            unit=_UNITS[self.objective],
            cut_off=any(answer.is_cut_off for answer in answers),
        )
        for segment in best[-1][2]:
            self._require_right(segment)
        solution = ChainSolution(
            self.objective,
            best[-1][2],
            tuple(self.alone(stage, results)[0] for stage in stages),
            bound_words,
            bound,
            quality,
            all(answer.is_whole for answer in answers),
            sum(answer.num_tilings for answer in answers),
            time.perf_counter() - started,
        )
        what = f"the joint tiling of {nodes[0].name!r} to {nodes[-1].name!r} on {self.view.name}"
        values = [segment.rank(self.objective)[0] for segment in solution.segments]
        cuts = [segment.nodes for segment in solution.segments]
        require_right(what, lambda: check_cuts(nodes, cuts, values, quality))
        return solution

    def _require_right(self, segment: Segment | None) -> None:
        """Refuse a joint tiling in which a check finds a fault; equal ones are checked once."""
        found = None if segment is None else segment.tiling or segment.nested
        if segment is None or found is None or id(found) in self._checked:
            return
        self._checked.add(id(found))
        most_words = inf if self.verify else USUAL_WORDS

        def check() -> Sequence[Violation]:
            try:
                if isinstance(found, NestedPlan):
                    capacity_words = self.limits.capacity_words
                    return check_tree(found.run, found.tree, found.count, capacity_words, most_words)
                assert segment.chain is not None
                assert isinstance(found, RankedPlan)
                plan, count = found.plan, found.count
                return check_plan(segment.chain, plan, count, self.limits.capacity_words, most_words)
            except TooLong:
                return ()

        names = f"{segment.nodes[0].name!r} to {segment.nodes[-1].name!r}"
        require_right(f"the joint tiling of {names} on {self.view.name}", check)

    def alone(self, stage: Stage, results: frozenset[Value] = frozenset()) -> tuple[Segment, float]:
        """(A stage on its own: the best mapping, or a stream; its lower bound).

        Raises:
            InfeasibleMapping: it does not fit the machine.
        """
        answer = self._alike([stage], results)
        assert answer.segment is not None  # else it has been refused
        self._require_right(answer.segment)
        return answer.segment, answer.bound

    def _alike(self, stages: Sequence[Stage], results: frozenset[Value]) -> _Answer:
        """The best segment of some stages, from memory where others were alike."""
        nodes = tuple(node for stage in stages for node in stage)
        key = alike_key(nodes, results)
        if key not in self._known:
            self._known[key] = self._segment(stages, nodes, results)
            if self.verify:
                self._require_right(self._known[key].segment)
        answer = self._known[key]
        known = answer.segment
        if known is None or known.nodes == nodes:
            return answer
        chain = None if known.chain is None else chain_of(nodes, results, reaches=self._reaches)
        return answer._replace(segment=replace(known, nodes=nodes, chain=chain))

    def _segment(
        self, stages: Sequence[Stage], nodes: tuple[Node, ...], results: frozenset[Value]
    ) -> _Answer:
        joint = self._joint(nodes, len(stages), results)
        if len(stages) > 1:
            return joint
        alone = self._alone(stages[0], results)
        listed = [way.segment for way in (joint, alone) if way.segment is not None]
        if not listed:
            raise InfeasibleMapping(
                f"node {nodes[0].name!r} has no mapping on {self.view.name}, alone or in a chain."
            )
        best = min(listed, key=lambda way: way.rank(self.objective))
        return joint._replace(segment=best, bound=min(joint.bound, alone.bound))

    def _joint(self, nodes: tuple[Node, ...], num_stages: int, results: frozenset[Value]) -> _Answer:
        """The best joint tiling of operators."""
        if sum(map(is_complex, nodes)) > MAX_LAYERS:
            return _NONE
        try:
            chain = chain_of(nodes, results, reaches=self._reaches)
            check_countable(chain)
        except CannotFuse:
            return _NONE
        if self.pricer is not None:
            return self._priced(chain, num_stages, self.pricer)
        ranking = rank_plans(chain, self.limits, self.deadline_s)
        segment = None
        if ranking.plans:
            (best,) = ranking.plans
            moved, num_macs = best.count.moved_words, best.count.num_macs
            segment = Segment(nodes, num_stages, moved, num_macs, None, chain, best)
        answer = _answer(ranking, segment)
        if segment is not None and segment.moved_words == compulsory_words(chain):
            return answer
        return self._nested(chain, results, answer)

    def _nested(self, chain: Chain, results: frozenset[Value], joint: _Answer) -> _Answer:
        """The best nested tiling of operators, or the joint one where that moves no more."""
        try:
            run = straight_run(chain.nodes, results)
        except CannotFuse:
            return joint
        limits = self.limits
        if run.extra_words and not limits.keeps_weights:
            return joint
        found = best_tree(run, limits.capacity_words, self.deadline_s, keeps_weights=limits.keeps_weights)
        num_tilings = joint.num_tilings + found.num_tilings
        if not found.is_whole:
            bound = min(joint.bound, compulsory_words(chain))
            return joint._replace(bound=bound, is_whole=False, is_cut_off=True, num_tilings=num_tilings)
        joint = joint._replace(num_tilings=num_tilings)
        if found.tree is None or found.count is None:
            return joint
        moved = found.count.moved_words
        joint = joint._replace(bound=min(joint.bound, moved))
        if joint.segment is not None and joint.segment.moved_words <= moved:
            return joint
        plan = NestedPlan(run, found.tree, found.count)
        segment = Segment(chain.nodes, len(stages_of(chain.nodes)), moved, least_macs(chain), nested=plan)
        return joint._replace(segment=segment)

    def _priced(self, chain: Chain, num_stages: int, pricer: Pricer) -> _Answer:
        """The best of the most promising tilings: no other is mapped that must take more than the best."""
        ranking = rank_plans(
            chain, self.limits, self.deadline_s, value_of=pricer.least(chain), num_plans=_NUM_PRICED
        )
        end_s = time.monotonic() + self.deadline_s
        best: Segment | None = None
        for ranked in ranking.plans:
            if best is not None and ranked.value >= best.rank(self.objective)[0]:
                break
            cost = pricer.price(chain, ranked.plan, inf if best is None else end_s)
            if cost is None:
                continue
            segment = Segment(
                chain.nodes,
                num_stages,
                cost.moved_words,
                ranked.count.num_macs,
                cost,
                chain,
                ranked,
            )
            if best is None or segment.rank(self.objective) < best.rank(self.objective):
                best = segment
        return _answer(ranking, best)

    def _alone(self, stage: Stage, results: frozenset[Value]) -> _Answer:
        """A stage whose operators are mapped onto the whole machine, or that streams."""
        machine = traffic_view(self.view) if self.objective == "traffic" else self.view
        mapper_objective: Objective = "latency" if self.objective == "latency" else "energy"
        mappings = map_stage(stage, machine, mapper_objective, self.cost_options, self.deadline_s)
        if mappings is None or (not mappings and any(map(is_complex, stage))):
            return _NONE
        cost = cost_of_stage(stage, self.view, mappings, results)
        num_macs = sum(map(macs, stage))
        priced = None if self.objective == "traffic" else cost
        segment = Segment(stage, 1, cost.moved_words, num_macs, priced, mappings=mappings)
        bound = segment.rank(self.objective)[0]
        if mappings:
            bound = {
                "traffic": float(added_words(stage) + words_left(stage, results)),
                "latency": 0.0,
                "energy": added_words(stage) * read_pj(self.view.outermost)
                + words_left(stage, results) * write_pj(self.view.outermost),
            }[self.objective]
            bound += sum(_least_unpadded(mapping) for mapping in mappings)
        return _Answer(segment, bound)

    def _bounds(self, nodes: Sequence[Node], results: frozenset[Value]) -> tuple[int, float]:
        """(Words that must move, what the objective is at least)."""
        outermost = self.view.outermost
        try:
            chain = chain_of(nodes, results, most_layers=len(nodes), reaches=self._reaches)
        except CannotFuse:
            # Not all operators have a joint tiling: weights and the last sums must pass.
            last = next((node for node in reversed(nodes) if is_complex(node)), None)
            written = 0 if last is None else sum(value.num_elements for value in last.results())
            factors = {value for node in nodes for value in multiplied(node)}
            weights = (value for value in outside(nodes) if value.is_constant and value in factors)
            read = sum(_touched(nodes, value) for value in weights)
            match self.objective:
                case "traffic":
                    return read + written, float(read + written)
                case "latency":
                    return read + written, float(transfer_cycles(self.view, outermost, read, written))
                case "energy":
                    return read + written, read * read_pj(outermost) + written * write_pj(outermost)
        moved, computed = least_of_cuts(chain)
        value_of = words_moved if self.pricer is None else self.pricer.least(chain)
        return moved, float(value_of(np.array([moved]), np.array([computed]))[0])


def _least_unpadded(mapping: MappingSolution) -> float:
    """What no mapping whose factors divide the extents beats; of a better one that pads what that takes."""
    proven = max(bound.value for bound in mapping.quality.bounds if bound.is_proven)
    return min(proven, mapping.quality.cost)


def _answer(ranking: Ranking, segment: Segment | None) -> _Answer:
    return _Answer(segment, ranking.bound, ranking.is_whole, ranking.is_cut_off, ranking.num_tilings)


def fusing_level(machine: Machine) -> Level:
    """The level on chip where values wait: the outermost of which there is one, and that holds activations.

    Raises:
        MachineError: there is none.
    """
    for level in reversed(machine.levels[:-1]):
        if {TensorKind.INPUT, TensorKind.OUTPUT} <= set(level.holds) and machine.num_instances(level) == 1:
            return level
    raise MachineError(
        f"machine {machine.name!r}: inside {machine.outermost.name} no level of a single instance holds "
        "inputs and outputs; chains need one."
    )


def _words(level: Level) -> int:
    """Words that a level has. Its shares are for the tensors of one operator; a chain has all of it."""
    assert level.capacity_bytes is not None
    return level.capacity_bytes * 8 // level.word_bits


def _touched(nodes: Sequence[Node], value: Value) -> int:
    """Elements of a value that some operator touches: at least the most that one of them does."""
    most = 0
    for node in nodes:
        for position, operand in enumerate(node.inputs):
            if operand is value:
                region = input_regions(node, full_region(next(node.results()).shape))[position]
                most = max(most, 0 if region is None else volume(region))
    return most
