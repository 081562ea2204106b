"""From a partition to launches: aliases, views, segments, reuse, and what the edges of shapes ask for."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.choices import with_choices

from tilewright.compiler import plan
from tilewright.explain import explain_program
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.memory.arena import ArenaPlanner
from tilewright.memory.base import MemoryPlan
from tilewright.options import Options
from tilewright.partition import PartitionProblem
from tilewright.partition.base import Reason
from tilewright.partition.form import Blocking, Form
from tilewright.partition.none import NonePartitioner
from tilewright.partition.random import RandomPartitioner
from tilewright.planning import Budget, Limits
from tilewright.program import Program
from tilewright.schedule import ScheduleProblem
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.random import RandomScheduler
from tilewright.schedule.sequential import Sequential
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.lower.arrange import arrange
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredModel, LoweredStage
from tilewright.targets.cpu.lower.storage import Weights, caller_homes, memory_problem
from tilewright.targets.cpu.target import CpuTarget
from tilewright.tuning import Choice

F32, I64 = DType.FLOAT32, DType.INT64
Array = np.ndarray[Any, Any]


class Net:
    """A graph grown node by node; shapes are given."""

    def __init__(self) -> None:
        self.graph = Graph("net")
        self.rng = np.random.default_rng(0)

    def input(self, *shape: int, dtype: DType = F32) -> Value:
        return self.graph.add_input(Value(f"x{len(self.graph.inputs)}", dtype, shape))

    def constant(self, *shape: int) -> Value:
        return self.graph.constant(self.rng.standard_normal(shape).astype(np.float32))

    def ints(self, *numbers: int) -> Value:
        return self.graph.constant(np.array(numbers, np.int64))

    def op(self, op_type: str, inputs: list[Value], *shapes: tuple[int, ...], **attributes: Attribute) -> Any:
        outputs = [self.graph.value(op_type.lower(), inputs[0].dtype, s) for s in shapes]
        self.graph.append(Node(op_type, inputs, outputs, attributes, opset=20))
        return outputs[0] if len(outputs) == 1 else outputs

    def conv(self, x: Value, filters: int) -> Value:
        weight = self.constant(filters, x.shape[1], 3, 3)
        shape = (x.shape[0], filters, *x.shape[2:])
        result: Value = self.op("Conv", [x, weight], shape, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        return result


def program(net: Net, *outputs: Value, whole: bool = False) -> Program:
    """Each node a subgraph of its own, or all of them one."""
    net.graph.outputs = list(outputs)
    problem = PartitionProblem(net.graph)
    partitioner = RandomPartitioner(0, 1.0) if whole else NonePartitioner()
    partition = partitioner.solve(problem, Budget(1000))
    schedule = Sequential().solve(ScheduleProblem(partition), Budget(0))
    options = Options(no_cache=True, threads=2, accuracy="strict")
    return Program(net.graph, partition, schedule, options)


def lower(net: Net, *outputs: Value, whole: bool = False) -> LoweredModel:
    one = program(net, *outputs, whole=whole)
    return arrange(lower_partition(one.partition, host_isa()), one.schedule)


def launches(lowered: LoweredModel) -> list[KernelLaunch]:
    return list(lowered.launches)


def run(net: Net, *outputs: Value, whole: bool = False) -> tuple[dict[str, Array], dict[str, Array]]:
    """What generated code gives and what the reference gives."""
    one = program(net, *outputs, whole=whole)
    rng = np.random.default_rng(1)
    feed = {v.name: rng.integers(-3, 4, v.shape).astype(v.dtype.numpy) for v in net.graph.inputs}
    executable = CpuTarget().generate(one).load(2)
    try:
        return executable.run(feed), run_graph(net.graph, feed)
    finally:
        executable.close()


def agrees(net: Net, *outputs: Value, whole: bool = False) -> None:
    got, want = run(net, *outputs, whole=whole)
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)


# Schedules.


def test_one_lowering_serves_any_number_of_schedules() -> None:
    net = Net()
    x = net.input(1, 16, 12, 12)
    parts = [net.op("Relu", [net.conv(x, n)], (1, n, 12, 12)) for n in (8, 24, 16)]
    joined = net.op("Concat", parts, (1, 48, 12, 12), axis=1)
    one = program(net, net.conv(joined, 8), net.op("Neg", [parts[1]], parts[1].shape))
    problem = ScheduleProblem(one.partition, limits=Limits(3))
    lowered = lower_partition(one.partition, host_isa())
    planners = (Sequential(), Sequential(order="memory"), Greedy(), RandomScheduler(0), RandomScheduler(1))
    orders = set()
    for planner in planners:
        model = arrange(lowered, planner.solve(problem, Budget()))
        arranged = launches(model)
        orders.add(tuple(map(id, arranged)))
        assert len(arranged) == len(set(map(id, arranged)))
        assert {id(x) for x in arranged} == {
            id(x) for x in (*lowered.before, *(x for work in lowered.work for x in work), *lowered.after)
        }
    assert len(orders) > 1
    assert max(len(step.launches) for step in model.steps if isinstance(step, LoweredStage)) > 1


def test_a_schedule_of_another_partition_is_not_arranged() -> None:
    def one() -> Program:
        net = Net()
        return program(net, net.op("Exp", [net.op("Relu", [net.input(4, 6)], (4, 6))], (4, 6)))

    with pytest.raises(ValueError, match="another partition"):
        arrange(lower_partition(one().partition, host_isa()), one().schedule)


def blockwise(size: int) -> tuple[Net, Program]:
    """Two convolutions with an activation between, as one subgraph to be computed in blocks of 4 lines."""
    net = Net()
    middle = net.op("Relu", [net.conv(net.input(1, 16, size, size), 32)], (1, 32, size, size))
    end = net.op("Sigmoid", [net.conv(middle, 16)], (1, 16, size, size))
    one = program(net, end, whole=True)
    form = Form.whole(len(one.partition.subgraphs[0].nodes), Blocking((1, 16, 4, size)), 0.25)
    (whole,) = one.partition.subgraphs
    decisions = tuple(replace(d, reason=Reason.BLOCKWISE) for d in one.partition.decisions)
    partition = replace(one.partition, subgraphs=(replace(whole, form=form),), decisions=decisions)
    return net, one.with_partition(partition)


def test_a_form_that_was_made_stays_in_the_account() -> None:
    _, one = blockwise(12)
    placed = CpuTarget().place(one, host_isa())
    assert placed.program is one
    assert [launch.kernel.template for launch in launches(placed.lowered)].count("fused") == 1


def test_a_form_that_cannot_be_made_is_no_longer_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are what they were; the account says which edges kernels of their own end at."""
    net, one = blockwise(12)
    monkeypatch.setattr(
        "tilewright.targets.cpu.lower.lower.lower_fused", lambda *a, **k: Declined("today not")
    )
    code = CpuTarget().generate(one)
    (subgraph,) = code.program.partition.subgraphs
    assert subgraph.form is None
    reasons = {d.consumer.op_type: d.reason for d in code.program.partition.decisions}
    assert reasons == {"Relu": Reason.CLUSTER, "Conv": Reason.SEPARATE, "Sigmoid": Reason.CLUSTER}
    edges = explain_program(code.program, code.steps, (), None).edges

    assert [e.is_fused for e in edges] == [e.code != "separate" for e in edges]
    feed = {v.name: net.rng.standard_normal(v.shape).astype(np.float32) for v in net.graph.inputs}
    executable = code.load(2)
    got = executable.run(feed)
    executable.close()
    for name, want in run_graph(net.graph, feed).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)


# Aliases.


def test_a_reshape_is_another_name_for_the_same_memory() -> None:
    net = Net()
    y = net.op("Relu", [net.input(4, 6)], (4, 6))
    flat = net.op("Reshape", [y, net.ints(24)], (24,))
    lowered = lower(net, net.op("Exp", [flat], (24,)))
    assert lowered.root(flat) is y
    assert len(launches(lowered)) == 2


def test_an_output_that_reshapes_an_input_is_copied() -> None:
    net = Net()
    flat = net.op("Reshape", [net.input(4, 6), net.ints(24)], (24,))
    lowered = lower(net, flat)
    assert lowered.root(flat) is flat
    assert len(launches(lowered)) == 1
    agrees(net, flat)


def test_two_outputs_never_share_memory() -> None:
    net = Net()
    y = net.op("Relu", [net.input(4, 6)], (4, 6))
    first, second = (net.op("Reshape", [y, net.ints(*s)], s) for s in ((24,), (6, 4)))
    lowered = lower(net, y, first, second)
    assert len({lowered.root(v) for v in (y, first, second)}) == 3
    agrees(net, y, first, second)


# Views.


def test_operands_of_a_concatenation_are_computed_inside_it() -> None:
    net = Net()
    x = net.input(2, 4, 5)
    parts = [net.op(name, [x], (2, 4, 5)) for name in ("Relu", "Neg", "Abs")]
    whole = net.op("Concat", parts, (2, 12, 5), axis=1)
    lowered = lower(net, net.op("Exp", [whole], (2, 12, 5)))
    assert [lowered.root(p) for p in parts] == [whole] * 3
    assert [lowered.root_offset(p) for p in parts] == [0, 4 * 5, 8 * 5]
    assert len(launches(lowered)) == 4


def test_an_operand_given_twice_is_copied_the_second_time() -> None:
    net = Net()
    y = net.op("Relu", [net.input(2, 4, 5)], (2, 4, 5))
    agrees(net, net.op("Concat", [y, y], (2, 8, 5), axis=1))


def test_operands_that_the_caller_holds_stay_where_they_are() -> None:
    net = Net()
    x = net.input(2, 4, 5)
    y = net.op("Relu", [x], (2, 4, 5))
    joined = net.op("Concat", [x, y], (2, 8, 5), axis=1)
    lowered = lower(net, y, joined)
    assert lowered.root(x) is x
    assert lowered.root(y) is y
    agrees(net, y, joined)


def test_splits_are_strided_looks() -> None:
    net = Net()
    y = net.op("Relu", [net.input(2, 6, 5)], (2, 6, 5))
    left, right = net.op("Split", [y, net.ints(2, 4)], (2, 2, 5), (2, 4, 5), axis=1)
    outputs = net.op("Neg", [left], (2, 2, 5)), net.op("Abs", [right], (2, 4, 5))
    lowered = lower(net, *outputs)
    assert lowered.root(left) is lowered.root(right) is y
    assert (lowered.root_offset(left), lowered.root_offset(right)) == (0, 10)
    agrees(net, *outputs)


def test_readers_of_a_view_run_after_what_it_looks_at_in_one_subgraph() -> None:
    """Both come from the same subgraph under different names: they must not become chunks of one kernel."""
    net = Net()
    x = net.input(2, 6, 40)
    top = net.op("ReduceMax", [x, net.ints(2)], (2, 6, 1), keepdims=1)
    left, right = net.op("Split", [top, net.ints(4, 2)], (2, 4, 1), (2, 2, 1), axis=1)
    outputs = net.op("GlobalAveragePool", [left], (2, 4, 1)), net.op("Neg", [left], (2, 4, 1)), right
    lowered = lower(net, *outputs, whole=True)
    for launch in launches(lowered):
        named = {t for t in launch.reads if t not in launch.writes}
        assert not {lowered.root(t) for t in named} & {lowered.root(t) for t in launch.writes}
    agrees(net, *outputs, whole=True)


# Reuse of memory.


def reuses(net: Net, output: Value) -> dict[str, tuple[str, ...]]:
    lowered = lower(net, output)
    problem, _ = memory_problem(lowered, net.graph)
    return {b.name.split(":")[1]: tuple(r.split(":")[1] for r in b.may_reuse) for b in problem.buffers}


def test_an_elementwise_result_may_be_written_over_its_dead_operand() -> None:
    net = Net()
    a = net.op("Relu", [net.input(4, 40)], (4, 40))
    b = net.op("Exp", [a], (4, 40))
    assert reuses(net, net.op("Neg", [b], (4, 40)))[b.name] == (a.name,)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "choice", [Choice.of("winograd", tile=4), Choice.of("winograd", tile=2), None], ids=str
)
def test_a_product_may_be_written_over_what_is_added_to_it(choice: Choice | None) -> None:
    net = Net()
    x = net.op("Relu", [net.input(1, 32, 14, 14)], (1, 32, 14, 14))
    added = net.op("Add", [net.conv(net.conv(x, 32), 32), x], x.shape)
    end = net.conv(net.op("Relu", [added], x.shape), 32)
    net.graph.outputs = [end]
    options = Options(no_cache=True, threads=2)
    one = plan(net.graph, options).program
    lowered = CpuTarget().place(one, host_isa()).lowered
    (signature,) = [
        launch.kernel.signature
        for launch in launches(lowered)
        if {"Conv", "Add"} <= {n.op_type for n in launch.nodes}
    ]
    one = with_choices(one, {} if choice is None else {signature: choice})
    code = CpuTarget().generate(one)
    problem, _ = memory_problem(code.lowered, net.graph)
    assert x.name in {name.split(":")[1] for buffer in problem.buffers for name in buffer.may_reuse}
    (launch,) = [x for x in launches(code.lowered) if x.kernel.signature == signature]
    if choice is not None:
        assert launch.kernel.template == f"winograd-{choice.get('tile')}"
    assert [t.name for t in launch.may_overwrite if isinstance(t, Value)] == [x.name]
    feed = {v.name: net.rng.standard_normal(v.shape).astype(np.float32) for v in net.graph.inputs}
    executable = code.load(2)
    got = executable.run(feed)[end.name]
    executable.close()
    want = run_graph(net.graph, feed)[end.name]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_a_result_is_not_written_over_what_lives_on() -> None:
    net = Net()
    a = net.op("Relu", [net.input(4, 40)], (4, 40))
    b = net.op("Exp", [a], (4, 40))
    assert reuses(net, net.op("Add", [a, b], (4, 40)))[b.name] == ()


def test_an_operand_read_elsewhere_too_is_never_written_over() -> None:
    net = Net()
    a = net.op("Relu", [net.input(40, 40)], (40, 40))
    turned = net.op("Transpose", [a], (40, 40), perm=(1, 0))
    row = net.op("Relu", [net.input(1, 40)], (1, 40))
    first = net.op("Add", [a, turned], (40, 40))
    second = net.op("Add", [first, row], (40, 40))
    found = reuses(net, net.op("Neg", [second], (40, 40)))
    assert found[first.name] == ()
    assert found[second.name] == (first.name,)


def test_buffers_live_from_their_first_to_their_last_toucher() -> None:
    net = Net()
    a = net.op("Relu", [net.input(4, 40)], (4, 40))
    b = net.op("Exp", [a], (4, 40))
    lowered = lower(net, net.op("Add", [a, b], (4, 40)))
    problem, names = memory_problem(lowered, net.graph)
    ranges = {b.name: (b.first_step, b.last_step) for b in problem.buffers}
    assert ranges == {names[a]: (0, 2), names[b]: (1, 2)}
    plan = ArenaPlanner().solve(problem, Budget(0))
    assert isinstance(plan, MemoryPlan)


def test_what_the_caller_holds_is_not_in_the_arena() -> None:
    net = Net()
    x = net.input(4, 40)
    y = net.op("Relu", [x], (4, 40))
    lowered = lower(net, y)
    assert memory_problem(lowered, net.graph)[0].buffers == ()
    assert caller_homes(lowered, net.graph) == {x: x, y: y}


def test_equal_constants_are_stored_once_per_arrangement() -> None:
    weights = Weights()
    value = Value("w", F32, (3,), np.arange(3, dtype=np.float32))
    assert weights.offset(value) == weights.offset(value) == 0
    assert weights.size_bytes == 64
    target = np.zeros(64, np.uint8)
    weights.fill(target)
    np.testing.assert_array_equal(target[:12].view(np.float32), np.arange(3))


# Layouts.


def test_a_chain_of_convolutions_is_reordered_at_its_ends_only() -> None:
    net = Net()
    x = net.input(1, 16, 6, 6)
    first = net.conv(x, 32)
    second = net.conv(net.op("Relu", [first], first.shape), 16)
    lowered = lower(net, second)
    is_product = [launch.kernel.template != "loop-nest" for launch in launches(lowered)]
    assert is_product == [False, True, False, True, False]
    assert lowered.layouts[first].order == (0, 2, 3, 1)
    agrees(net, second)


def test_an_image_of_few_planes_is_read_as_it_comes() -> None:
    net = Net()
    y = net.conv(net.input(1, 3, 6, 6), 16)
    kernels = [launch.kernel.template for launch in launches(lower(net, y))]
    assert kernels == ["contraction", "loop-nest"]


# Edges of shapes.


def _conv(net: Net) -> Value:
    return net.conv(net.input(0, 3, 8, 8), 16)


def _no_steps(net: Net) -> Value:
    result: Value = net.op("MatMul", [net.input(3, 0), net.input(0, 20)], (3, 20))
    return result


def _no_rows(net: Net) -> Value:
    result: Value = net.op("MatMul", [net.input(0, 5), net.constant(5, 20)], (0, 20))
    return result


def _no_steps_with_bias(net: Net) -> Value:
    shape = (3, 20)
    result: Value = net.op("Gemm", [net.input(3, 0), net.constant(0, 20), net.constant(20)], shape)
    return result


def _turned(net: Net) -> Value:
    result: Value = net.op("Transpose", [net.input(0, 4, 2)], (2, 0, 4), perm=(2, 0, 1))
    return result


def _joined(net: Net) -> Value:
    result: Value = net.op("Concat", [net.input(2, 0), net.input(2, 3)], (2, 3), axis=1)
    return result


def _scalars(net: Net) -> Value:
    result: Value = net.op("Add", [net.input(), net.input()], ())
    return result


def _dot(net: Net) -> Value:
    result: Value = net.op("MatMul", [net.input(40), net.input(40)], ())
    return result


@pytest.mark.parametrize(
    "build", [_conv, _no_steps, _no_rows, _no_steps_with_bias, _turned, _joined, _scalars, _dot]
)
def test_empty_tensors_and_scalars(build: Callable[[Net], Value]) -> None:
    net = Net()
    agrees(net, build(net))


def test_texts_do_not_depend_on_identities() -> None:
    """Lowering twice gives the same kernels in the same order."""

    def symbols() -> list[str]:
        net = Net()
        x = net.input(1, 16, 6, 6)
        parts = [net.conv(x, n) for n in (8, 24, 16)]
        joined = net.op("Concat", parts, (1, 48, 6, 6), axis=1)
        return [launch.kernel.symbol for launch in launches(lower(net, net.conv(joined, 8), joined))]

    assert symbols() == symbols()
