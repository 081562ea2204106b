"""Prices of blocks of programs whose kernels are launched one by one: each is simulated as a network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from math import inf

from tilewright.bit_sets import bits, union
from tilewright.cost.base import CostModel, Objective
from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Node
from tilewright.ir.graph_regions import kernel_structure
from tilewright.joint.base import Block
from tilewright.joint.launched.content import Content, Numbered
from tilewright.joint.launched.times import TileJointly, TimeLayers
from tilewright.partition.base import Partition
from tilewright.planning import Bound, Limits, Rule, Space
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import PriceSchedule, ScheduleProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is asked of a target: its cost model, what a part of a network costs alone, and what may run.

    `launch_ns` is what every kernel takes beside its work, `join_ns` a stage of several; `floors_ns` what
    each node takes at least of the unit that has most to do; `layer_times` says what layers take within
    kernels that run them whole; `cores_worth` how many cores' worth of work a node's result fills; `tilings`
    which joint tilings of nodes are worth a price.
    """

    cost: CostModel
    price: PriceSchedule
    objective: Objective
    limits: Limits
    allows_lanes: bool
    pads_kernels: bool
    launch_ns: float
    join_ns: float
    floors_ns: tuple[float, ...]
    layer_times: TimeLayers
    cores_worth: Callable[[Node], float]
    tilings: TileJointly

    def problem(self, partition: Partition) -> ScheduleProblem:
        """Of a part of a network that is a network of its own."""
        return ScheduleProblem(
            partition,
            cost=self.cost,
            objective=self.objective,
            limits=self.limits,
            price=self.price,
            allows_slices=True,
            allows_lanes=self.allows_lanes,
            pads_kernels=self.pads_kernels,
        )


@dataclass(slots=True)
class Prices:
    """What blocks cost by their structures; `ahead` are those that were not asked for yet."""

    known: dict[Hashable, float] = field(default_factory=dict)
    ahead: dict[Hashable, float] = field(default_factory=dict)
    num_simulated: int = 0


class LaunchedPricer:
    """Blocks of whole nodes: each set of nodes in the best of the ways that are known to run it.

    A set for which no way is known is no block. Blocks of equal structure are simulated once, those of
    several parts of a network where these share `prices`. Where something is frozen, `allows` says which
    blocks leave it as it is.
    """

    def __init__(
        self,
        numbered: Numbered,
        machine: Machine,
        allows: Callable[[Content], bool] = lambda _: True,
        prices: Prices | None = None,
    ) -> None:
        self.numbered, self.machine, self.allows = numbered, machine, allows
        self.prices = prices or Prices()
        self.num_layers = len(numbered.nodes)
        numbers = numbered.numbers
        self._predecessors = [
            sum({1 << numbers[v.producer] for v in node.operands() if v.producer in numbers})
            for node in numbered.nodes
        ]
        self._successors = [0] * self.num_layers
        for number, before in enumerate(self._predecessors):
            for source in bits(before):
                self._successors[source] |= 1 << number
        self.goal = (1 << self.num_layers) - 1
        self._floors = machine.floors_ns
        self._ways: dict[int, dict[Content, float | None]] = {}
        self._least: dict[int, float] = {}

    def within(self, numbers: Sequence[int]) -> LaunchedPricer:
        """The pricer of some nodes, given in an order in which they can run, as a network of their own."""
        floors_ns = tuple(self._floors[i] for i in numbers)
        machine = replace(self.machine, floors_ns=floors_ns)
        return LaunchedPricer(self.numbered.within(numbers), machine, prices=self.prices)

    @property
    def num_simulated(self) -> int:
        """Blocks that were simulated, here and wherever prices are shared."""
        return self.prices.num_simulated

    def predecessors(self, layer: int) -> int:
        """Nodes whose results a node reads."""
        return self._predecessors[layer]

    def successors(self, layer: int) -> int:
        """Nodes that read a result of a node."""
        return self._successors[layer]

    def neighbours(self, layer: int) -> int:
        """Both."""
        return self._predecessors[layer] | self._successors[layer]

    def floor(self, layer: int) -> float:
        """Its share of the unit that has most to do in all."""
        return self._floors[layer]

    @property
    def space(self) -> Space:
        """Combinations of the blocks that are known."""
        return Space("schedules", (Rule("blocks that the search met"),))

    @property
    def bound(self) -> Bound:
        """A launch, and all work of the unit that has most to do."""
        value = self.machine.launch_ns + sum(self._floors)
        return Bound(value, Space("schedules"), "work of the busiest unit")

    @property
    def sets(self) -> Iterable[int]:
        """All sets of nodes for which a way is known."""
        return self._ways.keys()

    @property
    def contents(self) -> Iterator[Content]:
        """All ways that are known."""
        for ways in self._ways.values():
            yield from ways

    def add(self, content: Content) -> bool:
        """One more way to run its nodes; False if it is known, or not allowed."""
        if not self.allows(content):
            return False
        ways = self._ways.setdefault(content.mask, {})
        if content in ways:
            return False
        ways[content] = None
        self._least.pop(content.mask, None)
        return True

    def forget_unpriced(self) -> None:
        """Leave out all ways to run nodes that were not priced."""
        for mask, ways in list(self._ways.items()):
            for content in [content for content, cost in ways.items() if cost is None]:
                del ways[content]
            if not ways:
                del self._ways[mask]
        self._least.clear()

    def blocks(self, layers: int) -> Iterator[Block]:
        """The set as a block that leaves nothing on the chip."""
        if layers in self._ways:
            reads = union(map(self.predecessors, bits(layers)))
            yield Block(layers, reads & ~layers, 0, layers, 0)

    def least(self, block: Block) -> float:
        """One launch, and the busiest unit's work."""
        known = self._least.get(block.layers)
        if known is None:
            costs = list(self._ways[block.layers].values())
            priced = [cost for cost in costs if cost is not None]
            if len(priced) == len(costs):
                return min(priced)
            work = sum(self._floors[i] for i in bits(block.layers))
            known = self._least[block.layers] = self.machine.launch_ns + work
        return known

    def price(self, block: Block) -> float:
        """The least simulated cost of the ways that are known; infinite if none fits the machine."""
        return self.best(block.layers)[0]

    def best(self, layers: int) -> tuple[float, Content | None]:
        """The cheapest way to run a set of nodes, and what it costs."""
        ways = self._ways[layers]
        for content, cost in ways.items():
            if cost is None:
                ways[content] = self.cost(content)
        self._least[layers] = min((c for c in ways.values() if c is not None), default=inf)
        return min(
            ((cost, content) for content, cost in ways.items() if cost is not None and cost < inf),
            key=lambda way: way[0],
            default=(inf, None),
        )

    def priced_sets(self) -> list[int]:
        """Sets of nodes all of whose known ways are priced."""
        return [mask for mask, ways in self._ways.items() if None not in ways.values()]

    def knows(self, content: Content) -> bool:
        """Whether a block is among the ways that are known."""
        return content in self._ways.get(content.mask, ())

    def is_known(self, content: Content) -> bool:
        """Whether a block, or one of its structure, was priced."""
        return self._structure(content) in self.prices.known

    def next_best(self, content: Content) -> float | None:
        """The least cost of other ways to run the nodes of a block, of those that were priced."""
        ways = self._ways.get(content.mask, {})
        others = (cost for way, cost in ways.items() if way != content and cost is not None and cost < inf)
        return min(others, default=None)

    def cost(self, content: Content) -> float:
        """What a block costs alone; infinite if it does not fit."""
        key = self._structure(content)
        prices = self.prices
        if key not in prices.known:
            checkpoint()
            prices.num_simulated += 1
            ahead = prices.ahead.pop(key, None)
            prices.known[key] = self._simulated(content) if ahead is None else ahead
        return prices.known[key]

    def unknown(self, contents: Iterable[Content]) -> Iterator[Content]:
        """Blocks that have not been priced, of each structure the first."""
        seen: set[Hashable] = set()
        for content in contents:
            key = self._structure(content)
            if key not in self.prices.known and key not in self.prices.ahead and key not in seen:
                seen.add(key)
                yield content

    def know(self, content: Content, cost: float) -> None:
        """What a block costs, found elsewhere: it counts as simulated when it is asked for."""
        self.prices.ahead[self._structure(content)] = cost

    def _simulated(self, content: Content) -> float:
        try:
            part = self.numbered.part(content)
            estimate = self.machine.problem(part.partition).estimate(part.stages, part.splits)
            return estimate.cost(self.machine.objective)
        except (InfeasibleMapping, ValueError):
            return inf

    def _structure(self, content: Content) -> Hashable:
        """All that its cost depends on."""
        order = {number: place for place, number in enumerate(bits(content.mask))}
        nodes = [self.numbered.nodes[number] for number in order]
        kernels = tuple(
            (tuple(tuple(order[i] for i in layer) for layer in kernel.layers), kernel.split)
            for kernel in content.kernels
        )
        structure = kernel_structure(nodes, self.numbered.outputs(content.mask))
        return structure, self.numbered.border(content.mask), kernels, content.stages
