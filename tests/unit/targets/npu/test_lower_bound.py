"""The lower bound of a network's time: what each unit has to do, and what of it comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.support.accelerator import with_capacities

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.region import Region
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.groups import StepGroup
from tilewright.targets.npu.kernels import Kernel, StepLane
from tilewright.targets.npu.lower_bound import lower_bound
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.pools import PoolSizes, level_bytes
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.residents import choose_residents, most_resident_bytes
from tilewright.targets.npu.simulated_step import Load, SimulatedStep, Store, Weight
from tilewright.targets.npu.tiles import Tiling
from tilewright.targets.npu.work import UnitWork

NONE = PoolSizes(0, 0)
HALF, QUARTER = StepGroup(0, 4, 0.5, NONE, 0), StepLane(0, 0, 2, 0.25, NONE, 0)
KERNEL = Kernel(0, 0, 0, 4, 0.5, NONE)
MB = 1_000_000


def with_overheads(machine: Machine, launch_ns: float, setup_ns: float) -> Machine:
    overheads = machine.overheads.model_copy(
        update={"kernel_launch_ns": launch_ns, "copy_setup_ns": setup_ns}
    )
    return machine.model_copy(update={"overheads": overheads})


STCP920 = with_capacities(load_preset("stcp920"), {"L1": 64, "LLB": 512})
MACHINE = with_overheads(STCP920, 0.0, 0.0)
BARE = with_overheads(load_preset("ipu-mk1"), 0.0, 0.0)
MAIN, LOCAL = ports_of(MACHINE).main_bytes_per_s, ports_of(MACHINE).local_bytes_per_s
STAYING = int(most_resident_bytes(MACHINE, in_groups=True))


def part(stop: int, start: int = 0) -> Region:
    return ((start, stop),)


ALL = part(MB)


def load(value: str = "x", region: Region = ALL, producer: int | None = None) -> Load:
    """A byte for each element."""
    size = max(0, region[0][1] - region[0][0])
    return Load(value, region, size, Scope.MAIN, producer, (), 0)


def weight(name: str | None = "w", region: Region = ALL) -> Weight:
    return Weight(name, region[0][1] - region[0][0], region)


def result(value: str = "y", size_bytes: int = MB, *, is_result: bool = True) -> Store:
    return Store(value, size_bytes, Scope.MAIN, is_result)


def step(
    works: Sequence[tuple[str, float]] = (),
    loads: Sequence[Load] = (),
    stores: Sequence[Store] = (),
    weights: Sequence[Weight] = (),
    **fields: Any,
) -> SimulatedStep:
    made = tuple(UnitWork(unit, seconds, 0.0, 0.0, 0.0, "float32") for unit, seconds in works)
    tiling = Tiling(None, 1, (), (), ())
    kind = Kind.INSTANCE
    return SimulatedStep(
        0, "step", kind, made, tuple(loads), tuple(stores), tuple(weights), tiling, (), **fields
    )


def bound(
    *steps: SimulatedStep,
    machine: Machine = MACHINE,
    least: Mapping[str, float] | None = None,
    **policy: Any,
) -> tuple[float, str]:
    return lower_bound(steps, machine, Policy(**policy), least or {})


@pytest.mark.parametrize(
    ("steps", "least", "expected"),
    [
        ([step([("MME", 2.0), ("VME", 1.5)]), step([("VME", 1.0)])], {}, (2.5, "VME")),
        ([step([("MME", 2.0)], group=HALF), step([("MME", 1.0)])], {}, (2.0, "MME")),
        ([step([("MME", 2.0)], lane=QUARTER, kernel=KERNEL)], {}, (0.5, "MME")),
        ([step([("MME", 2.0)], lane=QUARTER, group=HALF)], {}, (0.5, "MME")),
        ([step([("MME", 2.0)], kernel=KERNEL)], {}, (2.0, "MME")),
        ([step([("MME", 3.0), ("VME", 2.5)])], {"MME": 2.0}, (2.5, "VME")),
        ([step([("MME", 3.0)])], {"MME": 4.0}, (3.0, "MME")),
        ([step([(CORE_DMA, 3.0)])], {}, (0.0, CORE_DMA)),
        ([step([(CORE_DMA, 3.0)])], {CORE_DMA: 2.0}, (2.0, CORE_DMA)),
        ([step([(DMA, 3.0)])], {}, (0.0, DMA)),
        ([step([(DMA, 3.0)])], {DMA: 2.0}, (0.0, DMA)),
        ([step([], [load()])], {}, (MB / MAIN, DMA)),
        ([step([], [load(), load()]), step([], [load()])], {}, (MB / MAIN, DMA)),
        ([step([], [load(region=part(MB // 2)), load(region=part(MB, MB // 4))])], {}, (MB / MAIN, DMA)),
        ([step([], [load("x"), load("z")])], {}, (2 * MB / MAIN, DMA)),
        ([step([], [load(producer=0)])], {}, (0.0, DMA)),
        ([step([], [load(region=part(0))])], {}, (0.0, DMA)),
        ([step([], [load()])], {DMA: MB / 2 / MAIN}, (MB / 2 / MAIN, DMA)),
        ([step([], [load()], weights=[weight()])], {DMA: MB / 2 / MAIN}, (1.5 * MB / MAIN, DMA)),
        ([step([], [], [result()])], {}, (MB / MAIN, DMA)),
        ([step([], [], [result(), result()])], {}, (2 * MB / MAIN, DMA)),
        ([step([], [], [result(is_result=False)])], {}, (0.0, DMA)),
        ([step(weights=[weight()])] * 3, {}, (MB / MAIN, DMA)),
        ([step(weights=[weight()]), step(weights=[weight("v")])], {}, (2 * MB / MAIN, DMA)),
        ([step(weights=[Weight("w", 2 * MB, ALL)])] * 3, {}, (2 * MB / MAIN, DMA)),
        ([step(weights=[weight(None)])] * 3, {}, (3 * MB / MAIN, DMA)),
        ([step([(CORE_DMA, 9.0)], [load()])], {CORE_DMA: 1.0}, (1.0 + MB / LOCAL, CORE_DMA)),
        ([], {}, (0.0, DMA)),
    ],
)
def test_the_busiest_unit_decides(
    steps: Sequence[SimulatedStep], least: Mapping[str, float], expected: tuple[float, str]
) -> None:
    seconds, unit = bound(*steps, least=least)
    assert (pytest.approx(seconds), unit) == expected


MIXED = step([("MME", 1.0)], [load()], [result()], [weight(), weight(None, part(100))])


def test_where_nothing_overlaps_all_units_follow_each_other() -> None:
    moved = 3 * MB + 100
    assert bound(MIXED) == (1.0, "MME")
    serial, _ = bound(MIXED, overlap="none")
    assert serial == pytest.approx(1.0 + moved / MAIN + moved / LOCAL)
    assert bound(MIXED, step(kernel=KERNEL), overlap="none") == (1.0, "MME")


@pytest.mark.parametrize("is_resident", [False, True])
def test_each_value_takes_a_transfer_and_weights_do_where_none_stays(is_resident: bool) -> None:
    slow = with_overheads(STCP920, 0.0, 1e9)
    several = [
        MIXED,
        step([], [load(), load("z"), load("nothing", part(0))], [result(), result("empty", 0)]),
        step([], [], [result("inner", is_result=False)], [weight("v"), weight("none", part(0)), weight()]),
    ]
    least = bound(*several, resident_weights=is_resident)[0] if is_resident else 0.0
    found, unit = bound(*several, machine=slow, resident_weights=is_resident)
    moved = 2 * MB + 2 * MB + 100 + max(0, 2 * MB - (STAYING if is_resident else 0))
    assert least <= found
    assert (pytest.approx(found), unit) == (3 + (0 if is_resident else 2) + moved / MAIN, DMA)


def test_weights_that_stay_need_not_come_as_far_as_they_fit() -> None:
    fits, more = step(weights=[weight("w", part(STAYING))]), step(weights=[weight("w", part(STAYING + 640))])
    assert bound(fits, resident_weights=True) == (0.0, DMA)
    assert bound(more, resident_weights=True)[0] == pytest.approx(640 / MAIN)
    assert bound(more)[0] == pytest.approx((STAYING + 640) / MAIN)
    few = step([], [load(region=part(1000))], weights=[weight("w", part(8))])
    assert bound(few, resident_weights=True)[0] == pytest.approx(1000 / MAIN)


def test_the_cores_port_passes_what_main_memory_does() -> None:
    """On a machine whose cores' port is the slower one."""
    slow = MACHINE.levels[0].model_copy(update={"read_bytes_per_s": 1e9})
    machine = MACHINE.model_copy(update={"levels": (slow, *MACHINE.levels[1:])})
    assert ports_of(machine).local_bytes_per_s == 1e9 * machine.num_cores_per_cluster < MAIN
    seconds, unit = bound(MIXED, machine=machine, least={"MME": 0.0})
    assert (pytest.approx(seconds), unit) == ((3 * MB + 100) / 1e9 / machine.num_cores_per_cluster, CORE_DMA)


def test_cores_next_to_main_memory_have_one_port() -> None:
    assert ports_of(BARE).shared is None
    serial, _ = bound(MIXED, machine=BARE, overlap="none")
    assert serial == pytest.approx(1.0 + (3 * MB + 100) / ports_of(BARE).main_bytes_per_s)


def test_a_launch_comes_before_all() -> None:
    late = with_overheads(STCP920, 2e9, 0.0)
    assert bound(step([("MME", 1.0)]), machine=late) == (3.0, "MME")
    assert bound(machine=late) == (2.0, DMA)
    assert bound(machine=late, launches="each subgraph") == (2.0, DMA)
    assert bound(machine=late, launches="each step") == (0.0, DMA)
    assert bound(step([("MME", 1.0)]), machine=late, launches="each step") == (3.0, "MME")


def test_weights_stay_in_half_of_a_level_and_groups_leave_them_half_of_their_half() -> None:
    cores = 10 * BARE.num_cores_per_cluster
    bare = with_capacities(BARE, {BARE.levels[0].name: 10})
    assert most_resident_bytes(bare, in_groups=False) == cores / 2
    assert most_resident_bytes(bare, in_groups=True) == cores * 3 / 4
    alone = most_resident_bytes(MACHINE, in_groups=False)
    pools = level_bytes(MACHINE)
    weights = [(f"w{i}", size) for i, size in enumerate([pools.local_bytes // 8] * 9)]
    assert 0.8 * alone < choose_residents(weights, pools).size_bytes <= alone < STAYING
