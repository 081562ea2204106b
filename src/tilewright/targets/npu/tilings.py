"""Joint tilings of some operators as kernels of a described machine: those that should take least.

Tiles are looked for where work and traffic of a kernel go down: rows and columns of the result from whole to
fine, sums whole or in parts, all retained that fits. Each tiling is estimated from what its step takes of
every unit and of main memory's port; only the best are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from math import inf, prod

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import kernel_structure
from tilewright.ir.region import Region, full_region
from tilewright.mapping.chains.chain import CannotFuse, Chain, Reaches, chain_of
from tilewright.mapping.chains.plan import ChainPlan, Tiling, check_countable, count_plan
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.joint_steps import JointStep, needed_bytes
from tilewright.targets.npu.kernels import distribution_of
from tilewright.targets.npu.pools import level_bytes
from tilewright.targets.npu.simulated_step import Load, Store, Weight
from tilewright.targets.npu.tiles import MAX_TILES
from tilewright.targets.npu.tiles import Tiling as StepTiling
from tilewright.targets.npu.work import UnitWork, Works

RECOMPUTED = 0.25
"""Share of a chain's multiply-accumulates that a tiling computes again at most: as much as slices may."""
_SHARES = (1.0, 0.6)
"""Parts of the cores' buffers that one tile may fill; what is left is for the next one."""
_WAITED_FOR = 1.02
"""Times the work of tiles that follow no axis of the result: the next layer waits for all of them."""
_MOST_PARTS = 32
"""Tiles along one loop of the result that are tried at most."""
_MOST_STEPS = 4096
"""Steps of a tiling that is tried: finer ones leave units idle."""
_NUM_ESTIMATED = 5
"""Tilings of a chain of which mappings are asked, of all that fit."""


@dataclass(slots=True, eq=False)
class JointTilings:
    """The joint tilings of sets of nodes on one machine; of sets alike one answer."""

    works: Works
    machine: Machine
    bytes_of: Callable[[Value, Region], int]
    num_plans: int = 2
    _reaches: Reaches = field(init=False, repr=False, default_factory=Reaches)
    _overs: dict[Node, float] = field(init=False, repr=False, default_factory=dict)
    _known: dict[Hashable, tuple[ChainPlan, ...]] = field(init=False, repr=False, default_factory=dict)

    def of(self, nodes: Sequence[Node], results: Sequence[Value]) -> tuple[ChainPlan, ...]:
        """The most promising tilings, the best first; none where the nodes are no chain or nothing fits.

        `results` are the values that leave the nodes.
        """
        key = kernel_structure(nodes, results)
        if key not in self._known:
            self._known[key] = tuple(self._searched(nodes, results))
        return self._known[key]

    def _searched(self, nodes: Sequence[Node], results: Sequence[Value]) -> Iterator[ChainPlan]:
        try:
            chain = chain_of(nodes, frozenset(results), reaches=self._reaches)
            check_countable(chain)
        except CannotFuse:
            return
        estimated = []
        for number, plan in enumerate(self._fitting(chain)):
            checkpoint()
            seconds = self._seconds(chain, plan)
            if seconds < inf:
                estimated.append((seconds, number, plan))
        yield from (plan for _, _, plan in sorted(estimated)[: self.num_plans])

    def _fitting(self, chain: Chain) -> list[ChainPlan]:
        """The most promising plans that fit the cores' buffers, by what units and transfers take at least."""
        capacity_bytes = level_bytes(self.machine).local_bytes
        over = {node: self._over(node) for node in chain.nodes}
        found: dict[ChainPlan, tuple[float, int]] = {}
        counted = set()
        for tiling in _tilings(chain):
            checkpoint()
            for keeps_values, share in product((True, False), _SHARES):
                plan = self._retaining(chain, tiling, share * capacity_bytes, keeps_values)
                if plan is None or plan in found:
                    continue
                count = count_plan(chain, plan)
                if count.num_macs > chain.num_macs * (1 + RECOMPUTED) or (tiling, count) in counted:
                    continue
                counted.add((tiling, count))
                step = self._step(chain, plan)
                trips = [len(side.intervals) for side in tiling.sides(chain)]
                num_tiles = min(MAX_TILES, prod(trips[: step.num_outer()[0]]))
                moved_s = count.moved_words * self._word_bytes(chain) / self.works.ports.main_bytes_per_s
                of_unit: dict[str, float] = {}
                for made in step.shares:
                    for work in self.works.at_least(made.node, made.region):
                        often = made.times * prod(n / extent for _, n, extent in made.summed)
                        seconds = work.seconds * often * step.rounding(made) * over[made.node]
                        of_unit[work.unit] = of_unit.get(work.unit, 0.0) + seconds
                seconds = _overlapped(of_unit, num_tiles, num_tiles)
                found[plan] = max(seconds, moved_s) + min(seconds, moved_s) / num_tiles, prod(trips)
        # The best of all, and of as many steps each: fewer steps fill units better than is known here.
        best = sorted(found, key=lambda plan: found[plan][0])
        by_steps: dict[int, ChainPlan] = {}
        for plan in best:
            by_steps.setdefault(found[plan][1].bit_length(), plan)
        return list(dict.fromkeys((*best[: self.num_plans], *by_steps.values())))[:_NUM_ESTIMATED]

    def _over(self, node: Node) -> float:
        """What the whole operator takes, of what it takes at least."""
        if node not in self._overs:
            region = full_region(node.output.shape)
            spread = distribution_of(self.works, node, region, self.machine.num_cores_per_cluster)
            took = sum(w.seconds for w in self.works.of(node, region, spread.binding, spread.blocks))
            least = sum(w.seconds for w in self.works.at_least(node, region))
            self._overs[node] = took / least if least else 1.0
        return self._overs[node]

    def _step(self, chain: Chain, plan: ChainPlan) -> JointStep:
        num_cores, pools = self.machine.num_cores_per_cluster, level_bytes(self.machine)
        return JointStep(self.works, chain, plan, self.bytes_of, num_cores, pools)

    def _retaining(
        self, chain: Chain, tiling: Tiling, capacity_bytes: float, keeps_values: bool
    ) -> ChainPlan | None:
        """A plan that retains all that fits: values between operators, or these made anew in each tile, and
        what comes from outside, the largest given up first."""
        num_loops = len(tiling.order)
        depths = [0 if keeps_values or p.kind != "intermediate" else num_loops for p in chain.parts]
        word_bytes = self._word_bytes(chain)
        while True:
            plan = ChainPlan(tiling, tuple(depths))
            held = count_plan(chain, plan).held_by_part
            if sum(held) * word_bytes <= capacity_bytes:
                return plan
            open_parts = [i for i, d in enumerate(depths) if i and d < num_loops and chain.parts[i].is_held]
            if not open_parts:
                return None
            largest = max(open_parts, key=lambda i: held[i])
            depths[largest] += 1

    def _word_bytes(self, chain: Chain) -> float:
        part = chain.parts[0]
        return self.bytes_of(part.value, part.whole) / max(1, part.num_words)

    def _seconds(self, chain: Chain, plan: ChainPlan) -> float:
        """About how long a kernel takes under a plan; infinite where it does not fit."""
        step = self._step(chain, plan)
        weights, loads, stores = self._operands(chain, step)
        works = step.unit_works()
        try:
            tiling = step.tiling(weights, loads, stores, len({work.unit for work in works}))
        except InfeasibleMapping:
            return inf
        return self._estimate(tiling, works)

    def _estimate(self, tiling: StepTiling, works: Sequence[UnitWork]) -> float:
        """Units and main memory's port overlap, but for the first and the last tile."""
        of_unit: dict[str, float] = {}
        for work in works:
            of_unit[work.unit] = of_unit.get(work.unit, 0.0) + work.seconds
        computing_s = _overlapped(of_unit, tiling.num_at_once, tiling.num_tiles)
        passages = (*tiling.weights, *tiling.loads, *tiling.stores)
        ports = self.works.ports
        first_s = ports.main_s(sum(p.moved_bytes for p in passages if p.is_kept))
        moved_s = ports.main_s(sum(p.moved_bytes for p in passages if not p.is_kept))
        if tiling.axis is None:
            computing_s *= _WAITED_FOR
        if needed_bytes(tiling, 2) > level_bytes(self.machine).local_bytes:
            return first_s + computing_s + moved_s
        return first_s + max(computing_s, moved_s) + min(computing_s, moved_s) / tiling.num_tiles

    def _operands(self, chain: Chain, step: JointStep) -> tuple[list[Weight], list[Load], list[Store]]:
        weights, loads = [], []
        for part in chain.parts[1:]:
            size_bytes = self.bytes_of(part.value, part.whole)
            if part.kind == "constant" and part.num_words > 1:
                copies = step.num_copies(part.readers[0].node)
                weights.append(Weight(part.value.name, size_bytes, part.whole, copies))
            elif part.kind == "input":
                loads.append(Load(part.value.name, part.whole, size_bytes, Scope.MAIN, None, (), 0))
        result = next(chain.nodes[-1].results())
        size_bytes = self.bytes_of(result, chain.parts[0].whole)
        return weights, loads, [Store(result.name, size_bytes, Scope.MAIN, False)]


def _overlapped(of_unit: Mapping[str, float], num_at_once: int, num_tiles: int) -> float:
    """Seconds of units one after another, or at once but for one tile."""
    all_s, most_s = sum(of_unit.values()), max(of_unit.values(), default=0.0)
    return all_s if num_at_once < 2 else most_s + (all_s - most_s) / num_tiles


def _tilings(chain: Chain) -> Iterator[Tiling]:
    """Tiles of the loops: outside those of the result that move no constant, then others, then sums."""
    axes = chain.parts[0].axis_of_loop
    constants = [part for part in chain.parts if part.kind == "constant" and part.num_words > 1]
    of_result = [i for i, axis in enumerate(axes) if axis is not None]
    columns = [
        i
        for i in of_result
        if any(part.axis_of_loop[i] is not None and part.num_words > 1 for part in constants)
    ]
    rows = [i for i in of_result if i not in columns]
    # What comes last in a sum, such as a factor of it, is for whole sums.
    sums = [i for i, axis in enumerate(axes) if axis is None and chain.nest.finish is None]
    lengths: dict[int, list[int]] = {}
    for place, i in enumerate(rows):
        most = _MOST_PARTS if place == 0 or chain.loops[rows[0]].extent == 1 else 8
        lengths[i] = _lengths(chain.loops[i].extent, most)
    for i in columns:
        lengths[i] = _lengths(chain.loops[i].extent, 4)
    for i in sums:
        lengths[i] = _lengths(chain.loops[i].extent, _MOST_PARTS, 16)
    order = [*rows, *columns, *sums]
    for chosen in product(*(lengths[i] for i in order)):
        steps = 1
        for i, length in zip(order, chosen, strict=True):
            steps *= -(-chain.loops[i].extent // length)
        if steps > _MOST_STEPS:
            continue
        tiled = [(i, n) for i, n in zip(order, chosen, strict=True) if n < chain.loops[i].extent]
        yield Tiling(tuple(i for i, _ in tiled), tuple(n for _, n in tiled))


def _lengths(extent: int, most: int, multiple: int = 1) -> list[int]:
    """Tiles of a loop: all of it, a half, a quarter, and so on."""
    found = [extent]
    parts = 2
    while parts <= min(most, extent):
        length = -(-extent // parts)
        if multiple < extent:
            length = -(-length // multiple) * multiple
        if length < found[-1]:
            found.append(length)
        parts *= 2
    return found
