"""What cuDNN and torch take for the same work, on the same GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cuda import Run

CHAIN = 20
"""Copies of a kernel that a graph has one behind the other."""


def _torch() -> Any:
    """torch with a GPU, or None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def cudnn_us(run: Run, shape: Sequence[int], accuracy: str) -> list[float]:
    """The same convolution by cuDNN, captured as often, its channels last as ours."""
    torch = _torch()
    if torch is None:
        return []
    channels, filters, size, kernel, stride = shape
    torch.backends.cudnn.allow_tf32 = accuracy == "relaxed"
    torch.backends.cudnn.benchmark = True
    dtype = torch.bfloat16 if accuracy == "fast" else torch.float32
    made = {"device": "cuda", "dtype": dtype}
    x = torch.randn(1, channels, size, size, **made).to(memory_format=torch.channels_last)
    w = torch.randn(filters, channels, kernel, kernel, **made).to(memory_format=torch.channels_last)

    def all_copies() -> None:
        for _ in range(CHAIN):
            torch.relu_(torch.nn.functional.conv2d(x, w, stride=stride, padding=kernel // 2))

    return [time_us / CHAIN for time_us in _captured_us(run, torch, all_copies)]


def _captured_us(run: Run, torch: Any, body: Callable[[], object]) -> list[float]:
    for _ in range(3):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return run.times_us(lambda: (graph.replay(), torch.cuda.synchronize()))


def torch_us(run: Run, name: str) -> dict[str, list[float]]:
    """A network of torchvision by torch, if there is one of that name."""
    torch = _torch()
    try:
        import torchvision.models as models
    except ImportError:
        return {}
    if torch is None or not hasattr(models, name):
        return {}
    options = {"init_weights": False} if name == "inception_v3" else {}
    module = getattr(models, name)(**options).eval().cuda()
    x = torch.randn(1, 3, *([299] * 2 if name == "inception_v3" else [224] * 2), device="cuda")
    found = {}
    with torch.inference_mode():
        found["torch eager"] = run.times_us(lambda: (module(x), torch.cuda.synchronize()))
        found["torch captured"] = _captured_us(run, torch, lambda: module(x))
        reduced = torch.compile(module, mode="reduce-overhead")
        reduced(x)
        found["torch reduce-overhead"] = run.times_us(lambda: (reduced(x), torch.cuda.synchronize()))
    return found
