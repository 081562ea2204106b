"""What the checkers say of answers with one fault each: `tests/golden/faults/<plan>.txt`.

A line is a kind of change to an answer without a fault: which number, list or name changes, and how. Behind
it are the rules that the checker then finds broken, with how often all such changes break each, and `nothing`
for changes that break none: a number that no rule is about, or an answer as right as before.
`python -m tests.golden.rewrite` writes the texts anew; read what became `nothing`.
"""

# mypy: disable-error-code="arg-type, assignment, misc"

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
from tests.support.accelerator import graphturbo, plan, with_capacities
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network
from tests.support.planted import planted
from tests.unit.targets.npu.test_lanes import in_lanes

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.memory.base import Buffer, LevelUse, MemoryPlan, MemoryProblem
from tilewright.memory.check_scopes import check_scopes
from tilewright.memory.instances import Content, InstanceStep, Read, Timeline
from tilewright.memory.scopes import ScopePlan
from tilewright.partition.base import Partition
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import Split, SplitOption, WeighedSplits
from tilewright.planning import Violation
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.check_instances import check_bindings, check_instances
from tilewright.schedule.core_groups import CoreGroup, CoreGroups
from tilewright.schedule.instances import Edge, InstanceGraph, InstanceNode
from tilewright.schedule.launches import Launch
from tilewright.targets.npu.check_levels import most, passing
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, Baseline
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.simulate import Simulation
from tilewright.targets.npu.simulated_step import Load, SimulatedStep, Store, Weight
from tilewright.targets.npu.tiles import Passage, Tiling
from tilewright.targets.npu.trace import Trace
from tilewright.targets.simulated import UnitRun

FOLDER = Path(__file__).parent / "faults"
MOST = 120
"""Changes of one answer: of more every so manieth is taken."""

STCP = load_preset("stcp920")
IN_LEVELS = replace(PLAIN_RECIPE, memory=MEMORY)


def tower() -> Graph:
    """Two windows, a join and products, on images that are wanted whole at the end."""
    b = GraphBuilder()
    x = b.input(4, 4, 8, 8)
    y = b.op("Relu", b.conv(x, 8))
    z = b.op("Add", b.conv(y, 8), y)
    w = b.op("MaxPool", z, shape=(4, 8, 4, 4), kernel_shape=(2, 2), strides=(2, 2))
    return b.finish(b.conv(w, 6))


def weighty() -> Graph:
    """Products whose weights are larger than a small buffer."""
    b = GraphBuilder()
    x = b.input(16, 256)
    for _ in range(2):
        x = b.op("Relu", b.op("MatMul", x, b.constant(256, 256), shape=x.shape))
    return b.finish(x)


def sized(machine: Machine, **kib: float) -> Machine:
    return with_capacities(machine, {name: int(size * 1024) for name, size in kib.items()})


@cache
def planned_by(name: str) -> tuple[SimulatedPlan, Machine]:
    """A plan without a fault: slices, spilled buffers, weights in parts, kernels, groups of cores."""
    network = integer_network(3, 7, batch=4)
    largest = max(v.size_bytes for v in network.values())
    sliced = graphturbo(GraphTurbo(capacity_bytes=int(largest * 0.6), dims="any"))
    groups = Baseline(replace(IN_LEVELS, schedule="core-groups{number=2}"), "resident_weights=true")
    small = sized(STCP, L1=2, LLB=128)
    bare, a310 = load_preset("ipu-mk1"), load_preset("a310")
    cases = {
        "sliced": (network, STCP, sliced),
        "tower": (tower(), small, GRAPHTURBO),
        "weights": (weighty(), sized(STCP, L1=48, LLB=48), GRAPHTURBO),
        "groups": (tower(), STCP, groups),
        "kernels": (tower(), STCP, Baseline(GRAPHTURBO, "launches=each subgraph")),
        "rows": (tower(), STCP, graphturbo(GraphTurbo(capacity_bytes=4096, rows="keep", dims="any"))),
        "shared": (tower(), sized(STCP, L1=1, LLB=24), GRAPHTURBO),
        "resident": (tower(), STCP, Baseline(GRAPHTURBO, "resident_weights=true")),
        "bare": (weighty(), sized(bare, **{bare.levels[0].name: 96}), IN_LEVELS),
    }
    if name == "lanes":
        return in_lanes(), a310
    graph, on, recipe = cases[name]
    return plan(graph, on, recipe), on


Check = Callable[[], Iterable[Violation]]


def after(path: str) -> str:
    """The kind of a change: without the places of tuples and the keys of mappings."""
    return re.sub(r"\[[^]]*\]", "[]", path)


def told(changes: Iterable[tuple[str, Check]]) -> Iterator[str]:
    """A line for each kind of change, in the order in which they come first."""
    listed = list(changes)
    found: dict[str, Counter[str]] = {}
    # Not each so-and-so-many-th: a step that the number of fields divides comes to few of them.
    drawn = sorted(random.Random(0).sample(range(len(listed)), min(MOST, len(listed))))
    for what, check in (listed[place] for place in drawn):
        try:
            rules = [violation.rule for violation in check()] or ["nothing"]
        except Exception as error:
            rules = [type(error).__name__]
        found.setdefault(after(what), Counter()).update(rules)
    for what, counts in found.items():
        if set(counts) != {"nothing"}:
            rules = ", ".join(f"{rule} {count}" for rule, count in sorted(counts.items()))
            yield f"{what}: {rules}"


def of_partition(planned: SimulatedPlan) -> Iterator[tuple[str, Check]]:
    partition = planned.partition
    kinds = (Partition, Split, WeighedSplits, SplitOption)
    skipped = frozenset({"provenance", "quality", "decisions", "problem", "graph", "subgraphs"})
    for what, make in planted(partition, into=kinds, skipped=skipped):
        yield what, lambda make=make: check_splits(make(), recompute_limit=1.5)


def of_instances(planned: SimulatedPlan) -> Iterator[tuple[str, Check]]:
    kinds = (InstanceGraph, InstanceNode, Edge, Split)
    for what, make in planted(
        planned.instances, into=kinds, skipped=frozenset({"partition", "maps", "rows"})
    ):
        yield what, lambda make=make: check_instances(make())


def of_bindings(planned: SimulatedPlan) -> Iterator[tuple[str, Check]]:
    kinds = (Bindings, CoreGroups, CoreGroup, Launch)
    for what, make in planted(planned.bindings, into=kinds):
        yield what, lambda make=make: check_bindings(planned.instances, make())
        yield f"{what}, places as they were", lambda make=make: check_scopes(planned.scopes, make())


def of_scopes(planned: SimulatedPlan) -> Iterator[tuple[str, Check]]:
    kinds = (ScopePlan, Timeline, InstanceStep, Read, Content, MemoryProblem, Buffer, MemoryPlan, LevelUse)
    skipped = frozenset({"graph", "quality", "provenance", "remedies", "by_name", "alignment_bytes"})
    for what, make in planted(planned.scopes, into=kinds, skipped=skipped):
        yield what, lambda make=make: check_scopes(make(), planned.bindings)


def of_run(planned: SimulatedPlan, machine: Machine) -> Iterator[tuple[str, Check]]:
    found = replace(planned.simulation, runs=tuple(planned.simulation.runs))

    def check(make: Callable[[], Simulation]) -> Iterable[Violation]:
        return check_run(replace(planned, simulation=make()), machine)

    skipped = frozenset({"steps", "energy_pj", "macs", "lower_bound_s", "bound_by", "tasks", "residents"})
    for what, make in planted(found, into=(Simulation, UnitRun), skipped=skipped):
        yield what, partial(check, make)
    for place, run in enumerate(found.runs):
        little_s = 3e-9 * found.time_s
        early = replace(run, start_s=run.start_s - little_s, end_s=run.end_s - little_s)
        runs = (*found.runs[:place], early, *found.runs[place + 1 :])
        yield "runs[] a little earlier", partial(check, partial(replace, found, runs=runs))


def of_moves(planned: SimulatedPlan, machine: Machine) -> Iterator[tuple[str, Check]]:
    """Each run at another time, as if it needed nothing, or nothing needed it."""
    found = planned.simulation
    for place, run in enumerate(found.runs):
        took_s = run.end_s - run.start_s
        times = {"first": 0.0, "in half its time": run.start_s / 2, "last": found.time_s - took_s}
        for when, start_s in times.items():
            moved = replace(run, start_s=start_s, end_s=start_s + took_s)
            runs = (*found.runs[:place], moved, *found.runs[place + 1 :])
            changed = replace(planned, simulation=replace(found, runs=runs))
            yield f"{run.what} by {run.unit} {when}", partial(check_run, changed, machine)


def of_steps(planned: SimulatedPlan, machine: Machine) -> Iterator[tuple[str, Check]]:
    found = planned.simulation

    def check(name: str, make: Callable[[], object]) -> Iterable[Violation]:
        return check_run(replace(planned, simulation=replace(found, **{name: make()})), machine)

    kinds = (SimulatedStep, Load, Store, Weight, Tiling, Passage, Residents)
    skipped = frozenset({"name", "number", "works", "tiles", "pools"})
    for name in ("steps", "residents"):
        for what, make in planted(getattr(found, name), into=kinds, skipped=skipped):
            yield f"{name}.{what}", partial(check, name, make)


def least_capacity(planned: SimulatedPlan, machine: Machine, level: str) -> int:
    """The fewest bytes of a level in which the run is none too large."""
    low, high = 0, 1 << 33
    while low < high:
        middle = (low + high) // 2
        smaller = with_capacities(machine, {level: middle})
        fits = all(violation.rule != "capacity" for violation in check_run(planned, smaller))
        low, high = (low, middle) if fits else (middle + 1, high)
    return low


def of_levels(planned: SimulatedPlan, machine: Machine) -> Iterator[str]:
    for level in (machine.local, machine.shared, machine.outermost):
        if level is not None:
            yield f"{level.name} needs {least_capacity(planned, machine, level.name)} bytes"
    trace = Trace(planned, machine)
    for scope in (Scope.LOCAL, Scope.SHARED):
        if scope is Scope.LOCAL or machine.shared is not None:
            stays = list(passing(trace, scope))
            sizes = Counter(re.sub(r"\d+", "#", stay.what) for stay in stays)
            total = sum(stay.size_bytes for stay in stays)
            yield f"{len(stays)} pass {scope}, of {total} bytes, {most(stays)[0]} at most"
            begins = [run.start_s for run in trace.runs]
            times = sum(
                stay.size_bytes * (bisect_left(begins, stay.end_s) - bisect_left(begins, stay.start_s))
                for stay in stays
            )
            yield f"  for runs that begin meanwhile: {times} bytes"
            yield from (f"  {what}: {count}" for what, count in sorted(sizes.items()))


SECTIONS: dict[str, Callable[[SimulatedPlan, Machine], Iterator[str]]] = {
    "levels": of_levels,
    "partition": lambda planned, machine: told(of_partition(planned)),
    "instances": lambda planned, machine: told(of_instances(planned)),
    "bindings": lambda planned, machine: told(of_bindings(planned)),
    "places": lambda planned, machine: told(of_scopes(planned)),
    "runs": lambda planned, machine: told(of_run(planned, machine)),
    "moves": lambda planned, machine: told(of_moves(planned, machine)),
    "steps": lambda planned, machine: told(of_steps(planned, machine)),
}
NAMES = ("shared", "rows", "groups", "lanes", "kernels", "sliced", "weights", "resident", "bare", "tower")


def rendered(name: str, section: str) -> str:
    return "".join(f"{line}\n" for line in SECTIONS[section](*planned_by(name)))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_faults_are_found_as_the_text_says(name: str, section: str) -> None:
    parts = dict(
        part.split("\n", 1) for part in re.split("^# ", (FOLDER / f"{name}.txt").read_text(), flags=re.M)[1:]
    )
    assert rendered(name, section) == parts[section].removesuffix("\n")


def test_every_text_belongs_to_a_plan() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(NAMES)


def write() -> None:
    """Write all texts anew."""
    for name in NAMES:
        text = "".join(f"# {section}\n{rendered(name, section)}\n" for section in SECTIONS)
        (FOLDER / f"{name}.txt").write_text(text)
