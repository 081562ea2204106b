"""The exact mapper against every mapping of random tiny problems on random tiny machines of every sort.

Machines have two or three levels that tensors may bypass, buffers of their own or shared ones, fan-outs,
words of an access, limits of bandwidth, accesses of several instances; problems have windows with strides and
dilations, groups, batches. Costs are counted by the table, and those of best
mappings whose loops have two iterations by a walk over every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import Any, get_args

import numpy as np
import pytest
from tests.support.mappings import all_mappings
from tests.support.walk import Walk

from tilewright.cost.base import Objective
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.nest_table import Evaluator
from tilewright.cost.objective import measure
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem, convolution
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.exact import Exact
from tilewright.mapping.exact.padding import bound_padded
from tilewright.mapping.factors import prime_factors
from tilewright.planning import Budget

KINDS = ("weight", "input", "output")
FEW_PLACEMENTS, MANY_PLACEMENTS = 300, 1500


def random_machine(random: np.random.Generator) -> Machine:
    """Two or three levels, each with its holdings, capacities, rates, energies and fan-out."""

    def chosen(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    lines = ["name: tiny", "levels:"]
    num_inner = chosen(1, 1, 2)
    for number in range(num_inner):
        held = [kind for kind in KINDS if random.random() < 0.65] or [chosen(*KINDS)]
        sizes = {kind: chosen(1, 2, 3, 4, 6, 9) for kind in held}
        num_instances = chosen(1, 1, 2, 3, 4)
        lines += [
            f"  - name: L{number}",
            f"    holds: [{', '.join(held)}]",
            f"    capacity_bytes: {sum(sizes.values())}",
            f"    num_instances_per_parent: {num_instances}",
            f"    num_instances_per_access: {chosen(1, 1, num_instances)}",
            f"    words_per_access: {chosen(1, 1, 2, 4)}",
            f"    read_pj: {chosen(0.5, 1, 3)}",
            f"    write_pj: {chosen(0.5, 1, 4)}",
        ]
        if len(held) > 1 and random.random() < 0.6:
            shares = ", ".join(f"{{holds: [{k}], capacity_bytes: {sizes[k]}}}" for k in held[:-1])
            lines.append(f"    shares: [{shares}]")
        lines += _rates(random, chosen, 0.5)
    lines += [
        "  - name: Memory",
        f"    words_per_access: {chosen(1, 1, 4)}",
        f"    read_pj: {chosen(5, 50)}",
        f"    write_pj: {chosen(5, 80)}",
        *_rates(random, chosen, 0.8),
        "units:",
        "  - {name: mac, kind: mac, macs_per_cycle: {int8: 1}, mac_pj: 0.5, "
        f"num_per_instance: {chosen(1, 1, 2, 3, 4)}}}",
        "energy_source: made up",
    ]
    return parse_machine("\n".join(lines), "tiny")


def _rates(random: np.random.Generator, chosen: Any, share: float) -> list[str]:
    if random.random() > share:
        return []
    rates = [f"    {way}_bytes_per_cycle: {chosen(0.5, 1, 2, 4)}" for way in ("read", "write")]
    return [*rates, "    has_shared_port: true"] if random.random() < 0.4 else rates


def random_problem(random: np.random.Generator, num_levels: int) -> Problem:
    """A few dims with small extents, as many as leave few enough mappings."""
    most = MANY_PLACEMENTS if random.random() < 0.2 else FEW_PLACEMENTS
    while True:
        names = random.permutation(["P", "Q", "R", "S", "C", "K", "N", "G"])[: random.integers(1, 5)]
        extents = {str(name): int(random.choice([2, 2, 3, 4, 5, 6])) for name in names}
        primes = sum(count for extent in extents.values() for _, count in prime_factors(extent))
        if (2 * num_levels) ** primes <= most:
            break
    steps = [(int(a), int(b)) for a, b in random.choice([1, 1, 2, 3], size=(2, 2))]
    return convolution(extents, stride=steps[0], dilation=steps[1])


@dataclass(frozen=True, slots=True)
class Least:
    """Of every objective the least value of all mappings, and the mapping that has it."""

    values: dict[Objective, float]
    mappings: dict[Objective, Mapping]


def least_of(problem: Problem, machine: Machine, cost_options: CostOptions) -> Least | None:
    """By a table of all mappings; those with two loops of a dim at a level are counted one by one."""
    mappings = list(all_mappings(problem, machine))
    table = Evaluator(problem, machine, cost_options)
    costs: list[tuple[float, float]] = []
    kept: list[Mapping] = []
    many: list[Mapping] = []
    for mapping in mappings:
        if any(len({x.dim for x in level.temporal}) < len(level.temporal) for level in mapping.levels):
            try:
                cost = evaluate(problem, machine, mapping, cost_options)
            except InfeasibleMapping:
                continue
            kept.append(mapping)
            costs.append((cost.cycles, cost.energy_pj))
        else:
            many.append(mapping)
    cycles, energies = table.evaluate(table.encode(many))
    for mapping, taken, energy_pj in zip(many, cycles, energies, strict=True):
        if np.isfinite(taken):
            kept.append(mapping)
            costs.append((float(taken), float(energy_pj)))
    if not costs:
        return None
    values: dict[Objective, float] = {}
    best: dict[Objective, Mapping] = {}
    for objective in get_args(Objective):
        listed = [measure(objective, *cost) for cost in costs]
        place = int(np.argmin(listed))
        values[objective], best[objective] = listed[place], kept[place]
    return Least(values, best)


def check(seed: int) -> str:
    """Hold one random case against all of its mappings; says what it was."""
    random = np.random.default_rng(seed)
    machine = random_machine(random)
    problem = random_problem(random, len(machine.levels))
    cost_options = CostOptions(skips_pixels=bool(random.random() < 0.3))
    case = f"seed {seed}: {problem.dims} on {machine}"
    known = least_of(problem, machine, cost_options)
    if known is None:
        return "nothing fits"
    padded = least_of(one_more(problem, random), machine, cost_options) if random.random() < 0.3 else None
    for objective in get_args(Objective):
        least = known.values[objective]
        task = MappingProblem(problem, machine, objective, cost_options)
        answer = Exact(pads=False).solve(task, Budget())
        assert isinstance(answer, MappingSolution), case
        value = measure(objective, answer.cost.cycles, answer.cost.energy_pj)
        of_all = least if padded is None else min(least, padded.values[objective])
        assert bound_padded(task) <= of_all * (1 + 1e-9), case
        assert answer.quality.bound <= least * (1 + 1e-9), case
        assert value >= least * (1 - 1e-9), case
        assert value <= max(least, 1.015 * answer.quality.bound) * (1 + 1e-9), case
        for mapping, expected in ((answer.mapping, value), (known.mappings[objective], least)):
            # In longer loops the cost takes the second step for all that follow.
            if not cost_options.skips_pixels and all(loop.factor <= 2 for _, _, loop in mapping.loops()):
                walk = Walk(problem, machine, mapping)
                assert isclose(measure(objective, walk.cycles, walk.energy_pj), expected, rel_tol=1e-9), case
    return "equal"


def one_more(problem: Problem, random: np.random.Generator) -> Problem:
    """The problem with one of its extents padded by one."""
    place = int(random.integers(len(problem.dims)))
    dims = [(dim, extent + (number == place)) for number, (dim, extent) in enumerate(problem.dims)]
    return replace(problem, dims=tuple(dims))


@pytest.mark.sampled(0)
def test_no_mapping_of_a_few_random_machines_beats_the_answer_or_its_bound() -> None:
    assert [check(seed) for seed in range(40)].count("equal") > 12


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 3000, 100))
def test_no_mapping_of_random_machines_beats_the_answer_or_its_bound(first: int) -> None:
    said = [check(seed) for seed in range(first, first + 100)]
    assert said.count("equal") > 30
