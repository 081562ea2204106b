"""What a machine's file calls the levels and engines of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from tilewright.hardware.machine import Level, Machine
from tilewright.schedule.binding import Scope
from tilewright.steps import MemoryInfo
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.simulated import NetworkPlan

_T = TypeVar("_T")


class Names(NamedTuple):
    """Names of levels by scope, and of engines by what the simulator calls them."""

    levels: Mapping[str, str]
    units: Mapping[str, str]

    @classmethod
    def of(cls, machine: Machine) -> Names:
        """Those of a machine's file; an engine that it does not describe is named after its two levels."""
        local, shared, main = machine.local, machine.shared, machine.outermost
        assert local is not None, "only of machines that run networks"
        inside = local if shared is None else shared
        scopes = {Scope.LOCAL: local, Scope.SHARED: shared, Scope.MAIN: main}
        levels = {str(scope): level.name for scope, level in scopes.items() if level is not None}
        around = f"{local.name} to {local.name}" if shared is None else _engine(machine, local, shared)
        return cls(levels, {DMA: _engine(machine, inside, main), CORE_DMA: around})

    def by_level(self, figures: Mapping[str, _T]) -> dict[str, _T]:
        """Figures by scope as figures by level; those of a level that the machine lacks are none."""
        return {self.levels[scope]: figure for scope, figure in figures.items() if scope in self.levels}

    def by_unit(self, figures: Mapping[str, _T]) -> dict[str, _T]:
        """Figures by unit."""
        return {self.units.get(unit, unit): figure for unit, figure in figures.items()}

    def memory(self, memory: MemoryInfo) -> MemoryInfo:
        """Memory whose levels are called so."""
        levels = (replace(level, name=self.levels.get(level.name, level.name)) for level in memory.levels)
        return replace(memory, levels=tuple(levels))

    def plan(self, plan: NetworkPlan) -> NetworkPlan:
        """A plan whose levels are called so."""
        return replace(
            plan,
            levels=tuple(replace(x, name=self.levels[x.name]) for x in plan.levels),
            buffers=tuple(replace(x, level=self.levels[x.level]) for x in plan.buffers),
            steps=tuple(
                replace(
                    step,
                    weights=tuple(
                        w if w.resident_in is None else replace(w, resident_in=self.levels[w.resident_in])
                        for w in step.weights
                    ),
                )
                for step in plan.steps
            ),
        )


def _engine(machine: Machine, inner: Level, outer: Level) -> str:
    own = {inner.name, outer.name}
    engines = [unit.name for unit in machine.units if unit.between is not None and set(unit.between) == own]
    return "+".join(engines) or f"{outer.name} to {inner.name}"
