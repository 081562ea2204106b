# mypy: disable-error-code="arg-type, union-attr"
from math import inf

from tests.support.graphs import GraphBuilder

from tilewright.cost.roofline import Roofline
from tilewright.ir.graph import Graph, Value
from tilewright.partition import Partition, PartitionProblem, Reason, check_partition
from tilewright.partition.layerwise import Layerwise
from tilewright.planning import Budget


def solve(graph: Graph, **options: int) -> Partition:
    problem = PartitionProblem(graph)
    partition = Layerwise(**options).solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    return partition


def layers(partition: Partition) -> list[str]:
    return [" ".join(n.op_type for n in s.nodes) for s in partition.subgraphs]


def reason(partition: Partition, producer: Value, consumer: Value) -> Reason:
    found = [
        d for d in partition.decisions if (d.producer, d.consumer) == (producer.producer, consumer.producer)
    ]
    assert len(found) == 1
    return found[0].reason


def test_element_wise_followers_join_their_convolution() -> None:
    b = GraphBuilder()
    conv = b.conv(b.input(1, 2, 3, 3), 4)
    scaled = b.op("Mul", conv, b.constant(4, 1, 1))
    relu = b.op("Relu", scaled)
    partition = solve(b.finish(relu))
    assert layers(partition) == ["Conv Mul Relu"]
    assert reason(partition, conv, scaled) is Reason.EPILOGUE
    assert [v.name for v in partition.subgraphs[0].outputs] == [relu.name]
    assert len(partition.subgraphs[0].constants) == 2


def test_a_second_convolution_starts_its_own_kernel() -> None:
    b = GraphBuilder()
    first = b.conv(b.input(1, 2, 3, 3), 4)
    second = b.conv(first, 4)
    partition = solve(b.finish(second))
    assert layers(partition) == ["Conv", "Conv"]
    assert reason(partition, first, second) is Reason.COMPLEX


def test_a_residual_sum_joins_the_branch_that_is_computed_last() -> None:
    b = GraphBuilder()
    x = b.input(1, 2, 3, 3)
    main = b.conv(x, 4, name="main")
    shortcut = b.conv(x, 4, name="shortcut")
    total = b.op("Relu", b.op("Add", main, shortcut))
    partition = solve(b.finish(total))
    assert layers(partition) == ["Conv", "Conv Add Relu"]
    assert partition.subgraph_of(b.node(total)) is partition.subgraph_of(b.node(shortcut))
    assert reason(partition, main, total.producer.inputs[0]) is Reason.OTHER_KERNEL


def test_an_identity_shortcut_is_read_by_the_epilogue() -> None:
    b = GraphBuilder()
    first = b.op("Relu", b.conv(b.input(1, 2, 3, 3), 4))
    total = b.op("Add", b.conv(first, 4), first)
    partition = solve(b.finish(total))
    assert layers(partition) == ["Conv Relu", "Conv Add"]
    assert reason(partition, first, total) is Reason.ESCAPES
    assert partition.subgraphs[1].inputs == (first,)


def test_branches_that_meet_again_join_together() -> None:
    """x * sigmoid(x): the convolution's value is read twice, but all paths end in the product."""
    b = GraphBuilder()
    conv = b.conv(b.input(1, 2, 3, 3), 4)
    product = b.op("Mul", conv, b.op("Sigmoid", conv))
    assert layers(solve(b.finish(product))) == ["Conv Sigmoid Mul"]


def test_a_branch_that_does_not_come_back_stops_the_layer() -> None:
    b = GraphBuilder()
    conv = b.conv(b.input(1, 2, 3, 3), 4)
    sigmoid = b.op("Sigmoid", conv)
    relu = b.op("Relu", conv)
    partition = solve(b.finish(sigmoid, relu))
    assert layers(partition) == ["Conv", "Sigmoid", "Relu"]
    assert reason(partition, conv, relu) is Reason.ESCAPES


def test_a_graph_output_in_the_middle_stops_the_layer() -> None:
    b = GraphBuilder()
    conv = b.conv(b.input(1, 2, 3, 3), 4)
    relu = b.op("Relu", conv)
    partition = solve(b.finish(conv, relu))
    assert layers(partition) == ["Conv", "Relu"]
    assert reason(partition, conv, relu) is Reason.ESCAPES


def test_a_result_of_another_shape_does_not_join() -> None:
    """Squeeze and excitation: the gate is smaller than what it scales."""
    b = GraphBuilder()
    x = b.conv(b.input(1, 2, 3, 3), 4)
    pooled = b.op("GlobalAveragePool", x, shape=(1, 4, 1, 1))
    gate = b.op("Sigmoid", b.conv(pooled, 4))
    scaled = b.op("Mul", x, gate)
    partition = solve(b.finish(scaled))
    assert layers(partition) == ["Conv", "GlobalAveragePool", "Conv Sigmoid", "Mul"]
    assert reason(partition, gate, scaled) is Reason.SHAPE
    assert reason(partition, x, pooled) is Reason.REDUCTION


def test_moving_operators_chain_with_each_other_but_not_onto_a_product() -> None:
    b = GraphBuilder()
    product = b.op("MatMul", b.input(4, 6), b.constant(6, 6))
    shaped = b.op("Reshape", product, b.integers(4, 2, 3), shape=(4, 2, 3))
    turned = b.op("Transpose", shaped, shape=(2, 4, 3), perm=(1, 0, 2))
    scaled = b.op("Mul", turned, b.constant(1))
    partition = solve(b.finish(scaled))
    assert layers(partition) == ["MatMul", "Reshape Transpose Mul"]
    assert reason(partition, product, shaped) is Reason.INJECTIVE
    assert reason(partition, shaped, turned) is Reason.CHAIN


def test_reductions_and_softmax_stand_alone_but_take_followers() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 6))
    soft = b.op("Mul", b.op("Softmax", x), b.constant(1))
    partition = solve(b.finish(soft))
    assert layers(partition) == ["Relu", "Softmax Mul"]


def test_opaque_operators_stand_alone() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4))
    y = b.op("NobodyKnowsThis", x)
    z = b.op("Relu", y)
    partition = solve(b.finish(z))
    assert layers(partition) == ["Relu", "NobodyKnowsThis", "Relu"]
    assert reason(partition, x, y) is Reason.OPAQUE
    assert reason(partition, y, z) is Reason.OPAQUE


def test_a_chain_read_only_by_an_epilogue_is_computed_there() -> None:
    b = GraphBuilder()
    x = b.input(4, 4)
    feeder = b.op("Sigmoid", b.input(4, 4))
    product = b.op("MatMul", x, b.constant(4, 4))
    total = b.op("Add", product, feeder)
    partition = solve(b.finish(total))
    assert layers(partition) == ["Sigmoid MatMul Add"]
    assert reason(partition, feeder, total) is Reason.FEEDER


def test_a_chain_read_by_the_anchor_itself_is_not_moved() -> None:
    b = GraphBuilder()
    product = b.op("MatMul", b.op("Sigmoid", b.input(4, 4)), b.constant(4, 4))
    assert layers(solve(b.finish(product))) == ["Sigmoid", "MatMul"]


def test_operators_with_several_results_end_a_chain() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4))
    left, right = b.ops("Split", [x], [(2, 4), (2, 4)], axis=0, num_outputs=2)
    total = b.op("Add", left, right)
    partition = solve(b.finish(total))
    assert layers(partition) == ["Relu", "Split", "Add"]
    assert reason(partition, x, left) is Reason.MULTIPLE_RESULTS


def test_the_limit_of_nodes_is_kept_and_named() -> None:
    b = GraphBuilder()
    values = [b.input(4)]
    for _ in range(5):
        values.append(b.op("Relu", values[-1]))
    partition = solve(b.finish(values[-1]), max_nodes=2)
    assert [len(s.nodes) for s in partition.subgraphs] == [2, 2, 1]
    assert reason(partition, values[2], values[3]) is Reason.LIMIT


def test_order_follows_the_quotient_where_the_graph_order_does_not() -> None:
    """The sum joins the second product, whose kernel must therefore run after the first's."""
    b = GraphBuilder()
    x, w = b.input(4, 4), b.constant(4, 4)
    early = b.op("MatMul", x, w, name="early")
    late = b.op("MatMul", x, w, name="late")
    total = b.op("Add", early, late)
    again = b.op("MatMul", early, total)
    partition = solve(b.finish(again))
    assert [s.nodes[0].name for s in partition.subgraphs] == ["early", "late", "matmul"]


def test_cost_counts_what_crosses_and_the_bound_what_must() -> None:
    b = GraphBuilder()
    x, w = b.input(4, 8), b.constant(8, 8)
    y = b.op("MatMul", x, w)
    z = b.op("Softmax", y)
    traffic = Roofline(inf, bytes_per_ns=1.0, launch_ns=0.0, source="bytes alone")
    problem = PartitionProblem(b.finish(z), cost=traffic)
    partition = Layerwise().solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    assert partition.quality.bound == x.size_bytes + w.size_bytes + z.size_bytes
    assert partition.quality.cost == partition.quality.bound + 2 * y.size_bytes
