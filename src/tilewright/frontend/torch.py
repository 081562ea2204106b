"""PyTorch modules, through torch's own ONNX export. torch is imported only when this is called."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Sequence
from typing import Any

from tilewright.errors import UnsupportedOp, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.frontend.onnx.protos import one_line
from tilewright.ir.graph import Graph


def load_torch(module: Any, example_inputs: Sequence[Any]) -> Graph:
    """Import a `torch.nn.Module` as it computes in evaluation mode.

    Shapes are those of `example_inputs`, a sequence of tensors in the order of `forward`'s arguments. The
    module's training flag is left as it was.

    Raises:
        UsageError: torch or onnxscript is not installed, or `module` is not a module.
        UnsupportedOp: torch cannot export the module, or the result uses something not supported.
    """
    torch = _imported("torch")
    _imported("onnxscript")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__name__}; pass the module itself.")
    name = type(module).__name__
    training = module.training
    module.eval()
    try:
        model = _export(torch, module, tuple(example_inputs))
    except Exception as error:
        # Whatever the exporter raises, the reader needs the module and the reason in one line.
        raise UnsupportedOp(
            f"torch cannot export {name}: {one_line(error)}; try torch.onnx.export on it to see all of it."
        ) from error
    finally:
        module.train(training)
    return load_onnx(model)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"{name} is not installed, which importing a PyTorch module needs; "
            "pip install 'tilewright[torch]'"
        ) from None


def _export(torch: Any, module: Any, inputs: tuple[Any, ...]) -> Any:
    """The exported `ModelProto`, weights included; the exporter's own chatter is kept off the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto
