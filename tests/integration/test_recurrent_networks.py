"""Taggers as PyTorch exports them: embedding, recurrent layers in both directions, a score per word."""

# mypy: disable-error-code="name-defined"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Tagger(torch.nn.Module):  # type: ignore[misc]  # torch is optional, thus untyped here
    """Two layers of LSTM in both directions, then one GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 24)
        self.lstm = torch.nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(40, 33, batch_first=True)
        self.scores = torch.nn.Linear(33, 7)

    def forward(self, words: Any) -> Any:
        return self.scores(self.gru(self.lstm(self.embedding(words))[0])[0])


def test_a_tagger_of_torch_is_generated_code_and_computes_what_torch_computes() -> None:
    torch.manual_seed(0)
    tagger = Tagger().eval()
    words = torch.randint(0, 50, (2, 12))
    model = tw.load(tagger, (words,))
    compiled = tw.compile(model, threads=2)
    assert not [kernel for kernel in compiled.kernels if kernel.is_host]
    (name,) = (value.name for value in compiled.get_inputs())
    (found,) = compiled.run(None, {name: words.numpy()})
    with torch.no_grad():
        expected = tagger(words).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_a_long_sequence_is_generated_code_too() -> None:
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (1500, 2, 8)))
    shapes = ((1, 64, 8), (1, 64, 16), (1, 128))
    weights = [graph.constant(rng.standard_normal(s).astype(np.float32) / 4) for s in shapes]
    y = graph.value("y", DType.FLOAT32, (1500, 1, 2, 16))
    graph.append(Node("LSTM", [x, *weights], [y], {"hidden_size": 16}, opset=14))
    graph.outputs = [y]
    feed = {"x": rng.standard_normal((1500, 2, 8)).astype(np.float32)}
    expected = run_graph(graph, feed)["y"]
    compiled = tw.compile(tw.Model(graph, "0" * 64, "long"), threads=2, no_cache=True)
    assert not [kernel for kernel in compiled.kernels if kernel.is_host]
    np.testing.assert_allclose(compiled.run(None, feed)[0], expected, rtol=0, atol=1e-5)
