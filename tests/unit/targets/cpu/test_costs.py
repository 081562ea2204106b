"""What kernels cost on this processor, by the templates."""

# mypy: disable-error-code="func-returns-value"

import copy

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.models import model
from tests.support.other_processor import on_processor
from tests.support.processors import processors_here
from tests.support.quantize import quantize

from tilewright import zoo
from tilewright.compiler import compile_graph, plan
from tilewright.cost.base import CostModel
from tilewright.errors import MachineError
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Node
from tilewright.ir.graph_regions import kernel_structure
from tilewright.options import Options
from tilewright.partition.base import Subgraph, make_subgraph
from tilewright.program import Program
from tilewright.targets.cpu.costs.model import CpuCosts, LaunchCost
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.loopnest.estimate import LoopCycles, loop_cycles
from tilewright.targets.cpu.target import CpuBackend


@pytest.fixture(scope="module", params=processors_here())
def planned(request: pytest.FixtureRequest) -> tuple[Program, CpuCosts]:
    graph = load_onnx(zoo.build("bert_tiny"))
    with on_processor(request.param):
        compilation = compile_graph(graph, Options(no_cache=True, threads=2))
    backend = compilation.planned.backend
    assert isinstance(backend, CpuBackend)
    return compilation.program, backend.costs


def _again(subgraph: Subgraph, graph: Graph) -> Subgraph:
    """The same nodes as a question about a candidate, which was never lowered."""
    return make_subgraph(0, subgraph.nodes, graph)


@pytest.mark.sampled(1)
def test_it_is_a_cost_model(planned: tuple[Program, CpuCosts]) -> None:
    assert isinstance(planned[1], CostModel)
    assert not planned[1].proves_bounds


def test_candidates_cost_about_what_their_kernels_do(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    lowered = sum(costs.kernel(s).time_ns for s in program.schedule.partition.subgraphs)
    asked = sum(costs.kernel(_again(s, program.graph)).time_ns for s in program.partition.subgraphs)
    assert asked == pytest.approx(lowered, rel=0.3)


def test_the_schedule_costs_the_sum_of_its_kernels(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    quality = program.schedule.quality
    assert quality.unit == "ns"
    assert not quality.widest.is_proven
    assert quality.cost >= quality.bound > 0
    kernels = sum(costs.kernel(s).time_ns for s in program.partition.subgraphs)
    assert quality.cost == pytest.approx(kernels, rel=0.3)


def test_more_cores_help_only_as_far_as_there_are_chunks() -> None:
    whole, divided = LaunchCost(6000.0, 1), LaunchCost(6000.0, 16)
    assert whole.time_ns(2, 3.0) == whole.time_ns(1, 3.0)
    assert divided.time_ns(1, 3.0) / 2 < divided.time_ns(2, 3.0) < 0.55 * divided.time_ns(1, 3.0)
    assert divided.time_ns(3, 3.0) > divided.time_ns(1, 3.0) / 3


def test_memory_does_not_get_faster_by_cores() -> None:
    streamed = LaunchCost(1000.0, 16, memory_bytes=1 << 30)
    assert streamed.time_ns(4, 3.0) == streamed.time_ns(1, 3.0)


def test_groups_share_the_cores(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    longest = max(program.schedule.partition.subgraphs, key=lambda s: costs.kernel(s).time_ns)
    alone = costs.kernel(longest)
    together = costs.stage([[longest], [longest]])
    brought_ns = sum(costs._remote_ns([longest]))  # of little work more than sharing it saves
    assert alone.time_ns < together.time_ns <= 2 * (alone.time_ns + brought_ns)
    assert costs.stage([[longest, longest]]).time_ns == pytest.approx(2 * alone.time_ns)


def test_the_order_of_groups_does_not_matter_but_their_cores_do(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    ordered = sorted(program.schedule.partition.subgraphs, key=lambda s: costs.kernel(s).time_ns)
    short, long = [ordered[-2]], [ordered[-1]]
    together = costs.stage([short, long])
    assert costs.stage([long, short]).time_ns == pytest.approx(together.time_ns)
    assert costs.stage([long, short], [None, None]) == costs.stage([long, short])
    assert costs.stage([long], [1]).time_ns == costs.kernel(long[0], 1).time_ns
    assert costs.stage([short, long], [1, 1]).time_ns >= costs.kernel(long[0], 1).time_ns


def test_on_one_core_stages_are_their_kernels_in_a_row(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    short, *_, long = sorted(program.schedule.partition.subgraphs, key=lambda s: costs.kernel(s).time_ns)
    single = copy.copy(costs)
    single._num_cores = 1
    together = single.stage([[short], [long]])
    assert together.time_ns == single.stage([[short, long]]).time_ns
    assert together.time_ns == pytest.approx(single.kernel(short).time_ns + single.kernel(long).time_ns)


def test_what_other_threads_wrote_has_to_be_brought(planned: tuple[Program, CpuCosts]) -> None:
    """Within a group it is where it is read, so that a chain of kernels costs less there than apart."""
    program, costs = planned
    partition = program.schedule.partition
    reader = next(s for s in partition.subgraphs if partition.predecessors(s))
    source = next(iter(partition.predecessors(reader)))
    after_source = list(costs._remote_ns([source, reader]))[-len(costs._launches(reader)) :]
    assert next(iter(costs._remote_ns([reader]))) > after_source[0]


def test_lockstep_waits_where_independent_groups_do_not(planned: tuple[Program, CpuCosts]) -> None:
    program, costs = planned
    ordered = sorted(program.schedule.partition.subgraphs, key=lambda s: costs.kernel(s).time_ns)
    short = next(s for s in ordered if costs.kernel(s).time_ns > 0)
    groups = [[short, ordered[-1]], [ordered[-2], short]]
    cores = [1, 1]
    lockstep = copy.copy(costs)
    lockstep._barriers = "strict"
    assert costs.stage(groups, cores).time_ns < lockstep.stage(groups, cores).time_ns


def test_equal_layers_are_estimated_once(
    planned: tuple[Program, CpuCosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, costs = planned
    asked: list[object] = []
    monkeypatch.setattr(costs, "_estimated", lambda group: asked.append(group) or ())
    for subgraph in program.partition.subgraphs:
        costs.kernel(_again(subgraph, program.graph))
    assert not asked


def test_copies_between_unknown_levels_are_refused(planned: tuple[Program, CpuCosts]) -> None:
    _, costs = planned
    assert costs.transfer(1 << 20, "DRAM", "DRAM").time_ns > 0
    with pytest.raises(MachineError, match="no level 'HBM'"):
        costs.transfer(1, "HBM", "DRAM")


def transposed(rows: int, columns: int) -> LoopCycles:
    g = Graph("transpose")
    x = g.value("x", DType.FLOAT32, (rows, columns))
    g.inputs = [x]
    y = g.value("y", DType.FLOAT32, (columns, rows))
    g.append(Node("Transpose", [x], [y], {"perm": (1, 0)}))
    group = fuse_nodes(g.nodes, [y])
    assert isinstance(group, NestGroup)
    return loop_cycles(group.nests, {}, host_isa())


def test_elements_that_lanes_fetch_alone_are_counted_and_those_that_share_a_set_of_the_first_cache() -> None:
    """Lanes go along one of both tensors, so that the other is read or written one by one, a row apart."""
    for rows, columns in ((1024, 1024), (1000, 1000)):
        cycles = transposed(rows, columns)
        assert sorted((cycles.gathered, cycles.scattered)) == [0, rows * columns]
        assert cycles.conflicting == (rows * columns if rows == 1024 else 0)
        assert cycles.least_vector == rows


def test_which_operand_a_group_makes_itself_is_told_apart() -> None:
    """Of equal kernels behind equal kernels one reads their large result, the other the small one."""
    shapes = {"x": (1, 64, 64, 64), "y": (1, 64, 64, 64), "large": (1, 64, 64, 64), "small": (1, 64, 1, 1)}
    names = ["x", "y", "large", "small"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names]
    nodes = [
        helper.make_node("Relu", ["x"], ["rx"]),
        helper.make_node("GlobalAveragePool", ["rx"], ["px"]),
        helper.make_node("Relu", ["y"], ["ry"]),
        helper.make_node("GlobalAveragePool", ["ry"], ["py"]),
        helper.make_node("Mul", ["rx", "small"], ["by_small"]),
        helper.make_node("Mul", ["large", "py"], ["of_large"]),
    ]
    results = ("rx", "px", "ry", "py", "by_small", "of_large")
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = load_onnx(model(nodes, inputs, outputs, []))
    costs = plan(graph, Options(threads=2, partition="none", no_cache=True)).backend.costs
    assert isinstance(costs, CpuCosts)
    made = {value.name: node for node in graph.nodes for value in node.results()}
    first, second = (make_subgraph(0, (made[r], made[p]), graph) for r, p in (("rx", "px"), ("ry", "py")))
    reads_large, reads_small = (make_subgraph(0, (made[name],), graph) for name in ("by_small", "of_large"))
    pairs = ((first, reads_large), (second, reads_small))
    structures = [[kernel_structure(work.nodes, work.outputs) for work in pair] for pair in pairs]
    assert structures[0] == structures[1]
    stages = [(pair, (other[0],)) for pair, other in zip(pairs, reversed(pairs), strict=True)]
    times = [costs.stage(stage).time_ns for stage in stages]
    assert times[0] != times[1]
    assert costs.stage_facts(stages[0]) != costs.stage_facts(stages[1])
    assert costs.stage_facts(stages[0]) == costs.stage_facts(stages[0])


def test_a_product_within_a_kernel_is_priced_beside_the_temporaries_of_the_kernel() -> None:
    """The padded copy that a product of bytes makes of its input has a name of its own in the kernel."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8, 3, 3)), "v": rng.standard_normal((8, 16, 1, 1))}
    float_model = model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("Concat", ["x", "a"], ["b"], axis=1),
            helper.make_node("Conv", ["b", "v"], ["y"]),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])],
        [numpy_helper.from_array(data.astype(np.float32), name) for name, data in weights.items()],
    )
    quantized = quantize(float_model, {"x": rng.standard_normal((1, 8, 16, 16)).astype(np.float32)})
    compilation = compile_graph(load_onnx(quantized), Options(no_cache=True, threads=1))
    backend, graph = compilation.planned.backend, compilation.program.graph
    assert isinstance(backend, CpuBackend)
    whole = make_subgraph(0, tuple(graph.nodes), graph)
    assert backend.costs.kernel(whole).time_ns > 0
