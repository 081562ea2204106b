"""`torch.compile(backend="tilewright")` where tensors lie on a device: addresses go in and out, nothing else.

torch here has no GPU. The emulated device takes tensors of the processor as a GPU takes its own; the driver
is one that records what it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cuda import EMULATED, needs_fibers
from tests.support.cuda_driver import FakeDriver, install

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # needs torch

from tilewright import dynamo  # noqa: E402  # needs torch
from tilewright.dynamo import devices, variant  # noqa: E402
from tilewright.target_ref import TargetRef  # noqa: E402
from tilewright.targets.cuda.devices import open_device  # noqa: E402
from tilewright.targets.cuda.dlpack import CUDA  # noqa: E402

nn: Any = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    open_device.cache_clear()


class Net(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A network whose outputs are: a result, its view, a constant, an input under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.register_buffer("steps", torch.arange(3.0))

    def forward(self, x: Any) -> Any:
        y = self.layer(x).relu()
        return y, y.view(-1), self.steps * 1, x + 0, y.reshape(4, 4).clone()


def graph_of(module: Any, *arguments: Any, **options: Any) -> tuple[dynamo.CompiledGraph, Any]:
    """The one graph of a module, and what it gives."""
    graphs = []

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(dynamo.backend(graph, examples, options={"threads": 1, **options}))
        return graphs[-1]

    with torch.inference_mode():
        found = torch.compile(module, backend=backend)(*arguments)
    (graph,) = graphs
    return graph, found


@needs_fibers
def test_results_of_a_device_are_those_of_torch_in_memory_of_torch() -> None:
    module, x = Net().eval(), torch.randn(2, 6)
    graph, found = graph_of(module, x, target=EMULATED)
    (made,) = graph._variants.values()
    assert graph.remark is None
    assert made.direct is not None
    arguments = _arguments(made, x)
    place = next(i for i, value in enumerate(arguments) if value is x)
    with torch.inference_mode():
        expected = module(x)
        for given in (x, torch.randn(6, 2).T, torch.randn(13)[1:].view(2, 6)):
            arguments[place] = given
            results = made.direct(arguments)
            assert results is not None
            torch.testing.assert_close(made.run(arguments), module(given), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found[1].data_ptr() == found[0].data_ptr()
    assert len({tensor.data_ptr() for tensor in (*found[:1], *found[2:], x)}) == 5


@needs_fibers
def test_an_index_outside_its_axis_is_an_error_of_torch() -> None:
    with pytest.raises(IndexError, match="index out of range"):
        graph_of(nn.Embedding(4, 3), torch.tensor([1, 7]), target=EMULATED)


def test_a_graph_is_launched_on_the_stream_of_the_caller_with_addresses_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = install(monkeypatch, FakeDriver())
    monkeypatch.setattr(variant, "torch_device", lambda place: torch.device("cpu"))
    monkeypatch.setattr(variant, "torch_stream", lambda device: 77)
    x = torch.randn(2, 6)
    graph, found = graph_of(nn.Linear(6, 8).eval(), x, target="cuda", no_cache=True)
    assert graph.remark is None
    assert [call[1] for call in fake.named("cuGraphLaunch")] == [77]
    (made,) = graph._variants.values()
    copies = ("cuMemcpyHtoD", "cuMemcpyDtoH", "cuGraphAddMemcpyNode", "cuStreamSynchronize")
    before = [len(fake.named(name)) for name in copies]
    y = torch.randn(2, 6)
    (second,) = made.run([y if value is x else value for value in _arguments(made, x)])
    assert [len(fake.named(name)) for name in copies] == before
    addresses = {a for call in fake.named("cuGraphExecKernelNodeSetParams") for a in call[2].kernelParams[0]}
    assert {y.data_ptr(), second.data_ptr()} <= addresses
    assert found.data_ptr() != second.data_ptr()


def _arguments(made: variant.Variant, x: Any) -> list[Any]:
    """Arguments in the order of the graph: weights at their places."""
    arguments = [x] * (len(made.weights.places) + 1)
    for place, value in zip(made.weights.places, made.weights.passed, strict=True):
        arguments[place] = value
    return arguments


def test_a_graph_of_several_devices_is_left_to_torch_in_one_line() -> None:
    class Moving(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return (x * 2).to("meta")

    graph, found = graph_of(Moving(), torch.ones(3))
    assert graph.remark is not None
    assert graph.remark.endswith("mode: its tensors are on several devices (cpu, meta): move them to one")
    assert found.is_meta
    torch._dynamo.reset()
    graph, _ = graph_of(nn.ReLU(), torch.ones(3, device="meta"))
    assert "its tensors are on meta: code runs on the processor and NVIDIA's GPUs" in str(graph.remark)


@pytest.mark.parametrize(
    ("gives", "told"),
    [("doubled", "cuda:0"), ("number", "its tensors are on several devices (cpu, cuda:0): move them to one")],
)
def test_a_number_of_the_processor_is_of_any_device_unless_the_graph_gives_it(gives: str, told: str) -> None:
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda:0")
        nodes = {"x": graph.placeholder("x")}
        nodes["number"] = graph.call_method("cpu", (graph.call_function(torch.sum, (nodes["x"],)),))
        nodes["doubled"] = graph.call_function(torch.mul, (nodes["x"], nodes["number"]))
        nodes["number"].meta["example_value"] = x.sum().cpu()
        nodes["doubled"].meta["example_value"] = x * 2
    graph.output((nodes[gives],))
    try:
        found = str(devices.device_of(torch.fx.GraphModule({}, graph), [x]))
    except devices.RunsEagerly as reason:
        found = str(reason)
    assert found == told


@pytest.mark.parametrize(
    ("device", "asked", "target"),
    [
        ("cuda:0", "cpu", "cuda"),
        ("cuda:1", "cpu", "cuda{ordinal=1}"),
        ("cuda:1", "cuda{edges=data}", "cuda{edges=data, ordinal=1}"),
        ("cuda:0", EMULATED, EMULATED),
        ("cpu", EMULATED, EMULATED),
    ],
)
def test_tensors_of_a_gpu_are_served_there(device: str, asked: str, target: str) -> None:
    assert str(devices.target_on(torch.device(device), TargetRef.parse(asked))) == target
    assert devices.torch_device((CUDA, 1)) == torch.device("cuda:1")


def test_a_graph_of_a_gpu_is_exported_as_one_of_the_processor() -> None:
    inner = torch.fx.Graph()
    inner.output(inner.call_function(torch.zeros, (2,), {"device": torch.device("cuda", 0)}))
    body = torch.fx.GraphModule({}, inner)
    graph = torch.fx.Graph()
    steps = graph.call_function(torch.arange, (3,), {"device": torch.device("cuda", 1)})
    moved = graph.call_method("to", (graph.call_method("cuda", (steps,)), "cuda:1", torch.float16))
    graph.output((moved, graph.call_module("body", ())))
    held = devices.on_processor(graph, {"body": body, "w": nn.Parameter(torch.ones(2))})
    result, zeros = torch.fx.GraphModule(held, graph)()
    assert result.tolist() == [0, 1, 2]
    assert (result.device.type, result.dtype, zeros.device.type) == ("cpu", torch.float16, "cpu")
    assert "cuda" in body.code  # which was left as it is
