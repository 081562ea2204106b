from dataclasses import replace

from tests.support.graphs import GraphBuilder

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, MemoryProblem, check_memory, memory_problem
from tilewright.partition import PARTITIONERS, PartitionProblem, Reason
from tilewright.partition.base import Partition, build_partition
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Budget, Limits, Provenance
from tilewright.schedule import SCHEDULERS, Group, Instance, Schedule, ScheduleProblem, Stage
from tilewright.schedule.base import build_schedule, single


def scheduled(graph: Graph, *, schedule: str = "sequential", groups: int = 1) -> Schedule:
    cut = PARTITIONERS.get("none").solve(PartitionProblem(graph), Budget())
    assert isinstance(cut, Partition)
    ordered = SCHEDULERS.get(schedule).solve(ScheduleProblem(cut, limits=Limits(groups)), Budget())
    assert isinstance(ordered, Schedule)
    return ordered


def scheduled_as(graph: Graph, *sizes: int) -> Schedule:
    """In order, with the first so many nodes in one kernel, the next in another, and so on."""
    nodes = iter(graph.nodes)
    clusters = [[next(nodes) for _ in range(size)] for size in sizes]
    cut = build_partition(PartitionProblem(graph), clusters, reason_of, Provenance("test"))
    assert isinstance(cut, Partition)
    ordered = SCHEDULERS.get("sequential").solve(ScheduleProblem(cut), Budget())
    assert isinstance(ordered, Schedule)
    return ordered


def reason_of(producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
    return Reason.CLUSTER if fused else Reason.COST


def spans(problem: MemoryProblem) -> dict[str, tuple[int, int]]:
    return {b.name: (b.first_step, b.last_step) for b in problem.buffers}


def reuses(problem: MemoryProblem) -> dict[str, tuple[str, ...]]:
    return {b.name: b.may_reuse for b in problem.buffers if b.may_reuse}


def test_values_live_from_their_producer_to_their_last_reader() -> None:
    b = GraphBuilder()
    x = b.input(4, 4)
    y = b.op("Softmax", x, name="y")
    z = b.op("Softmax", y, name="z")
    out = b.op("MatMul", z, y, name="out")
    assert spans(memory_problem(scheduled(b.finish(out)))) == {"y": (0, 2), "z": (1, 2)}


def test_inputs_outputs_and_constants_are_not_in_the_arena() -> None:
    b = GraphBuilder()
    y = b.op("MatMul", b.input(4, 4), b.constant(4, 4), name="y")
    z = b.op("Relu", y, name="z")
    assert set(spans(memory_problem(scheduled(b.finish(y, z))))) == set()


def test_an_element_wise_kernel_may_write_over_the_operand_that_dies() -> None:
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    z = b.op("Relu", y, name="z")
    out = b.op("Softmax", z, name="out")
    schedule = scheduled(b.finish(out))
    assert reuses(memory_problem(schedule)) == {"z": ("y",)}
    assert reuses(memory_problem(schedule, in_place=False)) == {}


def test_an_operand_read_later_is_kept() -> None:
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    z = b.op("Relu", y, name="z")
    assert reuses(memory_problem(scheduled(b.finish(b.op("MatMul", z, y, name="out"))))) == {}


def test_a_graph_input_is_never_overwritten() -> None:
    b = GraphBuilder()
    z = b.op("Relu", b.input(4, 4), name="z")
    assert reuses(memory_problem(scheduled(b.finish(b.op("Softmax", z))))) == {}


def test_a_product_or_pooling_does_not_write_over_its_operand() -> None:
    b = GraphBuilder()
    y = b.op("Relu", b.input(1, 1, 4, 4), name="y")
    z = b.op("MaxPool", y, shape=(1, 1, 4, 4), kernel_shape=(1, 1), name="z")
    w = b.op("MatMul", z, z, name="w")
    assert reuses(memory_problem(scheduled(b.finish(b.op("Relu", w))))) == {}


def test_a_softmax_writes_over_its_operand_once_it_has_the_sum() -> None:
    b = GraphBuilder()
    z = b.op("Softmax", b.op("Relu", b.input(4, 4), name="y"), name="z")
    assert reuses(memory_problem(scheduled(b.finish(b.op("Relu", z))))) == {"z": ("y",)}


def test_an_element_of_another_size_does_not_take_the_place() -> None:
    b = GraphBuilder()
    y = b.op("Relu", b.input(4, 4), name="y")
    z = b.graph.value("z", DType.FLOAT16, (4, 4))
    b.graph.append(Node("Cast", [y], [z], {"to": 10}))
    w = b.graph.value("w", DType.FLOAT16, (4, 4))
    b.graph.append(Node("Relu", [z], [w], {}))
    assert reuses(memory_problem(scheduled(b.finish(w)))) == {}


def test_a_transpose_does_not_write_over_its_operand_but_a_reshape_may() -> None:
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    turned = b.op("Transpose", y, name="turned", perm=(1, 0))
    shaped = b.op("Reshape", turned, b.integers(2, 8), shape=(2, 8), name="shaped")
    assert reuses(memory_problem(scheduled(b.finish(b.op("Softmax", shaped))))) == {"shaped": ("turned",)}


def test_a_broadcast_operand_is_not_written_over() -> None:
    b = GraphBuilder()
    row = b.op("Softmax", b.input(1, 4), name="row")
    full = b.op("Softmax", b.input(4, 4), name="full")
    total = b.op("Add", full, row, name="total")
    assert reuses(memory_problem(scheduled(b.finish(b.op("Softmax", total))))) == {"total": ("full",)}


def test_every_way_through_a_kernel_must_stay_in_place() -> None:
    """relu(y) + transpose(y) in one kernel reads other elements of y than it writes."""
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    straight = b.op("Relu", y)
    turned = b.op("Transpose", y, perm=(1, 0))
    total = b.op("Add", straight, turned, name="total")
    assert reuses(memory_problem(scheduled_as(b.finish(b.op("Softmax", total)), 1, 3, 1))) == {}


def test_a_chain_of_element_wise_operators_may_stay_in_place() -> None:
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    z = b.op("Mul", y, b.op("Sigmoid", y), name="z")
    assert reuses(memory_problem(scheduled_as(b.finish(b.op("Softmax", z)), 1, 2, 1))) == {"z": ("y",)}


def test_what_groups_use_at_the_same_time_overlaps() -> None:
    """Two readers of y at the same time: neither may write over it, and all their values live together."""
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    left = b.op("Relu", y, name="left")
    right = b.op("Sigmoid", y, name="right")
    problem = memory_problem(scheduled(b.finish(b.op("MatMul", left, right)), schedule="greedy", groups=2))
    assert spans(problem) == {"y": (0, 2), "left": (1, 3), "right": (2, 3)}
    buffers = problem.by_name
    assert all(a.overlaps(b) for a in buffers.values() for b in buffers.values())
    assert buffers["right"].may_reuse == ("y",)  # in the order of one worker, of which this is not
    assert not buffers["right"].fits_in_place_of(buffers["y"])


def test_a_group_uses_its_dead_buffers_again_but_none_of_another_group() -> None:
    b = GraphBuilder()
    x = b.op("Softmax", b.input(4, 4), name="x")
    ends = []
    for side in "ab":
        value = x
        for number in range(4):
            value = b.op("Transpose", value, name=f"{side}{number}", perm=(1, 0))
        ends.append(value)
    out = b.op("MatMul", *ends)
    base = scheduled(b.finish(out))
    chains = tuple(Group(tuple(Instance(i) for i in ids)) for ids in ((1, 2, 3, 4), (5, 6, 7, 8)))
    stages = (single(0), Stage(chains), single(9))
    schedule = build_schedule(ScheduleProblem(base.partition, limits=Limits(2)), stages, base.provenance)
    problem = memory_problem(schedule)
    buffers = problem.by_name
    assert not buffers["a0"].overlaps(buffers["a2"])
    assert not buffers["b0"].overlaps(buffers["b3"])
    assert all(buffers[f"a{i}"].overlaps(buffers[f"b{j}"]) for i in range(4) for j in range(4))
    for name in MEMORY_PLANNERS.built_in_names():
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(100))
        assert isinstance(plan, MemoryPlan)
        assert not check_memory(problem, plan)
    best = MEMORY_PLANNERS.get("arena").solve(problem, Budget(100))
    assert isinstance(best, MemoryPlan)
    # Two buffers of each group and what both read; with a step for the whole stage there were nine.
    assert best.peak_bytes == 5 * 64


def test_a_plan_in_which_concurrent_groups_share_memory_is_noticed() -> None:
    b = GraphBuilder()
    x = b.op("Softmax", b.input(4, 4), name="x")
    left = b.op("Transpose", b.op("Transpose", x, name="l0", perm=(1, 0)), name="l1", perm=(1, 0))
    right = b.op("Transpose", b.op("Transpose", x, name="r0", perm=(1, 0)), name="r1", perm=(1, 0))
    base = scheduled(b.finish(b.op("MatMul", left, right)))
    groups = tuple(Group((Instance(i), Instance(i + 1))) for i in (1, 3))
    stages = (single(0), Stage(groups), single(5))
    problem = memory_problem(
        build_schedule(ScheduleProblem(base.partition, limits=Limits(2)), stages, base.provenance)
    )
    plan = MEMORY_PLANNERS.get("naive").solve(problem, Budget(1))
    assert isinstance(plan, MemoryPlan)
    damaged = replace(plan, offsets={**plan.offsets, "r1": plan.offsets["l0"]})
    assert "overlap" in {violation.rule for violation in check_memory(problem, damaged)}


def test_slices_live_from_the_first_to_the_last() -> None:
    b = GraphBuilder()
    y = b.op("Softmax", b.input(4, 4), name="y")
    z = b.op("Relu", y, name="z")
    base = scheduled(b.finish(b.op("Softmax", z)))
    halves = Stage((Group((Instance(1, 0), Instance(1, 1))),))
    problem = ScheduleProblem(base.partition)
    splits = (WHOLE, Split(0, 2), WHOLE)
    schedule = build_schedule(problem, (single(0), halves, single(2)), base.provenance, splits)
    found = memory_problem(schedule)
    assert spans(found) == {"y": (0, 2), "z": (1, 3)}
    buffers = found.by_name
    assert not buffers["z"].fits_in_place_of(buffers["y"])  # the second half is still to be read
