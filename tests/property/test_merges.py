"""Merged siblings compute what they compute apart: random convolutions and products of one input."""

# mypy: disable-error-code="arg-type, assignment, call-overload, var-annotated"

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler import compile_graph
from tilewright.cost.base import Estimate
from tilewright.errors import Outclassed
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.verify import verify
from tilewright.options import Options
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.merge_siblings import merge_siblings, merged_operators
from tilewright.partition.split import Split
from tilewright.planning import Budget, Provenance
from tilewright.schedule import ScheduleProblem, Stage, check_schedule
from tilewright.schedule.base import build_schedule, single
from tilewright.schedule.horizontal_fusion import HorizontalFusion
from tilewright.schedule.merge import apply_merges, merge_sets, merge_stage
from tilewright.target_ref import TargetRef
from tilewright.targets.base import SimulatedCode

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
ALL = HorizontalFusion(min_gain=-100.0)
SEEDS = range(24)


class Model:
    """A model of random siblings of one input; every result is an output."""

    def __init__(self, seed: int, dtype: type = np.float32) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.outputs: list[str] = []
        self.shape: tuple[int, ...] = ()

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        array = self.values.uniform(-1, 1, shape).astype(self.dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def proto(self) -> ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        given = helper.make_tensor_value_info("x", kind, self.shape)
        results = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "siblings", [given], results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def feed(self) -> dict[str, Array]:
        return {"x": self.values.uniform(-1, 1, self.shape).astype(self.dtype)}


def convolutions(seed: int, dtype: type = np.float32) -> Model:
    """Convolutions of equal strides and dilations, of several kernels and paddings; some with activations."""
    model = Model(seed, dtype)
    rng = model.rng
    channels, rank = rng.randint(1, 5), rng.choice((1, 2, 2))
    model.shape = (rng.randint(1, 2), channels, *(rng.randint(6, 11) for _ in range(rank)))
    strides, dilations = (
        [rng.choice((1, 1, 2)) for _ in range(rank)],
        [rng.choice((1, 1, 2)) for _ in range(rank)],
    )
    activation, has_bias = rng.choice(("", "Relu", "Sigmoid")), rng.random() < 0.5
    for _ in range(rng.randint(2, 4)):
        kernel = [rng.randint(1, 3) for _ in range(rank)]
        # As much padding as the kernel reaches, and at times an element more, which a stride may swallow.
        pads = [(k - 1) * d + rng.choice((0, 0, 0, 1)) for k, d in zip(kernel, dilations, strict=True)]
        begin = [rng.randint(0, pad) for pad in pads]
        pads = [*begin, *(pad - first for pad, first in zip(pads, begin, strict=True))]
        operands = [model.constant(rng.randint(1, 6), channels, *kernel)]
        if has_bias:
            operands.append(model.constant(helper_channels(model)))
        value = model.op("Conv", "x", *operands, strides=strides, dilations=dilations, pads=pads)
        model.outputs.append(model.op(activation, value) if activation else value)
    return model


def helper_channels(model: Model) -> int:
    """How many results the last weight has."""
    return int(model.constants[-1].dims[0])


def products(seed: int, dtype: type = np.float32) -> Model:
    """Products with biases, as they make queries, keys and values."""
    model = Model(seed, dtype)
    rng = model.rng
    depth = rng.randint(2, 9)
    model.shape = (*(rng.randint(1, 4) for _ in range(rng.randint(1, 2))), depth)
    is_gemm = len(model.shape) == 2 and rng.random() < 0.5
    for _ in range(rng.randint(2, 4)):
        columns = rng.randint(1, 9)
        if is_gemm:
            value = model.op("Gemm", "x", model.constant(columns, depth), model.constant(columns), transB=1)
        else:
            value = model.op(
                "Add", model.op("MatMul", "x", model.constant(depth, columns)), model.constant(columns)
            )
        model.outputs.append(
            model.op("Reshape", value, sizes(model, columns)) if rng.random() < 0.3 else value
        )
    return model


def sizes(model: Model, columns: int) -> str:
    name = f"s{len(model.constants)}"
    model.constants.append(helper.make_tensor(name, TensorProto.INT64, [2], [-1, columns]))
    return name


def partition_of(graph: Graph) -> Partition:
    return Layerwise().solve(PartitionProblem(graph), Budget())


def merged_graph(graph: Graph, *, pads_kernels: bool = True) -> tuple[Graph, int]:
    """The graph with all siblings merged, and how many sets of them there are."""
    partition = partition_of(graph)
    sets = merge_sets(partition, pads_kernels=pads_kernels)
    result = merge_siblings(partition, [sorted(s) for s in sets], pads_kernels=pads_kernels).partition
    assert not list(verify(result.graph))
    problem = PartitionProblem(result.graph)
    assert [v for v in check_partition(problem, result) if v.rule not in ("cost", "bound")] == []
    return result.graph, len(sets)


@pytest.mark.parametrize("make", [convolutions, products])
def test_merged_siblings_compute_the_same(make: Any) -> None:
    num_sets = 0
    for seed in SEEDS:
        model = make(seed)
        graph = load_onnx(model.proto())
        other, found = merged_graph(graph)
        num_sets += found
        feed = model.feed()
        expected = run_graph(graph, feed, dtype=DType.FLOAT64)
        results = run_graph(other, feed, dtype=DType.FLOAT64)
        assert list(results) == list(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-12, atol=1e-12)
    assert num_sets > len(SEEDS) // 3  # enough of them are siblings


def test_without_padding_results_have_equal_bits_and_stay_finite_where_they_are() -> None:
    """Not so with it: a padded tap multiplies an infinite value by zero."""
    model = Model(0)
    model.shape = (1, 1, 5, 5)
    model.outputs = [
        model.op("Conv", "x", model.constant(2, 1, 1, 1)),
        model.op("Conv", "x", model.constant(2, 1, 3, 3), pads=[1] * 4),
        model.op("Conv", "x", model.constant(3, 1, 1, 1)),
    ]
    graph = load_onnx(model.proto())
    x = model.feed()["x"]
    x[0, 0, 2, 2] = np.inf
    expected = run_graph(graph, {"x": x})
    exact, num_sets = merged_graph(graph, pads_kernels=False)
    assert num_sets == 1
    results = run_graph(exact, {"x": x})
    assert all(np.array_equal(results[n], v, equal_nan=True) for n, v in expected.items())
    padded, _ = merged_graph(graph)
    spread = run_graph(padded, {"x": x})["v0"]
    assert np.isnan(spread[0, 0, 1:4, 1:4]).sum() == 8
    assert np.isfinite(spread[0, 0, 0]).all()


def test_strict_models_are_merged_without_padding() -> None:
    model = Model(1)
    model.shape = (1, 2, 5, 5)
    model.outputs = [
        model.op("Conv", "x", model.constant(2, 2, 1, 1)),
        model.op("Conv", "x", model.constant(2, 2, 3, 3), pads=[1] * 4),
    ]
    graph = load_onnx(model.proto())
    for accuracy, num_kernels in (("default", 1), ("strict", 2)):
        options = Options(
            schedule="horizontal-fusion{min_gain=-100}", accuracy=accuracy, target=TargetRef.parse("null")
        )
        nodes = compile_graph(graph, options).program.graph.nodes
        assert sum(node.op_type == "Conv" for node in nodes) == num_kernels


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 3, 5, 8])
@pytest.mark.parametrize("make", [convolutions, products])
def test_merged_kernels_compute_what_onnxruntime_does(make: Any, seed: int) -> None:
    model = make(seed)
    proto, feed = model.proto(), model.feed()
    options = Options(schedule="horizontal-fusion{min_gain=-100}", threads=2, no_cache=True)
    executable = compile_graph(load_onnx(proto), options).code.load(2)
    try:
        results = executable.run(feed)
    finally:
        executable.close()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, value in zip(model.outputs, session.run(None, feed), strict=True):
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["stcp920", "k80"])
def test_described_machines_write_merged_results_where_they_belong(target: str) -> None:
    model = Model(2)
    model.shape = (1, 4, 8, 8)
    for kernel in (1, 1, 3):
        weight = model.constant(2 * kernel, 4, kernel, kernel)
        value = model.op("Conv", "x", weight, pads=[kernel // 2] * 4)
        model.outputs.append(model.op("Relu", model.op("Conv", value, model.constant(2, 2 * kernel, 1, 1))))
    graph, feed = load_onnx(model.proto()), model.feed()
    options = Options(
        target=TargetRef.parse(target),
        partition="layerwise",
        schedule="horizontal-fusion{min_gain=-100}",
        accuracy="strict",
    )
    code = compile_graph(graph, options).code
    assert isinstance(code, SimulatedCode)
    steps = code.plan().steps
    assert not any(step.name.endswith(".results") for step in steps)
    (merged,) = [step for step in steps if len(step.writes) == 2]
    assert "+" in merged.name
    results, expected = code.load(1).run(feed), run_graph(graph, feed)
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types_merge_too(dtype: type) -> None:
    for seed in range(6):
        model = products(seed, dtype)
        graph = load_onnx(model.proto())
        other, _ = merged_graph(graph)
        feed = model.feed()
        expected, results = run_graph(graph, feed), run_graph(other, feed)
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=2e-3, atol=2e-3)


def test_schedules_that_merge_are_checked_priced_and_applied() -> None:
    for seed in SEEDS[:8]:
        partition = partition_of(load_onnx(convolutions(seed).proto()))
        problem = ScheduleProblem(partition)
        schedule = ALL.solve(problem, Budget())
        assert check_schedule(problem, schedule) == ()
        graph, merged, applied = apply_merges(problem, schedule)
        assert applied.partition is merged
        assert merged.graph is graph
        # What is left of the schedule costs on the new graph what it was planned to cost.
        rest = ScheduleProblem(merged)
        assert rest.estimate(applied.stages).time_ns == pytest.approx(schedule.quality.cost)
        assert [v for v in check_schedule(rest, applied) if v.rule not in ("cost", "bound")] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pads_kernels", [True, False])
def test_the_check_and_the_rule_agree(pads_kernels: bool) -> None:
    seen: set[bool] = set()
    for seed in SEEDS:
        partition = partition_of(load_onnx((convolutions if seed % 3 else products)(seed).proto()))
        problem = ScheduleProblem(partition, pads_kernels=pads_kernels)
        plain = HorizontalFusion().solve(ScheduleProblem(partition), Budget())
        for one, two in itertools.combinations(partition.subgraphs, 2):
            rest = (single(s.id) for s in partition.subgraphs if s not in (one, two))
            schedule = replace(plain, stages=(merge_stage((one.id, two.id)), *rest))
            is_legal = merged_operators((one, two), pads_kernels=pads_kernels) is not None
            assert ("merge" not in {v.rule for v in check_schedule(problem, schedule)}) is is_legal
            seen.add(is_legal)
    assert seen == {True, False}


def test_illegal_merges_are_violations() -> None:
    b = Model(0)
    b.shape = (1, 2, 6, 6)
    same = [b.op("Conv", "x", b.constant(2, 2, 3, 3), pads=[1] * 4) for _ in range(2)]
    b.op("Conv", "x", b.constant(2, 2, 3, 3), pads=[1] * 4, strides=[2, 2])
    b.op("Conv", "x", b.constant(2, 2, 1, 1))
    b.op("Conv", "x", b.constant(2, 1, 3, 3), pads=[1] * 4, group=2)
    b.op("Conv", same[0], b.constant(2, 2, 3, 3), pads=[1] * 4)
    b.op("Conv", "x", b.constant(2, 2, 2, 2), pads=[1, 1, 0, 0])
    b.outputs = [n.output[0] for n in b.nodes]
    partition = partition_of(load_onnx(b.proto()))
    assert len(partition.subgraphs) == 7
    place = {s.outputs[0].name: s.id for s in partition.subgraphs}

    def rules(*names: str, pads_kernels: bool = True) -> set[str]:
        problem = ScheduleProblem(partition, pads_kernels=pads_kernels)
        ids = [place[name] for name in names]
        stages = [*(single(s.id) for s in partition.subgraphs if s.id not in ids)]
        stages.insert(0, merge_stage(ids))
        plain = tuple(single(s.id) for s in partition.subgraphs)
        schedule = build_schedule(ScheduleProblem(partition), plain, Provenance("test"))
        schedule = replace(schedule, stages=tuple(stages))
        return {v.rule for v in check_schedule(problem, schedule)} - {"cost", "bound", "space", "order"}

    assert rules("v0", "v1") == set()
    assert rules("v0", "v3") == set()
    assert rules("v0", "v6") == set()
    assert rules("v0", "v3", pads_kernels=False) == {"merge"}
    assert rules("v0", "v2") == {"merge"}
    assert rules("v0", "v4") == {"merge"}
    assert rules("v0", "v5") == {"merge"}
    assert rules("v0") == {"merge"}


@pytest.mark.parametrize(("saved_ns", "num_stages"), [(100.0, 1), (0.0, 3), (-1.0, 3)])
def test_where_whole_schedules_are_priced_a_merge_must_save_time_of_the_whole(
    saved_ns: float, num_stages: int
) -> None:
    model = Model(4)
    model.shape = (4, 8)
    model.outputs = [model.op("MatMul", "x", model.constant(8, 8)) for _ in range(3)]
    partition = partition_of(load_onnx(model.proto()))

    def price(priced: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
        num_merged = len(partition.subgraphs) - len(priced.subgraphs)
        if num_merged and saved_ns < 0:
            raise Outclassed("another plan is better")
        time_ns = 1e6 - saved_ns * num_merged
        return Estimate(time_ns, 0.0, "stated")

    problem = ScheduleProblem(partition, price=price)
    assert len(HorizontalFusion(0.0).solve(problem, Budget()).stages) == num_stages
