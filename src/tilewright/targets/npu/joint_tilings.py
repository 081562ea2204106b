"""Subgraphs of a plan beside joint tilings of their operators: what passes main memory's port.

The simulator runs slices: equal parts of a result along some of its axes, one after another, whose layers
compute again what neighbours share, or keep rows of it. Joint tilings may do more: tiles of any extent, sums
in parts that wait on chip, another choice for each value. So their traffic is shown beside that of the
slices, and nothing is run by them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Value
from tilewright.ir.graph_regions import kernel_structure
from tilewright.ir.region import full_region
from tilewright.mapping.chains.chain import CannotFuse, Chain, Reaches, chain_of
from tilewright.mapping.chains.plan import (
    ChainPlan,
    Tiling,
    check_countable,
    count_parts,
    count_plan,
    finest_plan,
)
from tilewright.mapping.chains.search import ChainLimits, rank_plans
from tilewright.partition.base import Subgraph
from tilewright.partition.split import Split
from tilewright.targets.npu.lower_bound import on_chip_bytes
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import DMA
from tilewright.targets.simulated import JointLoop, JointTiling

_RECOMPUTED = 0.25
"""Of a subgraph's work, what a joint tiling may compute again: as much as slices may."""
_UNLIMITED_WORDS = 1 << 50


def joint_tilings(planned: SimulatedPlan, machine: Machine, deadline_s: float) -> tuple[JointTiling, ...]:
    """The best joint tiling of each subgraph; `deadline_s` is for each search, of those alike one."""
    return _JointTilings(planned, machine, deadline_s).run()


def plan_of_slices(chain: Chain, split: Split) -> ChainPlan | None:
    """A split as a joint tiling, whose weights stay on chip; None where a cut is no loop in equal tiles."""
    result = chain.parts[0]
    order, tiles = [], []
    for axis, factor in split.cuts:
        loop = next((i for i, moved in enumerate(result.axis_of_loop) if moved == axis), None)
        if loop is None or chain.loops[loop].extent % factor:
            return None
        order.append(loop)
        tiles.append(chain.loops[loop].extent // factor)
    num_loops = len(order)
    depth_inside = num_loops - 1 if split.chain_length > 1 else num_loops
    depths = {"result": 0, "intermediate": depth_inside, "input": num_loops, "constant": 0}
    return ChainPlan(Tiling(tuple(order), tuple(tiles)), tuple(depths[part.kind] for part in chain.parts))


class _JointTilings:
    def __init__(self, planned: SimulatedPlan, machine: Machine, deadline_s: float) -> None:
        self.planned, self.deadline_s = planned, deadline_s
        self.capacity_bytes = on_chip_bytes(machine)
        self.moved = self._moved_bytes()
        self.reaches = Reaches()
        self.known: dict[Hashable, JointTiling] = {}

    def run(self) -> tuple[JointTiling, ...]:
        """A row for each subgraph."""
        planned = self.planned
        pairs = zip(planned.partition.subgraphs, planned.instances.splits, strict=True)
        return tuple(self._of(subgraph, split) for subgraph, split in pairs)

    def _moved_bytes(self) -> list[int]:
        """What the steps of each subgraph's slices move past main memory's port."""
        planned = self.planned
        nodes, steps = planned.instances.nodes, planned.scopes.steps
        moved = [0] * len(planned.partition.subgraphs)
        for run in planned.simulation.runs:
            if run.unit == DMA:
                moved[nodes[steps[run.step].node].subgraph_id] += run.size_bytes
        return moved

    def _of(self, subgraph: Subgraph, split: Split) -> JointTiling:
        border = tuple(self._element_bytes(v) for v in (*subgraph.inputs, *subgraph.outputs))
        key = kernel_structure(subgraph.nodes, subgraph.outputs), split, border
        if key not in self.known:
            self.known[key] = self._searched(subgraph, split)
        found = self.known[key]
        return found.of_subgraph(subgraph.id, self.moved[subgraph.id])

    def _searched(self, subgraph: Subgraph, split: Split) -> JointTiling:
        try:
            chain = chain_of(subgraph.nodes, frozenset(subgraph.outputs), reaches=self.reaches)
            check_countable(chain)
        except CannotFuse as error:
            return JointTiling(why=str(error).removeprefix("chain: "))
        word_bytes = max(self._element_bytes(part.value) for part in chain.parts)
        capacity_words = _UNLIMITED_WORDS
        if self.capacity_bytes < inf:
            capacity_words = int(self.capacity_bytes / word_bytes)
        slices = plan_of_slices(chain, split)
        if slices is not None and count_plan(chain, slices).held_words > capacity_words:
            slices = None
        limits = ChainLimits(capacity_words, recomputed=_RECOMPUTED)
        ranking = rank_plans(chain, limits, self.deadline_s)
        best = ranking.plans[0].plan if ranking.plans else None
        loops: Sequence[JointLoop] = ()
        if best is not None:
            loops = [
                JointLoop(chain.loops[i].name, chain.loops[i].extent, tile)
                for i, tile in zip(best.tiling.order, best.tiling.tiles, strict=True)
            ]
        return JointTiling(
            sliced_bytes=None if slices is None else self._bytes(chain, slices),
            joint_bytes=None if best is None else self._bytes(chain, best),
            least_bytes=self._bytes(chain, finest_plan(chain)),
            loops=tuple(loops),
            is_whole_search=ranking.is_whole,
            why="" if best is not None else "no joint tiling fits the chip",
        )

    def _bytes(self, chain: Chain, plan: ChainPlan) -> int:
        """What a plan reads from main memory and writes there."""
        total = 0.0
        for part, count in zip(chain.parts, count_parts(chain, plan), strict=True):
            match part.kind:
                case "result":  # as the last of the operators in its place leaves it
                    total += part.num_words * self._element_bytes(next(chain.nodes[-1].results()))
                case "input" | "constant":
                    total += count.fresh_words * self._element_bytes(part.value)
        return round(total)

    def _element_bytes(self, value: Value) -> float:
        """Of a value as main memory has it; inputs and results of the network keep the file's types."""
        partition = self.planned.partition
        graph, whole = partition.graph, full_region(value.shape)
        is_border = value in graph.inputs or value in graph.outputs
        size = (partition.main_bytes_of if is_border else partition.bytes_of)(value, whole)
        return size / max(1, value.num_elements)
