"""The steps of a program whose instances run on groups of cores, with the weights that each group holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import Bindings
from tilewright.targets.npu.groups import Fetch, free_bytes, held_weights, step_groups, with_equal_parts
from tilewright.targets.npu.known_steps import KnownSteps
from tilewright.targets.npu.residents import Residents, choose_residents
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.tiles import Tiler
from tilewright.targets.npu.work import Works


def lower_in_groups(
    plan: ScopePlan,
    bindings: Bindings,
    machine: Machine,
    types: ElementTypes,
    residents: Residents,
    tiler: Tiler,
    *,
    stays: bool,
    works: Works | None = None,
    known: KnownSteps | None = None,
) -> tuple[tuple[SimulatedStep, ...], Residents]:
    """The steps, and the weights that stay: those that groups hold, if all that `stays` from batch to batch,
    and others that all cores share.

    `works` and `known` are as of `lower`. Where holding weights leaves too little for the tiles of a step,
    none are held.

    Raises:
        InfeasibleMapping: what placed buffers leave free is too small for any tile of a step.
    """
    cores = bindings.cores
    assert cores is not None, "a program in groups"
    free = free_bytes(plan, cores, machine)

    def lowered(residents: Residents) -> tuple[SimulatedStep, ...]:
        groups = step_groups(cores, free, residents, machine)
        return lower(plan, bindings, machine, types, residents, tiler, groups, works, known)

    first = lowered(residents)
    residents = replace(residents, stay=stays)
    held = held_weights(_fetches(first), free, stays=stays)
    choices = [held] if any(held) else []
    for choice in (*choices, ()):
        chosen = replace(residents, held=choice)
        if stays:
            left = [
                size - sum(keys.values()) for size, keys in zip(free, choice or [{}] * len(free), strict=True)
            ]
            equal = with_equal_parts(residents, cores, left, machine.num_cores_per_cluster)
            shared = tuple(
                (w.key, w.size_bytes)
                for step in first
                for w in step.weights
                if w.key is not None and not (choice and step.group and w.key in choice[step.group.number])
            )
            chosen = replace(choose_residents(shared, equal.pools), held=choice, stay=True)
        if chosen == residents:
            return first, residents
        try:
            return lowered(chosen), chosen
        except InfeasibleMapping:
            continue
    return first, replace(residents, stay=False)


def _fetches(steps: tuple[SimulatedStep, ...]) -> Iterator[Fetch]:
    for step in steps:
        for weight in step.weights:
            if weight.key is not None and step.group is not None:
                yield Fetch(step.group.number, weight.key, weight.size_bytes * weight.num_copies)
