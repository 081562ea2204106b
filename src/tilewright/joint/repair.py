"""Large graphs: plans improved window by window, each window solved by the exact search.

A window is a set of blocks of the plan that depend on each other or share layers' inputs, and that can run
one after another without what lies outside between them. Its layers, alone, joined at random or as the blocks
that they are in, are the units of a shortest path; the rest of the plan stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import field

from tilewright.bit_sets import bits, union
from tilewright.joint.additive import Floors, Part, shortest
from tilewright.joint.base import Block, Mask, Plan, Pricer, SetPricer, plan_of, topological
from tilewright.joint.floors import strong_floors
from tilewright.joint.space import connected_sets
from tilewright.planning import Meter
from tilewright.progress import checkpoint
from tilewright.records import dataclass

_ROUNDING = 1e-9  # of costs that are sums of floats


def one_by_one(pricer: Pricer) -> Plan:
    """A plan of single layers, each storing its result."""
    blocks = []
    for layer in topological(pricer):
        plain = [b for b in pricer.blocks(1 << layer) if not b.resident and not b.keeps]
        blocks += [b for b in plain if b.stores == 1 << layer][:1]
    return plan_of(pricer, blocks)


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of windows."""

    num_units: int
    max_sets: int


LADDER = (Limits(5, 400), Limits(7, 1_000), Limits(9, 2_500), Limits(12, 6_000))
"""Windows grow when those of a size no longer find anything."""

RANDOM = ("joined", "few")
"""Windows that are not the same when they are asked for again."""

FEW = 3
"""Layers that leave their blocks at once, at least."""

JOINED = (Limits(6, 800), Limits(8, 1_500), Limits(10, 3_000))
"""Windows of layers that are joined at random, or of few layers and the rest of their blocks."""


@dataclass(slots=True)
class Repair:
    """A search that begins with a plan; `publish` is told of each better one."""

    pricer: SetPricer
    plan: Plan
    meter: Meter
    publish: Callable[[Plan], None] = lambda plan: None
    seed: int = 0
    num_windows: int = field(init=False, default=0)
    _random: random.Random = field(init=False)
    _tried: set[tuple[frozenset[Block], str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, num_idle: int) -> Plan:
        """The best plan when the effort ends, or when so many windows in a row found nothing.

        Windows grow first, of single layers or whole blocks; then their layers are joined at random.
        """
        for limits in LADDER:
            misses = 0
            while misses < 2:
                before = self.plan.cost
                if not self._sweep(limits):
                    return self.plan
                misses = 0 if self.plan.cost < before * (1 - _ROUNDING) else misses + 1
        idle = 0
        is_small = self.pricer.num_layers <= LADDER[-1].num_units  # single layers were windows of everything
        while idle < num_idle and not is_small:
            checkpoint()
            if self._is_best() or not self.meter.spend():
                break
            before = self.plan.cost
            layer = self._random.randrange(self.pricer.num_layers)
            self._improve_around(layer, self._random.choice(JOINED), self._random.choice(RANDOM))
            idle = 0 if self.plan.cost < before * (1 - _ROUNDING) else idle + 1
        return self.plan

    def _is_late(self) -> bool:
        return self.meter.is_over

    def _is_best(self) -> bool:
        return self.pricer.bound.is_reached(self.plan.cost)

    def _sweep(self, limits: Limits) -> bool:
        """A window around every layer; False when the effort is spent."""
        layers = list(range(self.pricer.num_layers))
        self._random.shuffle(layers)
        for layer in layers:
            for kind in ("layers", "blocks"):
                checkpoint()
                if self._is_late() or self._is_best():
                    return False
                if self._improve_around(layer, limits, kind) and not self.meter.spend():
                    return False
        return True

    def _improve_around(self, layer: int, limits: Limits, kind: str) -> bool:
        """Solve a window around a layer; False if that was done before."""
        runs = _runs(self.plan.blocks)
        first = next(n for n, run in enumerate(runs) if any(b.layers >> layer & 1 for b in run))
        chosen = self._grown(runs, first, limits, kind)
        inside = [block for n in chosen for block in runs[n]]
        key = (frozenset(inside), kind)
        if kind not in RANDOM:
            if key in self._tried:
                return False
            self._tried.add(key)
        self.num_windows += 1
        before, after = _around(runs, chosen)
        units = self._few(inside, layer, limits) if kind == "few" else self._units(inside, kind, limits)
        window = self._solved(before, inside, after, limits, units)
        if window is None:
            return True
        blocks = [*before, *window.blocks, *after]
        self.plan = Plan(sum(map(self.pricer.price, blocks)), tuple(blocks))
        self.publish(self.plan)
        return True

    def _units(self, blocks: Sequence[Block], kind: str, limits: Limits) -> list[Mask]:
        layers = union(b.layers for b in blocks)
        if kind == "layers":
            return [1 << i for i in bits(layers)]
        if kind == "joined":
            return self._joined(layers, limits.num_units)
        units: list[Mask] = []
        taken = 0
        for block in blocks:
            part = block.layers & ~taken
            taken |= block.layers
            if part:
                units.append(part)
        return units

    def _few(self, blocks: Sequence[Block], layer: int, limits: Limits) -> list[Mask]:
        """A layer and some near it alone, and what they leave of each block."""
        layers = union(b.layers for b in blocks)
        alone = 1 << layer
        for _ in range(limits.num_units - len(blocks) - 1):
            near = union(self.pricer.neighbours(i) for i in bits(alone)) & layers & ~alone
            if not near:
                break
            alone |= 1 << self._random.choice(list(bits(near)))
        units = [1 << i for i in bits(alone)]
        for block in blocks:
            rest = block.layers & ~alone
            alone |= rest
            if rest:
                units.append(rest)
        return sorted(units)

    def _joined(self, layers: Mask, most: int) -> list[Mask]:
        """Layers joined with neighbours at random until the units are few."""
        units = [1 << i for i in bits(layers)]
        for _ in range(4 * len(units)):
            if len(units) <= most:
                break
            first = units.pop(self._random.randrange(len(units)))
            near = union(self.pricer.neighbours(i) for i in bits(first))
            # Small ones first, so that units stay about equal.
            touching = [
                (unit.bit_count(), self._random.random(), n) for n, unit in enumerate(units) if unit & near
            ]
            if touching:
                units[min(touching)[2]] |= first
            else:
                units.append(first)
        return sorted(units)

    def _grown(self, runs: Sequence[Sequence[Block]], first: int, limits: Limits, kind: str) -> list[int]:
        """Runs around one: neighbours at random, as long as the units stay few."""
        links = _links(self.pricer, runs)
        chosen = {first}
        frontier = set(links[first])
        while frontier:
            n = self._random.choice(sorted(frontier))
            frontier.discard(n)
            wider = _closed(runs, chosen | {n})
            if self._size([b for m in wider for b in runs[m]], kind) > limits.num_units:
                continue
            chosen = wider
            frontier = (frontier | {m for c in chosen for m in links[c]}) - chosen
        return sorted(chosen)

    def _size(self, blocks: Sequence[Block], kind: str) -> float:
        """Units of a window, or a third of the layers where they are joined."""
        num_layers = union(b.layers for b in blocks).bit_count()
        if kind == "blocks":
            return len(blocks)
        if kind == "few":
            return min(num_layers, len(blocks) + FEW)
        return num_layers if kind == "layers" else num_layers / 3

    def _solved(
        self,
        before: Sequence[Block],
        inside: Sequence[Block],
        after: Sequence[Block],
        limits: Limits,
        units: Sequence[Mask],
    ) -> Plan | None:
        pricer = self.pricer
        stored = union(b.stores for b in before)
        made = union(b.stores for b in inside) & ~stored
        needed = pricer.goal | union(b.reads for b in after)
        cost = sum(map(pricer.price, inside))
        sets = connected_sets(pricer, units, limits.max_sets)
        if sets is None:
            return None
        layers = union(b.layers for b in inside)
        part = Part(layers, stored, (made & needed) | (stored & ~layers))
        floors = None
        if limits in JOINED:
            must_run = Floors(pricer, part, ()).needed(stored)
            strong = strong_floors(pricer, sets, must_run, cost, self._is_late, with_prices=False)
            if strong is None or strong.bound >= cost * (1 - _ROUNDING):
                return None
            floors, sets = strong.floors, list(strong.sets)
        found = shortest(
            pricer,
            part,
            sets,
            cost * (1 - _ROUNDING),
            floors=floors,
            least_of=pricer.least_of,
            is_due=self._is_late,
        )
        return found.plan if found.plan is not None and found.plan.cost < cost * (1 - _ROUNDING) else None


def _runs(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks in runs that keep results for each other, so that nothing may come between them."""
    runs: list[list[Block]] = []
    is_open = False
    for block in blocks:
        if is_open:
            runs[-1].append(block)
        else:
            runs.append([block])
        is_open = bool(block.keeps)
    return runs


def _sources(runs: Sequence[Sequence[Block]]) -> list[set[int]]:
    """For each run, the runs that store first what it reads."""
    maker: dict[int, int] = {}
    for n, run in enumerate(runs):
        for block in run:
            for layer in bits(block.stores):
                maker.setdefault(layer, n)
    found = []
    for n, run in enumerate(runs):
        reads = union(b.reads & ~b.resident for b in run)
        found.append({maker[i] for i in bits(reads) if maker[i] != n})
    return found


def _links(pricer: Pricer, runs: Sequence[Sequence[Block]]) -> list[set[int]]:
    """For each run, those whose layers may be in a block with one of its own."""
    layers = [union(b.layers for b in run) for run in runs]
    near = [union(pricer.neighbours(i) for i in bits(mask)) | mask for mask in layers]
    return [{m for m, other in enumerate(layers) if m != n and other & near[n]} for n in range(len(runs))]


def _reach(sources: Sequence[set[int]]) -> list[Mask]:
    """For each run, all that it depends on, as a set of runs."""
    reach = [0] * len(sources)
    for n, before in enumerate(sources):  # runs come after what they read
        for m in before:
            reach[n] |= reach[m] | 1 << m
    return reach


def _closed(runs: Sequence[Sequence[Block]], chosen: set[int]) -> set[int]:
    """With the runs that lie between: on a way from one of them to another."""
    reach = _reach(_sources(runs))
    mask = union(1 << n for n in chosen)
    upstream = union(reach[n] for n in chosen)
    return {n for n in range(len(runs)) if mask >> n & 1 or (upstream >> n & 1 and reach[n] & mask)}


def _around(runs: Sequence[Sequence[Block]], chosen: Sequence[int]) -> tuple[list[Block], list[Block]]:
    """What runs before and after a window: before it only what it depends on."""
    reach = _reach(_sources(runs))
    upstream = union(reach[n] for n in chosen)
    inside = set(chosen)
    first = min(chosen)
    before = [
        b for n, run in enumerate(runs) if n not in inside and (n < first or upstream >> n & 1) for b in run
    ]
    after = [
        b
        for n, run in enumerate(runs)
        if n not in inside and not (n < first or upstream >> n & 1)
        for b in run
    ]
    return before, after
