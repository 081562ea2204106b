"""Integer kernels give exactly what the operators' reference gives, whatever instructions they use."""

# mypy: disable-error-code="list-item"

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.kernels import group_of
from tests.support.matrix_unit import can_emulate, emulated_matrix_unit, isa_with_matrix_unit

from tilewright.compiler import plan
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Read, call, cast, evaluate
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Dim, Nest, Operand, RowsOf, affine
from tilewright.ir.ops.registry import describe, find_operator
from tilewright.ir.text import parse_graph
from tilewright.options import Options
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.lower.tensors import ModelTensors, Names
from tilewright.targets.cpu.product.integer import INTEGER
from tilewright.targets.cpu.product.integer.tiles import tile_rows
from tilewright.targets.cpu.product.winograd import WINOGRAD
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.targets.llvm.byte_products import product_of
from tilewright.targets.llvm.codegen import compile_object
from tilewright.testing.kernel_runner import KernelRunner

Array = np.ndarray[Any, Any]

DOTS: dict[str, tuple[str, ...]] = {"tiles": ("amx-int8",), "vnni": ("avx512vnni", "avxvnni"), "pairs": ()}


@functools.cache
def isas() -> dict[str, Isa]:
    """This processor as it is, with the matrix unit, without it and byte products, and as the smaller one."""
    host = host_isa()
    found = {"host": host}
    if can_emulate():
        found["emulated tiles"] = isa_with_matrix_unit()
    for name, missing in (("no tiles", ("amx",)), ("no byte products", ("amx", "avx512vnni", "avxvnni"))):
        features = [f for f in host.features.split(",") if not any(m in f for m in missing)]
        found[name] = replace(host, features=",".join(features))
    for name in ("avx2", "neon"):
        if isa_by_name(name).runs_on_host:
            found[name] = isa_by_name(name)
    if "avx2" in found and "+avxvnni" in host.features.split(","):
        found["avx2 with byte products"] = replace(found["avx2"], features="+avxvnni")
    return found


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_bytes(rng: np.random.Generator, dtype: type, shape: Sequence[int]) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def pick(rng: np.random.Generator, *options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def convolution(seed: int) -> tuple[Node, list[Array]]:
    """A QLinearConv or ConvInteger of any shape that comes to mind."""
    rng = rng_of(seed)
    x_type, w_type = pick(rng, np.uint8, np.int8), pick(rng, np.int8, np.int8, np.uint8)
    groups = pick(rng, 1, 1, 1, 2, 3)
    per_group, multiplier = int(rng.choice([1, 3, 4, 5, 8, 16, 21, 64, 70])), int(rng.integers(1, 40))
    if rng.random() < 0.25:  # depthwise
        groups, per_group, multiplier = int(rng.integers(2, 40)), 1, 1
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    strides, dilations = (
        (int(rng.integers(1, 3)) for _ in range(2)),
        (int(rng.integers(1, 3)) for _ in range(2)),
    )
    pads = [int(rng.integers(0, 3)) for _ in range(4)]
    spatial = (int(rng.integers(5, 12)), int(rng.integers(5, 40)))
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": tuple(pads),
        "group": groups,
    }
    filters = groups * multiplier
    x = random_bytes(rng, x_type, (int(rng.integers(1, 3)), groups * per_group, *spatial))
    weight = random_bytes(rng, w_type, (filters, per_group, *kernel))
    x_zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, ())
    if rng.random() < 0.6:
        w_zero = np.asarray(128 if w_type is np.uint8 else 0, w_type)
    if rng.random() < 0.3:
        return node_of("ConvInteger", [x, weight, x_zero, w_zero], attributes)
    steps = np.sqrt(weight[0].size) * 5000
    channels = filters if rng.random() < 0.6 else 1
    inputs = [
        x,
        np.float32(0.5),
        x_zero,
        weight,
        np.squeeze(rng.uniform(0.1, 1, channels).astype(np.float32))
        if channels == 1
        else rng.uniform(0.1, 1, channels).astype(np.float32),
        w_zero,
        np.float32(steps / 100),
        random_bytes(rng, x_type, ()),
    ]
    if rng.random() < 0.7:
        inputs.append(rng.integers(-9999, 9999, filters).astype(np.int32))
    return node_of("QLinearConv", [np.asarray(i) for i in inputs], attributes)


def product(seed: int) -> tuple[Node, list[Array]]:
    """A QLinearMatMul or MatMulInteger with a constant matrix."""
    rng = rng_of(seed)
    a_type, b_type = pick(rng, np.uint8, np.int8), pick(rng, np.int8, np.uint8)
    m, k, n = (
        int(rng.integers(1, 40)),
        int(rng.choice([1, 3, 4, 24, 63, 64, 100, 200])),
        int(rng.integers(1, 90)),
    )
    a, b = random_bytes(rng, a_type, (*pick(rng, (), (2,)), m, k)), random_bytes(rng, b_type, (k, n))
    a_zero, b_zero = (
        random_bytes(rng, a_type, ()),
        pick(rng, random_bytes(rng, b_type, ()), np.zeros((), b_type)),
    )
    if rng.random() < 0.5:
        return node_of("MatMulInteger", [a, b, a_zero, b_zero], {})
    scales = rng.uniform(0.1, 1, pick(rng, 1, n)).astype(np.float32)
    inputs = [
        *(a, np.float32(0.25), a_zero, b, scales if scales.size > 1 else scales.reshape(()), b_zero),
        *(np.float32(np.sqrt(k) * 20), random_bytes(rng, a_type, ())),
    ]
    return node_of("QLinearMatMul", [np.asarray(i) for i in inputs], {})


def node_of(op_type: str, inputs: list[Array], attributes: dict[str, Any]) -> tuple[Node, list[Array]]:
    values = [
        Value(f"i{n}", DType.from_numpy(a.dtype), a.shape, a if n else None) for n, a in enumerate(inputs)
    ]
    probe = Node(op_type, values, [Value("y", DType.INT32, ())], attributes, opset=21)
    operator = find_operator(probe)
    assert operator is not None
    assert operator.reference is not None
    (result,) = operator.reference(probe, inputs)
    made = Value("y", DType.from_numpy(result.dtype), result.shape)
    return Node(op_type, values, [made], attributes, opset=21), [*inputs, result]


def lower(
    node: Node, isa: Isa, *, known: bool = True, planar: bool = False, template: Any = INTEGER
) -> tuple[tuple[Kernel, ...] | Declined, dict[tuple[str, int], Layout]]:
    nests = describe(node)
    assert isinstance(nests, tuple)
    layouts: dict[tuple[str, int], Layout] = {
        ("table", 0): Layout.row_major(1),
        ("local", 0): Layout.row_major(1),
    }
    for position, value in enumerate(node.inputs):
        assert value is not None
        layouts["input", position] = Layout.row_major(len(value.shape))
    if node.op_type in ("QLinearConv", "ConvInteger"):
        layouts["output", 0] = Layout((0, 2, 3, 1))
        layouts["input", 0] = Layout.row_major(4) if planar else layouts["output", 0]
    else:
        layouts["output", 0] = Layout.row_major(len(node.output.shape))
    constants = frozenset(("input", i) for i in range(1, len(node.inputs))) if known else frozenset()
    context = Context(isa, layouts, constants=constants, small_sums=constants)
    return lower_with(template, nests[0], context), layouts


@pytest.fixture(autouse=True, scope="module")
def emulation() -> Iterator[None]:
    """Tiles are those of the emulation where the processor has none."""
    with contextlib.nullcontext() if host_isa().has_matrix_unit else emulated_matrix_unit():
        yield


def check(node: Node, arrays: list[Array], isa: Isa, *, planar: bool = False, template: Any = INTEGER) -> str:
    kernels, layouts = lower(node, isa, planar=planar, template=template)
    if isinstance(kernels, Declined):
        return kernels.reason
    operands: dict[tuple[str, int], Array] = {("input", i): a for i, a in enumerate(arrays[:-1])}
    operands["output", 0] = np.zeros_like(arrays[-1])
    runner = KernelRunner(kernels, operands, layouts, isa)
    runner()
    np.testing.assert_array_equal(
        runner.result(("output", 0)), arrays[-1], err_msg=f"{node} {kernels[-1].notes}"
    )
    return kernels[-1].template


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", isas())
def test_convolutions_are_exact(name: str) -> None:
    templates = {check(*convolution(seed), isas()[name]) for seed in range(24)}
    assert sum(t.startswith("integer-depthwise") for t in templates) == 1
    assert sum(t.startswith("integer-") for t in templates) >= 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", isas())
def test_matrix_products_are_exact(name: str) -> None:
    templates = {check(*product(1000 + seed), isas()[name]) for seed in range(14)}
    assert any(t.startswith("integer-") for t in templates)


@pytest.mark.slow
@pytest.mark.parametrize("name", isas())
def test_many_convolutions_and_products_are_exact(name: str) -> None:
    for seed in range(24, 400):
        check(*convolution(seed), isas()[name])
        check(*product(1000 + seed), isas()[name])
        check(*image(seed), isas()[name], template=WINOGRAD)


def image(seed: int) -> tuple[Node, list[Array]]:
    """A convolution of 3x3 taps, of any bytes, zero points, padding and channels."""
    rng = rng_of(seed)
    x_type, w_type = pick(rng, np.uint8, np.int8), pick(rng, np.int8, np.uint8)
    channels, filters = int(rng.choice([2, 3, 16, 31, 70])), int(rng.integers(2, 70))
    x = random_bytes(rng, x_type, (int(rng.integers(1, 3)), channels, *rng.integers(5, 12, 2)))
    weight = random_bytes(rng, w_type, (filters, channels, 3, 3))
    zeros = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, ())
    pads = tuple(int(p) for p in rng.integers(0, 3, 4))
    attributes: dict[str, Any] = {"kernel_shape": (3, 3), "pads": pads}
    if rng.random() < 0.5:
        return node_of("ConvInteger", [x, weight, *zeros], attributes)
    scales = [np.asarray(s, np.float32) for s in (0.5, 0.3, np.sqrt(channels) * 200)]
    inputs = [x, scales[0], zeros[0], weight, scales[1], zeros[1], scales[2], random_bytes(rng, x_type, ())]
    return node_of("QLinearConv", [*inputs, rng.integers(-9999, 9999, filters).astype(np.int32)], attributes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in isas() if name not in ("host", "emulated tiles", "neon")])
def test_image_tiles_of_bytes_are_exact(name: str) -> None:
    for seed in range(4):
        assert check(*image(seed), isas()[name], template=WINOGRAD).startswith("integer-winograd")


@pytest.mark.parametrize(("sign", "zero"), [(1, 0), (-1, 255)])
def test_image_tiles_hold_the_largest_sums(sign: int, zero: int) -> None:
    # 115 channels of 9 taps: 255 times 127 of each is the most that 26 bits hold.
    x = np.full((1, 115, 6, 6), 255 - zero, np.uint8)
    weight = np.full((16, 115, 3, 3), 127 * sign, np.int8)
    arrays = [x, weight, np.asarray(zero, np.uint8), np.zeros((), np.int8)]
    node, arrays = node_of("ConvInteger", arrays, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)})
    assert np.abs(arrays[-1]).max() == 115 * 9 * 127 * 255 < 1 << 25
    assert check(node, arrays, isas()["no tiles"], template=WINOGRAD).startswith("integer-winograd")


@pytest.mark.parametrize(("channels", "fits"), [(115, True), (116, False)])
def test_image_tiles_are_for_weights_whose_sums_26_bits_hold(channels: int, fits: bool) -> None:
    weight = np.full((64, channels, 3, 3), 127, np.int8)
    text = f"""graph "g" opset 17 {{
  input %x: uint8[1, {channels}, 28, 28]
  const %w: int8[64, {channels}, 3, 3] = sha256:w
  %y: int32[1, 64, 28, 28] = ConvInteger(%x, %w) {{pads = [1, 1, 1, 1]}} "y"
  return %y
}}
"""
    graph = parse_graph(text, constants={"w": weight})
    partition = plan(graph, Options(no_cache=True)).program.partition
    lowered = lower_partition(partition, isas()["no tiles"])
    launches = (step for steps in lowered.work for step in steps if isinstance(step, KernelLaunch))
    assert any(launch.kernel.template.startswith("integer-winograd") for launch in launches) == fits


def test_sums_of_weights_that_are_read_through_a_view_have_no_bound() -> None:
    text = """graph "g" opset 17 {
  input %x: uint8[1, 8, 9, 9]
  const %w: int8[24, 24] = sha256:w
  const %s: int64[4] = sha256:s
  %v: int8[8, 8, 3, 3] = Reshape(%w, %s) "v"
  %y: int32[1, 8, 7, 7] = ConvInteger(%x, %v) "y"
  return %y
}
"""
    constants = {"w": np.ones((24, 24), np.int8), "s": np.array([8, 8, 3, 3])}
    graph = parse_graph(text, constants=constants)
    group = group_of(graph)
    assert group.nests[-1].reads[1].view == (8, 8, 3, 3)
    assert not Names(ModelTensors(graph), 0, group).small_sums(group.nests[-1])


@pytest.mark.parametrize("dot", DOTS)
def test_the_widest_instruction_is_taken(dot: str) -> None:
    missing = [feature for name in list(DOTS)[: list(DOTS).index(dot)] for feature in DOTS[name]]
    whole = isas().get("emulated tiles", host_isa())
    features = whole.features.split(",")
    isa = replace(whole, features=",".join(f for f in features if f[1:] not in missing))
    if host_isa().arch != "x86_64":
        pytest.skip("these are instructions of x86")
    if DOTS[dot] and not any(f"+{feature}" in features for feature in DOTS[dot]):
        pytest.skip(f"this processor has no {DOTS[dot]}")
    rng = rng_of(0)
    x, weight = random_bytes(rng, np.uint8, (1, 64, 8, 16)), random_bytes(rng, np.int8, (64, 64, 1, 1))
    assert check(*node_of("ConvInteger", [x, weight], {"kernel_shape": (1, 1)}), isa) == f"integer-{dot}"


def test_a_zero_point_known_at_run_time_is_exact() -> None:
    """What DynamicQuantizeLinear gives: the zero point is data."""
    rng = rng_of(5)
    a, b = random_bytes(rng, np.uint8, (9, 70)), random_bytes(rng, np.int8, (70, 33))
    for b_zero in (0, 3):
        node, arrays = node_of("MatMulInteger", [a, b, np.uint8(77), np.int8(b_zero)], {})
        inputs = list(node.inputs)
        inputs[2] = Value("zero", DType.UINT8, ())
        node = Node("MatMulInteger", inputs, node.outputs, {}, opset=21)
        for isa in isas().values():
            assert check(node, arrays, isa).startswith("integer-")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_padding_is_the_zero_point_also_where_that_is_data(dtype: type, planar: bool) -> None:
    rng = rng_of(7)
    x, weight = random_bytes(rng, dtype, (1, 12, 9, 11)), random_bytes(rng, np.int8, (20, 12, 3, 3))
    attributes = {"kernel_shape": (3, 3), "pads": (1, 2, 0, 1)}
    node, arrays = node_of("ConvInteger", [x, weight, dtype(55), np.int8(0)], attributes)
    inputs = list(node.inputs)
    inputs[2] = Value("zero", DType.from_numpy(np.dtype(dtype)), ())
    node = Node("ConvInteger", inputs, node.outputs, attributes, opset=21)
    for isa in isas().values():
        assert check(node, arrays, isa, planar=planar).startswith("integer-")


@pytest.mark.parametrize("name", isas())
def test_stems_read_channels_first(name: str) -> None:
    rng = rng_of(6)
    x, weight = random_bytes(rng, np.uint8, (1, 3, 21, 30)), random_bytes(rng, np.int8, (20, 3, 7, 7))
    attributes = {"kernel_shape": (7, 7), "pads": (3, 3, 3, 3), "strides": (2, 2)}
    node, arrays = node_of("ConvInteger", [x, weight, np.uint8(9), np.int8(0)], attributes)
    assert check(node, arrays, isas()[name], planar=True).startswith("integer-")


def test_other_processors_get_code_too() -> None:
    for make, seed in ((convolution, 3), (product, 1001)):
        kernels, _ = lower(make(seed)[0], isa_by_name("neon"))
        assert not isinstance(kernels, Declined)
        assert kernels[-1].template.endswith("widened")
        for kernel in kernels:
            assert compile_object(kernel.text, isa_by_name("neon"))


def two_activations(seed: int) -> tuple[Node, list[Array]]:
    """A QLinearMatMul or MatMulInteger of two stacks of matrices of bytes."""
    rng = rng_of(seed)
    a_type, b_type = pick(rng, np.uint8, np.int8), pick(rng, np.int8, np.uint8)
    m, k, n = int(rng.integers(2, 40)), int(rng.choice([1, 2, 3, 8, 31, 64, 100])), int(rng.integers(2, 90))
    stack = pick(rng, (), (3,), (2, 3), (1, 2))
    a = random_bytes(rng, a_type, (*stack, m, k))
    b = random_bytes(rng, b_type, (*pick(rng, stack, stack, ()), k, n))
    a_zero, b_zero = random_bytes(rng, a_type, ()), random_bytes(rng, b_type, ())
    if rng.random() < 0.4:  # as the matrix unit needs it
        b_zero = np.asarray(128 if b_type is np.uint8 else 0, b_type)
    if rng.random() < 0.5:
        return node_of("MatMulInteger", [a, b, a_zero, b_zero], {})
    inputs = [
        *(a, np.float32(0.25), a_zero, b, np.float32(0.5), b_zero),
        *(np.float32(np.sqrt(k) * 20), random_bytes(rng, a_type, ())),
    ]
    return node_of("QLinearMatMul", [np.asarray(i) for i in inputs], {})


def checked(node: Node, arrays: list[Array], isa: Isa, *, turned: bool) -> str:
    """The template that multiplies two activations, of which the second may lie column by column."""
    nests = describe(node)
    assert isinstance(nests, tuple)
    rank = len(arrays[-1].shape)
    layouts = {("input", i): Layout.row_major(a.ndim) for i, a in enumerate(arrays[:-1])}
    layouts["output", 0] = Layout.row_major(rank)
    number = next(i for i, a in enumerate(arrays) if i and a.ndim > 1)
    if turned:
        ndim = arrays[number].ndim
        layouts["input", number] = Layout((*range(ndim - 2), ndim - 1, ndim - 2))
    kernels = lower_with(INTEGER, nests[0], Context(isa, layouts, next_local=7))
    if isinstance(kernels, Declined):
        return kernels.reason
    layouts |= {("local", i): Layout.row_major(1) for i in range(7, 10)}
    operands: dict[tuple[str, int], Array] = {("input", i): a for i, a in enumerate(arrays[:-1])}
    operands["output", 0] = np.zeros_like(arrays[-1])
    runner = KernelRunner(kernels, operands, layouts, isa)
    runner()
    np.testing.assert_array_equal(runner.result(("output", 0)), arrays[-1], err_msg=str(kernels[-1].plan))
    return kernels[-1].template


@pytest.mark.sampled(2)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", isas())
def test_products_of_two_activations_are_exact(name: str, turned: bool) -> None:
    given = [(two_activations(seed), isas()[name]) for seed in range(12)]
    templates = [checked(*made, isa, turned=turned) for made, isa in given]
    made = [t for t in templates if t.startswith("integer-")]
    assert len(made) >= 8, templates
    assert ("integer-tiles" in made) == ("+amx-int8" in isas()[name].features.split(","))


def test_two_activations_of_fewer_rows_give_their_bits_and_leave_the_others() -> None:
    rng = rng_of(3)
    a, b = random_bytes(rng, np.uint8, (5, 9, 12)), random_bytes(rng, np.uint8, (5, 12, 20))
    node, arrays = node_of("MatMulInteger", [a, b, np.uint8(7), np.uint8(9)], {})
    nests = describe(node)
    assert isinstance(nests, tuple)
    (nest,) = nests
    outermost = nest.parallel_dims[0].name
    rows = RowsOf(5, 1, 1)
    nest = replace(nest, dims=tuple(replace(d, rows=rows) if d.name == outermost else d for d in nest.dims))
    layouts = {("input", i): Layout.row_major(x.ndim) for i, x in enumerate(arrays[:-1])}
    layouts |= {("local", i): Layout.row_major(1) for i in range(3)}
    layouts["output", 0] = Layout.row_major(3)
    kernels = lower_with(INTEGER, nest, Context(host_isa(), layouts))
    assert not isinstance(kernels, Declined)
    operands: dict[tuple[str, int], Array] = {("input", i): x for i, x in enumerate(arrays[:-1])}
    for num_rows in (1, 3, 5):
        operands["output", 0] = np.full_like(arrays[-1], 77)
        runner = KernelRunner(kernels, operands, layouts, host_isa())
        runner(num_rows)
        found = runner.result(("output", 0))
        np.testing.assert_array_equal(found[:num_rows], arrays[-1][:num_rows])
        assert np.all(found[num_rows:] == 77)


def test_tiles_in_pairs_are_of_one_factor() -> None:
    for extent in range(2, 700):
        rows = tile_rows(extent, in_pairs=True)
        assert 1 <= rows <= 16
        assert -(-extent // rows) % 2 == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", isas())
def test_many_products_of_two_activations_are_exact(name: str) -> None:
    for seed in range(12, 200):
        checked(*two_activations(seed), isas()[name], turned=seed % 2 == 1)


def test_products_of_one_column_by_two_activations_are_declined() -> None:
    a, b = random_bytes(rng_of(0), np.uint8, (3, 8)), random_bytes(rng_of(1), np.int8, (8, 1))
    assert "used once" in checked(*node_of("MatMulInteger", [a, b], {}), host_isa(), turned=False)


def test_float_products_are_not_mistaken_for_integers() -> None:
    values = [Value("a", DType.FLOAT32, (3, 4)), Value("b", DType.FLOAT32, (4, 5))]
    nests = describe(Node("MatMul", values, [Value("y", DType.FLOAT32, (3, 5))]))
    assert isinstance(nests, tuple)
    assert product_of(nests[0]) is None


def rounded(low: float, high: float, zero: Expr | float | None, dtype: DType) -> Expr:
    value: Expr = call("round", Read(0, DType.FLOAT32) * 0.5)
    if zero is not None:
        value = value + zero
    return cast(call("max", call("min", value, Const(high, DType.FLOAT32)), low), dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", isas())
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_quantising_saturates_and_rounds_halves_to_even(name: str, dtype: DType) -> None:
    low, high = (0.0, 255.0) if dtype is DType.UINT8 else (-128.0, 127.0)
    given = np.concatenate([np.arange(-1200, 1200) / 2, [np.inf, -np.inf, 1e30, -1e30]]).astype(np.float32)
    zeros = np.full(given.shape, 7, dtype.numpy)
    reads = [cast(Read(1, dtype), DType.FLOAT32), None, 3.0, -5.0]
    for zero in reads:
        body = rounded(low, high, zero, dtype)
        operands = [Operand("input", 0, DType.FLOAT32, given.shape), Operand("input", 1, dtype, given.shape)]
        accesses = tuple(Access(o, (affine("i"),)) for o in operands)
        target = Operand("output", 0, dtype, given.shape)
        nest = Nest((Dim("i", given.size),), accesses, Access(target, (affine("i"),)), body)
        layouts = {o.key: Layout.row_major(1) for o in (*operands, target)}
        kernels = lower_nests((nest,), layouts, isas()[name])
        data = {("input", 0): given, ("input", 1): zeros, ("output", 0): np.zeros_like(zeros)}
        runner = KernelRunner(kernels, data, layouts, isas()[name])
        runner()
        np.testing.assert_array_equal(runner.result(("output", 0)), evaluate(body, [given, zeros]))
