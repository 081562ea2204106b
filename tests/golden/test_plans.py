"""How planners cut, order and place one graph, as text: `tests/golden/plans/<plan>.txt`.

Each file holds one combination of target, partitioner and scheduler: which nodes run together and why, in
which order, what that costs and what it costs at least. `python -m tests.golden.rewrite` writes them anew.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler import plan
from tilewright.ir.text import parse_graph
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.program import Program
from tilewright.schedule.base import Schedule
from tilewright.target_ref import TargetRef

SHAPES = {"w1": (32, 16, 3, 3), "w2": (32, 32, 1, 1), "w3": (32, 32, 3, 3), "w4": (64, 10)}
FOLDER = Path(__file__).parent / "plans"
GRAPH = """
graph "branches" opset 17 {
  input %x: float32[4, 16, 256, 256]
  const %w1: float32[32, 16, 3, 3] = sha256:w1
  const %w2: float32[32, 32, 1, 1] = sha256:w2
  const %w3: float32[32, 32, 3, 3] = sha256:w3
  const %w4: float32[64, 10] = sha256:w4
  %c1: float32[4, 32, 256, 256] = Conv(%x, %w1) {pads = [1, 1, 1, 1]} "stem"
  %r1: float32[4, 32, 256, 256] = Relu(%c1) "relu"
  %c2: float32[4, 32, 256, 256] = Conv(%r1, %w2) "left"
  %c3: float32[4, 32, 256, 256] = Conv(%r1, %w3) {pads = [1, 1, 1, 1]} "right"
  %s3: float32[4, 32, 256, 256] = Sigmoid(%c3) "gate"
  %j: float32[4, 64, 256, 256] = Concat(%c2, %s3) {axis = 1} "join"
  %p: float32[4, 64, 1, 1] = GlobalAveragePool(%j) "pool"
  %f: float32[4, 64] = Flatten(%p) "flatten"
  %y: float32[4, 10] = MatMul(%f, %w4) "classify"
  return %y
}
"""
PLANS = {
    "whole": ("interpreter", "none", "sequential"),
    "layers": ("interpreter", "layerwise", "sequential"),
    "stages": ("interpreter", "layerwise", "greedy"),
    "chance": ("interpreter", "random{seed=3}", "random{seed=3}"),
    "accelerator": ("stcp920", "graphturbo", "sequential"),
    "breadth_first": ("stcp920", "graphturbo", "breadth-first"),
    "depth_first": ("stcp920", "graphturbo{dims=any}", "depth-first"),
    "least_growth": ("stcp920", "graphturbo", "min-delta"),
    "layers_on_accelerator": ("stcp920", "layerwise", "greedy"),
}


def rendered(name: str) -> str:
    target, partition, schedule = PLANS[name]
    options = Options(target=TargetRef.parse(target), partition=partition, schedule=schedule, threads=2)
    constants = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    program = plan(parse_graph(GRAPH, constants=constants), options).program
    return (
        f"target {target}, partition {partition}, schedule {schedule}\n\n"
        f"{of_partition(program.partition)}\n{of_schedule(program.schedule)}\n{of_memory(program)}"
    )


def of_partition(partition: Partition) -> str:
    lines = [f"partition by {partition.provenance.planner}: {partition.quality}"]
    for subgraph in partition.subgraphs:
        nodes = " ".join(node.name for node in subgraph.nodes)
        lines.append(f"  {subgraph.id}: {nodes} ({partition.splits[subgraph.id]})")
    return "".join(f"{line}\n" for line in [*lines, *(f"  {decision}" for decision in partition.decisions)])


def of_schedule(schedule: Schedule) -> str:
    lines = [f"schedule by {schedule.provenance.planner}: {schedule.quality}"]
    if all(len(stage.groups) == 1 for stage in schedule.stages):
        lines += textwrap.wrap(
            " ".join(map(str, schedule.instances())), 100, initial_indent="  ", subsequent_indent="  "
        )
        return "".join(f"{line}\n" for line in lines)
    for number, stage in enumerate(schedule.stages):
        groups = (" ".join(map(str, group.instances)) for group in stage.groups)
        lines.append(f"  stage {number}: {' | '.join(groups)}")
    return "".join(f"{line}\n" for line in lines)


def of_memory(program: Program) -> str:
    memory, problem = program.memory, program.memory_problem
    if memory is None or problem is None:
        return "memory: planned by the target\n"
    return f"memory by {memory.provenance.planner}: {memory.quality}, {len(problem.buffers)} buffers\n"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_what_the_text_says(name: str) -> None:
    assert rendered(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_text_belongs_to_a_plan() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PLANS)


def write() -> None:
    """Write all texts anew."""
    for name in PLANS:
        (FOLDER / f"{name}.txt").write_text(rendered(name))
