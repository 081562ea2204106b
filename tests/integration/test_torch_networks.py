"""Whole modules of torchvision and transformers through `torch.compile`: right, and in one graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from tests.support.torch_modules import NETWORKS, TRANSFORMERS, torch_case  # noqa: E402  # needs torch

from tilewright import dynamo  # noqa: E402
from tilewright.accuracy import relative_error  # noqa: E402

MAX_ERROR = 1e-4
"""Of the largest value: networks of random weights at the default accuracy."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch and transformers, about each other
]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_torch_computes(name: str) -> None:
    needed = "transformers" if name in TRANSFORMERS else "torchvision"
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    torch._dynamo.reset()
    case = torch_case(name, 32 if name in TRANSFORMERS else 64)
    known = set(dynamo.graphs())
    module = torch.compile(case.module, backend=dynamo.backend)
    with torch.inference_mode():
        found = case.output(module(**case.inputs))
    graphs = set(dynamo.graphs()) - known
    assert [graph.remark for graph in graphs] == [None]
    assert relative_error(found.numpy(), case.exact().numpy()) < MAX_ERROR
