"""Joint searches in which some decisions are frozen: what may change, and exact answers where little may.

Kernels that are given can run side by side or merge, which is IOS's search with blocks as its stages; or they
can be cut again, each on its own, so that a shortest path through the layers of each is the cheapest plan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from math import inf
from typing import get_args

from tilewright.bit_sets import bits, union
from tilewright.errors import UsageError
from tilewright.joint.additive import Part, shortest
from tilewright.joint.base import Block, Mask
from tilewright.joint.floors import strong_floors
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.moves import Moves, side_by_side
from tilewright.joint.launched.pricer import LaunchedPricer, Machine
from tilewright.joint.space import connected_sets
from tilewright.options import Choice
from tilewright.partition.base import Partition
from tilewright.partition.fusion_records import Verdict
from tilewright.partition.merge_siblings import merge_sets
from tilewright.partition.split import WHOLE
from tilewright.planning import UNLIMITED, Bound, Meter, Rule, Space
from tilewright.records import dataclass
from tilewright.schedule.base import ScheduleProblem, merges
from tilewright.schedule.ios.block import MOST_MERGED, Rules, Stop, Strategies
from tilewright.schedule.ios.blocks import MOST_IN_BLOCK
from tilewright.schedule.ios.costs import AskedCosts, Bounds, ModelCosts
from tilewright.schedule.ios.endings import Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.network import BlockNetwork, NetworkAnswer
from tilewright.schedule.ios.stages import StageChoice
from tilewright.schedule.merge import merge_stage
from tilewright.schedule.space import (
    CONNECTED,
    GROUP_SIZE,
    GROUPS,
    OF_PARTITION,
    SCHEDULES,
    SHARED_CORES,
    WITHOUT_MERGES,
    within_blocks,
)

MOST_GROUPS, MOST_KERNELS = 8, 3
"""Groups of a stage and kernels of a group in which given kernels run side by side: IOS's s and r."""
_MOST_SEARCHES = 6
"""Searches over stages, each with what blocks of the one before took when they were simulated."""
_BEAM_WIDTH = 4  # of the schedule with which blocks begin whose stages are too many to list
_MOST_SETS = 400_000
"""Sets of layers of one kernel that are listed."""
_FEW_SETS = 200
"""Sets up to which a shortest path needs no better floors."""
_MOST_ROUNDS = 100
"""Of the linear program for these, which gets slower and gains less and less."""
_FIRST_GAP = 0.02
"""Above the bound of floors, within which a plan is looked for first; then within twice as much."""
_ROUNDING = 1e-9  # of costs that are sums of floats
_SLACK = 1e-6  # above what a part costs as it is given, so that it is found again
CUT_KERNELS = Rule("that cut kernels of the partition between layers that it has not fused for good")
MERGES_IN_A_ROW = Rule(f"with merges of siblings in a row where more than {MOST_MERGED} may merge")
BY_TASKS = Rule("whose stages take what the tasks of their kernels do, each as it is placed alone")
ALONE = Rule("with slices and lanes that the search met")


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """The decisions that are left to a search, and the plan of a partition, as blocks, that has all others.

    `has_kernels`: kernels are this partition's; where `kernels` is left they are cut again, never joined.
    """

    left: frozenset[Choice]
    partition: Partition
    contents: tuple[Content, ...]
    has_kernels: bool
    _kernels: dict[Mask, Kernel] = field(init=False, repr=False)
    _home: dict[int, Mask] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kernels = {kernel.mask: kernel for content in self.contents for kernel in content.kernels}
        object.__setattr__(self, "_kernels", kernels)
        object.__setattr__(self, "_home", {node: mask for mask in kernels for node in bits(mask)})

    def pricer(self, numbered: Numbered, machine: Machine) -> LaunchedPricer:
        """Of the blocks that are left."""
        if "stages" not in self.left:
            machine = replace(machine, limits=replace(machine.limits, num_groups=1))
        if "tilings" not in self.left:
            machine = replace(machine, tilings=lambda nodes, results: ())
        return LaunchedPricer(numbered, machine, self.allows)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What all plans that are left keep."""
        others = [choice for choice in get_args(Choice) if choice not in self.left]
        return (Rule(f"that leave {', '.join(others)} as given"),) if others else ()

    def allows(self, content: Content) -> bool:
        """Whether a block differs from the plan in no decision that is frozen."""
        if content in self.contents:
            return True
        if "stages" not in self.left and any(len(s.groups) > 1 and not merges(s) for s in content.stages):
            return False
        if "merges" not in self.left and any(map(merges, content.stages)):
            return False
        if "lanes" not in self.left and any(g.inside for s in content.stages for g in s.groups):
            return False
        return all(map(self._allows_kernel, content.kernels))

    def _allows_kernel(self, kernel: Kernel) -> bool:
        mask = kernel.mask
        known = self._kernels.get(mask)
        may_cut = "kernels" in self.left and not mask & ~self._home.get(next(kernel.nodes), 0)
        if known is None and self.has_kernels and not may_cut:
            return False
        given = WHOLE if known is None else known.split
        if kernel.split.tilings != given.tilings and "tilings" not in self.left:
            return False
        return "slices" in self.left or kernel.split.cuts == given.cuts


@dataclass(frozen=True, slots=True, eq=False)
class FrozenProof:
    """The cheapest blocks of a space in which decisions are frozen, and the bound of that space.

    None where some stages take other than their kernels' tasks, so that a search by these proves nothing.
    """

    contents: tuple[Content, ...]
    cost: float
    bound: Bound | None


def search_frozen(
    frozen: Frozen,
    pricer: LaunchedPricer,
    problem: ScheduleProblem,
    moves: Moves,
    meter: Meter,
    is_due: Callable[[], bool],
) -> FrozenProof | None:
    """The cheapest plan that leaves all that is frozen as it is; None where there are too many blocks to
    list, or the budget ends first."""
    if "kernels" not in frozen.left:
        return _staged(frozen, pricer, problem, meter, is_due)
    if {"stages", "merges"} & frozen.left:
        return None
    parts = _layer_parts(frozen, pricer, moves)
    found: list[Content] = []
    for part in parts or ():
        blocks = part.solve(is_due)
        if blocks is None:
            return None
        found += blocks
    cost = sum(map(pricer.cost, found))
    return (
        None
        if parts is None
        else FrozenProof(tuple(found), cost, Bound(cost, _SPACE_OF_CUTS, "shortest path"))
    )


def _staged(
    frozen: Frozen,
    pricer: LaunchedPricer,
    problem: ScheduleProblem,
    meter: Meter,
    is_due: Callable[[], bool],
) -> FrozenProof | None:
    """Given kernels in the cheapest stages, by the search of IOS."""
    if any(len(content.kernels) > 1 for content in frozen.contents):
        return None  # some run side by side already, or slice by slice in turns
    partition, left = problem.partition, frozen.left
    graph = StageGraph.of_partition(partition)
    stages = _KernelStages.of(frozen.contents, pricer, problem, graph)
    costs = AskedCosts(stages, graph)
    merges = merge_sets(partition, pads_kernels=problem.pads_kernels) if "merges" in left else []
    strategy: Strategies = "both" if "merges" in left else "parallel"
    if "stages" not in left:
        strategy = "merge"
    most = min(MOST_GROUPS, problem.limits.num_groups)
    rules = Rules(strategy, pruning=Pruning(MOST_KERNELS, most))
    masks = [sum(1 << i for i in members) for members in merges]
    stop = Stop(meter, costs, UNLIMITED, UNLIMITED, is_due)
    best: FrozenProof | None = None
    for number in range(_MOST_SEARCHES):
        network = BlockNetwork(graph, costs, rules, MOST_IN_BLOCK, masks)
        answer = network.solve("lazy", _BEAM_WIDTH, stop)
        if not (answer.is_closed and answer.holds):
            return best
        found: list[Content] = []
        differs = False
        for choice in answer.stages:
            blocks = list(stages.contents_of(choice))
            cost = sum(map(pricer.cost, blocks))
            if abs(cost - costs.cost_ns(choice)) > _ROUNDING * cost:
                costs.correct(choice, cost)
                differs = True
            found += blocks
        cost = sum(map(pricer.cost, found))
        if best is None or cost < best.cost * (1 - _ROUNDING):
            least = min(cost, answer.bound_ns) if answer.crosses_blocks else cost
            bound = Bound(least, _space_of_kernels(frozen, problem, answer), "shortest path")
            best = FrozenProof(tuple(found), cost, None if differs or number else bound)
        if not differs:
            break
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _KernelStages:
    """Stages of given kernels as blocks, with their costs; see `StageCosts`.

    What stages cost follows from their kernels' tasks, as for `ios`, which takes a tenth of the time. At the
    ends of the network, where values are as the file keeps them, blocks are simulated. A simulated block may
    differ by what its kernels leave each other of the cores' buffers. Kernels in slices or lanes are known
    `alone`.
    """

    contents: Sequence[Content]
    alone_ns: Sequence[float]
    pricer: LaunchedPricer
    model: ModelCosts
    graph: StageGraph
    bounds: Bounds
    borders: Sequence[tuple[int, ...]]

    @classmethod
    def of(
        cls,
        given: Sequence[Content],
        pricer: LaunchedPricer,
        problem: ScheduleProblem,
        graph: StageGraph,
    ) -> _KernelStages:
        """Of a block for each subgraph of a problem."""
        numbers, by_nodes = pricer.numbered.numbers, {content.mask: content for content in given}
        nodes = [sum(1 << numbers[node] for node in s.nodes) for s in problem.partition.subgraphs]
        contents = [by_nodes[mask] for mask in nodes]
        alone_ns = [pricer.best(mask)[0] for mask in nodes]
        model = ModelCosts(problem, graph)

        def at_most_alone(each_ns: Sequence[float]) -> tuple[float, ...]:
            return tuple(map(min, each_ns, alone_ns))

        chain_ns, areas_ns = at_most_alone(model.bounds.chain_ns), map(at_most_alone, model.bounds.areas_ns)
        bounds = replace(model.bounds, chain_ns=chain_ns, areas_ns=tuple(areas_ns))
        borders = [pricer.numbered.border(mask) for mask in nodes]
        return cls(contents, alone_ns, pricer, model, graph, bounds, borders)

    def signature(self, choice: StageChoice) -> Hashable:
        """By what kernels do, at the ends of the network by what they read and make of these."""
        members = [i for group in choice.groups for i in group]
        if choice.strategy == "alone" or not self._is_whole(members):
            return choice
        return self.model.signature(choice), tuple(self.borders[i] for i in members)

    def bound_ns(self, choice: StageChoice) -> float:
        """By kernels alone; of merged ones by the model."""
        if choice.strategy == "merge":
            return self.model.bound_ns(choice)
        return self.bounds.stage_bound_ns(self.graph, choice)

    def cost_ns(self, choice: StageChoice) -> float:
        """Of a block, or of its kernels one after another where these are no block."""
        members = [i for group in choice.groups for i in group]
        if choice.strategy == "alone":
            return self.alone_ns[members[0]]
        if self._is_whole(members):
            is_inside = not any(self.borders[i] for i in members)
            cost = self.model.cost_ns(choice) if is_inside else self.pricer.cost(self._content(choice))
            if cost < inf:
                return cost
        return max(sum(self.alone_ns[i] for i in members), self.bound_ns(choice))

    def with_cores(self, choice: StageChoice) -> Iterable[StageChoice]:
        """None: groups share the cores."""
        return ()

    def contents_of(self, choice: StageChoice) -> Iterator[Content]:
        """The blocks of a stage."""
        members = [i for group in choice.groups for i in group]
        if choice.strategy == "alone" or not self._is_whole(members):
            for i in members:
                best = self.pricer.best(self.contents[i].mask)[1]
                assert best is not None, "it has a finite cost"
                yield best
        else:
            yield self._content(choice)

    def _content(self, choice: StageChoice) -> Content:
        groups = [[self.contents[i].kernels[0] for i in group] for group in choice.groups]
        if choice.strategy != "merge":
            return side_by_side(groups)
        return Content(
            tuple(kernel for group in groups for kernel in group), (merge_stage(range(len(groups))),)
        )

    def _is_whole(self, members: Sequence[int]) -> bool:
        return all(self.contents[i].kernels[0].split == WHOLE for i in members)


def _space_of_kernels(frozen: Frozen, problem: ScheduleProblem, answer: NetworkAnswer) -> Space:
    most = min(MOST_GROUPS, problem.limits.num_groups) if "stages" in frozen.left else 1
    rules = [
        OF_PARTITION,
        Rule(GROUPS, most),
        Rule(GROUP_SIZE, MOST_KERNELS),
        CONNECTED,
        SHARED_CORES,
        ALONE,
        BY_TASKS,
    ]
    if len(answer.blocks) > 1 and not answer.crosses_blocks:
        rules.append(within_blocks(MOST_IN_BLOCK))
    return SCHEDULES.keeping(*rules, MERGES_IN_A_ROW if "merges" in frozen.left else WITHOUT_MERGES)


_SPACE_OF_CUTS = SCHEDULES.keeping(CUT_KERNELS, WITHOUT_MERGES, Rule(GROUPS, 1), ALONE)


Make = Callable[[], Content]


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """The way to run a set, no less than `least`."""

    least: float
    make: Make


class _FrozenPart:
    """The layers of a kernel, as the joint search asks for them.

    `nodes` and `predecessors` are of each, by their numbers in the part. What a part costs as it is given is
    `cost`.
    """

    def __init__(
        self,
        pricer: LaunchedPricer,
        nodes: Sequence[Mask],
        predecessors: Sequence[Mask],
        ways: dict[Mask, _Way],
        floors: Sequence[float],
        cost: float,
    ) -> None:
        self.pricer, self.nodes, self.ways, self.cost = pricer, nodes, ways, cost
        self.num_layers = len(nodes)
        self.goal = (1 << self.num_layers) - 1
        self._predecessors, self.floors = predecessors, floors
        self.is_sound = True  # no price was below its bound
        self._prices: dict[Mask, float] = {}

    @property
    def space(self) -> Space:
        """Blocks of this part."""
        return Space("schedules of a part")

    @property
    def least_space(self) -> Space:
        """The same."""
        return self.space

    @property
    def bound(self) -> Bound:
        """The floors of all."""
        return Bound(sum(self.floors), self.space, "floors")

    def predecessors(self, layer: int) -> Mask:
        """What one reads."""
        return self._predecessors[layer]

    def neighbours(self, layer: int) -> Mask:
        """What one reads, and what reads it."""
        readers = (i for i, before in enumerate(self._predecessors) if before >> layer & 1)
        return self._predecessors[layer] | sum(1 << i for i in readers)

    def floor(self, layer: int) -> float:
        """Its share of the resource that is asked for most."""
        return self.floors[layer]

    def blocks(self, layers: Mask) -> Iterator[Block]:
        """The set as one kernel."""
        yield Block.storing_all(layers, self._predecessors)

    def least(self, block: Block) -> float:
        """Of that kernel."""
        return self.least_of(block.layers)

    def least_of(self, layers: Mask) -> float:
        """The same, of a set."""
        return self.ways[layers].least

    def tight_least(self, block: Block) -> float:
        """The same."""
        return self.least(block)

    def price(self, block: Block) -> float:
        """What the kernel costs, simulated; what is known of the same nodes counts as well."""
        known = self._prices.get(block.layers)
        if known is None:
            way = self.ways[block.layers]
            self.pricer.add(way.make())
            known = self._prices[block.layers] = self.pricer.best(self.nodes_of(block.layers))[0]
            self.is_sound = self.is_sound and known >= way.least * (1 - _ROUNDING)
        return known

    def nodes_of(self, layers: Mask) -> Mask:
        """The nodes of a set."""
        return sum(self.nodes[layer] for layer in bits(layers))

    def solve(self, is_due: Callable[[], bool]) -> list[Content] | None:
        """The blocks of the cheapest plan; None where the budget ends before."""
        most = self.cost * (1 + _SLACK) if self.cost < inf else inf
        sets, floors, bound = list(self.ways), self.floors, inf
        if len(sets) > _FEW_SETS:
            rounds = itertools.count()

            def is_late(rounds: Iterator[int] = rounds) -> bool:
                return next(rounds) > _MOST_ROUNDS or is_due()

            strong = strong_floors(self, sets, self.goal, most, is_late, with_prices=False)
            if strong is None:
                return None
            sets, floors, bound = list(strong.sets), list(strong.floors), strong.bound
        part = Part(self.goal, 0, self.goal)
        gap = bound * _FIRST_GAP
        while True:
            # Little is searched below a cost that is hardly above the bound.
            below = min(most, bound + gap)
            found = shortest(
                self,
                part,
                sets,
                below,
                floors=floors,
                is_due=is_due,
                is_once=True,
            )
            if not self.is_sound:
                return None
            if found.plan is not None:
                contents = (self.pricer.best(self.nodes_of(block.layers))[1] for block in found.plan.blocks)
                return [content for content in contents if content is not None]
            if not found.is_closed or below >= most:
                return None
            gap *= 2


def _is_left(graph: StageGraph, mask: Mask) -> bool:
    """Whether a path leaves a set and enters it again."""
    behind = 0
    for i in bits(mask):
        behind |= graph.descendants[i]
    return any(graph.descendants[i] & mask for i in bits(behind & ~mask))


def _layer_parts(frozen: Frozen, pricer: LaunchedPricer, moves: Moves) -> list[_FrozenPart] | None:
    """The layers of each given kernel; its parts are kernels of their own."""
    units = _units(frozen, moves, pricer)
    parts = []
    for content in frozen.contents:
        if len(content.kernels) > 1:
            return None  # slices of several run in turns
        own = [unit for unit in units if unit & content.mask]
        part = _layer_part(pricer, content, own, moves)
        if part is None:
            return None
        parts.append(part)
    return parts


def _units(frozen: Frozen, moves: Moves, pricer: LaunchedPricer) -> list[Mask]:
    """What is never cut, as sets of nodes: what the partitioner fused for good; layers, where it says of no
    fusion how sure it is."""
    kernels = [content.mask for content in frozen.contents]
    partition = frozen.partition
    if not partition.fusions:
        return [sum(1 << node for node in layer) for layer in moves.layers_cut_by(kernels)]
    numbers = pricer.numbered.numbers
    units = [1 << node for node in range(len(pricer.numbered.nodes))]
    for record in partition.fusions:
        if record.verdict is Verdict.STABLE:
            ends = 1 << numbers[record.producer] | 1 << numbers[record.consumer]
            met = [unit for unit in units if unit & ends]
            if any(sum(met) & ~kernel == 0 for kernel in kernels):
                units = [*(unit for unit in units if not unit & ends), sum(met)]
    return sorted(units, key=lambda unit: unit.bit_length())


def _layer_part(
    pricer: LaunchedPricer, content: Content, units: Sequence[Mask], moves: Moves
) -> _FrozenPart | None:
    """The connected sets of a kernel's units that no path leaves and enters again, each as a kernel."""
    edges = []
    for i, unit in enumerate(units):
        read = union(pricer.predecessors(node) for node in bits(unit))
        edges += [(str(j), str(i)) for j, other in enumerate(units) if j != i and other & read]
    try:
        graph = StageGraph.of_edges([str(i) for i in range(len(units))], edges)
    except UsageError:
        return None  # what was fused for good waits for each other
    units = [units[int(name)] for name in graph.names]
    connected = connected_sets(pricer, units, _MOST_SETS)
    if connected is None:
        return None
    launch_ns = pricer.machine.launch_ns
    floors = [sum(pricer.floor(node) for node in bits(unit)) for unit in units]
    everything = (1 << len(units)) - 1
    ways: dict[Mask, _Way] = {}
    for nodes in connected:
        mask = sum(1 << i for i, unit in enumerate(units) if unit & nodes)
        if not _is_left(graph, mask):
            least = launch_ns + sum(floors[i] for i in bits(mask))
            ways[mask] = _Way(least, functools.partial(moves.fused, nodes))
    ways[everything] = _Way(0.0, lambda: content)
    return _FrozenPart(pricer, units, graph.predecessors, ways, floors, pricer.cost(content))
