"""The steps of a program whose instances run on groups of cores, with the weights that each group holds."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import InfeasibleMapping
from tilewright.known_facts import KnownFacts
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import Bindings
from tilewright.targets.npu.groups import Fetch, free_bytes, held_weights, step_groups, with_equal_parts
from tilewright.targets.npu.residents import Residents, choose_residents
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.step_facts import fetches
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.tiles import Tiler
from tilewright.targets.npu.work import Works


def lower_in_groups(
    plan: ScopePlan,
    bindings: Bindings,
    works: Works,
    residents: Residents,
    tiler: Tiler,
    known: KnownFacts,
    *,
    stays: bool,
) -> tuple[tuple[SimulatedStep, ...], Residents]:
    """The steps, and the weights that stay: those that groups hold, if all that `stays` from batch to batch,
    and others that all cores share.

    The arguments are `lower`'s. Where holding weights leaves too little for the tiles of a step,
    none are held.

    Raises:
        InfeasibleMapping: what placed buffers leave free is too small for any tile of a step.
    """
    cores, machine = bindings.cores, works.machine
    assert cores is not None, "a program in groups"
    free = free_bytes(plan, cores, machine)

    def lowered(residents: Residents) -> tuple[SimulatedStep, ...]:
        groups = step_groups(cores, free, residents, machine)
        return lower(plan, bindings, works, residents, tiler, known, groups)

    needed = tuple(fetches(plan, bindings, works, known))
    plain, residents = residents, replace(residents, stay=stays)
    fetched = (Fetch(g, w.key, w.size_bytes * w.num_copies) for g, w in needed if w.key is not None)
    held = held_weights(fetched, free, stays=stays)
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
                for group, w in needed
                if w.key is not None and not (choice and w.key in choice[group])
            )
            chosen = replace(choose_residents(shared, equal.pools), held=choice, stay=True)
        try:
            return lowered(chosen), chosen
        except InfeasibleMapping:
            continue
    return lowered(plain), replace(residents, stay=False)
