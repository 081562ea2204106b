"""PyTorch modules compute the same after the import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UnsupportedOp, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.frontend.torch import onnx_of_torch
from tilewright.ir.interpret import run_graph


def test_without_torch_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"torch is not installed.*pip install 'tilewright\[torch\]'"):
        onnx_of_torch(object(), ())


@pytest.fixture(scope="module")
def torch() -> Any:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


def assert_equals_torch(torch: Any, module: Any, *shape: int) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    module.train()
    graph = load_onnx(onnx_of_torch(module, x))
    assert module.training
    module.eval()
    with torch.no_grad():
        expected = module(x).numpy()
    (found,) = run_graph(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert graph.outputs[0].shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


def test_a_small_cnn_equals_torch(torch: Any) -> None:
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(-1))
    assert_equals_torch(torch, module, 2, 3, 16, 16)


def test_a_small_transformer_equals_torch(torch: Any) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    assert_equals_torch(torch, layer, 2, 5, 16)


def test_something_else_than_a_module_is_a_usage_error(torch: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a torch.nn.Module, got list"):
        onnx_of_torch([], ())


def test_a_module_torch_cannot_export_is_named(torch: Any) -> None:
    class Unexportable(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def forward(self, x: Any) -> Any:
            raise RuntimeError("on purpose")

    with pytest.raises(UnsupportedOp, match=r"torch cannot export Unexportable: .*see all of it"):
        onnx_of_torch(Unexportable(), (torch.zeros(2),))


@pytest.fixture(scope="module")
def masked(torch: Any) -> Any:
    class Masked(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x: Any, mask: Any, scale: Any = None) -> Any:
            y = self.layer(x) * mask
            return y if scale is None else y * scale

    return Masked()


@pytest.mark.parametrize("form", ["sequence", "mapping", "both"])
def test_inputs_are_given_by_place_and_by_name(torch: Any, masked: Any, form: str) -> None:
    x, mask, scale = torch.randn(2, 4), torch.ones(2, 1), torch.tensor([2.0, 3.0, 4.0])
    examples: dict[str, Any] = {
        "sequence": [x, mask],
        "mapping": {"x": x, "mask": mask, "scale": scale},
        "both": (x, {"mask": mask, "scale": scale}),
    }
    model = tw.load(masked, examples[form])
    assert model.name == "Masked"
    names = [v.name for v in model.graph.inputs]
    assert names == ["x", "mask", "scale"][: 2 if form == "sequence" else 3]
    feed = dict(zip(("x", "mask", "scale"), (x, mask, scale), strict=True))
    with torch.no_grad():
        expected = masked(**{name: feed[name] for name in names})
    found = tw.compile(model)(**{name: feed[name] for name in names})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_exported_program_is_loaded_with_its_shapes(torch: Any, masked: Any) -> None:
    x, mask = torch.randn(2, 4), torch.ones(2, 1)
    program = torch.export.export(masked, (x, mask))
    found = tw.compile(tw.load(program))(x, mask)
    torch.testing.assert_close(found, masked(x, mask).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="an ExportedProgram has its shapes"):
        tw.load(program, (x, mask))


def test_equal_modules_give_equal_models(torch: Any, masked: Any) -> None:
    examples = (torch.randn(2, 4), torch.ones(2, 1))
    first, second = tw.load(masked, examples), tw.load(masked, examples)
    assert first.sha256 == second.sha256
    assert str(Path(__file__).parent).encode() not in onnx_of_torch(masked, examples).SerializeToString()


def test_a_module_alone_is_a_usage_error(masked: Any) -> None:
    with pytest.raises(UsageError, match="Masked: a module is loaded with example inputs"):
        tw.load(masked)


@pytest.mark.parametrize("examples", [3, "x", {1: 2}])
def test_other_example_inputs_are_usage_errors(torch: Any, masked: Any, examples: Any) -> None:
    with pytest.raises(UsageError, match="example inputs"):
        tw.load(masked, examples)


def test_each_part_keeps_its_training_flag(torch: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module.train()
    module[1].eval()
    tw.load(module, torch.randn(3, 2))
    assert [part.training for part in module.modules()] == [True, True, False]
