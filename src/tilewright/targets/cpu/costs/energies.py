"""What work takes of energy on this processor, by a machine's file that says what actions take: a model.

Arithmetic by its count, what passes a kernel's border from the caches or beyond them, what lies inside from
the caches, and the static power for as long as the kernel is estimated to run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.energy import EnergyTable
from tilewright.cost.roofline import external_bytes
from tilewright.ir.derive import flops, macs
from tilewright.targets.cpu.costs.model import CpuCosts

# Multiply-adds of a convolution over those of Winograd's F(4x4, 3x3).
_MOST_SAVED = 4.0


class CpuEnergyCosts(CpuCosts):
    """The same times, and energies by a table."""

    def __init__(self, *costs: Any, energies: EnergyTable) -> None:
        super().__init__(*costs)
        self._energies = energies
        self._dynamic: dict[Hashable, float] = {}
        self.source = f"{self.source}, energies by model:{energies.name}"

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """Its launches one after the other."""
        return self._charged(super().kernel(work, num_cores), (work,))

    def fused(self, work: KernelWork) -> Estimate:
        """Less what it saves to compute all block by block."""
        return self._charged(super().fused(work), (work,))

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """Groups that share the threads."""
        return self._charged(super().stage(groups, num_cores), [w for group in groups for w in group])

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """Arithmetic, and static power for the least time."""
        least = self._charged(super().least(kernels, num_groups), kernels)
        return replace(least, energy_pj=least.bound_pj)

    def _charged(self, estimate: Estimate, kernels: Sequence[KernelWork]) -> Estimate:
        static_pj_per_ns = self._energies.static_w * 1e3
        least_pj = sum(macs(node) for work in kernels for node in work.nodes) * (self._energies.mac_pj or 0.0)
        return replace(
            estimate,
            energy_pj=sum(map(self._dynamic_pj, kernels)) + static_pj_per_ns * estimate.time_ns,
            bound_pj=least_pj / _MOST_SAVED + static_pj_per_ns * estimate.bound_ns,
        )

    def _dynamic_pj(self, work: KernelWork) -> float:
        key = (work.nodes, work.outputs)
        if key not in self._dynamic:
            num_macs = sum(map(macs, work.nodes))
            other_flop = max(0, sum(map(flops, work.nodes)) - 2 * num_macs)
            moved_bytes = external_bytes(work)
            made = (v for node in work.nodes for v in node.results() if v not in work.outputs)
            outer_bytes = moved_bytes if moved_bytes > self._isa.caches.l3_bytes else 0
            inner_bytes = moved_bytes + 2 * sum(v.size_bytes for v in made)
            energy = self._energies.energy(num_macs, other_flop, outer_bytes, inner_bytes, 0.0)
            self._dynamic[key] = (energy.joules or 0.0) * 1e12
        return self._dynamic[key]
