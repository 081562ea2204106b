"""What joint tilings cost beside mappings of the whole machine."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.cost.options import TIMELOOP
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.chains.chain import Chain, chain_of
from tilewright.mapping.chains.plan import ChainPlan, Tiling, count_plan
from tilewright.mapping.chains.price import ChainCost, Pricer
from tilewright.mapping.chains.solve import fusing_level
from tilewright.mapping.constraints import Constraints, NoLoop
from tilewright.mapping.exact import Exact
from tilewright.mapping.network import layers_of
from tilewright.planning import UNLIMITED, Budget


def pointwise_convolution() -> Graph:
    """Operands of whole accesses: 512 words, 64 and 512."""
    build = GraphBuilder()
    x = build.input(1, 8, 8, 8)
    return build.finish(build.op("Conv", x, build.constant(8, 8, 1, 1), shape=(1, 8, 8, 8)))


def with_ample_buffer(machine: Machine) -> Machine:
    name = fusing_level(machine).name
    sized = {"capacity_bytes": 1 << 20, "shares": ()}
    levels = (x.model_copy(update=sized) if x.name == name else x for x in machine.levels)
    return machine.model_copy(update={"levels": tuple(levels)})


def priced(
    machine: Machine, chain: Chain, tiling: Tiling, objective: Literal["latency", "energy"]
) -> ChainCost:
    pricer = Pricer(machine, fusing_level(machine), objective, TIMELOOP, 5.0)
    plan = ChainPlan(tiling, (0,) * len(chain.parts))
    cost = pricer.price(chain, plan)
    assert cost is not None
    count = count_plan(chain, plan)
    least = pricer.least(chain)(np.array([count.moved_words]), np.array([count.num_macs]))[0]
    assert least <= (cost.cycles if objective == "latency" else cost.energy_pj) * (1 + 1e-9)
    return cost


@pytest.mark.parametrize("name", ["eyeriss", "simba-cosa-repo"])
def test_a_single_step_costs_what_the_best_mapping_does_that_keeps_everything_on_chip(name: str) -> None:
    machine = with_ample_buffer(load_preset(name))
    graph = pointwise_convolution()
    cost = priced(machine, chain_of(graph.nodes), Tiling((), ()), "energy")
    ((problem,),) = ([layer.problem] for layer in layers_of(graph))
    assert problem is not None
    outermost = machine.outermost.name
    absent = Constraints.of(NoLoop(outermost, dim) for dim, extent in problem.dims if extent > 1)
    task = MappingProblem(problem, machine, "energy", constraints=absent)
    answer = Exact().solve(task, Budget(UNLIMITED))
    assert isinstance(answer, MappingSolution)
    assert cost.energy_pj == pytest.approx(answer.cost.energy_pj)
    tensors = answer.cost.levels[0].tensors
    assert cost.read_words == sum(tensor.reads for tensor in tensors.values())
    assert cost.written_words == sum(tensor.updates for tensor in tensors.values())


def test_steps_that_only_divide_the_work_take_their_sum() -> None:
    machine = with_ample_buffer(load_preset("eyeriss"))
    chain = chain_of(pointwise_convolution().nodes)
    rows = next(i for i, loop in enumerate(chain.loops) if loop.name == "oh")
    whole = priced(machine, chain, Tiling((), ()), "latency")
    halves = priced(machine, chain, Tiling((rows,), (4,)), "latency")
    assert halves.moved_words == whole.moved_words
    assert halves.cycles >= whole.cycles


def test_partial_sums_that_wait_for_later_steps_are_read_again() -> None:
    machine = with_ample_buffer(load_preset("eyeriss"))
    silent = {"read_pj": 0.0, "write_pj": 0.0}
    level = fusing_level(machine)
    levels = tuple(x if x.name == level.name else x.model_copy(update=silent) for x in machine.levels)
    units = tuple(unit.model_copy(update={"mac_pj": 0.0}) for unit in machine.units)
    machine = machine.model_copy(update={"levels": levels, "units": units})
    chain = chain_of(pointwise_convolution().nodes)
    channels = next(i for i, loop in enumerate(chain.loops) if loop.name == "c")
    whole = priced(machine, chain, Tiling((), ()), "energy")
    halves = priced(machine, chain, Tiling((channels,), (4,)), "energy")
    # Each sum is read once more, and written once more.
    read_again = (
        chain.parts[0].num_words * (level.read_access_pj + level.write_access_pj) / level.words_per_access
    )
    assert halves.energy_pj == pytest.approx(whole.energy_pj + read_again)
