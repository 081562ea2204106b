"""`torch.compile(module, backend="tilewright")`: graphs that TorchDynamo takes from a program, compiled.

    module = torch.compile(module.eval(), backend="tilewright", options={"threads": 2})
    with torch.inference_mode():
        y = module(x)

torch finds the name by the entry point `torch_dynamo_backends`; `backend` may be given itself as well. What
cannot be compiled runs in eager mode, and one remark says why.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arguments import argument
from tilewright.dynamo.graph import CompiledGraph
from tilewright.errors import UsageError
from tilewright.options import options_of

__all__ = ["CompiledGraph", "backend", "graphs"]

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> CompiledGraph:
    """What TorchDynamo calls for each graph.

    `options` are fields of `Options`; by default code uses as many threads as torch does. With
    `check_weights=False` among them weights stay what they are when a graph is compiled, as those of an ONNX
    file do, and calls do not look at them.

    Raises:
        UsageError: an option that there is not, or a mode, which is of torch's inductor.
    """
    import torch

    if mode not in (None, "default"):
        raise UsageError(f"mode {mode!r} is inductor's: give options of tilewright, such as {{'effort': 2}}.")
    given = dict(options or {})
    checks_weights = argument("check_weights", given.pop("check_weights", True), bool)
    settings = options_of({"threads": torch.get_num_threads(), **given})
    graph = CompiledGraph(module, example_inputs, settings, checks_weights=checks_weights)
    _graphs.add(graph)
    return graph


def graphs() -> tuple[CompiledGraph, ...]:
    """The graphs that are alive, to see what was compiled: each has `is_compiled` and `remark`."""
    return tuple(_graphs)
