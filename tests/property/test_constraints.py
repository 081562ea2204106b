"""The exact mapper under constraints against every mapping that keeps them, on small machines."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import inf
from typing import get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.mappings import all_mappings

from tilewright.cost.base import Objective
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import measure
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.parts import Axis
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem, convolution
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.check import check_mapping
from tilewright.mapping.constraints import Constraints, parse_constraints, said
from tilewright.mapping.exact import Exact
from tilewright.planning import Budget

MACHINE = parse_machine(
    """
name: tiny
levels:
  - {name: Buffer, capacity_bytes: 6, num_instances_per_parent: 2, read_pj: 1, words_per_access: 2}
  - {name: Memory, read_pj: 50, write_pj: 80, read_bytes_per_cycle: 1, write_bytes_per_cycle: 1}
units:
  - {name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}, mac_pj: 0.5}
energy_source: made up
""",
    "tiny",
)
THREE = parse_machine(
    """
name: three
levels:
  - {name: Spad, capacity_bytes: 4, num_instances_per_parent: 2, read_pj: 1}
  - {name: Buffer, capacity_bytes: 16, read_pj: 4, holds: [input, output]}
  - {name: Memory, read_pj: 50, write_pj: 80, read_bytes_per_cycle: 1}
units:
  - {name: mac, kind: mac, macs_per_cycle: {int8: 1}, mac_pj: 0.5}
energy_source: made up
""",
    "three",
)
SLOW = parse_machine(
    """
name: slow
levels:
  - {name: Buffer, capacity_bytes: 16, num_instances_per_parent: 2, read_pj: 1, read_bytes_per_cycle: 1,
     write_bytes_per_cycle: 1}
  - {name: Memory, read_pj: 50, write_pj: 80}
units:
  - {name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}, mac_pj: 0.5}
energy_source: made up
""",
    "slow",
)
PROBLEMS = [{"P": 4, "R": 2}, {"K": 4, "C": 2}, {"P": 2, "R": 2, "K": 2}, {"Q": 2, "S": 2, "C": 2}]


@dataclass(frozen=True, slots=True)
class Legal:
    """Every legal mapping of a problem on a machine, with its cost."""

    problem: Problem
    machine: Machine
    costs: tuple[tuple[Mapping, Cost], ...]

    @classmethod
    def of(cls, extents: dict[str, int], machine: Machine) -> Legal:
        problem = convolution(extents)
        free = MappingProblem(problem, machine)
        legal = [m for m in all_mappings(problem, machine) if not check_mapping(free, m)]
        return cls(problem, machine, tuple((m, evaluate(problem, machine, m)) for m in legal))


@functools.cache
def legal(machine: str, number: int) -> Legal:
    return Legal.of(PROBLEMS[number], {"tiny": MACHINE, "three": THREE, "slow": SLOW}[machine])


ALL_OUTSIDE = ("Buffer.tile.K=1", "Buffer.tile.C=1", "Memory.spatial=P")


@st.composite
def texts(draw: st.DrawFn, levels: tuple[str, ...]) -> list[str]:
    """One to three constraints, each about something else."""
    dims = st.sampled_from("KCPQRS")
    found = {}
    for _ in range(draw(st.integers(1, 3))):
        level = draw(st.sampled_from(levels))
        dim = draw(dims)
        listed = ",".join(draw(st.lists(dims, unique=True, min_size=1, max_size=3)))
        kind = draw(st.sampled_from(["weight", "input", "output"]))
        text = draw(
            st.sampled_from(
                [
                    f"{level}.spatial.{dim}={draw(st.sampled_from([1, 2]))}",
                    f"{level}.spatial={listed}",
                    f"{level}.tile.{dim}={draw(st.sampled_from(['1', '2', 'whole']))}",
                    f"{level}.order=*,{listed}",
                    f"{level}.order={listed},*",
                    f"{level}.without={dim}",
                    f"{kind}-stationary@{level}",
                ]
            )
        )
        found[text.split("=")[0].replace("-stationary@", ".order").split(".order")[-1], level] = text
    return list(found.values())


def check(known: Legal, given: list[str]) -> None:
    """No mapping that keeps the constraints is better than the answer; the answer keeps them."""
    try:
        constraints = Constraints.of(parse_constraints(given, known.machine))
    except UsageError:  # two that order the loops of one level
        return
    task = MappingProblem(known.problem, known.machine, constraints=constraints)
    kept = [cost for mapping, cost in known.costs if not check_mapping(task, mapping)]
    for objective in get_args(Objective):
        task = replace(task, objective=objective)
        value = min((measure(objective, cost.cycles, cost.energy_pj) for cost in kept), default=inf)
        try:
            answer = Exact(pads=False).solve(task, Budget())
        except InfeasibleMapping:
            assert value == inf, objective
            continue
        assert isinstance(answer, MappingSolution)
        assert check_mapping(task, answer.mapping) == ()
        assert answer.quality.bound <= value * (1 + 1e-9)
        assert answer.quality.cost <= 1.015 * value * (1 + 1e-9)


@example(["Memory.order=*,P", "Buffer.without=R"], 2)
@example(["weight-stationary@Memory", "Memory.spatial=K"], 1)
@example(["Buffer.tile.S=whole", "Memory.spatial.C=1"], 3)
@example(["Memory.tile.K=1"], 1)
# With all loops at one level one of two orders is not the best one.
@example(["Memory.order=K,C,*", *ALL_OUTSIDE], 1)
@example(["Memory.order=C,K,*", *ALL_OUTSIDE], 1)
@example(["input-stationary@Memory", *ALL_OUTSIDE], 1)
@example(["output-stationary@Memory", *ALL_OUTSIDE], 1)
@given(given=texts(("Buffer", "Memory")), number=st.integers(0, len(PROBLEMS) - 1))
@settings(max_examples=12, deadline=None)
def test_nothing_that_keeps_the_constraints_is_better(given: list[str], number: int) -> None:
    check(legal("tiny", number), given)


@example(["output-stationary@Buffer", "Spad.without=K"])
@example(["row-stationary@Buffer"])
@given(given=texts(("Spad", "Buffer", "Memory")))
@settings(max_examples=6, deadline=None)
def test_levels_in_the_middle_keep_them_too(given: list[str]) -> None:
    check(legal("three", 0), given)


@given(given=texts(("Buffer", "Memory")))
@settings(max_examples=50, deadline=None)
def test_constraints_are_their_texts(given: list[str]) -> None:
    parsed = parse_constraints(given, MACHINE)
    assert parse_constraints([said(constraint) for constraint in parsed], MACHINE) == parsed


# Where all that is spread is given there is one choice, and it leaves a buffer a part of the problem.
@example(["Memory.spatial.K=2"], 1)
@example(["Memory.spatial.K=2", "Buffer.spatial.C=2"], 1)
@example(["Memory.spatial.K=2", "Memory.spatial=C"], 1)
@given(given=texts(("Buffer", "Memory")), number=st.integers(0, len(PROBLEMS) - 1))
@settings(max_examples=6, deadline=None)
def test_limits_of_bandwidth_count_for_what_constraints_leave(given: list[str], number: int) -> None:
    check(legal("slow", number), given)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Axis, ...]:
    """Two axes of two instances, with some dims each."""
    dims = draw(st.permutations("KCPQRSG"))
    first, second = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Axis(dims=tuple(dims[:first]), size=2), Axis(dims=tuple(dims[first : first + second]), size=2)


SQUARE = MACHINE.model_copy(
    update={
        "levels": (MACHINE.levels[0].model_copy(update={"num_instances_per_parent": 4}), MACHINE.levels[1]),
    }
)


# Both dims of one axis, of which two iterations are spread together; one dim on an axis.
@example((Axis(dims=("P", "R"), size=2), Axis(dims=("K",), size=2)), 0)
@example((Axis(dims=("C",), size=2), Axis(dims=("K",), size=2)), 1)
@given(axes=arrays(), number=st.integers(0, len(PROBLEMS) - 1))
@settings(max_examples=8, deadline=None)
def test_an_array_takes_dims_along_its_axes_alone(axes: tuple[Axis, ...], number: int) -> None:
    """Of all mappings of the machine without a dataflow, none that the axes allow is better."""
    buffer, memory = SQUARE.levels
    stated = SQUARE.model_copy(update={"levels": (buffer, memory.model_copy(update={"axes": axes}))})
    known = Legal.of(PROBLEMS[number], SQUARE)
    on_axis = {dim: place for place, axis in enumerate(axes) for dim in axis.dims}
    kept = []
    for mapping, cost in known.costs:
        along = [1, 1]
        spread = [
            loop for x in mapping.levels if x.level == "Memory" for loop in x.spatial if loop.factor > 1
        ]
        for loop in spread:
            if loop.dim in on_axis:
                along[on_axis[loop.dim]] *= loop.factor
        if max(along) <= 2 and all(loop.dim in on_axis for loop in spread):
            kept.append((mapping, cost))
    assert {m for m, _ in kept} == {
        m for m, _ in known.costs if not check_mapping(MappingProblem(known.problem, stated), m)
    }
    check(replace(known, machine=stated), [])
