"""Prices of joint tilings against a sum over every step, whose shares take the best of all their mappings.

What a step makes anew comes from the walk of `check.py`, its mappings from an enumeration; nothing is
grouped, and no mapper is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf, prod
from typing import Literal

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder
from tests.support.mappings import all_mappings
from tests.support.walked_chains import _Walk

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import TIMELOOP
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import ALL_KINDS, Level, Machine, TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Value
from tilewright.ir.nest import Nest
from tilewright.loops.mapping import LevelLoops, Mapping
from tilewright.loops.problem import Problem, convolution
from tilewright.mapping.chains.chain import Chain, chain_of
from tilewright.mapping.chains.plan import STREAMED, ChainPlan, Tiling, count_plan
from tilewright.mapping.chains.price import ChainCost, Pricer
from tilewright.mapping.chains.solve import fusing_level

MACHINE = """
name: three and a way
levels:
  - {name: Registers, capacity_bytes: 5, read_pj: 0.5, write_pj: 0.75}
  - {name: Buffer, capacity_bytes: 4096, holds: [HELD], read_pj: 4, write_pj: 5, RATES}
  - {name: Gate, capacity_bytes: 4096, holds: [PASSING], read_pj: 9, write_pj: 11}
  - {name: Memory, read_pj: 60, write_pj: 90, read_bytes_per_cycle: READ, write_bytes_per_cycle: 1}
units: [{name: mac, kind: mac, macs_per_cycle: {int8: 1}, mac_pj: 0.25}]
energy_source: made up
"""
LETTERS = {"n": "N", "m": "K", "oh": "P", "ow": "Q", "c": "C", "kh": "R", "kw": "S"}
Objective = Literal["latency", "energy"]


def machine_with(
    held: str, passing: str, read: str = "2", rates: str = "read_bytes_per_cycle: 0.5"
) -> Machine:
    """The level where values wait holds some kinds of tensor, a level outside it others."""
    text = MACHINE.replace("HELD", held).replace("PASSING", passing).replace("READ", read)
    return parse_machine(text.replace("RATES", rates), "mine")


def conv(build: GraphBuilder, x: Value, channels: int) -> Value:
    weights = build.constant(channels, x.shape[1], 3, 1)
    return build.op("Conv", x, weights, shape=(1, channels, *x.shape[2:]), pads=(1, 0, 1, 0))


@functools.cache
def chain() -> Chain:
    """Two windows over four rows, with two channels between them."""
    build = GraphBuilder()
    return chain_of(build.finish(conv(build, conv(build, build.input(1, 1, 4, 1), 2), 1)).nodes)


def plan_of(tiles: dict[str, int], retains: bool, streams: bool) -> ChainPlan:
    """Tiles of some loops, with everything retained or what lies between the operators computed again."""
    known = chain()
    order = tuple(i for name in tiles for i, loop in enumerate(known.loops) if loop.name == name)
    depths = {
        "result": 0,
        "intermediate": 0 if retains else len(order),
        "input": 0,
        "constant": STREAMED if streams else 0,
    }
    tiling = Tiling(order, tuple(tiles.values()))
    return ChainPlan(tiling, tuple(depths[part.kind] for part in known.parts))


def share_of(nest: Nest, extents: dict[str, int]) -> Problem:
    return convolution({LETTERS[d.name]: extents.get(d.name, d.extent) for d in nest.dims})


def shares(walk: _Walk) -> Iterator[tuple[Problem, Value]]:
    """What every step makes of every operator, with its weights."""
    known, tiling = walk.chain, walk.plan.tiling
    names = [known.loops[i].name for i in tiling.order]
    for number, step in enumerate(walk.steps):
        for part, fresh in zip(known.parts, walk.fresh, strict=True):
            if part.kind == "result":
                extents = {
                    name: min(tile, whole - at * tile)
                    for name, tile, whole, at in zip(names, tiling.tiles, walk.extents, step, strict=True)
                }
                yield share_of(known.nest, extents), known.anchor.inputs[1]  # type: ignore[misc]
            elif part.kind == "intermediate" and fresh[number]:
                elements = fresh[number]
                sizes = [max(e[a] for e in elements) - min(e[a] for e in elements) + 1 for a in (1, 2, 3)]
                assert len(elements) == prod(sizes)
                node = part.value.producer
                assert node is not None
                (nest,) = nests_of(node)
                yield share_of(nest, dict(zip(("m", "oh", "ow"), sizes, strict=True))), node.inputs[1]  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Share:
    """What the best mapping of a share takes inside the level where values wait, and weights read outside."""

    cycles: float
    energy_pj: float
    read: int


def padded(problem: Problem) -> Iterator[Problem]:
    """The problem with each extent of three as it is or as four."""
    choices = [(extent, 4) if extent == 3 else (extent,) for _, extent in problem.dims]
    for extents in product(*choices):
        yield replace(problem, dims=tuple(zip(problem.extents, extents, strict=True)))


def best(problem: Problem, held: str, objective: Objective, passes: bool, pads: bool) -> Share:
    problems = padded(problem) if pads else [problem]
    listed = [share for one in problems for share in every_mapping(one, held, passes)]
    return min(listed, key=lambda s: s.cycles if objective == "latency" else s.energy_pj)


@functools.cache
def every_mapping(problem: Problem, held: str, passes: bool) -> list[Share]:
    machine = machine_with(held, "input")
    (buffer,) = (level for level in machine.levels if level.name == "Buffer")
    if passes:
        no_rates = dict.fromkeys(("read_bytes_per_cycle", "write_bytes_per_cycle"))
        kinds = tuple(kind for kind in buffer.holds if kind is not TensorKind.WEIGHT)
        ample = buffer.model_copy(update={"capacity_bytes": 1 << 40, "holds": kinds})
        levels: tuple[Level, ...] = (ample, machine.outermost.model_copy(update=no_rates))
    else:
        levels = (buffer.model_copy(update={"capacity_bytes": None, "holds": ALL_KINDS}),)
    inside = machine.model_copy(update={"levels": (machine.levels[0], *levels)})
    found = []
    # Nothing loops in the outermost level where weights pass it.
    ended = () if not passes else (LevelLoops(machine.outermost.name),)
    without = inside.model_copy(update={"levels": inside.levels[:2]})
    for mapping in (Mapping((*ended, *m.levels)) for m in all_mappings(problem, without)):
        try:
            cost = evaluate(problem, inside, mapping)
        except InfeasibleMapping:
            continue
        if not passes:
            found.append(Share(cost.cycles, cost.energy_pj, 0))
            continue
        # The other operands are in the buffer already.
        outer, waiting = cost.levels[0].tensors, cost.levels[1].tensors
        there_pj = sum(count.energy_pj for name, count in outer.items() if name != "Weights")
        there_pj += sum(count.fills for count in waiting.values()) * buffer.write_access_pj
        found.append(Share(cost.cycles, cost.energy_pj - there_pj, outer["Weights"].reads))
    return found


def by_steps(held: str, passing: str, plan: ChainPlan, objective: Objective, pads: bool) -> ChainCost:
    """Everything added up, step by step; weights that pass count as no time of the outermost level."""
    machine, known, walk = machine_with(held, passing), chain(), _Walk(chain(), plan)
    level, memory = fusing_level(machine), machine.outermost
    (gate,) = (x for x in machine.levels if x.name == "Gate")
    cycles = energy_pj = 0.0
    passed = read = 0
    passing_weights = {
        part.value
        for part, depth in zip(known.parts, plan.depths, strict=True)
        if part.kind == "constant" and (depth == STREAMED or TensorKind.WEIGHT not in level.holds)
    }
    for problem, weights in shares(walk):
        share = best(problem, held, objective, weights in passing_weights, pads)
        cycles, energy_pj, passed = cycles + share.cycles, energy_pj + share.energy_pj, passed + share.read
    for part, fresh in zip(known.parts, walk.fresh, strict=True):
        if part.kind in ("input", "constant") and part.value not in passing_weights:
            kind = TensorKind.INPUT if part.kind == "input" else TensorKind.WEIGHT
            words = sum(map(len, fresh))
            read += words
            through = gate.write_access_pj + gate.read_access_pj if kind in gate.holds else 0.0
            kept = level.write_access_pj if kind in level.holds else 0.0
            energy_pj += words * (memory.read_access_pj + through + kept)
    written = walk.written_words
    sums = sum(len(elements) for elements in _outputs_of_steps(walk))
    energy_pj += (sums - written) * level.read_access_pj
    places = [level, *([gate] if TensorKind.OUTPUT in gate.holds else [])]
    energy_pj += written * (memory.write_access_pj + sum(x.write_access_pj for x in places))
    moving = [words / rate for words, rate in zip((read, written), _rates(machine), strict=True)]
    return ChainCost(ceil(max(cycles, *moving)), energy_pj, read + passed, written)


def _outputs_of_steps(walk: _Walk) -> Iterator[set[int]]:
    """Elements of the result that each step adds to."""
    tiling = walk.plan.tiling
    names = [walk.chain.loops[i].name for i in tiling.order]
    rows = walk.chain.parts[0].value.shape[2]
    for step in walk.steps:
        at, tile = next(
            ((s, t) for name, t, s in zip(names, tiling.tiles, step, strict=True) if name == "oh"), (0, rows)
        )
        yield set(range(at * tile, min((at + 1) * tile, rows)))


def _rates(machine: Machine) -> tuple[float, float]:
    rates = machine.read_bytes_per_cycle(machine.outermost), machine.write_bytes_per_cycle(machine.outermost)
    return (rates[0] or inf), (rates[1] or inf)


TILES = [{}, {"oh": 2}, {"oh": 3}, {"c": 1}, {"c": 1, "oh": 2}, {"oh": 2, "c": 1}]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("objective", ["latency", "energy"])
@pytest.mark.parametrize(
    ("held", "passing"),
    [
        ("weight, input, output", "input"),
        ("weight, input, output", "weight, output"),
        ("input, output", "input"),
    ],
)
@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_a_price_is_the_sum_over_all_steps(
    held: str, passing: str, tiles: dict[str, int], objective: Objective
) -> None:
    machine = machine_with(held, passing)
    for retains, streams in ((True, False), (False, False), (True, True)):
        plan = plan_of(tiles, retains, streams)
        pricer = Pricer(machine, fusing_level(machine), objective, TIMELOOP, 60.0)
        priced = pricer.price(chain(), plan)
        least, expected = (by_steps(held, passing, plan, objective, pads) for pads in (True, False))
        assert priced is not None
        assert priced.written_words == expected.written_words
        is_passing = streams or "weight" not in held
        # Mappings are within 1.5 % of the best; of those that are as fast any is taken.
        if objective == "energy":
            assert least.energy_pj * (1 - 1e-9) <= priced.energy_pj <= 1.015 * expected.energy_pj
            assert priced.read_words == expected.read_words
        else:
            assert least.cycles <= priced.cycles
            added = sum(map(len, _outputs_of_steps(_Walk(chain(), plan)))) - expected.written_words
            assert is_passing or priced.cycles <= 1.015 * expected.cycles + 1 + 2 * added


def test_words_that_come_into_the_level_where_values_wait_and_sums_that_leave_take_its_time() -> None:
    """Inputs 4 and weights 6 and 6, what lies between 8, the result 4 and the place for it 4."""
    machine = machine_with("weight, input, output", "input", "100", "write_bytes_per_cycle: 0.01")
    priced = Pricer(machine, fusing_level(machine), "latency", TIMELOOP, 60.0).price(
        chain(), plan_of({}, True, False)
    )
    assert priced is not None
    assert priced.cycles == 100 * (4 + 6 + 6 + 8 + 4 + 4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shares_port", [False, True])
@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_no_plan_costs_less_than_what_its_words_and_products_take_at_least(
    objective: Objective, shares_port: bool
) -> None:
    """For the outermost level's rates with one port and two, where it takes the most time."""
    for held in ("weight, input, output", "input, output"):
        machine = machine_with(held, "input", "0.125")
        outermost = machine.outermost.model_copy(update={"has_shared_port": shares_port})
        machine = machine.model_copy(update={"levels": (*machine.levels[:-1], outermost)})
        for tiles in TILES:
            plan = plan_of(tiles, True, False)
            pricer = Pricer(machine, fusing_level(machine), objective, TIMELOOP, 60.0)
            priced, count = pricer.price(chain(), plan), count_plan(chain(), plan)
            assert priced is not None
            (least,) = pricer.least(chain())(np.array([count.moved_words]), np.array([count.num_macs]))
            value = priced.cycles if objective == "latency" else priced.energy_pj
            assert least <= value * (1 + 1e-9)
            if objective == "latency" and not tiles and "weight" in held:
                assert ceil(least) == value == 8 * (4 + 6 + 6) + (4 if shares_port else 0)
