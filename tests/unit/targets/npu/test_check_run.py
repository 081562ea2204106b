"""The checker of simulated runs: machines of which a part is slower; bytes, times and totals a little off."""

# mypy: disable-error-code="arg-type, assignment, operator"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from tests.golden.test_faults import planned_by
from tests.unit.targets.npu.test_check_energies import NAMES, planned_on

from tilewright.hardware.machine import Machine
from tilewright.planning import Violation
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.simulated import UnitRun

WHOLE = ("shared", "caches", "bare", "bare, resident")
"""Plans whose energies are looked at, too, on machines with a shared buffer, a cache, and neither."""


@pytest.mark.parametrize("name", NAMES)
def test_plans_without_a_fault_are_silent(name: str) -> None:
    assert check_run(*planned_on(name)) == ()


def rules(planned: SimulatedPlan, machine: Machine) -> set[str]:
    return {violation.rule for violation in check_run(planned, machine)} - {"energy"}


def slower(machine: Machine) -> Iterator[tuple[str, Machine]]:
    """Machines of which one part takes a million times as long."""
    for place, level in enumerate(machine.levels):
        for way in ("read", "write"):
            rate = {f"{way}_bytes_per_s": getattr(machine, f"{way}_bytes_per_s")(level)}
            if rate[f"{way}_bytes_per_s"] is not None:
                late = level.model_copy(
                    update={name: value / 1e6 for name, value in rate.items()}
                    | {f"{way}_bytes_per_cycle": None}
                )
                levels = (*machine.levels[:place], late, *machine.levels[place + 1 :])
                yield f"{level.name} {way}", machine.model_copy(update={"levels": levels})
    for place, unit in enumerate(machine.units):
        if unit.between and machine.dma_bytes_per_s(unit) is not None:
            late = unit.model_copy(
                update={"bytes_per_s": machine.dma_bytes_per_s(unit) / 1e6, "bytes_per_cycle": None}
            )
            units = (*machine.units[:place], late, *machine.units[place + 1 :])
            yield f"{unit.name} moves", machine.model_copy(update={"units": units})
    counts = {unit.name: unit.macs_per_cycle for unit in machine.units if unit.macs_per_cycle}
    units = tuple(
        unit.model_copy(update={"macs_per_cycle": {k: v / 1e6 for k, v in counts.get(unit.name, {}).items()}})
        for unit in machine.units
    )
    yield "products", machine.model_copy(update={"units": units})


@pytest.mark.parametrize("name", ["shared", "bare", "caches"])
def test_a_machine_of_which_a_part_is_slower_could_not_have_run_it(name: str) -> None:
    planned, machine = planned_on(name)
    found = {what for what, late in slower(machine) if "rate" in rules(planned, late)}
    used = {machine.outermost, machine.local, machine.shared} - {None}
    known = {what for what, _ in slower(machine)}
    levels = {f"{level.name} {way}" for level in used if level for way in ("read", "write")}
    engines = {what for what in known if what.endswith("moves")}
    assert found == (levels & known) | engines | {"products"}


def with_run(planned: SimulatedPlan, old: UnitRun, **changes: Any) -> SimulatedPlan:
    found = planned.simulation
    runs = tuple(replace(run, **changes) if run is old else run for run in found.runs)
    return replace(planned, simulation=replace(found, runs=runs))


def messages(violations: tuple[Violation, ...]) -> str:
    return "\n".join(map(str, violations))


@cache
def missed(name: str) -> set[tuple[str, str]]:
    """What runs do that is missed by their step if it moves nothing, and on which unit."""
    planned, machine = planned_on(name) if name in NAMES else planned_by(name)
    sorts: dict[tuple[str, str], list[UnitRun]] = {}
    for run in planned.simulation.runs:
        if run.size_bytes:
            sorts.setdefault((run.what, run.unit), []).append(run)
    found = set()
    for sort, runs in sorts.items():
        for run in runs[:8]:
            said = messages(check_run(with_run(planned, run, size_bytes=0), machine))
            assert "stated" in said, sort
            if f"bytes: step {run.step}: " in said:
                found.add(sort)
    return found


LOADS = {("load", DMA), ("load", CORE_DMA)}
STORES = {("store", DMA), ("store", CORE_DMA)}
WEIGHTS = {("weights", CORE_DMA)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shared", LOADS | STORES | WEIGHTS),
        ("bare", {("load", DMA), ("store", DMA), ("weights", DMA)}),
        ("groups", LOADS | STORES),
        ("sliced", LOADS | STORES | WEIGHTS | {("move", CORE_DMA)}),
    ],
)
def test_what_a_step_reads_writes_and_puts_together_moves(name: str, expected: set[tuple[str, str]]) -> None:
    assert missed(name) == expected


@pytest.mark.parametrize("name", WHOLE)
def test_totals_are_those_of_the_runs(name: str) -> None:
    planned, machine = planned_on(name)
    found = planned.simulation
    counted = {f.name for f in fields(found.traffic) if not f.name.startswith("local")}
    for what in counted:
        for by in (-1, 1):
            traffic = replace(found.traffic, **{what: getattr(found.traffic, what) + by})
            changed = replace(planned, simulation=replace(found, traffic=traffic))
            assert rules(changed, machine) == {"bytes"}
    for unit, busy_s in found.busy_s.items():
        for factor, expected in ((1 + 1e-6, {"time"}), (1 + 1e-12, set()), (1 - 1e-6, {"time"})):
            busy = {**found.busy_s, unit: busy_s * factor}
            changed = replace(planned, simulation=replace(found, busy_s=busy))
            little = busy_s * 1e-6 < 2e-9 * found.time_s
            assert rules(changed, machine) == expected or little
    assert rules(replace(planned, simulation=replace(found, busy_s={**found.busy_s, "idle": 1.0})), machine)
    (computing, *_) = (run for run in found.runs if run.what == "compute")
    assert "rate" in rules(with_run(planned, computing, size_bytes=1), machine)
    end_s = max(run.end_s for run in found.runs)
    for time_s, expected in ((end_s, set()), (end_s * (1 - 1e-12), {"time"})):
        bound = {"time_s": time_s, "lower_bound_s": 0.0}
        assert rules(replace(planned, simulation=replace(found, **bound)), machine) == expected
    for bound_s, expected in ((found.time_s, set()), (found.time_s * (1 + 1e-6), {"bound"})):
        changed = replace(planned, simulation=replace(found, lower_bound_s=bound_s))
        assert rules(changed, machine) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["shared", "groups", "lanes", "kernels"])
def test_units_do_one_thing_at_a_time_and_nothing_in_no_time(name: str) -> None:
    planned, machine = planned_on(name) if name in NAMES else planned_by(name)
    found = planned.simulation
    for run in found.runs[:: max(1, len(found.runs) // 12)]:
        for start_s, end_s in ((-1e-9, run.end_s), (run.end_s, run.end_s), (run.end_s, run.start_s)):
            assert "ends before it starts" in messages(
                check_run(with_run(planned, run, start_s=start_s, end_s=end_s), machine)
            )
        twice = replace(planned, simulation=replace(found, runs=(*found.runs, run)))
        assert "unit" in rules(twice, machine)
        num_cores = machine.num_cores_per_cluster
        if run.num_cores and run.num_cores < num_cores:
            more = with_run(planned, run, num_cores=num_cores + 1)
            assert f"of {num_cores} cores" in messages(check_run(more, machine))
