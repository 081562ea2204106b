"""`torch.compile(backend="tilewright")` computes what torch computes, and says what it leaves to torch."""

# mypy: disable-error-code="name-defined"

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from tilewright import dynamo  # noqa: E402  # needs torch
from tilewright.dynamo.weights import BoundWeights  # noqa: E402

nn = torch.nn
ROOT = Path(__file__).parents[2]
pytestmark = [
    # torch's own, of its own modules.
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


class Used:
    """A module compiled by the backend, and the graphs that it was taken apart into."""

    def __init__(self, module: Any, *, dynamic: bool | None = None, **options: Any) -> None:
        self.graphs: list[dynamo.CompiledGraph] = []
        self._options = {"threads": 1, **options}
        self.module = torch.compile(module, backend=self._backend, dynamic=dynamic)

    def _backend(self, graph: Any, examples: Any) -> Any:
        self.graphs.append(dynamo.backend(graph, examples, options=self._options))
        return self.graphs[-1]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with torch.inference_mode():
            return self.module(*arguments, **named)

    @property
    def remarks(self) -> list[str]:
        return [graph.remark for graph in self.graphs if graph.remark is not None]


def assert_equals_eager(module: Any, *arguments: Any, **named: Any) -> Used:
    used = Used(module)
    with torch.inference_mode():
        expected = module(*arguments, **named)
    for _ in range(2):
        torch.testing.assert_close(used(*arguments, **named), expected, rtol=1e-4, atol=1e-5)
    return used


def small_cnn() -> Any:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(), nn.Linear(8, 5)).eval()


def test_a_network_is_one_compiled_graph() -> None:
    used = assert_equals_eager(small_cnn(), torch.randn(2, 3, 16, 16))
    assert [graph.is_compiled for graph in used.graphs] == [True]
    assert used.remarks == []
    assert "compiled for 1 shapes" in repr(used.graphs[0])
    assert used.graphs[0] in dynamo.graphs()


def test_a_transformer_layer_with_inputs_by_name_is_compiled() -> None:
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval()
    used = assert_equals_eager(layer, torch.randn(2, 5, 16), memory=torch.randn(2, 7, 16))
    assert all(graph.is_compiled for graph in used.graphs)


def test_graphs_on_both_sides_of_a_break_are_compiled() -> None:
    class Broken(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            torch._dynamo.graph_break()
            return {"out": self.second(y.relu()), "mean": y.mean()}

    used = assert_equals_eager(Broken().eval(), torch.randn(2, 4))
    assert [graph.is_compiled for graph in used.graphs] == [True, True]


def test_recording_gradients_is_left_to_torch_with_one_remark(caplog: pytest.LogCaptureFixture) -> None:
    used, x = Used(nn.Linear(4, 3)), torch.randn(2, 4)
    with caplog.at_level(logging.WARNING, "tilewright.dynamo"):
        for _ in range(3):
            y = used.module(x)
            assert y.requires_grad
    y.sum().backward()
    assert [r.getMessage() for r in caplog.records] == used.remarks
    assert used.remarks == [
        "a graph of 1 operators runs in eager mode: gradients are recorded; "
        "run it in torch.inference_mode() or torch.no_grad()"
    ]


def test_what_records_no_gradients_is_compiled_in_any_mode() -> None:
    module = nn.Linear(4, 3).requires_grad_(False)
    used, x = Used(module), torch.randn(2, 4)
    torch.testing.assert_close(used.module(x), module(x), rtol=1e-4, atol=1e-5)
    assert used.graphs[0].is_compiled


class RandomNumbers(nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, x: Any) -> Any:
        return x + torch.rand(4)


class Counter(nn.Module):  # type: ignore[misc]  # torch has no types here
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return x * self.count


class WritesToItsInput(nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, x: Any) -> Any:
        return x.mul_(2).sum()


class ComplexNumbers(nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, x: Any) -> Any:
        return torch.linalg.svdvals(x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (RandomNumbers(), r"random"),
        (Counter(), r"it writes to .*count.*, and compiled code changes nothing"),
        (WritesToItsInput(), r"it writes to .*, and compiled code changes nothing"),
        (ComplexNumbers(), r"torch cannot export"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_compiled_runs_by_torch_and_says_why(module: Any, reason: str) -> None:
    import copy
    import re

    expected_module, x = copy.deepcopy(module), torch.ones(3, 4)
    used = Used(module)
    for _ in range(2):
        mine, theirs = x.clone(), x.clone()
        torch.manual_seed(3)
        found = used(mine)
        torch.manual_seed(3)
        torch.testing.assert_close(found, expected_module(theirs))
        torch.testing.assert_close(mine, theirs)
    (remark,) = used.remarks
    assert re.search(reason, remark), remark


def test_open_shapes_are_compiled_one_by_one() -> None:
    module = small_cnn()
    used = Used(module)
    for batch in (2, 3, 5, 3):
        x = torch.randn(batch, 3, 16, 16)
        with torch.inference_mode():
            torch.testing.assert_close(used(x), module(x), rtol=1e-4, atol=1e-5)
    assert all(graph.is_compiled for graph in used.graphs)
    assert len(used.graphs) == 2, "the first shape, then one graph with an open batch"
    assert "2 shapes" in repr(used.graphs[1])


@pytest.mark.parametrize(("norm_first", "activation"), [(False, "gelu"), (True, "relu")])
def test_a_layer_of_an_encoder_is_compiled_on_the_path_without_gradients(
    norm_first: bool, activation: str
) -> None:
    module = nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1, 1)
    x = torch.randn(2, 5, 16)
    used = Used(module)
    with torch.inference_mode():
        expected = module(x)
    torch.testing.assert_close(used(x), expected, rtol=1e-4, atol=1e-5)
    (graph,) = used.graphs
    assert graph.is_compiled


class Scaled(nn.Module):
    """A norm, and a factor that is a plain number of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.factor = nn.Linear(6, 8), nn.LayerNorm(8), 0.3

    def forward(self, x: Any) -> Any:
        """All of it."""
        return self.norm(self.layer(x)) * self.factor + (self.factor > 0.4)


def test_numbers_of_modules_that_are_symbolic_are_compiled_one_by_one() -> None:
    """With `dynamic` TorchDynamo hands them over in tensors, the epsilon of each norm among them."""
    module = Scaled().eval()
    used = Used(module, dynamic=True)
    for factor, rows in ((0.3, 2), (0.3, 5), (0.5, 5), (0.3, 2)):
        module.factor = factor
        x = torch.randn(rows, 6)
        with torch.inference_mode():
            expected = module(x)
        torch.testing.assert_close(used(x), expected)
    assert used.remarks == []
    assert all(graph.is_compiled for graph in used.graphs)


def test_more_shapes_than_a_limit_run_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.dynamo.graph.MAX_VARIANTS", 2)
    module = nn.Linear(4, 3).eval()
    used = Used(module)
    for batch in (2, 3, 4, 5, 6):
        x = torch.randn(batch, 4)
        with torch.inference_mode():
            torch.testing.assert_close(used(x), module(x), rtol=1e-4, atol=1e-5)
    (remark,) = used.remarks
    assert "it was called with more than 2 shapes" in remark


def _write(layer: Any) -> None:
    layer.weight.mul_(2)


def _exchange(layer: Any) -> None:
    layer.weight.data = torch.ones_like(layer.weight)


def _load(layer: Any) -> None:
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


def _average(layer: Any) -> None:
    for tensor in layer.parameters():
        tensor.data.mul_(0.9).add_(tensor.data, alpha=0.2)


def _write_by_numpy(layer: Any) -> None:
    layer.weight.detach().numpy()[...] += 1


@pytest.mark.parametrize("change", [_write, _exchange, _load, _average, _write_by_numpy])
def test_changed_weights_are_noticed(change: Callable[[Any], None]) -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    used = assert_equals_eager(module, x)
    with torch.no_grad():
        change(module)
        expected = module(x)
    torch.testing.assert_close(used(x), expected.detach(), rtol=1e-4, atol=1e-5)


def _replace(layer: Any) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() * 3)


@pytest.mark.parametrize("change", [_write, _exchange, _load, _replace, _average, _write_by_numpy])
def test_changed_weights_are_noticed_where_the_graph_holds_them(change: Callable[[Any], None]) -> None:
    """With torch's option `freezing` weights are no arguments of the graph."""
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    used = Used(module)
    with torch._inductor.config.patch(freezing=True):
        torch.testing.assert_close(used(x), module(x).detach(), rtol=1e-4, atol=1e-5)
        (graph,) = used.graphs
        assert graph.is_compiled
        assert not graph._constants
        with torch.no_grad():
            change(module)
            expected = module(x)
        torch.testing.assert_close(used(x), expected, rtol=1e-4, atol=1e-5)
    assert used.remarks == []


def test_writes_to_weights_of_inference_mode_are_noticed() -> None:
    with torch.inference_mode():
        module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
        used = assert_equals_eager(module, x)
        module.weight.mul_(2)
        torch.testing.assert_close(used(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.complex128]
)
def test_each_kind_of_weight_is_sampled(dtype: torch.dtype) -> None:
    whole = torch.ones(40, 60).to(dtype)
    tensors = (whole, whole.t(), whole[3:9, ::7], torch.ones((), dtype=dtype), torch.empty(0, dtype=dtype))
    for tensor in tensors:
        bound = _bound(tensor)
        assert bound.are_those_of([tensor])
        if tensor.numel():
            tensor.data.add_(1)
            assert not bound.are_those_of([tensor])
        if tensor.numel() and dtype.is_complex:
            bound = _bound(tensor)
            tensor.data.add_(1j)
            assert not bound.are_those_of([tensor]), "the second number of an element"


def _bound(tensor: Any) -> BoundWeights:
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    return BoundWeights.of(torch.fx.GraphModule({}, graph), [tensor], (0,))


def test_weights_that_are_not_checked_stay_as_they_were() -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    used = Used(module, check_weights=False)
    with torch.no_grad():
        before = used(x).clone()
        module.weight.mul_(2)
        torch.testing.assert_close(used(x), before, rtol=0, atol=0)
        torch._dynamo.reset()
        torch.testing.assert_close(Used(module)(x), module(x), rtol=1e-4, atol=1e-5)


def test_weights_made_in_inference_mode_are_compiled() -> None:
    with torch.inference_mode():
        module = nn.Linear(4, 3).eval()
    used = assert_equals_eager(module, torch.randn(2, 4))
    assert used.graphs[0].is_compiled


def test_weights_that_keep_changing_run_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.dynamo.graph.MAX_REFRESHES", 1)
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    used = Used(module)
    for _ in range(4):
        with torch.no_grad():
            module.weight.mul_(1.1)
            expected = module(x)
        torch.testing.assert_close(used(x), expected, rtol=1e-4, atol=1e-5)
    assert ["its weights change" in remark for remark in used.remarks] == [True]


def test_outputs_that_are_views_of_inputs_stay_views() -> None:
    class Views(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Any) -> Any:
            return x[0].reshape(2, 2).T, x, self.weight, (x * self.weight).view(-1)

    module, x = Views().eval(), torch.randn(3, 4)
    used = Used(module)
    row, same, weight, product = used(x)
    assert used.graphs[0].is_compiled
    assert same is x
    assert weight is module.weight
    assert row.data_ptr() == x.data_ptr()
    with torch.inference_mode():
        torch.testing.assert_close((row, product), (x[0].reshape(2, 2).T, x.view(-1)))


def test_an_index_outside_its_axis_is_torchs_own_error() -> None:
    used = Used(nn.Embedding(5, 3).eval())
    used(torch.tensor([1, 2]))
    assert used.graphs[0].is_compiled
    with pytest.raises(IndexError, match="out of range"):
        used(torch.tensor([1, 9]))
    assert used.remarks == []


def test_tensors_of_another_layout_are_read_right() -> None:
    module, x = small_cnn(), torch.randn(2, 3, 16, 16)
    used = assert_equals_eager(module, x.to(memory_format=torch.channels_last))
    assert used.graphs[0].is_compiled


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 2).T,
        torch.randn(2, 8)[:, ::2],
        torch.randn(3, 4)[1:],
        torch.randn(2, 1).expand(2, 4),
        torch._neg_view(torch.randn(2, 4)),
        nn.Parameter(torch.randn(2, 4)),
        torch.randn(2, 4, requires_grad=True),
    ],
    ids=["transposed", "strided", "offset", "expanded", "negated", "parameter", "with gradients"],
)
def test_inputs_that_lie_otherwise_are_read_right(x: Any) -> None:
    module = nn.Linear(4, 3).eval()
    used = Used(module)
    used(torch.randn(2, 4))
    with torch.inference_mode():
        torch.testing.assert_close(used(x), module(x), rtol=1e-4, atol=1e-5)
    assert used.remarks == []


def test_code_refuses_tensors_that_it_was_not_made_for() -> None:
    """TorchDynamo checks types and shapes before; a user can take these checks away."""
    used = Used(nn.Linear(4, 3).eval())
    used(torch.randn(2, 4))
    (variant,) = used.graphs[0]._variants.values()
    arguments = list(variant.weights.passed)
    place = next(i for i in range(3) if i not in variant.weights.places)
    direct = variant.direct
    assert direct is not None
    for x in (torch.randn(2, 4).double(), torch.randn(3, 4), torch.randn(8)):
        assert direct([*arguments[:place], x, *arguments[place:]]) is None


def test_every_call_has_results_of_its_own() -> None:
    module = nn.Linear(4, 3).eval()
    used = Used(module)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    first = used(x)
    kept = first.clone()
    assert used(y).data_ptr() != first.data_ptr()
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"thread": 1}}, "unknown setting 'thread'"),
        ({"options": {"check_weights": "no"}}, "check_weights: expected True or False"),
        ({"mode": "max-autotune"}, "inductor"),
    ],
)
def test_wrong_options_are_refused(settings: dict[str, Any], message: str) -> None:
    module = torch.compile(nn.Linear(2, 2), backend=dynamo.backend, **settings)
    with torch.inference_mode(), pytest.raises(Exception, match=message):
        module(torch.randn(1, 2))


def test_options_reach_the_compiler() -> None:
    used = Used(nn.Linear(4, 3).eval(), accuracy="strict")
    used(torch.randn(2, 4))
    (variant,) = used.graphs[0]._variants.values()
    assert variant.compiled.options.accuracy == "strict"
    assert variant.compiled.num_threads == 1


def test_torch_finds_the_backend_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "named-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: named\nVersion: 1\n")
    named = project["entry-points"]["torch_dynamo_backends"]
    lines = "".join(f"{name} = {place}\n" for name, place in named.items())
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    entry, *_ = entry_points(
        group="torch_dynamo_backends", name="tilewright"
    )  # installed too, it is there twice
    assert entry.load() is dynamo.backend


@pytest.mark.parametrize(
    "select",
    [
        lambda i: nn.functional.embedding(i, torch.arange(12.0).reshape(3, 4)),
        lambda i: torch.gather(torch.arange(12.0).reshape(3, 4), 1, i[None]),
        lambda i: torch.arange(12.0).reshape(4, 3).index_select(1, i),
    ],
)
def test_an_index_that_may_not_count_from_the_end_is_torchs_own_error(select: Callable[[Any], Any]) -> None:
    used = Used(select)
    torch.testing.assert_close(used(torch.tensor([1, 2])), select(torch.tensor([1, 2])))
    assert used.graphs[0].is_compiled
    with pytest.raises((IndexError, RuntimeError), match="out of "):
        used(torch.tensor([1, -1]))


def test_outputs_that_share_memory_go_on_sharing_it() -> None:
    def aliases(x: Any) -> Any:
        y = x + 1
        halves = y.chunk(2)
        return y, y.view(-1), halves[1], y, x.split(1)[1]

    used, x = Used(aliases), torch.zeros(2, 3)
    y, flat, second, same, row = used(x)
    assert used.graphs[0].is_compiled
    assert same is y
    with torch.inference_mode():
        y[1, 0] = 7
        x[1, 0] = 9
    assert (flat[3], second[0, 0], row[0, 0]) == (7, 7, 9)


def test_views_of_a_value_that_stays_inside_are_compiled_where_they_do_not_overlap() -> None:
    used = Used(lambda x: (x + 1).chunk(2))
    used(torch.zeros(4, 3))
    assert used.graphs[0].is_compiled
    used = Used(lambda x: ((x + 1)[:3], (x + 1)[2:]))
    used(torch.zeros(4, 3))
    assert used.graphs[0].is_compiled  # two sums, two memories

    def overlapping(x: Any) -> Any:
        y = x + 1
        return y[:3], y[2:]

    used = Used(overlapping)
    first, second = used(torch.zeros(4, 3))
    with torch.inference_mode():
        first[2, 0] = 5
    assert second[0, 0] == 5
    assert "share the memory of a value that is no output" in used.remarks[0]
