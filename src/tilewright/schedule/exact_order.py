"""The best order of instances: dynamic programming over sets of finished nodes.

What has finished determines what is live, so of all ways to a set only the cheapest matters. Ways that cannot
become better than the best known order are dropped, since every node holds at least what it reads and makes.
Nodes with the same neighbours, and subtrees of the same form under one reader, can change places: the first
begins first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tilewright.planning import Meter
from tilewright.schedule.orders import Demand, Order, OrderCost, breadth_first, depth_first, min_delta

MAX_STATES = 50_000
# Beyond these the search is not worth its time: a simple order costs microseconds, the search a second.
_MAX_STEPS_PER_STATE = 5
_MAX_NODES = 400
_BEAM_WIDTH = 100


@dataclass(frozen=True, slots=True)
class OrderSearch:
    """The best order found. `is_exact`: there is no better one."""

    order: Order
    cost: OrderCost
    is_exact: bool
    num_states: int
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class _State:
    """The cheapest way to one set of finished nodes."""

    finished: int
    cost: OrderCost
    live_bytes: int
    ready: int
    node: int
    before: _State | None

    def order(self) -> Order:
        found: list[int] = []
        state: _State | None = self
        while state is not None and state.node >= 0:
            found.append(state.node)
            state = state.before
        return tuple(reversed(found))


def best_heuristic(demand: Demand, capacity_bytes: int) -> tuple[OrderCost, Order]:
    """The cheapest of depth-first, min-delta and breadth-first; ties go to the first of these."""
    orders = [depth_first(demand), min_delta(demand), breadth_first(demand)]
    costs = [demand.cost_of(order, capacity_bytes) for order in orders]
    best = min(range(len(orders)), key=costs.__getitem__)
    return costs[best], orders[best]


def exact_order(
    demand: Demand, capacity_bytes: int, meter: Meter | None = None, *, max_states: int = MAX_STATES
) -> OrderSearch:
    """The cheapest order: exact unless it takes more than `max_states` sets, then by a beam of the best sets.

    Where that takes too long as well, and for graphs of hundreds of nodes, it is the best simple order.
    """
    bound, order = best_heuristic(demand, capacity_bytes)
    if len(demand.successors) > _MAX_NODES:
        return OrderSearch(order, bound, False, 0)
    search = _Search(demand, capacity_bytes, bound, max_states)
    final = search.run(meter)
    if final is not None:
        bound, order = final.cost, final.order()
    is_exact = search.is_exact and not search.cut_off
    return OrderSearch(order, bound, is_exact, search.num_states, search.cut_off)


class _Search:
    """One run over levels: all sets of one node, of two, and so on."""

    def __init__(self, demand: Demand, capacity_bytes: int, bound: OrderCost, max_states: int) -> None:
        self.demand = demand
        self.capacity_bytes = capacity_bytes
        self.bound = bound
        self.max_states = max_states
        self.is_exact = True
        self.cut_off = False
        self.num_states = 0
        self.num_steps = 0
        least = [
            extra + sum(demand.piece_bytes[p] for p in preds)
            for extra, preds in zip(demand.extra_bytes, demand.predecessors, strict=True)
        ]
        self.least_overflow = [max(0, needed - capacity_bytes) for needed in least]
        self.least = OrderCost(sum(self.least_overflow), max(least, default=0))
        twins = _twins(demand)
        self.forms = _Forms(demand)
        self.needs = [
            sum(1 << p for p in preds) | (1 << twins[node] if node in twins else 0)
            for node, preds in enumerate(demand.predecessors)
        ]
        self.unlocks: list[list[int]] = [list(s) for s in demand.successors]
        for node, twin in twins.items():
            self.unlocks[twin].append(node)
        self.readers = [sum(1 << s for s in succs) for succs in demand.successors]

    def run(self, meter: Meter | None) -> _State | None:
        """The cheapest complete order that beats the bound; None if there is none."""
        if self.least >= self.bound:
            return None
        ready = sum(1 << node for node, needs in enumerate(self.needs) if needs == 0)
        # A state's cost counts what the nodes to come take at least.
        level: dict[Hashable, _State] = {0: _State(0, self.least, 0, ready, -1, None)}
        for _ in self.demand.successors:
            if meter is not None and meter.left_s is not None and meter.left_s <= 0:
                self.cut_off = True
                return None
            if self.num_steps > _MAX_STEPS_PER_STATE * self.max_states:
                self.is_exact = False
                return None
            following: dict[Hashable, _State] = {}
            for state in level.values():
                for reached in self._steps(state):
                    self.num_steps += 1
                    name = self.forms.of(reached.finished)
                    known = following.get(name)
                    if known is None or reached.cost < known.cost:
                        following[name] = reached
            self.num_states += len(following)
            if self.num_states > self.max_states and len(following) > _BEAM_WIDTH:
                self.is_exact = False
                best = sorted(
                    following.items(), key=lambda item: (item[1].cost, item[1].live_bytes, item[1].finished)
                )
                following = dict(best[:_BEAM_WIDTH])
            level = following
        return min(level.values(), key=lambda s: s.cost, default=None)

    def _steps(self, state: _State) -> Iterator[_State]:
        ready = state.ready
        while ready:
            bit = ready & -ready
            ready ^= bit
            node = bit.bit_length() - 1
            needed = state.live_bytes + self.demand.extra_bytes[node]
            overflow = max(0, needed - self.capacity_bytes) - self.least_overflow[node]
            cost = OrderCost(state.cost.overflow_bytes + overflow, max(state.cost.peak_bytes, needed))
            if cost >= self.bound:
                continue
            mask = state.finished | bit
            live = state.live_bytes + self.demand.piece_bytes[node]
            for producer in self.demand.predecessors[node]:
                if not self.readers[producer] & ~mask:
                    live -= self.demand.piece_bytes[producer]
            unlocked = state.ready ^ bit
            for other in self.unlocks[node]:
                if not self.needs[other] & ~mask:
                    unlocked |= 1 << other
            yield _State(mask, cost, live, unlocked, node, state)


def _twins(demand: Demand) -> dict[int, int]:
    """For each node the one before it with the same neighbours and sizes: they can change places."""
    last: dict[tuple[object, ...], int] = {}
    twins: dict[int, int] = {}
    for node in range(len(demand.successors)):
        key = (
            demand.predecessors[node],
            demand.successors[node],
            demand.piece_bytes[node],
            demand.extra_bytes[node],
        )
        if key in last:
            twins[node] = last[key]
        last[key] = node
    return twins


class _Forms:
    """Names of sets of finished nodes, the same for sets that differ by exchanging like subtrees.

    A subtree is a node and all that leads to it, where everything has one reader only. Subtrees of the same
    form under one reader can change places without a difference to anything.
    """

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.members: dict[int, int] = {}
        for node, sources in enumerate(demand.predecessors):
            if len(demand.successors[node]) <= 1 and all(p in self.members for p in sources):
                self.members[node] = sum((self.members[p] for p in sources), 1 << node)
        inner = {p for node in self.members for p in demand.predecessors[node]}
        groups: dict[tuple[int, ...], list[int]] = {}
        for node in self.members:
            if node not in inner:
                groups.setdefault(demand.successors[node], []).append(node)
        self.groups = list(groups.values())
        self.others = sum(1 << n for n in range(len(demand.successors)) if n not in self.members)
        self._names: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, int], int] = {}

    def of(self, finished: int) -> Hashable:
        """The name of a set."""
        trees = tuple(
            tuple(sorted(self._tree(root, finished & self.members[root]) for root in group))
            for group in self.groups
        )
        return finished & self.others, trees

    def _tree(self, root: int, finished: int) -> int:
        name = self._known.get((root, finished))
        if name is None:
            sources = self.demand.predecessors[root]
            below = sorted(self._tree(p, finished & self.members[p]) for p in sources)
            form = (
                self.demand.piece_bytes[root],
                self.demand.extra_bytes[root],
                finished >> root & 1,
                *below,
            )
            name = self._known[root, finished] = self._names.setdefault(form, len(self._names))
        return name
