"""Joint searches in which some decisions are frozen: what may change, and exact answers where little may.

Kernels that are given can run side by side or merge, or they can be cut again. Both fall apart into parts
between which there is nothing to choose: kernels between two that all others come before or after, and the
layers of one kernel. A shortest path through each part is then the cheapest plan of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from math import inf
from typing import get_args

from tilewright.errors import UsageError
from tilewright.joint.additive import Part, shortest
from tilewright.joint.base import Block, Mask, bits, union
from tilewright.joint.floors import strong_floors
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.moves import Moves, side_by_side
from tilewright.joint.launched.pricer import LaunchedPricer, Machine
from tilewright.options import Choice
from tilewright.partition.base import Partition
from tilewright.partition.fusion_records import Verdict
from tilewright.partition.merge_siblings import merge_sets
from tilewright.partition.split import WHOLE
from tilewright.planning import Bound, Rule, Space
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import ScheduleProblem, merges
from tilewright.schedule.ios.blocks import blocks as spans
from tilewright.schedule.ios.costs import AskedCosts, ModelCosts, StageCosts
from tilewright.schedule.ios.graph import StageGraph
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
)

MOST_GROUPS, MOST_KERNELS = 8, 3
"""Groups of a stage and kernels of a group in which given kernels run side by side: IOS's s and r."""
_MOST_SETS = 400_000
"""Sets of kernels or layers of one part that are listed."""
_MOST_MERGED = 6
_FEW_SETS = 200
"""Sets up to which a shortest path needs no better floors."""
_MOST_ROUNDS = 100
"""Of the linear program for these, which gets slower and gains less and less."""
_FIRST_GAP = 0.02
"""Above the bound of floors, within which a plan is looked for first; then within twice as much."""
_ROUNDING = 1e-9  # of costs that are sums of floats
_SLACK = 1e-6  # above what a part costs as it is given, so that it is found again
CUT_KERNELS = Rule("that cut kernels of the partition between layers that it has not fused for good")
MERGES_IN_A_ROW = Rule(f"with merges of siblings in a row where more than {_MOST_MERGED} may merge")
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
        kernels = {nodes_of(kernel): kernel for content in self.contents for kernel in content.kernels}
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
        mask = nodes_of(kernel)
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
    """The cheapest blocks of a space in which decisions are frozen, and the bound of that space."""

    contents: tuple[Content, ...]
    bound: Bound

    def bounds_of(self, contents: Sequence[Content]) -> Iterator[Bound]:
        """The bound, of these blocks alone."""
        if tuple(contents) == self.contents:
            yield self.bound


def nodes_of(kernel: Kernel) -> Mask:
    """The nodes of a kernel."""
    return sum(1 << node for node in kernel.nodes)


def search_frozen(
    frozen: Frozen,
    pricer: LaunchedPricer,
    problem: ScheduleProblem,
    moves: Moves,
    is_due: Callable[[], bool],
) -> FrozenProof | None:
    """The cheapest plan that leaves all that is frozen as it is; None where there are too many blocks to
    list, or the budget ends first."""
    if "kernels" not in frozen.left:
        parts, space = _kernel_parts(frozen, pricer, problem), _space_of_kernels(frozen, problem)
    elif not {"stages", "merges"} & frozen.left:
        parts, space = _layer_parts(frozen, pricer, moves), _SPACE_OF_CUTS
    else:
        return None
    if parts is None:
        return None
    found: list[Content] = []
    for part in parts:
        blocks = part.solve(is_due)
        if blocks is None:
            return None
        found += blocks
    return FrozenProof(tuple(found), Bound(sum(map(pricer.cost, found)), space, "shortest path"))


def _space_of_kernels(frozen: Frozen, problem: ScheduleProblem) -> Space:
    most = min(MOST_GROUPS, problem.limits.num_groups) if "stages" in frozen.left else 1
    rules = [OF_PARTITION, Rule(GROUPS, most), Rule(GROUP_SIZE, MOST_KERNELS), CONNECTED, SHARED_CORES, ALONE]
    return SCHEDULES.keeping(*rules, MERGES_IN_A_ROW if "merges" in frozen.left else WITHOUT_MERGES)


_SPACE_OF_CUTS = SCHEDULES.keeping(CUT_KERNELS, WITHOUT_MERGES, Rule(GROUPS, 1), ALONE)


Make = Callable[[], Content]


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A way to run a set: no less than `least`, nor than what `estimate` says, which takes longer to ask."""

    least: float
    make: Make
    estimate: Callable[[], float] | None = None


class _FrozenPart:
    """Kernels or layers between which and all others nothing is to be chosen, as the joint search asks them.

    `nodes` and `predecessors` are of each, by their numbers in the part; `ways` are, by sets of them, lower
    bounds of what runs them, and what makes it. What a part costs as it is given is `cost`.
    """

    def __init__(
        self,
        pricer: LaunchedPricer,
        nodes: Sequence[Mask],
        predecessors: Sequence[Mask],
        ways: dict[Mask, list[_Way]],
        floors: Sequence[float],
        cost: float,
    ) -> None:
        self.pricer, self.nodes, self.ways, self.cost = pricer, nodes, ways, cost
        self.num_layers = len(nodes)
        self.goal = (1 << self.num_layers) - 1
        self._predecessors, self.floors = predecessors, floors
        self.is_sound = True  # no price was below its bound
        self._prices: dict[Mask, float] = {}
        self._tight: dict[Mask, float] = {}

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
        """The set in the best of the ways to run it."""
        yield Block.storing_all(layers, self._predecessors)

    def least(self, block: Block) -> float:
        """Of the way that may cost least."""
        return self.least_of(block.layers)

    def least_of(self, layers: Mask) -> float:
        """The same, of a set."""
        return min(way.least for way in self.ways[layers])

    def tight_least(self, block: Block) -> float:
        """By the estimates of ways."""
        known = self._tight.get(block.layers)
        if known is None:
            known = inf
            for way in sorted(self.ways[block.layers], key=lambda way: way.least):
                if way.least < known:
                    own = way.least if way.estimate is None else max(way.least, way.estimate())
                    known = min(known, own)
            self._tight[block.layers] = known
        return known

    def price(self, block: Block) -> float:
        """What the cheapest way costs, simulated; what is known of the same nodes counts as well."""
        known = self._prices.get(block.layers)
        if known is None:
            for way in self.ways[block.layers]:
                self.pricer.add(way.make())
            known = self._prices[block.layers] = self.pricer.best(self.nodes_of(block.layers))[0]
            bound = self._tight.get(block.layers, self.least(block))
            self.is_sound = self.is_sound and known >= bound * (1 - _ROUNDING)
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
                tight_least=self.tight_least,
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


def _kernel_parts(
    frozen: Frozen, pricer: LaunchedPricer, problem: ScheduleProblem
) -> list[_FrozenPart] | None:
    """Given kernels between two that all others come before or after: no stage crosses these."""
    if any(len(content.kernels) > 1 for content in frozen.contents):
        return None  # some run side by side already, or slice by slice in turns
    partition = problem.partition
    graph = StageGraph.of_partition(partition)
    by_nodes = {content.mask: content for content in frozen.contents}
    numbers = pricer.numbered.numbers
    nodes = [sum(1 << numbers[node] for node in s.nodes) for s in partition.subgraphs]
    contents = [by_nodes[mask] for mask in nodes]
    costs = AskedCosts(ModelCosts(problem, graph), graph)
    may_merge: list[Mask] = []
    if "merges" in frozen.left:
        sets = merge_sets(partition, pads_kernels=problem.pads_kernels)
        may_merge = [sum(1 << i for i in members) for members in sets]
    most = min(MOST_GROUPS, problem.limits.num_groups) if "stages" in frozen.left else 1
    parts = []
    for span in spans(graph, len(contents)):
        part = _kernel_part(
            pricer,
            graph.slice(span.start, span.stop),
            contents[span.start : span.stop],
            most,
            costs,
            span.start,
        )
        if part is None:
            return None
        inside = (1 << span.stop) - (1 << span.start)
        _add_merges(part, span.start, [mask & inside for mask in may_merge], contents, costs.costs)
        parts.append(part)
    return parts


def _kernel_part(
    pricer: LaunchedPricer,
    graph: StageGraph,
    contents: Sequence[Content],
    most: int,
    costs: AskedCosts,
    start: int,
) -> _FrozenPart | None:
    bounds = costs.costs.bounds.part(start, start + len(contents))
    alone = [pricer.best(content.mask)[0] for content in contents]
    ways = {1 << i: [_Way(cost, _given(contents[i]))] for i, cost in enumerate(alone)}
    is_whole = [content.kernels[0].split == WHOLE for content in contents]

    def way(groups: Sequence[Mask], least: float) -> _Way:
        choice = StageChoice(tuple(tuple(i + start for i in bits(group)) for group in groups), "parallel")
        return _Way(
            least,
            lambda: side_by_side([[contents[i].kernels[0] for i in bits(group)] for group in groups]),
            lambda: costs.cost_ns(choice),
        )

    for groups in _stages(graph, most, is_whole) if most > 1 else ():
        if len(ways) > _MOST_SETS:
            return None
        mask = sum(groups)
        longest = max(bounds.group_ns(graph, group) for group in groups)
        least = bounds.stage_ns + bounds.join_ns + max(longest, bounds.area_ns(mask))
        ways[mask] = [way(sorted(groups), least)]
    area = max(bounds.areas_ns, key=sum, default=(0.0,) * len(contents))
    floors = [min(own, cost) for own, cost in zip(area, alone, strict=True)]
    nodes = [content.mask for content in contents]
    return _FrozenPart(pricer, nodes, graph.predecessors, ways, floors, sum(alone))


def _given(content: Content) -> Make:
    return lambda: content


def _stages(graph: StageGraph, most: int, may_join: Sequence[bool]) -> Iterator[tuple[Mask, ...]]:
    """Two to `most` connected sets of kernels that wait for nothing of each other.

    One set alone is left out: it costs what its kernels do one after another.
    """
    groups = _groups(graph, may_join)
    ancestors = [0] * graph.num_operators
    for i, behind in enumerate(graph.descendants):
        for j in bits(behind):
            ancestors[j] |= 1 << i
    related = []
    for group in groups:
        reach = group
        for i in bits(group):
            reach |= graph.descendants[i] | ancestors[i]
        related.append(reach)
    stack: list[tuple[tuple[Mask, ...], list[int]]] = [((), list(range(len(groups))))]
    while stack:
        chosen, candidates = stack.pop()
        checkpoint()
        for place, number in enumerate(candidates):
            found = (*chosen, groups[number])
            if len(found) > 1:
                yield found
            if len(found) < most:
                rest = [n for n in candidates[place + 1 :] if not groups[n] & related[number]]
                if rest:
                    stack.append((found, rest))


def _groups(graph: StageGraph, may_join: Sequence[bool]) -> list[Mask]:
    """Connected sets of a few kernels that no path leaves and enters again."""
    among = sum(1 << i for i, ok in enumerate(may_join) if ok)
    return [mask for mask in graph.connected_sets(MOST_KERNELS, among) if not _is_left(graph, mask)]


def _is_left(graph: StageGraph, mask: Mask) -> bool:
    """Whether a path leaves a set and enters it again."""
    behind = 0
    for i in bits(mask):
        behind |= graph.descendants[i]
    return any(graph.descendants[i] & mask for i in bits(behind & ~mask))


def _add_merges(
    part: _FrozenPart, start: int, may_merge: Sequence[Mask], contents: Sequence[Content], costs: StageCosts
) -> None:
    """Kernels of a part that become one operator, and floors that such a kernel does not go below."""
    floors = list(part.floors)
    for whole in may_merge:
        for members in _subsets(list(bits(whole))):
            choice = StageChoice(tuple((i,) for i in members), "merge")
            least = costs.bound_ns(choice)
            kernels = tuple(contents[i].kernels[0] for i in members)
            if any(kernel.split != WHOLE for kernel in kernels):
                continue
            content = Content(kernels, (merge_stage(range(len(kernels))),))
            part.ways.setdefault(sum(1 << i - start for i in members), []).append(
                _Way(least, _given(content))
            )
            for i in members:
                floors[i - start] = min(floors[i - start], least / len(members))
    part.floors = floors


def _subsets(members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Two or more of some siblings; of many, those in a row."""
    for size in range(2, len(members) + 1):
        if len(members) <= _MOST_MERGED:
            yield from itertools.combinations(members, size)
        else:
            yield from (tuple(members[i : i + size]) for i in range(len(members) - size + 1))


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
    level = {1 << i for i in range(len(units))}
    connected = set(level)
    while level:
        checkpoint()
        level = {
            mask | 1 << other
            for mask in level
            for i in bits(mask)
            for other in bits((graph.predecessors[i] | graph.successors[i]) & ~mask)
        }
        connected |= level
        if len(connected) > _MOST_SETS:
            return None
    launch_ns = pricer.machine.launch_ns
    floors = [sum(pricer.floor(node) for node in bits(unit)) for unit in units]
    everything = (1 << len(units)) - 1
    ways: dict[Mask, list[_Way]] = {}
    for mask in sorted(connected):
        if not _is_left(graph, mask):
            nodes = sum(units[i] for i in bits(mask))
            least = launch_ns + sum(floors[i] for i in bits(mask))
            ways[mask] = [_Way(least, _fused(moves, nodes))]
    ways[everything] = [_Way(0.0, _given(content))]
    return _FrozenPart(pricer, units, graph.predecessors, ways, floors, pricer.cost(content))


def _fused(moves: Moves, nodes: Mask) -> Make:
    return lambda: moves.fused(nodes)
