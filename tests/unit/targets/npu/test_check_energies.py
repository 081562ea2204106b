"""Stated energies are those of what moves and is computed: each number alone, a little more or less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.golden.test_faults import sized, tower, weighty
from tests.support.accelerator import plan

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Loop
from tilewright.planning.portfolio import Recipe
from tilewright.targets.npu.check_energies import check_energies
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, Baseline
from tilewright.targets.npu.trace import Trace


def uneven(machine: Machine, *, static_power_w: float | None = 40.0) -> Machine:
    """The same machine with engines that take energy, units of which some take none, and levels whose writes
    take more than their reads."""
    units = tuple(
        unit.model_copy(update={"pj_per_byte": 2.0 + place if unit.between else None, "mac_pj": mac_pj})
        for place, unit in enumerate(machine.units)
        for mac_pj in [unit.mac_pj if unit.macs_per_cycle else None]
    )
    levels = tuple(
        level.model_copy(update={"read_pj": 1.0 + place, "write_pj": 4.0 + 2 * place})
        for place, level in enumerate(machine.levels)
    )
    return machine.model_copy(update={"units": units, "levels": levels, "static_power_w": static_power_w})


@cache
def planned_on(name: str) -> tuple[SimulatedPlan, Machine]:
    stcp920, v100, bare = (uneven(load_preset(preset)) for preset in ("stcp920", "v100", "ipu-mk1"))
    small = sized(stcp920, L1=1, LLB=24)
    idle = uneven(sized(bare, **{bare.levels[0].name: 96}), static_power_w=None)
    resident = Baseline(GRAPHTURBO, "resident_weights=true")
    mapped = Baseline(Recipe("layerwise", "greedy", MEMORY), "launches=each subgraph")
    cases: dict[str, tuple[Any, Machine, Any]] = {
        "shared": (tower(), stcp920, GRAPHTURBO),
        "resident": (tower(), stcp920, resident),
        "small": (tower(), small, GRAPHTURBO),
        "caches": (tower(), v100, GRAPHTURBO),
        "bare": (weighty(), idle, GRAPHTURBO),
        "bare, resident": (tower(), bare, resident),
        "mapped": (tower(), stcp920, mapped),
        "mapped, caches": (weighty(), v100, mapped),
        "mapped, small": (tower(), small, mapped),
        "mapped, bare": (weighty(), bare, mapped),
    }
    graph, machine, recipe = cases[name]
    planned = plan(graph, machine, recipe)
    assert any(step.tiling.is_mapped for step in planned.simulation.steps) is ("mapped" in name)
    return planned, machine


NAMES = ("shared", "resident", "small", "caches", "bare", "bare, resident",
         "mapped", "mapped, caches", "mapped, small", "mapped, bare")  # fmt: skip


def found(planned: SimulatedPlan, machine: Machine, energies: Mapping[str, float]) -> list[str]:
    """What is said of a plan with these energies stated."""
    changed = replace(planned, simulation=replace(planned.simulation, energy_pj=energies))
    return [str(violation) for violation in check_energies(Trace(changed, machine))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_each_stated_energy_is_right_to_a_millionth(name: str) -> None:
    planned, machine = planned_on(name)
    energies = dict(planned.simulation.energy_pj)
    assert found(planned, machine, energies) == []
    assert machine.local is not None
    assert len(energies) > 3
    for what, energy_pj in energies.items():
        factors = (-1.0,) if what == machine.local.name else (1 - 1e-6, 1 + 1e-6)
        for factor in factors if energy_pj else ():
            (said,) = found(planned, machine, {**energies, what: energy_pj * factor})
            assert said.startswith(f"energy: {what} takes")
            assert found(planned, machine, {k: v for k, v in energies.items() if k != what})
    (said,) = found(planned, machine, {**energies, "elsewhere": 1.0})
    assert said == "energy: elsewhere takes 1 pJ as stated, 0 to 0 as counted"
    if not energies["static"]:
        return
    late = replace(planned.simulation, time_s=planned.simulation.time_s * (1 + 1e-6))
    (violation,) = check_energies(Trace(replace(planned, simulation=late), machine))
    assert "static" in str(violation)


@pytest.mark.parametrize("by", [1e-6, -1e-6])
def test_products_take_the_units_energy(by: float) -> None:
    planned, machine = planned_on("shared")
    steps = list(planned.simulation.steps)
    (place, *_) = (n for n, step in enumerate(steps) if any(work.macs for work in step.works))
    works = tuple(replace(work, energy_pj=work.energy_pj * (1 + by)) for work in steps[place].works)
    energies = dict(planned.simulation.energy_pj)
    for old, new in zip(steps[place].works, works, strict=True):
        energies[old.unit] = energies.get(old.unit, 0.0) + new.energy_pj - old.energy_pj
    steps[place] = replace(steps[place], works=works)
    changed = replace(planned.simulation, steps=tuple(steps), energy_pj=energies)
    (violation,) = check_energies(Trace(replace(planned, simulation=changed), machine))
    assert violation.rule == "energy"
    assert f"step {place}: " in violation.message


def test_the_cores_buffers_take_no_more_than_all_that_passes_them() -> None:
    planned, machine = planned_on("bare")
    (name,) = (level.name for level in machine.levels[:1])
    energies = dict(planned.simulation.energy_pj)
    least = sum(
        energy_pj
        for step in planned.simulation.steps
        for work in step.works
        if work.products is not None
        for level, energy_pj in work.products.inner_energy_pj().items()
        if level == name
    )
    level, traffic = machine.levels[0], planned.simulation.traffic
    read_pj, write_pj = (pj * 8 / (level.word_bits * level.words_per_access) for pj in (1.0, 4.0))
    most = least + read_pj * traffic.local_read + write_pj * traffic.local_written
    for energy_pj, is_right in ((least, True), (least * 0.999, False), (most, True), (most * 1.001, False)):
        assert (found(planned, machine, {**energies, name: energy_pj}) == []) is is_right


@pytest.mark.parametrize("times", [1, 2, 3])
def test_units_take_what_mappings_go_through_beyond_the_products(times: int) -> None:
    planned, machine = planned_on("shared")
    simulation = planned.simulation
    number, work = next((s.number, w) for s in simulation.steps for w in s.works if w.products is not None)
    (part,) = work.products.parts if work.products is not None else ()
    outermost, *inner = part.mapping.levels
    outermost = replace(outermost, temporal=(Loop(part.problem.dims[0][0], 2), *outermost.temporal))
    twice = replace(part, mapping=replace(part.mapping, levels=(outermost, *inner)))
    assert work.products is not None
    padded = replace(work, energy_pj=times * work.energy_pj, products=replace(work.products, parts=(twice,)))
    step = simulation.steps[number]
    works = tuple(padded if w is work else w for w in step.works)
    steps = [replace(s, works=works) if s is step else s for s in simulation.steps]
    changed = replace(planned, simulation=replace(simulation, steps=tuple(steps)))
    energies = dict(simulation.energy_pj)
    energies[work.unit] += (times - 1) * work.energy_pj
    said = f"energy: step {step.number}: {work.macs:g} products take {padded.energy_pj} pJ"
    assert found(changed, machine, energies) == ([] if times == 2 else [said])
