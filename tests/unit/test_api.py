"""The public functions on small models."""

# mypy: disable-error-code="arg-type, attr-defined, union-attr"

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.models import F32, feed_for, host_net, mixed_outputs, model, small_net

import tilewright as tw
from tilewright.api.cache import ExportedCache, ForgottenFindings, PrunedCache
from tilewright.errors import UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph
from tilewright.partition.base import data_edges

TARGETS = ("cpu", "interpreter", "stcp920")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def net() -> Any:
    return small_net()


@pytest.fixture(scope="module")
def compiled(net: Any, tmp_path_factory: pytest.TempPathFactory) -> tw.CompiledModel:
    return tw.compile(net, threads=2, cache_dir=tmp_path_factory.getbasetemp() / "cache")


def usage_error(call: Any) -> str:
    with pytest.raises(tw.UsageError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# Import.


def test_importing_loads_nothing_heavy_and_takes_less_than_its_limit() -> None:
    code = (
        "import sys, time; start = time.process_time(); import tilewright;"
        "used = time.process_time() - start;"
        "heavy = {'numpy', 'onnx', 'llvmlite', 'pydantic'} & set(sys.modules);"
        "import json; print(json.dumps([used, sorted(heavy)]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used_s, heavy = json.loads(run.stdout)
    assert heavy == []
    assert used_s < 0.4


def test_every_public_name_is_there() -> None:
    assert all(getattr(tw, name) is not None for name in tw.__all__)
    assert set(tw.__all__) <= set(dir(tw))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tw.nothing


# Loading and checking.


def test_a_model_from_a_file_from_bytes_and_from_memory_is_the_same(net: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(net.SerializeToString(deterministic=True))
    models = [tw.load(net), tw.load(path), tw.load(str(path)), tw.load(path.read_bytes())]
    assert len({m.sha256 for m in models}) == 1
    assert models[1].name == str(path)


def test_the_summary_counts_the_model(net: Any) -> None:
    summary = tw.load(net).summary()
    parameters = sum(int(np.prod(t.dims)) for t in net.graph.initializer)
    assert summary.num_parameters == parameters
    assert summary.parameter_bytes == 4 * parameters
    assert summary.operator_counts == {
        "Conv": 2, "Add": 1, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 1,
    }  # fmt: skip
    assert summary.num_nodes == len(net.graph.node)
    assert summary.macs >= 12 * 12 * 24 * 9 * (3 + 24)
    assert json.loads(json.dumps(summary.to_json()))["inputs"][0]["shape"] == [1, 3, 12, 12]
    assert "<table>" in tw.load(net)._repr_html_()


def test_markup_in_names_is_escaped(net: Any) -> None:
    evil = small_net()
    evil.graph.name = "<script>"
    assert "<script>" not in tw.load(evil)._repr_html_()


def test_check_lists_what_runs_on_the_host() -> None:
    report = tw.check(host_net())
    assert report.ok
    assert [o.op_type for o in report.on_host] == ["TopK"]
    assert [n for o in report.operators for n in o.nodes] == ["product", "largest", "relu"]
    assert "TopK" in str(report)
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_check_says_what_is_unsupported_and_raises_nothing() -> None:
    from onnx import TensorProto, helper

    strings = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in ("s", "t")]
    proto = model([helper.make_node("Identity", ["s"], ["t"], "copy")], strings[:1], strings[1:], [])
    report = tw.check(proto)
    assert not report.ok
    assert [o.nodes for o in report.unsupported] == [("copy",)]
    assert "string" in report.unsupported[0].reason
    with pytest.raises(tw.UnsupportedOp, match="copy"):
        tw.compile(proto)
    assert tw.check(proto, "interpreter").ok


@pytest.mark.slow
def test_a_torch_module_is_loaded_through_its_own_export() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(2, 8)
    model = tw.load(module, (x,))
    assert model.name == "Sequential"
    compiled = tw.compile(model)
    (name,) = (i.name for i in compiled.get_inputs())
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_allclose(compiled.run(None, {name: x.numpy()})[0], want, rtol=1e-5, atol=1e-5)


# Compiling and running.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", [small_net, host_net, mixed_outputs])
def test_outputs_are_those_of_the_reference(target: str, make: Any) -> None:
    proto = make()
    feed = feed_for(proto)
    want = run_graph(load_onnx(proto), feed, dtype=DType.FLOAT64)
    got = tw.compile(proto, target).run(None, feed)
    assert len(got) == len(proto.graph.output)
    for array, output in zip(got, proto.graph.output, strict=True):
        np.testing.assert_allclose(array, want[output.name], rtol=2e-5, atol=2e-5)


EDGES = {
    "no nodes": ([], [("x", F32, [2])], [("x", F32, [2])]),
    "constants only": ([("Add", "c", "c", "y")], [], [("y", F32, [2])]),
    "no elements": ([("Relu", "x", "y")], [("x", F32, [0, 3])], [("y", F32, [0, 3])]),
    "sum of nothing": ([("ReduceSum", "x", "y")], [("x", F32, [0, 3])], [("y", F32, [1, 1])]),
    "a copy": ([("Identity", "x", "y")], [("x", F32, [2, 3])], [("y", F32, [2, 3])]),
    "twice": (
        [("Relu", "x", "y"), ("Identity", "y", "z")],
        [("x", F32, [2, 3])],
        [("y", F32, [2, 3]), ("z", F32, [2, 3])],
    ),
    "no axes": ([("Relu", "x", "y")], [("x", F32, [])], [("y", F32, [])]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edge", EDGES)
def test_models_at_the_edge_run_are_saved_and_opened(edge: str, tmp_path: Path) -> None:
    from onnx import helper, numpy_helper

    nodes, inputs, outputs = EDGES[edge]
    constant = numpy_helper.from_array(np.array([1, 2], np.float32), "c")
    proto = model(
        [helper.make_node(op_type, operands, [result]) for op_type, *operands, result in nodes],
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [constant],
    )
    feed = feed_for(proto)
    compiled = tw.compile(proto)
    got = compiled.run(None, feed)
    want = tw.compile(proto, "interpreter").run(None, feed)
    again = tw.open(compiled.save(tmp_path / "m.tw")).run(None, feed)
    for a, b, c in zip(got, want, again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert len(compiled.explain().nodes) == len(nodes)
    assert compiled.report().html()


def test_run_takes_names_as_onnxruntime_does(compiled: tw.CompiledModel, net: Any) -> None:
    feed = feed_for(net)
    logits, r1 = compiled.run(None, feed)
    again, first = compiled.run(["r1", "logits"], feed)
    assert np.array_equal(first, logits)
    assert np.array_equal(again, r1)
    assert len(compiled.run([], feed)) == 2
    assert np.array_equal(compiled.run("logits", feed)[0], logits)


def test_inputs_and_outputs_are_described_in_onnx_words(compiled: tw.CompiledModel) -> None:
    (image,) = compiled.get_inputs()
    assert (image.name, image.shape, image.type) == ("image", (1, 3, 12, 12), "tensor(float)")
    assert [o.name for o in compiled.get_outputs()] == ["logits", "r1"]


@pytest.mark.parametrize(
    ("names", "change", "words"),
    [
        (["nothing"], {}, "unknown output 'nothing': this model gives logits, r1"),
        (None, {"image": None}, "input 'image' is missing"),
        (None, {"other": np.zeros(1)}, "unknown input 'other'"),
        (None, {"image": np.zeros((1, 3, 12, 12))}, "float64"),
        (None, {"image": np.zeros((1, 3, 12, 13), np.float32)}, "[1, 3, 12, 13]"),
        (None, {"image": "text"}, "compiled for float32[1, 3, 12, 12]"),
    ],
)
def test_a_wrong_request_is_one_line(
    compiled: tw.CompiledModel, net: Any, names: Any, change: Any, words: str
) -> None:
    feed = {**feed_for(net), **change}
    feed = {name: value for name, value in feed.items() if value is not None}
    assert words in usage_error(lambda: compiled.run(names, feed))


def test_a_feed_that_is_no_dict_is_one_line(compiled: tw.CompiledModel) -> None:
    assert "give a dict" in usage_error(lambda: compiled.run(None, [np.zeros(1)]))  # type: ignore[arg-type]


def test_strided_inputs_are_taken(compiled: tw.CompiledModel, net: Any) -> None:
    image = feed_for(net)["image"]
    turned = np.ascontiguousarray(image.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    assert not turned.flags.c_contiguous
    assert np.array_equal(compiled.run(None, {"image": turned})[0], compiled.run(None, {"image": image})[0])


def test_outputs_are_new_arrays_each_time(net: Any) -> None:
    compiled = tw.compile(mixed_outputs())
    feed = feed_for(mixed_outputs())
    first = compiled.run(None, feed)
    kept = [a.copy() for a in first]
    for array in first:
        array[...] = 99
    assert all(np.array_equal(a, b) for a, b in zip(compiled.run(None, feed), kept, strict=True))


def test_the_null_target_plans_and_refuses_to_run(net: Any) -> None:
    compiled = tw.compile(net, "null")
    assert len(compiled.steps) == len(compiled.schedule.stages)
    assert "runs nothing" in usage_error(lambda: compiled.run(None, feed_for(net)))


def test_shapes_fix_open_sizes(net: Any) -> None:
    proto = small_net()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    compiled = tw.compile(proto, shapes={"image": (2, 3, 12, 12)})
    image = np.concatenate([feed_for(net)["image"]] * 2)
    assert compiled.run(None, {"image": image})[0].shape == (2, 10)
    assert compiled.options.shapes == {"image": (2, 3, 12, 12)}
    assert "--shapes" in usage_error(lambda: tw.load(proto).graph)
    assert tw.compile(proto).run(None, {"image": image})[0].shape == (2, 10)
    loaded = tw.load(proto, shapes={"image": (2, 3, 12, 12)})
    assert "load or export the model with open sizes" in usage_error(
        lambda: tw.compile(loaded, shapes={"image": (1, 3, 12, 12)})
    )


def test_unknown_settings_are_one_line(net: Any) -> None:
    assert "did you mean threads?" in usage_error(lambda: tw.compile(net, thread=2))
    assert "Did you mean interpreter?" in usage_error(lambda: tw.compile(net, "interpretr"))
    assert "in options" in usage_error(lambda: tw.compile(net, options=tw.Options(), threads=2))
    assert "budget 'soon'" in usage_error(lambda: tw.compile(net, budget="soon"))


def test_limits_are_refused_with_their_own_error(net: Any) -> None:
    with pytest.raises(tw.BudgetExceeded, match="--max-memory"):
        tw.compile(net, max_memory_bytes=1000)
    with pytest.raises(tw.BudgetExceeded, match=r"longer than 1e-06 s"):
        tw.compile(net, timeout_s=1e-6)
    peak = tw.compile(net).memory.peak
    assert tw.compile(net, max_memory_bytes=peak).memory.peak == peak


def test_the_time_limit_reaches_into_code_generation() -> None:
    seen: list[str] = []

    def slow(what: str, done: int, total: int) -> None:
        seen.append(what)
        if what == "kernels":
            raise tw.BudgetExceeded("stop")

    with pytest.raises(tw.BudgetExceeded, match="stop"):
        tw.compile(small_net(seed=11, channels=13), no_cache=True, progress=slow)
    assert list(dict.fromkeys(seen)) == [
        "passes",
        "partition",
        "lower",
        "schedule",
        "place",
        "generate",
        "kernels",
    ]


def test_a_closed_model_says_so(net: Any) -> None:
    compiled = tw.compile(net)
    compiled.run(None, feed_for(net))
    compiled.close()
    compiled.close()
    assert "closed" in usage_error(lambda: compiled.run(None, feed_for(net)))
    with tw.compile(net) as other:
        other.run(None, feed_for(net))
    assert "closed" in usage_error(lambda: other.run(None, feed_for(net)))


# Explaining.


@pytest.mark.parametrize("make", [small_net, host_net])
def test_every_node_leads_to_kernels_and_back(make: Any) -> None:
    proto = make()
    compiled = tw.compile(proto)
    stories = {s.name: s for s in compiled.explain().nodes}
    assert list(stories) == [n.name for n in proto.graph.node]
    kernels = {k.id: k for k in compiled.kernels}
    for name, story in stories.items():
        assert story.kernels or story.note, name
        for kernel in story.kernels:
            assert set(story.became) & set(kernels[kernel].nodes)
            assert name in {s.name for s in compiled.explain(kernel).nodes}
        assert name in {s.name for s in compiled.explain(name).nodes}


def test_every_edge_has_a_verdict_with_a_reason(compiled: tw.CompiledModel) -> None:
    edges = compiled.explain().edges
    wanted = [(p.name, c.name, v.name) for p, c, v in data_edges(compiled.program.graph)]
    assert sorted((e.producer, e.consumer, e.value) for e in edges) == sorted(wanted)
    assert all(e.code and e.text for e in edges)
    assert {e.is_fused for e in edges} == {True, False}


def test_names_of_values_and_symbols_are_explained_too(compiled: tw.CompiledModel) -> None:
    assert [s.name for s in compiled.explain("sum").nodes] == ["residual"]
    kernel = compiled.kernels[-1]
    assert compiled.explain(kernel.symbol).kernels == (kernel,)
    assert "did you mean conv1" in usage_error(lambda: compiled.explain("conv_1"))


def test_reports_are_the_same_for_the_same_compilation(net: Any, tmp_path: Path) -> None:
    reports = [tw.compile(net).report() for _ in range(2)]
    assert reports[0].html() == reports[1].html()
    page = reports[0].save(tmp_path / "r.html").read_text()
    assert all(node.name in page for node in net.graph.node)
    assert "http" not in page
    assert json.loads(reports[0].save(tmp_path / "r.json").read_text())["schema_version"] == 1
    assert "cannot be written" in usage_error(lambda: reports[0].save(tmp_path / "none" / "r.html"))


def test_json_holds_what_was_asked_and_what_was_done(compiled: tw.CompiledModel) -> None:
    document = json.loads(json.dumps(compiled.to_json()))
    assert document["options"]["threads"] == 2
    assert document["memory"]["peak_bytes"] == compiled.memory.peak
    assert document["memory"]["peak_bytes"] >= document["memory"]["lower_bound_bytes"] > 0
    assert len(document["steps"]) == len(compiled.steps)
    assert set(compiled.phase_s) == {"passes", "partition", "schedule", "place", "generate", "tune"}


# The stand-in for onnxruntime.


def test_inference_session_runs_models_and_artifacts(net: Any, tmp_path: Path) -> None:
    class Settings:
        intra_op_num_threads = 1

    path = tmp_path / "net.onnx"
    path.write_bytes(net.SerializeToString())
    feed = feed_for(net)
    session = tw.InferenceSession(str(path), Settings(), providers=["CPUExecutionProvider"])
    assert session.compiled.num_threads == 1
    session.compiled.save(tmp_path / "net.tw")
    other = tw.InferenceSession(str(tmp_path / "net.tw"))
    assert np.array_equal(session.run(None, feed)[0], other.run(["logits"], feed)[0])
    assert [i.name for i in session.get_inputs()] == [i.name for i in other.get_inputs()] == ["image"]
    assert [o.name for o in session.get_outputs()] == ["logits", "r1"]
    assert session.get_providers()


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (PrunedCache(0, 1), "1 finding of tuning"),
        (ForgottenFindings(1), "1 finding of tuning removed"),
        (ExportedCache(Path("kernels.tar"), 1), "kernels.tar: 1 entry"),
    ],
)
def test_one_entry_or_finding_of_a_cache_is_no_plural(result: Any, line: str) -> None:
    assert result.lines()[0].endswith(line)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            "image:1..4x3x12x12",
            "image' is 1x3x12x12 in the model as it was loaded, not 1..4x3x12x12; leave",
        ),
        ("picture:1x3x12x12", r"the model has no input 'picture'; inputs: image"),
    ],
)
def test_shapes_that_a_loaded_model_does_not_have_are_told(shapes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tw.compile(tw.load(small_net()), shapes=shapes)
