"""Recipes that place and run one plan of an accelerator otherwise, for what is known of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.families import MEMORY_PLANNERS
from tilewright.hardware.capacity import local_capacity_bytes, shared_capacity_bytes
from tilewright.hardware.machine import Machine
from tilewright.joint.overlapped.moves import Ways
from tilewright.planning import Spec
from tilewright.planning.portfolio import Recipe
from tilewright.targets.npu.recipes import GRAPHTURBO, IN_GROUPS, MEMORY, RESIDENT, smaller_capacities
from tilewright.targets.npu.tile_mapping import MAPPER_NAMES, MapperName

BY_RULE = "mappings=rule"
"""The execution of plans that wait for no search for mappings."""

_SPILLING = {MEMORY: "largest-size", "largest-size": MEMORY}
"""Planners of memory by the other rule of what leaves a full buffer."""

_QUARTERS, _LEAST_SHARE = (6, 4), 4
"""Quarters of powers of two that buffers are limited to, and what of a buffer values keep at least, one part
in so many."""


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What of a plan decides which variants of it can differ: how full the cores' buffers and the shared one
    get, what leaves them, whether a mapper tiled a layer, and whether it is a program with few instances in
    which all units wait at times."""

    local_peak_bytes: int
    shared_peak_bytes: int
    spilled_bytes: int
    is_mapped: bool
    is_waiting: bool


class Variants:
    """Those of plans on one machine, which launches kernels or runs one program."""

    def __init__(self, machine: Machine, *, is_launched: bool) -> None:
        local, shared = local_capacity_bytes(machine), shared_capacity_bytes(machine) or 0
        self._local_bytes = smaller_capacities(local, _QUARTERS, _LEAST_SHARE)
        self._shared_bytes = smaller_capacities(shared, _QUARTERS, _LEAST_SHARE)
        self._capacity_bytes, self._is_launched = (local, shared), is_launched

    def of(self, best: Recipe, figures: PlanFigures, taken: Mapping[Recipe, str]) -> Iterator[Recipe]:
        """Weights that stay on the chip or not, another rule of what leaves a full buffer, and less of each
        buffer for values, so that more of it is left for what passes; groups of cores where units wait.
        `taken` are the orders that recipes took which ask for two."""
        if not best.memory.startswith(tuple(_SPILLING)):
            return
        chosen = Spec.parse(best.memory)
        # What helps one order or harms it hardly makes the other one the better.
        best = replace(best, schedule=taken.get(best, best.schedule))
        if not self._is_launched:  # separate launches leave nothing on the chip
            yield replace(best, execution="" if best.execution else RESIDENT)
            # What is best without such weights need not be with them.
            if best.partition != GRAPHTURBO.partition:
                order = taken.get(GRAPHTURBO, GRAPHTURBO.schedule)
                yield replace(GRAPHTURBO, schedule=order, execution=RESIDENT)
        yield replace(best, memory=str(Spec(_SPILLING[chosen.name], chosen.options)))
        if not self._is_launched:
            yield replace(best, memory=_late(chosen))
        if figures.is_waiting:
            yield from (replace(best, schedule=order) for order in IN_GROUPS)
        # Only a limit below what lies there changes anything.
        for most in self._limits(figures.local_peak_bytes, figures.shared_peak_bytes):
            yield replace(best, memory=MEMORY_PLANNERS.canonical(str(_limited(chosen, most))))

    def placements(self, recipe: Recipe, figures: PlanFigures, own: MapperName) -> Iterator[Recipe]:
        """Another rule of what leaves a full buffer, where something does; mappers beside the machine's own,
        where layers are tiled by one."""
        memories, mappers = [recipe.memory], [recipe.execution]
        if figures.spilled_bytes and recipe.memory in _SPILLING:
            memories.append(_SPILLING[recipe.memory])
        if figures.is_mapped and not recipe.execution:
            mappers += [f"mapper={name}" for name in MAPPER_NAMES if name != own]
        for memory, mapper in itertools.product(memories, mappers):
            other = replace(recipe, memory=memory, execution=mapper)
            if other != recipe:
                yield other

    def ways(self, recipe: Recipe) -> Ways:
        """Ways to place values and to run a program, those of a recipe first."""
        memory, executions = recipe.memory, self._executions(recipe.execution)
        return Ways(self._memories(memory), executions, self._late_memories(memory))

    def _executions(self, own: str) -> list[str]:
        """A way to run a program, and the others: weights that stay on the chip or not; mappings by a rule
        stay so."""
        if self._is_launched:
            return [own]
        plain = BY_RULE if own.startswith(BY_RULE) else ""
        return list(dict.fromkeys((own, plain, f"{plain}, {RESIDENT}" if plain else RESIDENT)))

    def _memories(self, memory: str) -> list[str]:
        """A planner of memory and others like it: the other rule of what leaves a full buffer, less of the
        buffers for values."""
        if not memory.startswith(tuple(_SPILLING)):
            return [memory]
        chosen = Spec.parse(memory)
        others = (chosen, *(_limited(chosen, most) for most in self._limits(*self._capacity_bytes)))
        specs = [Spec(name, other.options) for name in _SPILLING for other in others]
        texts = [text for spec in specs for text in (str(spec), _late(spec))]
        return list(dict.fromkeys((memory, *map(MEMORY_PLANNERS.canonical, texts))))

    def _late_memories(self, memory: str) -> list[str]:
        """The same planner of memory with places that are used again late, in all of the cores' buffers, then
        in less and less of them."""
        if not memory.startswith(tuple(_SPILLING)):
            return []
        chosen = Spec.parse(memory)
        limits = self._limits(*self._capacity_bytes)[: len(self._local_bytes)]
        return [_late(spec) for spec in (chosen, *(_limited(chosen, most) for most in limits))]

    def _limits(self, local_bytes: int, shared_bytes: int) -> list[tuple[int, int]]:
        """What values may take of the cores' buffers and the shared one: less than so much of one of them."""
        local, shared = self._capacity_bytes
        of_local = [(size, shared) for size in self._local_bytes if size < local_bytes]
        return of_local + [(local, size) for size in self._shared_bytes if size < shared_bytes]


def _limited(memory: Spec, most_bytes: tuple[int, int]) -> Spec:
    """The same planner of memory that gives values so much of the cores' buffers and of the shared one."""
    options = dict(memory.options) | {"most_bytes": "+".join(map(str, most_bytes))}
    return Spec(memory.name, tuple(options.items()))


def _late(memory: Spec) -> str:
    """The same planner of memory, with places that are used again as late as possible."""
    options = dict(memory.options) | {"pack": "next-fit"}
    return MEMORY_PLANNERS.canonical(str(Spec(memory.name, tuple(options.items()))))
