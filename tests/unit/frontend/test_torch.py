"""PyTorch modules compute the same after the import."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tilewright.errors import UnsupportedOp, UsageError
from tilewright.frontend.torch import load_torch
from tilewright.ir.interpret import run_graph


def test_without_torch_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"torch is not installed.*pip install 'tilewright\[torch\]'"):
        load_torch(object(), ())


@pytest.fixture(scope="module")
def torch() -> Any:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


def assert_equals_torch(torch: Any, module: Any, *shape: int) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    module.train()
    graph = load_torch(module, (x,))
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
        load_torch([], ())


def test_a_module_torch_cannot_export_is_named(torch: Any) -> None:
    class Unexportable(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def forward(self, x: Any) -> Any:
            raise RuntimeError("on purpose")

    with pytest.raises(UnsupportedOp, match=r"torch cannot export Unexportable: .*see all of it"):
        load_torch(Unexportable(), (torch.zeros(2),))
