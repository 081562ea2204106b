"""Weights that stay on the chip: which, what they leave free, and what they save."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.accelerator import plan
from tests.support.graphs import GraphBuilder

from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.planning.portfolio import Recipe
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.pools import PoolSizes
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT, Baseline
from tilewright.targets.npu.residents import choose_residents


@given(
    sizes=st.lists(st.integers(1, 100), max_size=12),
    again=st.lists(st.integers(0, 11), max_size=12),
    pools=st.builds(PoolSizes, st.integers(0, 300), st.integers(0, 300)),
)
def test_they_take_no_more_than_half_of_each_pool(
    sizes: list[int], again: list[int], pools: PoolSizes
) -> None:
    weights = [(f"w{i}", size) for i, size in enumerate(sizes)]
    fetches = [*weights, *(weights[i] for i in again if i < len(weights))]
    found = choose_residents(fetches, pools)
    size_of = dict(weights)
    for scope, before, after in (
        (Scope.LOCAL, pools.local_bytes, found.pools.local_bytes),
        (Scope.SHARED, pools.shared_bytes, found.pools.shared_bytes),
    ):
        taken = sum(size_of[key] for key, where in found.scopes.items() if where is scope)
        assert before - after == taken <= before // 2
    assert found.size_bytes == sum(size_of[key] for key in found.scopes)


def test_what_is_fetched_more_often_stays_first() -> None:
    found = choose_residents([("once", 8), ("often", 8), ("often", 8)], PoolSizes(0, 20))
    assert dict(found.scopes) == {"often": Scope.SHARED}


def network() -> Graph:
    b = GraphBuilder()
    x = b.input(8, 256)
    y = b.op("MatMul", x, b.constant(256, 256), shape=(8, 256))
    return b.finish(b.op("MatMul", b.op("Relu", y), b.constant(256, 256), shape=(8, 256)))


def on(machine: str, execution: str) -> SimulatedPlan:
    return plan(network(), load_preset(machine), Baseline(Recipe(*GRAPHTURBO_NAMES), execution))


GRAPHTURBO_NAMES = (GRAPHTURBO.partition, GRAPHTURBO.schedule, GRAPHTURBO.memory)


def test_main_memory_no_longer_delivers_them() -> None:
    for machine, level in (("stcp920", Scope.SHARED), ("ipu-mk2", Scope.LOCAL)):
        fetched, resident = on(machine, "").simulation, on(machine, RESIDENT).simulation
        assert set(resident.residents.scopes.values()) == {level}
        saved = fetched.traffic.main_read - resident.traffic.main_read
        assert (
            saved
            == resident.residents.size_bytes
            == sum(w.size_bytes for s in fetched.steps for w in s.weights)
        )
        assert resident.lower_bound_s <= resident.time_s < fetched.time_s
        assert not any(run.what == "fetch" for run in resident.runs)
        assert sum(r.size_bytes for r in resident.runs if r.what == "weights") == saved
