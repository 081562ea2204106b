"""Searches for plans look at the clock often, wherever they are: time here is what they call of this package,
so that neither the load of the machine matters nor what a process compiles and imports once."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.compiler import plan_optimised
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import check_partition
from tilewright.planning import UNLIMITED, Budget
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import ending_with
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.box_bound import bound_in_time
from tilewright.targets.npu.target import NpuTarget

CALL_S = 1e-6
"""Of the clock; a call takes less, with all that is between it and the next one."""
LATE_S = 0.1
"""That a plan may take longer than its deadline."""


class Calls:
    """A clock that counts what is called of this package."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> float:
        return self.num_calls * CALL_S

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        is_ours = frame.f_globals.get("__name__", "").startswith("tilewright")
        self.num_calls += event == "call" and is_ours


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    clock = Calls()
    monkeypatch.setattr(Budget.start, "__defaults__", (clock,))
    sys.setprofile(clock.count)
    yield clock
    sys.setprofile(None)


def branches(width: int) -> Graph:
    """Products side by side, of shapes that differ."""
    b = GraphBuilder()
    x = b.input(32, 64)
    ends = []
    for number in range(width):
        inner = 32 + 8 * number
        y = b.op("MatMul", x, b.constant(64, inner), shape=(32, inner))
        ends.append(b.op("MatMul", b.op("Relu", y), b.constant(inner, 64), shape=(32, 64)))
    for end in ends:
        x = b.op("Add", x, end)
    return b.finish(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("deadline_s", [0.001, 0.4])
@pytest.mark.parametrize(
    ("machine", "plan"), [("v100", "joint"), ("v100", "grid"), ("stcp920", "joint"), ("stcp920", "portfolio")]
)
def test_a_deadline_ends_a_search_that_has_a_plan(
    machine: str, plan: str, deadline_s: float, calls: Calls
) -> None:
    graph = branches(3)
    options = Options(target=TargetRef.parse(machine), plan=plan, budget=Budget(UNLIMITED, deadline_s))
    portfolio = Budget(UNLIMITED, deadline_s)
    first = plan_optimised(
        graph, Options(target=TargetRef.parse(machine)), portfolio=Budget(UNLIMITED, CALL_S)
    )
    first_s = calls()
    planned = plan_optimised(graph, options, portfolio=portfolio)
    took_s = calls() - first_s
    # Nothing ends before there is a plan, the plainest one.
    assert took_s <= max(deadline_s, first_s) + LATE_S
    assert not check_partition(planned.backend.partition_problem, planned.program.partition)
    assert planned.program.schedule.quality.cost <= first.program.schedule.quality.cost
    assert first.program.recipe.partition == PLAIN_RECIPE.partition
    assert first.attempts[0].what == str(first.program.recipe)
    if plan != "joint":  # whose search goes on when all recipes are tried
        assert planned.num_untried > 0 or took_s < deadline_s


def test_a_bound_that_is_not_there_in_time_is_left_out(calls: Calls) -> None:
    """Boxes, barriers, receptive fields and moments: each looks at the clock."""
    b = GraphBuilder()
    x = b.conv(b.input(1, 4, 8, 8), 8)
    pooled = b.op("GlobalAveragePool", x, shape=(1, 8, 1, 1))
    x = b.conv(b.op("Mul", x, b.op("Sigmoid", b.conv(pooled, 8))), 12)
    graph = b.finish(x)
    target = NpuTarget(load_preset("stcp920"))
    backend = target.backend(graph, Options())
    planned = plan_optimised(graph, Options(target=TargetRef.parse("stcp920")), portfolio=Budget(1))
    plan = backend.plan(planned.program.schedule, planned.program.recipe)

    def bound_ns(deadline_s: float | None) -> tuple[float, float]:
        works = target.backend(graph, Options()).works  # which know nothing yet
        meter = Budget(UNLIMITED, deadline_s).start()
        first_s = calls()
        with ending_with(meter):
            bound = bound_in_time(plan, works, graph, meter)
        return 0.0 if bound is None else bound.value, calls() - first_s

    highest_ns, whole_s = bound_ns(None)
    for share in (0.1, 0.5):
        found_ns, took_s = bound_ns(share * whole_s)
        assert took_s <= (share + 0.1) * whole_s
        assert found_ns < highest_ns or share == 0.5
