"""What a network is lowered to decides its bytes and its rates, and conversions take time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.graphs import GraphBuilder
from tests.support.models import model, small_net
from tests.support.quantize import quantize

import tilewright as tw
from tilewright.api.simulation import SimulationResult
from tilewright.errors import MachineError
from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import full_region
from tilewright.options import Options
from tilewright.targets.npu.target import NpuTarget
from tilewright.targets.npu.work import Works

NET = small_net(32, 28)


def in_float16(net: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with every float32 in its file as float16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(net)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return copy


def simulated(net: onnx.ModelProto, target: str, dtype: str | None = None) -> SimulationResult:
    return tw.simulate(net, target, dtype=dtype, recipe="graphturbo")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", ["ipu-mk2", "stcp920", "h200", "ascend910"])
def test_lowering_a_float32_file_is_as_good_as_a_float16_file(machine: str) -> None:
    lowered, given = simulated(NET, machine, "float16"), simulated(in_float16(NET), machine)
    assert lowered.time_s == given.time_s
    assert lowered.bytes == given.bytes
    assert lowered.computed_in == given.computed_in
    assert [kept.stored for kept in lowered.element_types if kept.file == "float32"] == ["float16"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("machine", "dtypes"),
    [
        ("ipu-mk2", ("float32", "float16")),
        ("h200", ("float32", "float16", "int8")),
        ("h200", ("float32", "bfloat16", "int8")),
        ("ascend910", ("float16", "int8")),
        ("stcp920", ("float16", "int8")),
    ],
)
def test_a_narrower_type_is_never_slower_and_moves_its_share_of_bytes(
    machine: str, dtypes: tuple[str, ...]
) -> None:
    for net in (NET, small_net(16, 9), model(*_gelu())):
        found = [simulated(net, machine, dtype) for dtype in dtypes]
        for wide, narrow in pairwise(found):
            ratio = size_of(wide) / size_of(narrow)
            assert narrow.time_s <= wide.time_s * (1 + 1e-9)
            assert narrow.lower_bound_s <= wide.lower_bound_s * (1 + 1e-9)
            for way in ("main_read", "main_written"):
                assert wide.bytes[way] == pytest.approx(ratio * narrow.bytes[way], rel=0.02)


def size_of(found: SimulationResult) -> int:
    """Bytes of what the file has as float32."""
    (stored,) = (kept.stored for kept in found.element_types if kept.file == "float32")
    return DType[stored.upper()].size_bytes


def _gelu() -> tuple[list, list, list, list]:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        helper.make_node("Erf", ["y"], ["e"], "erf"),
        helper.make_node("Mul", ["y", "e"], ["z"], "gate"),
        helper.make_node("Softmax", ["z"], ["p"], "softmax", axis=-1),
    ]
    weight = numpy_helper.from_array(np.full((64, 96), 0.1, np.float32), "w")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [24, 64])]
    outputs = [helper.make_tensor_value_info("p", TensorProto.FLOAT, [24, 96])]
    return nodes, inputs, outputs, [weight]


def test_a_machine_that_has_the_files_type_keeps_and_multiplies_it() -> None:
    found = simulated(NET, "ipu-mk2")
    assert "float32 as" not in str(found)
    assert found.computed_in["AMP"] == ("float32",)
    half = simulated(NET, "ipu-mk2", "float16")
    times = found.utilization["AMP"] * found.time_s / (half.utilization["AMP"] * half.time_s)
    assert 1 < times <= 4, "64 products a cycle to 16, which small layers fill sooner"


def test_a_product_that_fills_the_units_takes_four_times_in_float32() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("MatMul", b.input(1472, 512), b.constant(512, 512), shape=(1472, 512)))
    (node,) = graph.nodes
    region = full_region(node.output.shape)
    seconds = []
    for dtype in (None, "float16"):
        target = NpuTarget(load_preset("ipu-mk2"), dtype=dtype)
        works = target.backend(graph, Options()).works
        binding = works.fewest_cores(node, region, target.machine.num_cores)
        seconds.append(works.of(node, region, binding)[0].seconds)
    assert seconds[0] == pytest.approx(4 * seconds[1], rel=1e-3), "64 products a cycle to 16"


def test_inputs_and_results_of_another_type_are_read_so_and_converted_once() -> None:
    """A vector engine of 64 lanes of float16 takes 32 elements of float32 a cycle."""
    net, num_in, num_out = model(*_gelu()), 24 * 64, 24 * 96
    by_itself, asked = simulated(net, "stcp920"), simulated(net, "stcp920", "float16")
    assert by_itself.bytes["main_read"] - asked.bytes["main_read"] == 2 * num_in
    assert by_itself.bytes["main_written"] - asked.bytes["main_written"] == 2 * num_out
    machine = load_preset("stcp920")
    unit = next(u for u in machine.units if u.name == "VME")
    converted_s = (num_in + num_out) / (32 * unit.efficiency * 8) / 1e9
    busy_s = [found.utilization["VME"] * found.time_s for found in (by_itself, asked)]
    assert busy_s[0] - busy_s[1] == pytest.approx(converted_s)
    assert by_itself.buffers == asked.buffers
    reads = [found.plan.steps[0].tiles.reads for found in (by_itself, asked)]
    held_bytes = [sum(x.held_bytes for x in tiles if x is not None) for tiles in reads]
    assert held_bytes[0] == 2 * 2 * held_bytes[1], "as wide as in the file, and the copy"
    assert by_itself.lower_bound_s >= asked.lower_bound_s


def test_what_is_not_multiplied_is_refused_with_the_way_out() -> None:
    with pytest.raises(MachineError, match=r"GEMM has a rate for int8, .*dtype=int8}', or give it") as caught:
        simulated(NET, "goya")
    assert len(str(caught.value).splitlines()) == 1
    found = simulated(NET, "goya", "int8")
    assert found.computed_in == {"GEMM": ("int8",), "TPC": ("int8",)}


def test_values_are_the_files_and_the_result_says_so() -> None:
    found = tw.simulate(NET, "h200", dtype="int8", recipe="graphturbo", check=True)
    assert found.values_checked
    assert "in the file's types, without the rounding" in str(found)
    assert "float32 as int8" in str(found)


def test_integer_networks_multiply_bytes() -> None:
    net = small_net(16, 9)
    rng = np.random.default_rng(0)
    quantised = quantize(net, {"image": rng.standard_normal((1, 3, 9, 9)).astype(np.float32)})
    for machine, unit in (("goya", "GEMM"), ("h200", "TensorCore"), ("stcp920", "MME")):
        assert simulated(quantised, machine).computed_in[unit] == ("int8",)


def products_of(left: DType, right: DType, result: DType, op_type: str) -> Node:
    x, w = Value("x", left, (8, 16)), Value("w", right, (16, 32))
    return Node(op_type, [x, w], [Value("y", result, (8, 32))], name="product", opset=17)


@pytest.mark.parametrize("right", [DType.INT8, DType.UINT8])
def test_products_go_at_the_rate_of_their_operands(right: DType) -> None:
    machine = load_preset("h200")
    works = Works(machine, element_types(machine))
    node = products_of(DType.UINT8, right, DType.INT32, "MatMulInteger")
    (work, *_) = works.of(node, ((0, 8), (0, 32)), None)
    assert (work.unit, work.dtype, work.macs) == ("TensorCore", "int8", 8 * 16 * 32)
    half = works.of(
        products_of(DType.FLOAT16, DType.FLOAT16, DType.FLOAT16, "MatMul"), ((0, 8), (0, 32)), None
    )
    assert half[0].seconds == pytest.approx(2 * work.seconds)


def without(machine: Machine, unit: str, dtype: str) -> Machine:
    """The machine without a unit's rate of a type for anything but products."""
    units = tuple(
        u.model_copy(update={"ops_per_cycle": {d: r for d, r in u.ops_per_cycle.items() if d != dtype}})
        if u.name == unit
        else u
        for u in machine.units
    )
    return machine.model_copy(update={"units": units})


def test_a_rate_that_is_missing_is_that_of_a_wider_type_or_an_error() -> None:
    x = Value("x", DType.FLOAT16, (8, 16))
    node = Node("Relu", [x], [Value("y", DType.FLOAT16, (8, 16))], name="relu", opset=17)
    region = ((0, 8), (0, 16))
    machine = load_preset("ipu-mk2")
    types = element_types(machine)
    (own,) = Works(machine, types).of(node, region, None)
    (wider,) = Works(without(machine, "VECTOR", "float16"), types).of(node, region, None)
    assert (own.dtype, wider.dtype) == ("float16", "float32")
    assert wider.seconds == pytest.approx(2 * own.seconds)
    x = Value("x", DType.FLOAT32, (8, 16))
    single = Node("Relu", [x], [Value("y", DType.FLOAT32, (8, 16))], name="relu", opset=17)
    words = r"units\[1\]\.ops_per_cycle: VECTOR has a rate for float16, and Relu 'relu' is float32; .*: RATE"
    with pytest.raises(MachineError, match=words):
        Works(without(machine, "VECTOR", "float32"), types).of(single, region, None)


def test_a_cast_takes_time_unless_both_types_are_kept_alike() -> None:
    x = Value("x", DType.FLOAT32, (8, 16))
    node = Node("Cast", [x], [Value("y", DType.FLOAT16, (8, 16))], {"to": 10}, name="cast", opset=17)
    machine = load_preset("ipu-mk2")
    region = ((0, 8), (0, 16))
    (work,) = Works(machine, element_types(machine)).of(node, region, None)
    assert (work.unit, work.ops, work.dtype) == ("VECTOR", 8 * 16, "float32")
    assert Works(machine, element_types(machine, DType.FLOAT16)).of(node, region, None) == ()
