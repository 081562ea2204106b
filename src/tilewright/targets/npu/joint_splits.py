"""Splits of groups of layers by what their slices move when tiled jointly: what a search tries last.

A split is a joint tiling that the simulator runs (`plan_of_slices`): what passes main memory, and what is
computed again, follows in closed form, so that all splits of a group can be compared before any is simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import permutations, product

from tilewright.ir.graph_regions import kernel_structure
from tilewright.mapping.chains.chain import CannotFuse, Chain, Reaches, chain_of
from tilewright.mapping.chains.plan import check_countable, count_plan
from tilewright.mapping.factors import divisors
from tilewright.partition.graphturbo.regroup import Group, Regrouper
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.targets.npu.joint_tilings import plan_of_slices

_NUM_SPLITS, _NUM_TRIED = 3, 24
"""Splits of a group that are offered, and how many of the best are tried until so many fit."""
_MAX_INSTANCES = 256


class JointSplits:
    """Splits of groups of one network. Groups that are alike are looked at once."""

    def __init__(self, regrouper: Regrouper) -> None:
        self.regrouper = regrouper
        self._reaches = Reaches()
        self._known: dict[Hashable, tuple[Split, ...]] = {}

    def of(self, layers: tuple[int, ...]) -> tuple[Split, ...]:
        """Few splits that fit, the one that moves least first; none of layers without a joint tiling."""
        nodes = [node for i in layers for node in self.regrouper.layers[i].nodes]
        results = self.regrouper.results_of(layers)
        key = kernel_structure(nodes, results)
        if key not in self._known:
            try:
                chain = chain_of(nodes, frozenset(results), reaches=self._reaches)
                check_countable(chain)
            except CannotFuse:
                self._known[key] = ()
            else:
                self._known[key] = tuple(self._fitting(chain, layers))
        return self._known[key]

    def _fitting(self, chain: Chain, layers: tuple[int, ...]) -> Iterator[Split]:
        found = 0
        for split in self._ranked(chain)[:_NUM_TRIED]:
            if found < _NUM_SPLITS and self.regrouper.fits(Group(layers, split)):
                found += 1
                yield split

    def _ranked(self, chain: Chain) -> list[Split]:
        """All splits by what slices move and compute, then by how many there are."""
        ranked = []
        for split in _splits(chain):
            plan = plan_of_slices(chain, split)
            if plan is not None:
                count = count_plan(chain, plan)
                ranked.append(((count.moved_words, count.num_macs, split.num_instances, split.cuts), split))
        return [split for _, split in sorted(ranked, key=lambda entry: entry[0])]


def _splits(chain: Chain) -> Iterator[Split]:
    """Cuts of up to two axes of the result."""
    yield WHOLE
    moved = zip(chain.parts[0].axis_of_loop, chain.loops, strict=True)
    extents = {axis: loop.extent for axis, loop in moved if axis is not None}
    for axes in (*((axis,) for axis in extents), *permutations(extents, 2)):
        for factors in product(*(divisors(extents[axis])[1:] for axis in axes)):
            split = split_of(tuple(zip(axes, factors, strict=True)))
            if split.num_instances <= _MAX_INSTANCES:
                yield split
