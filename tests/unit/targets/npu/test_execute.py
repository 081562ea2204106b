"""A value that was never computed is an error, also where it happens to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.support.accelerator import plan

from tilewright.errors import InternalError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import ScopePlan, place
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.schedule.binding import bind
from tilewright.schedule.instances import instance_graph
from tilewright.targets.npu.execute import execute

TYPES = [DType.INT64, DType.UINT8, DType.FLOAT32, DType.BOOL]


def chain(dtype: DType, *ops: tuple[str, tuple[int, ...], dict[str, Attribute]]) -> Graph:
    """Operators one after another, from an input of 4 by 6 elements."""
    graph = Graph("chain")
    value = graph.add_input(Value("x", dtype, (4, 6)))
    for op_type, shape, attributes in ops:
        result = graph.value(op_type.lower(), dtype, shape)
        more = [graph.constant(np.array(shape, np.int64), "n")] if op_type == "Reshape" else []
        graph.append(Node(op_type, [value, *more], [result], attributes))
        value = result
    graph.outputs = [value]
    return graph


def planned(graph: Graph, splits: Sequence[Split]) -> ScopePlan:
    partition = PARTITIONERS.get("none").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    instances = instance_graph(partition, splits)
    order = tuple(range(len(instances.nodes)))
    return place(instances, order, bind(instances, order, 1), load_preset("stcp920"))


def with_steps(plan: ScopePlan, *steps: InstanceStep) -> ScopePlan:
    return replace(plan, timeline=replace(plan.timeline, steps=steps))


def begun(plan: ScopePlan) -> ScopePlan:
    """As if the plan ended after its first step, which makes one buffer."""
    timeline = plan.timeline
    problem = replace(timeline.problem, buffers=timeline.problem.buffers[:1])
    first = replace(timeline, steps=timeline.steps[:1], contents=timeline.contents[:1], problem=problem)
    return replace(plan, timeline=first)


def nothing(graph: Graph) -> dict[str, np.ndarray]:
    """Zeros, which any memory may hold by chance."""
    return {v.name: np.zeros(v.shape, v.dtype.numpy) for v in graph.inputs}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_part_that_a_concatenation_does_not_collect_is_an_error(dtype: DType) -> None:
    graph = chain(dtype, ("Identity", (4, 6), {}), ("Transpose", (6, 4), {"perm": (1, 0)}))
    plan = planned(graph, (Split(0, 2), Split(None, 1)))
    np.testing.assert_array_equal(
        execute(plan, nothing(graph))["transpose"], run_graph(graph, nothing(graph))["transpose"]
    )
    place_of = next(i for i, step in enumerate(plan.steps) if not step.operators)
    cut = replace(plan.steps[place_of], reads=plan.steps[place_of].reads[:1])
    with pytest.raises(InternalError, match="made by nothing"):
        execute(with_steps(plan, *plan.steps[:place_of], cut, *plan.steps[place_of + 1 :]), nothing(graph))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_result_of_which_a_part_is_not_made_is_an_error(dtype: DType) -> None:
    graph = chain(dtype, ("Identity", (4, 6), {}))
    plan = planned(graph, (Split(0, 2),))
    with pytest.raises(InternalError, match="of identity are made by nothing"):
        execute(begun(plan), nothing(graph))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0, 1])
def test_an_operator_that_needs_more_than_is_read_is_an_error(dtype: DType, value: int) -> None:
    """A part of a changed shape: of 3 rows of 8 elements, the second needs parts of two rows of 6."""
    graph = chain(dtype, ("Identity", (4, 6), {}), ("Reshape", (3, 8), {}))
    plan = planned(graph, (Split(None, 1), Split(0, 3)))
    feed = {"x": np.full((4, 6), value, dtype.numpy)}
    np.testing.assert_array_equal(execute(plan, feed)["reshape"], feed["x"].reshape(3, 8))
    for number, step in enumerate(plan.steps[1:], 1):
        (read,) = step.reads
        rows, columns = read.region
        less = replace(read, region=((rows[0], rows[1] - 1), columns))
        steps = (*plan.steps[:number], replace(step, reads=(less,)), *plan.steps[number + 1 :])
        with pytest.raises(InternalError, match="reshape"):
            execute(with_steps(plan, *steps), feed)


def test_a_scalar_among_the_inputs_stays_one() -> None:
    node = helper.make_node("Mul", ["x", "factor"], ["y"], "scale")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    factor = helper.make_tensor_value_info("factor", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    model = helper.make_model(helper.make_graph([node], "scaled", [x, factor], [y]))
    graph = load_onnx(model)
    feed = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "factor": np.array(3, np.float32)}
    planned = plan(graph, load_preset("stcp920"))
    assert np.array_equal(execute(planned.scopes, feed)["y"], 3 * feed["x"])
