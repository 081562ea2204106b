"""Files that ask for more than a machine has: each is refused by a limit that its message names."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import InputError, ModelRejected, TilewrightError, UnsupportedOp
from tilewright.frontend.onnx import build, limits, load_onnx, native
from tilewright.frontend.onnx.read import structure_bytes
from tilewright.ir import control_flow
from tilewright.passes.fold_constants import FoldConstants

F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741  # the types' own letters
Inputs = Sequence[tuple[str, int, Sequence[int]]]


def model(
    nodes: Sequence[NodeProto],
    inputs: Inputs = (),
    constants: dict[str, Any] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> ModelProto:
    graph = GraphProto(name="g")
    graph.node.extend(nodes)
    graph.input.extend(helper.make_tensor_value_info(n, k, s) for n, k, s in inputs)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items())
    graph.output.extend(helper.make_empty_tensor_value_info(n) for n in outputs)
    found = ModelProto(ir_version=8, graph=graph)
    found.opset_import.append(helper.make_opsetid("", opset))
    return found


def one(op_type: str, inputs: Inputs, constants: dict[str, Any] | None = None, **more: Any) -> ModelProto:
    """A model of one node; inputs first, then constants."""
    opset, outputs = more.pop("opset", 17), more.pop("outputs", ["y"])
    names = more.pop("names", [*(n for n, _, _ in inputs), *(constants or {})])
    return model([helper.make_node(op_type, names, outputs, **more)], inputs, constants, outputs, opset)


X = (("x", F, (1, 1, 8)),)
IMAGE = (("x", F, (1, 4, 3, 3)),)


def too_much_work() -> Iterator[tuple[str, ModelProto]]:
    yield "lrn", one("LRN", IMAGE, size=2**40)
    for op_type, opset in (("AveragePool", 17), ("MaxPool", 17), ("LpPool", 18)):
        yield (
            f"{op_type} same",
            one(op_type, X, kernel_shape=[2**30], auto_pad="SAME_UPPER", opset=opset),
        )
    far = {"kernel_shape": [3], "dilations": [2**32], "auto_pad": "SAME_UPPER"}
    yield "dilations", one("AveragePool", X, **far, opset=22)
    weight = {"w": np.zeros((1, 1, 3), np.float32)}
    yield "Conv dilations", one("Conv", X, weight, dilations=[2**32], pads=[2**32, 2**32])
    yield "AveragePool padded", one("AveragePool", X, kernel_shape=[2**30], pads=[2**29, 2**29])
    yield "indices", one("MaxPool", X, kernel_shape=[2**30], auto_pad="SAME_LOWER", outputs=["y", "i"])
    boxes = {"r": np.array([[0, 0, 4, 4]], np.float32), "b": np.zeros(1, np.int64)}
    yield "samples", one("RoiAlign", (("x", F, (1, 1, 8, 8)),), boxes, sampling_ratio=2**30)
    letters = "abcdefgh"
    einsum = one("Einsum", (("x", F, (1000,)),), equation=",".join(letters) + "->", names=["x"] * 8)
    yield "einsum", einsum


def too_large_tables() -> Iterator[tuple[str, ModelProto]]:
    yield "resize", one("Resize", X, {"s": np.array([1, 1, 1e9], np.float32)}, names=["x", "", "s"])
    shrunk = {"s": np.array([1, 1, 2**-23], np.float32)}
    yield (
        "antialias",
        one(
            "Resize",
            (("x", F, (1, 1, 2**24)),),
            shrunk,
            names=["x", "", "s"],
            mode="linear",
            antialias=1,
            opset=18,
        ),
    )
    pads = {"p": np.array([0, 0, 2**30, 0, 0, 0])}
    yield "pad", one("Pad", X, pads, mode="edge")


def too_large_values() -> Iterator[tuple[str, ModelProto]]:
    yield "constant", one("ConstantOfShape", (), {"s": np.array([2**40])})
    yield "expand", one("Expand", X, {"s": np.array([2**40, 1, 1])})
    yield "tile", one("Tile", X, {"s": np.array([2**40, 1, 1])})
    bounds = {"a": np.float32(0), "b": np.float32(1), "c": np.float32(1e-12)}
    yield "range", one("Range", (), bounds)
    yield (
        "one-hot",
        one("OneHot", (("i", I, (9,)),), {"d": np.array(2**40), "v": np.array([0, 1], np.float32)}),
    )
    yield "strides", one("ConvTranspose", X, {"w": np.zeros((1, 1, 1), np.float32)}, strides=[2**35])
    yield "rank", one("Reshape", (("x", F, (1,)),), {"s": np.ones(65, np.int64)})
    yield "declared rank", one("Relu", (("x", F, (1,) * 65),))


def named(cases: Callable[[], Iterator[tuple[str, ModelProto]]]) -> Any:
    return pytest.mark.parametrize("proto", [pytest.param(p, id=name) for name, p in cases()])


@named(too_much_work)
def test_work_beyond_what_operands_can_need_is_refused(proto: ModelProto) -> None:
    with pytest.raises(ModelRejected, match=r"(steps|elements).* more than the \d+ that"):
        load_onnx(proto)


@named(too_large_tables)
def test_positions_along_an_axis_are_bounded(proto: ModelProto) -> None:
    with pytest.raises(ModelRejected, match=r"longer than the 4194304 allowed|at most \d+ are made"):
        load_onnx(proto)


@named(too_large_values)
def test_values_that_no_machine_holds_are_refused(proto: ModelProto) -> None:
    with pytest.raises((ModelRejected, UnsupportedOp), match=r"more than (64 GiB|64;)|depends on data"):
        load_onnx(proto)


def test_pads_remove_no_more_than_there_is() -> None:
    for pads in ([2**40, 2 - 2**40], [-3, 3]):
        with pytest.raises(ModelRejected, match=r"remove more|Pad"):
            load_onnx(one("Pad", (("x", F, (2,)),), {"p": np.array(pads)}))


def test_constants_computed_at_import_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MAX_FOLDED_BYTES", 10 * 4 * 65536)
    nodes = [helper.make_node("ConstantOfShape", ["s"], [f"y{i}"]) for i in range(40)]
    graph = load_onnx(model(nodes, (), {"s": np.array([65536])}, [f"y{i}" for i in range(40)]))
    assert sum(node.op_type == "ConstantOfShape" for node in graph.nodes) == 30


def test_an_import_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_IMPORT_S", -1.0)
    with pytest.raises(ModelRejected, match="takes longer than"):
        load_onnx(one("Relu", X))


def length(number: int) -> bytes:
    text = b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


@pytest.mark.sampled(0)
def test_files_of_many_small_parts_are_refused_before_they_are_parsed() -> None:
    nodes = b"\x0a\x00" * (limits.MAX_STRUCTURE_BYTES // 2 + 1)
    with pytest.raises(ModelRejected, match=f"not weights, more than {limits.MAX_STRUCTURE_BYTES}"):
        load_onnx(b"\x08\x08\x3a" + length(len(nodes)) + nodes)


def test_a_file_of_too_many_nodes_is_refused_unseen() -> None:
    nodes = b"\x0a\x00" * (limits.MAX_NODES + 1)
    with pytest.raises(ModelRejected, match=f"more than {limits.MAX_NODES}"):
        load_onnx(b"\x08\x08\x3a" + length(len(nodes)) + nodes)


def part(number: int, content: bytes) -> bytes:
    return length(number << 3 | 2) + length(len(content)) + content


EMPTY = limits.MAX_PARTS + 1
MANY_PARTS = {
    "declared": lambda: part(7, part(13, b"") * EMPTY),
    "inputs": lambda: part(7, part(11, b"") * EMPTY),
    "initializers": lambda: part(7, part(5, b"") * EMPTY),
    "attributes": lambda: part(7, part(1, part(5, b"") * EMPTY)),
    "names": lambda: part(7, part(1, part(1, b"") * EMPTY)),
    "nested": lambda: part(7, part(1, part(5, part(6, part(1, b"") * EMPTY)))),
    "functions": lambda: part(7, b"") + part(25, b"") * EMPTY,
    "nodes of functions": lambda: part(7, b"") + part(25, part(7, b"") * EMPTY),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("many", MANY_PARTS)
def test_files_of_many_parts_are_refused_unseen(many: str) -> None:
    with pytest.raises(ModelRejected, match=f"more than MAX_PARTS = {limits.MAX_PARTS}"):
        load_onnx(b"\x08\x08" + MANY_PARTS[many]())


@pytest.mark.slow
@pytest.mark.parametrize("number", [13, 11, 5, 1])
def test_memory_of_an_import_is_bounded(number: int) -> None:
    """As many parts as a file may have, in a process of its own, whose memory tells."""
    program = (
        "import resource, sys; from tilewright.frontend.onnx import load_onnx\n"
        "from tilewright.errors import ModelRejected\n"
        "try: load_onnx(sys.stdin.buffer.read())\n"
        "except ModelRejected: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    data = b"\x08\x08" + part(7, part(number, b"") * (limits.MAX_PARTS - 10))
    data += part(8, part(1, b"") + b"\x10\x11")
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert int(done.stdout) < 3 << 20  # KiB


def test_weights_are_no_structure_wherever_they_lie() -> None:
    data = np.zeros(100_000, np.float32)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(data))
    proto = model([constant, helper.make_node("Add", ["c", "w"], ["y"])], (), {"w": data})
    assert structure_bytes(proto.SerializeToString()) < 500
    assert structure_bytes(b"\x3a\xff\xff\xff\xff\x7f" + b"\xff" * 100) > 100


def body(nodes: Sequence[NodeProto], inputs: Inputs, outputs: Inputs) -> GraphProto:
    info = helper.make_tensor_value_info
    return helper.make_graph(nodes, "b", [info(*i) for i in inputs], [info(*o) for o in outputs])


def endless_loop() -> ModelProto:
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["s"], ["t"])]
    inner = body(
        nodes,
        [("i", I, ()), ("c", TensorProto.BOOL, ()), ("s", F, (2,))],
        [("d", TensorProto.BOOL, ()), ("t", F, (2,))],
    )
    return one("Loop", (("x", F, (2,)),), {"n": np.array(10**18)}, names=["n", "", "x"], body=inner)


def long_scan(num_steps: int) -> ModelProto:
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Neg", ["t"], ["o"])]
    inner = body(nodes, [("s", F, (2,)), ("e", F, (2,))], [("t", F, (2,)), ("o", F, (2,))])
    inputs = (("z", F, (2,)), ("x", F, (num_steps, 2)))
    return one("Scan", inputs, body=inner, num_scan_inputs=1, outputs=["y", "w"])


def many_loops(count: int) -> ModelProto:
    """Loops of a hundred steps, one behind the other, none of which can be known while loading."""
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Sin", ["s"], ["t"])]
    inner = body(
        nodes,
        [("i", I, ()), ("c", TensorProto.BOOL, ()), ("s", F, (2,))],
        [("d", TensorProto.BOOL, ()), ("t", F, (2,))],
    )
    names = ["x", *(f"y{i}" for i in range(count - 1)), "y"]
    loops = [
        helper.make_node("Loop", ["n", "", given], [made], body=inner)
        for given, made in itertools.pairwise(names)
    ]
    return model(loops, (("x", F, (2,)),), {"n": np.array(100)})


def test_loops_become_a_limited_number_of_nodes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MAX_UNROLLED_NODES_IN_ALL", 350)
    types = Counter(node.op_type for node in load_onnx(many_loops(9)).nodes)
    assert types["Loop"] >= 5
    assert 100 <= types["Sin"] <= 400


def nested_loop() -> ModelProto:
    """A loop of two steps around one without an end, which runs inside onnx.reference."""
    info = [("j", I, ()), ("e", TensorProto.BOOL, ()), ("u", F, (2,))]
    inner = endless_loop().graph.node[0]
    inner.input[2], inner.output[0] = "u", "v"
    nodes = [helper.make_node("Identity", ["e"], ["f"]), inner]
    outer = body(nodes, info, [("f", TensorProto.BOOL, ()), ("v", F, (2,))])
    counts = {"n": np.array(10**18), "m": np.array(2)}
    return one("Loop", (("x", F, (2,)),), counts, names=["m", "", "x"], body=outer)


@pytest.mark.parametrize("make", [endless_loop, nested_loop, lambda: long_scan(10_000)])
def test_loops_on_the_host_end(make: Callable[[], ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow, "MAX_LOOP_STEPS", 500)
    compiled = tw.compile(make(), target="interpreter")
    feed = {i.name: np.ones(i.shape, np.float32) for i in compiled.get_inputs()}
    with pytest.raises(InputError, match="more than 500 steps"):
        compiled.run(None, feed)


def test_boxes_of_any_size_are_refused_or_computed() -> None:
    inputs = (("x", F, (1, 2, 8, 8)), ("r", F, (1, 4)), ("b", I, (1,)))
    compiled = tw.compile(one("RoiAlign", inputs, output_height=2, output_width=2), target="interpreter")
    feed: dict[str, Any] = {"x": np.ones((1, 2, 8, 8), np.float32), "b": np.zeros(1, np.int64)}
    for size in (1e3, -1e9):
        feed["r"] = np.array([[0, 0, size, size]], np.float32)
        assert np.isfinite(compiled.run(None, feed)[0]).all()
    for size in (1e9, 1e30, np.inf, np.nan):
        feed["r"] = np.array([[0, 0, size, size]], np.float32)
        with pytest.raises(TilewrightError, match="RoiAlign"):
            compiled.run(None, feed)


def test_code_for_long_axes_is_generated_without_a_look_at_each_tile() -> None:
    pads = {"p": np.array([2**31, 2**31])}
    compiled = tw.compile(one("Pad", (("x", F, (2,)),), pads), no_cache=True)
    assert compiled.get_outputs()[0].shape == (2**32 + 2,)


def test_heavy_constants_are_left_to_the_run() -> None:
    big = np.zeros((1, 1, 300, 300), np.float32)
    graph = load_onnx(one("AveragePool", (), {"x": big}, kernel_shape=[100, 100]))
    result = FoldConstants().run(graph)
    assert [node.op_type for node in graph.nodes] == ["AveragePool"]
    assert "takes 404010000 steps, more than 67108864" in result.remarks[0].text
