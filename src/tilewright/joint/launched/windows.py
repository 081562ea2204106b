"""Plans of large networks, improved window by window: blocks in a row as a network of their own.

What else runs the nodes of blocks in a row leaves the blocks before and behind them as they are. Large
networks repeat their structures, so windows end where few values pass, and of those that are alike one is
searched for all. Blocks grow from sweep to sweep, and the windows with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field

from tilewright.bit_sets import union
from tilewright.ir.graph_regions import kernel_structure
from tilewright.joint.launched.content import Content, Numbered
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.planning import Meter
from tilewright.planning.quality import beside
from tilewright.progress import Progress, checkpoint
from tilewright.records import dataclass

MOST_BLOCKS = 12
"""Blocks of a window."""
_GAIN = 0.9
"""Of what a plan took that was judged, what the next one takes at most, unless it is the last."""
_ROUNDING = 1e-9  # of costs that are sums of floats

Improve = Callable[[LaunchedPricer, Sequence[Content]], Sequence[Content]]
"""Cheaper blocks for a network of these, or the same."""


@dataclass(slots=True, eq=False)
class WindowedPlan:
    """A plan of a network: blocks in an order in which they can run, in windows of neighbours."""

    pricer: LaunchedPricer
    windows: list[tuple[Content, ...]]
    cost: float = field(init=False)
    _done: set[Hashable] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.cost = sum(map(self.pricer.cost, self.contents))

    @property
    def contents(self) -> tuple[Content, ...]:
        """All blocks."""
        return tuple(itertools.chain.from_iterable(self.windows))

    def sweep(self, improve: Improve, meter: Meter, *, first: int) -> Iterator[None]:
        """Improve all windows, of which the first has at most so many blocks; stops behind each gain.

        Windows that are alike are improved once; those that take most in all come first. Each has its share
        of the time, and none is looked at again that is as it was.
        """
        self.windows = list(windows_of(self.pricer.numbered, self.contents, MOST_BLOCKS, first))
        alike: dict[Hashable, list[int]] = {}
        for place, window in enumerate(self.windows):
            checkpoint()
            key = structure_of(self.pricer.numbered, window)
            if key not in self._done:
                alike.setdefault(key, []).append(place)
        costs = {key: len(own) * self._cost(self.windows[own[0]]) for key, own in alike.items()}
        left = sum(costs.values())
        for key in sorted(alike, key=lambda key: -costs[key]):
            with meter.share(min(costs[key] / left, 1.0)):
                is_better = self._improve(alike[key], improve)
                if not meter.is_over:
                    self._done.add(key)
            left = max(left - costs[key], costs[key])
            if is_better:
                yield

    def _improve(self, places: Sequence[int], improve: Improve) -> bool:
        """Improve windows that are alike; False: that gained nothing."""
        window = self.windows[places[0]]
        nodes = nodes_of(window)
        part = self.pricer.within(nodes)
        number = {node: i for i, node in enumerate(nodes)}
        found = improve(part, [content.of_nodes(number) for content in window])
        gain = self._cost(window) - sum(map(part.cost, found))
        if gain <= self.cost * _ROUNDING / len(places):
            return False
        for place in places:
            nodes = nodes_of(self.windows[place])
            self.windows[place] = tuple(content.of_nodes(nodes) for content in found)
        self.cost -= gain * len(places)
        return True

    def _cost(self, window: Sequence[Content]) -> float:
        return sum(map(self.pricer.cost, window))


@dataclass(slots=True, eq=False)
class Joiner:
    """Joins neighbours window by window, and has better plans judged.

    `judge_s` is about what it takes to judge a plan: so much is left for it at the end, and searched between.
    """

    plan: WindowedPlan
    meter: Meter
    judge: Callable[[Sequence[Content]], None]
    judge_s: float
    progress: Progress | None = None
    _judged: float = field(init=False)
    _since_s: float = field(init=False)

    def run(self) -> None:
        """Sweep until nothing is gained, with windows at these places or between, or the budget ends."""
        self._judged, self._since_s = self.plan.cost, self.meter.clock()
        first, num_idle = MOST_BLOCKS, 0
        while num_idle < 2 and not self._is_late:
            before = self.plan.cost
            for _ in self.plan.sweep(self._joined, self.meter, first=first):
                if self._is_late:
                    break
                if self.meter.left_s is not None and self._is_worth_it:
                    self._judge()
            if self._is_worth_it:
                self._judge()
            num_idle = 0 if self.plan.cost < before * (1 - _ROUNDING) else num_idle + 1
            first = MOST_BLOCKS // 2 if first == MOST_BLOCKS else MOST_BLOCKS
        self._judge()

    @property
    def _is_late(self) -> bool:
        """Whether no more time is left than it takes to judge the plan."""
        left_s = self.meter.left_s
        return self.meter.is_over or (left_s is not None and left_s < self.judge_s)

    @property
    def _is_worth_it(self) -> bool:
        """Whether enough was gained, and where time is limited searched, since a plan was judged."""
        is_timed = self.meter.left_s is not None
        is_searched = not is_timed or self.meter.clock() - self._since_s > self.judge_s
        return self.plan.cost < _GAIN * self._judged and is_searched

    def _joined(self, part: LaunchedPricer, given: Sequence[Content]) -> Sequence[Content]:
        if self.progress is not None:
            best = beside(self.plan.cost, self.plan.pricer.bound.value, "ns")
            self.progress(f"joint: {best}", *self.meter.progress)
        search = LaunchedSearch.of(part, [given], self.meter)
        with self.meter.ending_early():
            search.join()
        return search.best

    def _judge(self) -> None:
        if self.plan.cost >= self._judged * (1 - _ROUNDING):
            return
        start_s = self.meter.clock()
        self.judge(self.plan.contents)
        self._judged, self._since_s = self.plan.cost, self.meter.clock()
        self.judge_s = self._since_s - start_s


def one_by_one(pricer: LaunchedPricer) -> tuple[Content, ...]:
    """The layers of a graph as blocks of their own."""
    return tuple(Content.of_kernel([layer]) for layer in Moves(pricer, 1).layers)


def nodes_of(window: Sequence[Content]) -> list[int]:
    """The nodes of blocks in a row, in an order in which they can run."""
    return [i for content in window for kernel in content.kernels for i in kernel.nodes]


def structure_of(numbered: Numbered, window: Sequence[Content]) -> Hashable:
    """All that decides what may run the nodes of a window instead, and what that costs."""
    nodes = nodes_of(window)
    number = {node: i for i, node in enumerate(nodes)}
    operators = [numbered.nodes[i] for i in nodes]
    results = numbered.outputs(union(content.mask for content in window))
    values = dict.fromkeys(v for node in operators for v in (*node.operands(), *node.results()))
    ends = tuple(place for place, value in enumerate(values) if value in numbered.ends)
    blocks = tuple(content.of_nodes(number) for content in window)
    return kernel_structure(operators, sorted(results, key=list(values).index)), ends, blocks


def windows_of(
    numbered: Numbered, contents: Sequence[Content], most: int, first: int
) -> Iterator[tuple[Content, ...]]:
    """Blocks in a row, at most `most` of them, of the first window `first`: in its second half, each ends
    where the fewest values pass."""
    passing = _values_passing(numbered, contents)
    start, limit = 0, first
    while start < len(contents):
        stop = min(start + limit, len(contents))
        if stop < len(contents):
            # The last one of equals, so that windows of equal parts end at equal places.
            stop = min(
                range(start + max(limit // 2, 1), stop + 1), key=lambda place: (passing[place], -place)
            )
        yield tuple(contents[start:stop])
        start, limit = stop, most


def _values_passing(numbered: Numbered, contents: Sequence[Content]) -> list[int]:
    """How many values are made before each place and read behind it."""
    home = {node: place for place, content in enumerate(contents) for node in nodes_of([content])}
    change = [0] * (len(contents) + 1)
    for place, content in enumerate(contents):
        for node in nodes_of([content]):
            for value in numbered.nodes[node].results():
                last = max((home[numbered.numbers[user]] for user in value.users), default=place)
                change[place + 1] += last > place
                change[last + 1] -= last > place if last + 1 < len(change) else 0
    return list(itertools.accumulate(change))
