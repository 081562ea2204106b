"""Schedules as steps: where groups wait, operators on the host, kernels of several operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.frontend.onnx import load_onnx
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.form import Blocking, Form
from tilewright.planning import Limits, Provenance
from tilewright.program import Program
from tilewright.schedule import ScheduleProblem
from tilewright.schedule.base import Group, Instance, Schedule, Stage, build_schedule
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.lower.arrange import Barriers, arrange, numbered
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import HostOperator, LoweredModel, LoweredStage
from tilewright.targets.cpu.target import CpuTarget

BARRIERS: tuple[Barriers, ...] = ("stages", "strict")

# A group with an operator that runs on the host between two kernels, beside one of three kernels.
HOST_IN_A_GROUP = """<ir_version: 9, opset_import: ["": 18]>
 g (float[64,2000] x, float[64,64] y, int64[1] k) => (float[64,12] a, int64[64,12] where, float[64,64] b)
 <int64[1] k = {12}> {
   p = Exp(x)
   top, where = TopK(p, k)
   a = Relu(top)
   q = MatMul(y, y)
   r = Softmax(q)
   b = MatMul(r, y)
 }"""

BRANCHES = """<ir_version: 9, opset_import: ["": 18]>
 g (float[1,16,16,16] x, float[32,16,3,3] v, float[16,32,3,3] w)
  => (float[1,16,16,16] a, float[1,16,16,16] b) {
   c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, v)
   d = Relu(c)
   a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(d, w)
   e = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, v)
   f = Sigmoid(e)
   b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(f, w)
 }"""


def graph_of(text: str, **constants: tuple[int, ...]) -> Graph:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    for name, shape in constants.items():
        array = (rng.standard_normal(shape) * 0.2).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for name in (*constants, "k"):
        given = [i for i in model.graph.input if i.name == name]
        for value in given:
            model.graph.input.remove(value)
    return load_onnx(model)


def partition_of(graph: Graph, *sizes: int) -> Partition:
    """The first so many nodes in one subgraph, the next in another, and so on."""
    nodes = iter(graph.nodes)
    clusters = [[next(nodes) for _ in range(size)] for size in sizes]
    return build_partition(
        PartitionProblem(graph),
        clusters,
        lambda producer, consumer, value, fused: Reason.CLUSTER if fused else Reason.COST,
        Provenance("test"),
    )


def one_stage(partition: Partition, *groups: tuple[int, ...]) -> Schedule:
    stage = Stage(tuple(Group(tuple(map(Instance, ids))) for ids in groups))
    return build_schedule(ScheduleProblem(partition, limits=Limits(4)), (stage,), Provenance("test"))


def shape_of(lowered: LoweredModel) -> list[Any]:
    """Of each step how many kernels its groups have, or the operator that runs on the host."""
    return [
        step.node.op_type if isinstance(step, HostOperator) else [len(g.launches) for g in step.groups]
        for step in lowered.steps
    ]


def check_values(graph: Graph, schedule: Schedule, barriers: Barriers) -> None:
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    want = run_graph(graph, feed)
    options = Options(no_cache=True, threads=2)
    code = CpuTarget(barriers).generate(Program(graph, schedule.partition, schedule, options))
    for num_threads in (1, 2, 3):
        executable = code.load(num_threads)
        for _ in range(5):
            got = executable.run(feed)
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
        executable.close()


def test_groups_meet_where_an_operator_runs_on_the_host() -> None:
    graph = graph_of(HOST_IN_A_GROUP)
    partition = partition_of(graph, 1, 1, 1, 1, 1, 1)
    schedule = one_stage(partition, (0, 1, 2), (3, 4, 5))
    lowering = lower_partition(partition, host_isa())
    assert shape_of(arrange(lowering, schedule)) == [[1, 3], "TopK", [1]]
    assert shape_of(arrange(lowering, schedule, "strict")) == [[1, 1], "TopK", [1], [1, 1]]
    for barriers in BARRIERS:
        check_values(graph, schedule, barriers)


@pytest.mark.parametrize("barriers", BARRIERS)
def test_positions_number_all_that_runs_group_by_group(barriers: Barriers) -> None:
    graph = graph_of(HOST_IN_A_GROUP)
    partition = partition_of(graph, 1, 1, 1, 1, 1, 1)
    lowered = arrange(
        lower_partition(partition, host_isa()), one_stage(partition, (0, 1, 2), (3, 4, 5)), barriers
    )
    work = list(numbered(lowered))
    assert [launch for _, _, launch in work if not isinstance(launch, HostOperator)] == list(lowered.launches)
    assert [step for step, _, _ in work] == sorted(step for step, _, _ in work)
    assert len(work) == 6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("barriers", BARRIERS)
def test_kernels_of_several_operators_run_in_groups(barriers: Barriers) -> None:
    graph = graph_of(BRANCHES, v=(32, 16, 3, 3), w=(16, 32, 3, 3))
    partition = partition_of(graph, 3, 3)
    form = Form.whole(3, Blocking((1, 16, 4, 16)), 0.25)
    partition = replace(
        partition,
        subgraphs=tuple(replace(s, form=form) for s in partition.subgraphs),
        decisions=tuple(replace(d, reason=Reason.BLOCKWISE) for d in partition.decisions),
    )
    schedule = one_stage(partition, (0,), (1,))
    lowered = arrange(lower_partition(partition, host_isa()), schedule, barriers)
    (together,) = [x for x in lowered.steps if isinstance(x, LoweredStage) and len(x.groups) == 2]
    assert [launch.kernel.template for launch in together.launches] == ["fused", "fused"]
    check_values(graph, schedule, barriers)
