"""The best way to run a chain: which stages are tiled together, and which run one by one.

Of every run of neighbouring stages the best joint tiling is searched; the cuts between them follow by dynamic
programming. Stages mapped one by one are among the answers, so no answer moves more than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, MachineError
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.hardware.operator_view import operator_view
from tilewright.ir.contraction import contractions
from tilewright.ir.derive import is_complex, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import full_region, input_regions, volume
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.chains.chain import MAX_LAYERS, CannotFuse, Chain, chain_of
from tilewright.mapping.chains.plan import compulsory_words
from tilewright.mapping.chains.runs import Stage, stages_of
from tilewright.mapping.chains.search import BestPlan, ChainLimits, best_plan
from tilewright.mapping.exact import Exact
from tilewright.mapping.network import layers_in
from tilewright.planning import UNLIMITED, Budget


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages that run together: under a joint tiling, or of a single stage also under mappings of its own.

    A stage without either, which sums no products, streams what it reads and writes.
    """

    nodes: tuple[Node, ...]
    num_stages: int
    moved_words: int
    num_macs: int
    chain: Chain | None = None
    tiling: BestPlan | None = None
    mappings: tuple[MappingSolution, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """How a chain runs: its segments, and what stages move that run one by one, past the outermost level.

    Nothing that keeps to these tilings moves fewer than `bound_words`: what comes in and goes out, once.
    `is_whole` says that all joint tilings were looked at.
    """

    segments: tuple[Segment, ...]
    separate: tuple[Segment, ...]
    bound_words: int
    is_whole: bool

    @property
    def moved_words(self) -> int:
        """Of all segments."""
        return sum(segment.moved_words for segment in self.segments)

    @property
    def separate_words(self) -> int:
        """Of stages that run one by one."""
        return sum(segment.moved_words for segment in self.separate)

    @property
    def saved(self) -> float:
        """The share of the separate stages' traffic that joint tilings save."""
        return 1 - self.moved_words / self.separate_words

    @property
    def gap(self) -> float:
        """How much more is moved than the bound, as a share of it."""
        return self.moved_words / self.bound_words - 1


def solve_chain(
    nodes: Sequence[Node],
    machine: Machine,
    results: frozenset[Value] = frozenset(),
    *,
    recomputed: float = 1.0,
    deadline_s: float = 10.0,
    cost_options: CostOptions = TIMELOOP,
) -> ChainSolution:
    """The segments that move least; `deadline_s` is for each joint tiling that is searched.

    Raises:
        MachineError: no level on chip can hold what passes between operators, or the machine has threads.
        InfeasibleMapping: an operator does not fit the machine.
    """
    if machine.threads is not None:
        raise MachineError(
            f"machine {machine.name!r}: chains on blocks of threads are not tiled; give one without threads."
        )
    view = operator_view(machine).machine
    level = fusing_level(view)
    limits = ChainLimits(_words(level), TensorKind.WEIGHT in level.holds, recomputed)
    stages = stages_of(nodes)
    separate = [_separate(stage, view, limits, results, deadline_s, cost_options) for stage in stages]
    best: list[tuple[int, tuple[Segment, ...]]] = [(0, ())]
    is_whole = True
    for end in range(1, len(stages) + 1):
        ways = []
        for start in range(end):
            if end - start == 1:
                segment: Segment | None = separate[start]
            else:
                segment = _joint(stages[start:end], limits, results, deadline_s)
            if segment is not None:
                moved, before = best[start]
                ways.append((moved + segment.moved_words, (*before, segment)))
                is_whole &= segment.tiling is None or segment.tiling.is_whole
        best.append(min(ways, key=lambda way: way[0]))
    return ChainSolution(best[-1][1], tuple(separate), _bound_words(nodes), is_whole)


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


def _joint(
    stages: Sequence[Stage], limits: ChainLimits, results: frozenset[Value], deadline_s: float
) -> Segment | None:
    nodes = tuple(node for stage in stages for node in stage)
    if sum(map(is_complex, nodes)) > MAX_LAYERS:
        return None
    try:
        chain = chain_of(nodes, results)
    except CannotFuse:
        return None
    best = best_plan(chain, limits, deadline_s)
    if best is None:
        return None
    return Segment(nodes, len(stages), best.count.moved_words, best.count.num_macs, chain, best)


def _separate(
    stage: Stage,
    view: Machine,
    limits: ChainLimits,
    results: frozenset[Value],
    deadline_s: float,
    cost_options: CostOptions,
) -> Segment:
    """A stage that runs alone, as well as it can: mapped exactly for traffic, or tiled as a chain of one."""
    ways = [_joint([stage], limits, results, deadline_s), _mapped(stage, view, deadline_s, cost_options)]
    listed = [way for way in ways if way is not None]
    if listed:
        return min(listed, key=lambda way: way.moved_words)
    if any(map(is_complex, stage)):
        raise InfeasibleMapping(f"node {stage[0].name!r} has no mapping on {view.name}, alone or in a chain.")
    outside = _outside(stage)
    moved = sum(value.num_elements for value in outside) + _written(stage)
    return Segment(stage, 1, moved, 0)


def _mapped(stage: Stage, view: Machine, deadline_s: float, cost_options: CostOptions) -> Segment | None:
    """A stage's sums of products under the mappings that move least, with what its other operators read."""
    problems = [layer.problem for layer in layers_in(stage[:1]) if layer.problem is not None]
    if not problems:
        return None
    answers = []
    for problem in problems:
        task = MappingProblem(problem, traffic_view(view), "energy", cost_options)
        answer = Exact().solve(task, Budget(UNLIMITED, deadline_s=deadline_s))
        if not isinstance(answer, MappingSolution):
            return None
        answers.append(answer)
    counts = (count for answer in answers for count in answer.cost.levels[0].tensors.values())
    moved = sum((count.reads + count.updates + count.fills) * count.num_instances for count in counts)
    multiplied = {
        stage[0].inputs[access.operand.position]
        for form in contractions(nests_of(stage[0]))
        for access in form.accesses
        if access.operand.kind == "input"
    }
    moved += sum(value.num_elements for value in _outside(stage) if value not in multiplied)
    num_macs = sum(problem.num_macs for problem in problems)
    return Segment(stage, 1, moved, num_macs, mappings=tuple(answers))


def traffic_view(machine: Machine) -> Machine:
    """A machine whose energy is the words that pass its outermost level, in pJ."""
    free = {"read_pj": 0.0, "write_pj": 0.0}
    outermost = machine.outermost
    paid = {"read_pj": float(outermost.words_per_access), "write_pj": float(outermost.words_per_access)}
    levels = (*(x.model_copy(update=free) for x in machine.levels[:-1]), outermost.model_copy(update=paid))
    units = tuple(unit.model_copy(update={"mac_pj": None}) for unit in machine.units)
    return machine.model_copy(update={"levels": levels, "units": units})


def _outside(nodes: Sequence[Node]) -> list[Value]:
    """What operators read that none of them makes."""
    made = {value for node in nodes for value in node.results()}
    read = (value for node in nodes for value in node.operands())
    return [value for value in dict.fromkeys(read) if value not in made]


def _written(nodes: Sequence[Node]) -> int:
    return sum(value.num_elements for value in nodes[-1].results())


def _bound_words(nodes: Sequence[Node]) -> int:
    """What comes in and goes out, once; where all operators have no joint tiling, weights and the result."""
    try:
        return compulsory_words(chain_of(nodes, most_layers=len(nodes)))
    except CannotFuse:
        constants = (value for value in _outside(nodes) if value.is_constant)
        return sum(min(value.num_elements, _touched(nodes, value)) for value in constants) + _written(nodes)


def _touched(nodes: Sequence[Node], value: Value) -> int:
    """Elements of a value that some operator touches: at least the most that one of them does."""
    most = 0
    for node in nodes:
        for position, operand in enumerate(node.inputs):
            if operand is value:
                region = input_regions(node, full_region(next(node.results()).shape))[position]
                most = max(most, 0 if region is None else volume(region))
    return most
