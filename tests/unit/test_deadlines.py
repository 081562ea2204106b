"""Searches for plans look at the clock often, wherever they are: time here is what Python calls, so that no
load of the machine matters."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.compiler import plan_optimised
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import check_partition
from tilewright.planning import UNLIMITED, Budget
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.target_ref import TargetRef

CALL_S = 1e-6
"""Of the clock; a call of Python takes less, with all that is between it and the next one."""
LATE_S = 0.1
"""That a plan may take longer than its deadline."""


class Calls:
    """A clock that counts what is called."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> float:
        return self.num_calls * CALL_S

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        self.num_calls += event == "call"


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


@pytest.mark.sampled(3)
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
    assert (planned.num_untried > 0) or took_s < deadline_s
