"""Recurrent layers as their steps: generated code computes what ONNX Runtime and the reference compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.compiler import plan
from tilewright.errors import InputError, ModelRejected
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.ops import describe
from tilewright.options import Options
from tilewright.passes.expand_recurrent import ExpandRecurrent, num_steps_of
from tilewright.targets.cpu.isa import CacheSizes, isa_by_name
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch

Array = np.ndarray[Any, Any]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, WIDTH, SIZE = 7, 3, 5, 21


def model(op_type: str, *, directions: int, given: str = "", **attributes: Any) -> onnx.ModelProto:
    """A layer with constant weights; `given` holds b(ias), l(engths), s(tate), p(eepholes)."""
    rng = np.random.default_rng(3)
    rows = GATES[op_type] * SIZE
    layout = attributes.get("layout", 0)
    state = (BATCH, directions, SIZE) if layout else (directions, BATCH, SIZE)
    inputs = [("x", (BATCH, STEPS, WIDTH) if layout else (STEPS, BATCH, WIDTH))]
    constants: dict[str, tuple[int, ...]] = {"w": (directions, rows, WIDTH), "r": (directions, rows, SIZE)}
    names = ["x", "w", "r", "", "", "", "", ""]
    if "b" in given:
        constants["b"] = (directions, 2 * rows)
        names[3] = "b"
    if "s" in given:
        names[5] = "h"
        inputs.append(("h", state))
    if "s" in given and op_type == "LSTM":
        names[6] = "c"
        inputs.append(("c", state))
    if "p" in given:
        constants["p"] = (directions, 3 * SIZE)
        names[7] = "p"
    declared = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs]
    if "l" in given:
        names[4] = "n"
        declared.append(helper.make_tensor_value_info("n", onnx.TensorProto.INT32, [BATCH]))
    while not names[-1]:
        names.pop()
    outputs = ["y", "y_h", "y_c"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(op_type, names, outputs, hidden_size=SIZE, **attributes)
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) * 0.4).astype(np.float32), n)
        for n, s in constants.items()
    ]
    results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "layer", declared, results, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def feed(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    made: dict[str, Array] = {
        v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs if v.dtype.is_float
    }
    lengths = np.array([STEPS, 1, 4], np.int32)
    return {**made, **{v.name: lengths for v in graph.inputs if v.dtype is DType.INT32}}


def runtime_outputs(proto: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, inputs))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"given": "bl", "direction": "bidirectional"}),
    ("LSTM", {"given": "bsp", "direction": "reverse", "clip": 0.5}),
    ("LSTM", {"given": "blsp", "activations": ["HardSigmoid", "Softsign", "Relu"]}),
    ("GRU", {"given": "bl", "direction": "bidirectional"}),
    ("GRU", {"given": "bls", "linear_before_reset": 1, "direction": "bidirectional"}),
    ("GRU", {"given": "bs", "direction": "reverse", "clip": 0.5}),
    ("GRU", {"linear_before_reset": 1}),
    ("RNN", {"given": "bls", "direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
    ("RNN", {"given": "s", "direction": "reverse"}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("op_type", "settings"), CASES, ids=lambda c: str(c))
def test_generated_code_computes_what_onnxruntime_computes(op_type: str, settings: dict[str, Any]) -> None:
    directions = 2 if settings.get("direction") == "bidirectional" else 1
    proto = model(op_type, directions=directions, **settings)
    compiled = tw.compile(proto, threads=1)
    assert not [k for k in compiled.kernels if k.is_host]
    inputs = feed(load_onnx(proto))
    names = [output.name for output in compiled.get_outputs()]
    for name, found, expected in zip(
        names, compiled.run(None, inputs), runtime_outputs(proto, inputs), strict=True
    ):
        # A state is below 1, but not Relu's.
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale, err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op_type", sorted(GATES))
@pytest.mark.parametrize("given", ["", "bls"])
def test_a_batch_that_comes_first_is_turned(op_type: str, given: str) -> None:
    # ONNX Runtime has no layout 1 on processors: our reference is compared.
    proto = model(op_type, directions=2, given=given, layout=1, direction="bidirectional")
    graph = load_onnx(proto)
    inputs = feed(graph)
    expected = run_graph(graph, inputs, dtype=DType.FLOAT64)
    compiled = tw.compile(proto, threads=1)
    assert not [k for k in compiled.kernels if k.is_host]
    names = [output.name for output in compiled.get_outputs()]
    for name, found in zip(names, compiled.run(None, inputs), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=1e-5, err_msg=name)


def test_only_the_last_state_is_computed_where_only_it_is_read() -> None:
    graph = load_onnx(model("GRU", directions=1))
    graph.outputs = [v for v in graph.outputs if v.name == "y_h"]
    ExpandRecurrent().run(graph)
    assert [n.op_type for n in graph.nodes if n.op_type in ("Concat", "GRU")] == []


def test_steps_run_from_the_end_where_the_direction_is_reverse() -> None:
    graph = load_onnx(model("RNN", directions=1, direction="reverse"))
    ExpandRecurrent().run(graph)
    cells = [n for n in graph.nodes if n.op_type == "RNNCell"]
    assert len(cells) == STEPS
    positions = [n.require(0).name.rsplit("_", 1)[1] for n in cells]
    assert positions == [str(t) for t in reversed(range(STEPS))]


def test_lengths_that_are_known_and_complete_cost_nothing() -> None:
    graph = load_onnx(model("LSTM", directions=1, given="l"))
    (lengths,) = [v for v in graph.inputs if v.name == "n"]
    node = graph.nodes[0]
    known = graph.constant(np.full(BATCH, STEPS, np.int32), "lengths")
    graph.set_inputs(node, [known if v is lengths else v for v in node.inputs])
    ExpandRecurrent().run(graph)
    assert all(n.input(3) is None for n in graph.nodes if n.op_type == "LSTMCell")
    assert not [n for n in graph.nodes if n.op_type in ("Where", "Less")]


@pytest.mark.parametrize(("l2_bytes", "kind"), [(2 << 20, "packed"), (1 << 18, "of 24 bits")])
def test_weights_that_the_cache_keeps_between_steps_are_not_rounded(l2_bytes: int, kind: str) -> None:
    # 24 bits save reading where weights come from memory; what stays in the cache is not read from there.
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (6, 1, 8)))
    weights = [
        graph.constant(rng.standard_normal(s).astype(np.float32)) for s in ((1, 1024, 8), (1, 1024, 256))
    ]
    y = graph.value("y", DType.FLOAT32, (6, 1, 1, 256))
    graph.append(Node("LSTM", [x, *weights], [y], {"hidden_size": 256}))
    graph.outputs = [y]
    options = Options(disabled_passes=("loop-recurrent",))
    isa = replace(isa_by_name("avx512"), caches=CacheSizes(l2_bytes=l2_bytes))
    lowered = lower_partition(plan(graph, options).program.partition, isa, accuracy="relaxed")
    kernels = [x.kernel for work in lowered.work for x in work if isinstance(x, KernelLaunch)]
    notes = [kernel.notes for kernel in kernels if kernel.macs == 256 * 1024]
    assert len(notes) == 5
    assert all(f"B {kind}" in note for note in notes)
    lowered = lower_partition(plan(graph, Options()).program.partition, isa, accuracy="relaxed")
    launches = [x for work in lowered.work for x in work if isinstance(x, KernelLaunch)]
    (loop,) = [launch.kernel for launch in launches if launch.kernel.template == "recurrent" and launch.nests]
    assert ("weights of 24 bits" in loop.notes) == (kind == "of 24 bits")


def test_long_sequences_stay_whole_and_say_so() -> None:
    graph = load_onnx(model("LSTM", directions=1))
    result = ExpandRecurrent(max_steps=STEPS - 1).run(graph)
    assert result.num_changes == 0
    assert [str(r) for r in result.remarks] == [f"y: kept: {STEPS} steps of time are more than {STEPS - 1}"]


def test_layers_without_elements_stay_whole() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (0, 1, 2)))
    weights = [graph.constant(np.zeros(s, np.float32)) for s in ((1, 3, 2), (1, 3, 3))]
    y = graph.value("y", DType.FLOAT32, (0, 1, 1, 3))
    node = graph.append(Node("RNN", [x, *weights], [y], {"hidden_size": 3}))
    graph.outputs = [y]
    assert num_steps_of(graph, node) is None
    assert ExpandRecurrent().run(graph).num_changes == 0


def test_check_says_how_layers_run() -> None:
    report = tw.check(tw.load(model("LSTM", directions=1)))
    assert [(o.op_type, o.verdict, o.reason) for o in report.operators] == [
        ("LSTM", "native", f"a loop over its {STEPS} steps")
    ]


def test_without_the_passes_a_layer_runs_on_the_host() -> None:
    proto = model("GRU", directions=1, given="b")
    compiled = tw.compile(proto, threads=1, disabled_passes=("loop-recurrent", "expand-recurrent"))
    assert [k.is_host for k in compiled.kernels] == [True]
    inputs = feed(load_onnx(proto))
    for found, expected in zip(compiled.run(None, inputs), runtime_outputs(proto, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", [-1, STEPS + 1, np.iinfo(np.int32).min, np.iinfo(np.int32).max])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_lengths_that_no_sequence_can_have_are_refused(op_type: str, length: int) -> None:
    graph = load_onnx(model(op_type, directions=1, given="l"))
    inputs = feed(graph)
    (lengths,) = [v for v in graph.inputs if v.dtype is DType.INT32]
    inputs[lengths.name] = np.array([STEPS, 0, length], np.int32)
    expanded = graph.clone()
    ExpandRecurrent().run(expanded)
    for one in (graph, expanded):
        with pytest.raises(InputError):
            run_graph(one, inputs)
    compiled = tw.compile(model(op_type, directions=1, given="l"))
    with pytest.raises(InputError, match=r"sequence_lens"):
        compiled.run(None, inputs)
    inputs[lengths.name] = np.array([STEPS, 0, 1], np.int32)
    compiled.run(None, inputs)


def test_constant_lengths_that_no_sequence_can_have_are_refused_with_the_model() -> None:
    graph = load_onnx(model("GRU", directions=1, given="l"))
    (lengths,) = [v for v in graph.inputs if v.name == "n"]
    (node,) = graph.nodes
    known = [graph.constant(np.full(BATCH, STEPS + 1, np.int32)) if v is lengths else v for v in node.inputs]
    one = Node("GRU", known, node.outputs, node.attributes, opset=node.opset)
    with pytest.raises(ModelRejected, match=f"the length {STEPS + 1}, but there are {STEPS} steps"):
        describe(one)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_a_sequence_of_no_steps_ends_with_the_state_it_starts_with(op_type: str) -> None:
    made = model(op_type, directions=2, given="ls", direction="bidirectional")
    inputs = {**feed(load_onnx(made)), "n": np.array([STEPS, 0, 1], np.int32)}
    names = [o.name for o in made.graph.output]
    for target in ("cpu", "interpreter"):
        results = dict(zip(names, tw.compile(made, target=target).run(names, inputs), strict=True))
        np.testing.assert_array_equal(results["y_h"][:, 1], inputs["h"][:, 1])
        if op_type == "LSTM":
            np.testing.assert_array_equal(results["y_c"][:, 1], inputs["c"][:, 1])
        assert not results["y"][:, :, 1].any()
