"""The clock of a compilation: it is asked inside every step, and ends each of them in one line."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tilewright import progress
from tilewright.compiler import compile_graph
from tilewright.errors import BudgetExceeded
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.progress import PhaseClock, checkpoint

LENGTH = 200
PHASES = ("passes", "partition", "schedule", "place")


def long_graph() -> Graph:
    """Element-wise operators and products in turn: about as many kernels as operators."""
    graph = Graph("long")
    value = graph.add_input(Value("x", DType.FLOAT32, (4, 4)))
    weight = graph.constant(np.eye(4, dtype=np.float32))
    for number in range(LENGTH):
        op, inputs = ("MatMul", [value, weight]) if number % 2 else ("Tanh", [value])
        value = graph.append(Node(op, inputs, [graph.value("v", DType.FLOAT32, (4, 4))])).output
    graph.outputs = [value]
    return graph


def test_every_step_asks_the_clock_about_as_often_as_there_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    monkeypatch.setattr(PhaseClock, "check", lambda clock: asked.update([clock.running]))
    compile_graph(long_graph(), Options(no_cache=True))
    for phase in PHASES:
        assert asked[phase] >= LENGTH / 2, phase


@pytest.mark.sampled(2)
@pytest.mark.parametrize("phase", PHASES)
def test_every_step_ends_when_the_time_is_over(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still until half of the step's questions are asked."""
    now_s, asked = 0.0, 0

    def check(clock: PhaseClock, ask: object = PhaseClock.check) -> None:
        nonlocal now_s, asked
        if clock.running == phase:
            asked += 1
            if asked == LENGTH // 4:
                now_s = 11.0
        ask(clock)  # type: ignore[operator]

    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(PhaseClock, "check", check)
    with pytest.raises(BudgetExceeded) as caught:
        compile_graph(long_graph(), Options(no_cache=True, timeout_s=10))
    assert str(caught.value) == (
        f"compiling took longer than 10 s (stopped at {phase}); give a longer --timeout."
    )
    assert asked == LENGTH // 4


def test_outside_a_compilation_nothing_is_asked() -> None:
    checkpoint()
    clock = PhaseClock(0.0, None)
    with pytest.raises(BudgetExceeded), clock.phase("step"):
        checkpoint()
    checkpoint()
