"""Networks whose kernels are tuned one by one, for figure 12."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.reproduce.ios.runs import IosJob, problem_of

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Node
    from tilewright.loops.problem import Problem
    from tilewright.schedule.base import ScheduleProblem


@dataclass(frozen=True, slots=True)
class Tuned:
    """A network of tuned kernels, one after another, and the CPU seconds that tuning them took."""

    time_ns: float
    cpu_s: float
    num_kernels: int


def tuned(job: IosJob) -> Tuned:
    """A network of the zoo with tuned kernels."""
    return tuned_kernels(problem_of(job.network, job.machine, job.batch))


def tuned_kernels(problem: ScheduleProblem) -> Tuned:
    """Every sum of products of some units in blocks of threads by CoSA's program, one after another.

    A kernel takes no less than one launch; what has no sums of products takes what it takes untuned.
    """
    assert problem.machine is not None
    machine = in_float32(problem.machine)
    launch_ns = machine.overheads.kernel_launch_ns
    known: dict[object, float] = {}
    total_ns = 0.0
    started = time.process_time()
    for subgraph in problem.partition.subgraphs:
        mapped = list(_problems(subgraph.nodes))
        if not mapped:
            total_ns += problem.kernel(subgraph.id).time_ns
        for layer in mapped:
            key = layer.dims, layer.operands
            if key not in known:
                known[key] = _mapped_ns(layer, machine)
            total_ns += launch_ns + known[key]
    return Tuned(total_ns, time.process_time() - started, len(known))


def in_float32(machine: Machine) -> Machine:
    """A GPU that computes in float32 alone, with words as long."""
    levels = [
        level.model_copy(
            update={
                "word_bits": 32,
                "words_per_access": max(1, level.words_per_access * level.word_bits // 32),
            }
        )
        for level in machine.levels
    ]
    alone = [
        unit.model_copy(update={"macs_per_cycle": {"float32": unit.macs_per_cycle["float32"]}})
        for unit in machine.units
        if unit.kind == "mac"
    ]
    return machine.model_copy(update={"units": tuple(alone), "levels": tuple(levels)})


def _problems(nodes: tuple[Node, ...]) -> Iterator[Problem]:
    from tilewright.mapping.network import layers_in

    yield from (layer.problem for layer in layers_in(nodes) if layer.problem is not None)


def _mapped_ns(problem: Problem, machine: Machine) -> float:
    from tilewright.cost.options import TIMELOOP
    from tilewright.errors import InfeasibleMapping
    from tilewright.mapping.cosa import Cosa
    from tilewright.mapping.gpu import solve_blocks
    from tilewright.planning import Budget, Infeasible

    answer = solve_blocks(Cosa("paper"), problem, machine, "latency", TIMELOOP, Budget())
    if isinstance(answer, Infeasible):
        raise InfeasibleMapping(f"{problem.name}: {answer}")
    return answer.cost.cycles / (machine.clock_hz or 1.0) * 1e9
