"""The device of a graph's tensors: the target that serves it, and the graph as the exporter takes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from tilewright.dynamo.weights import held_tensors
from tilewright.target_ref import TargetRef
from tilewright.targets.runs import PROCESSOR

PROCESSOR_DEVICE = torch.device("cpu")


class RunsEagerly(Exception):  # it is no error: the graph runs, by torch
    """Why a graph is not compiled."""


def device_of(module: Any, arguments: Sequence[Any]) -> Any:
    """The one device that all of a graph's tensors are on, those between its operators included.

    Numbers that the graph itself makes on the processor, as tensors without axes, are of any device, unless
    the graph gives them.

    Raises:
        RunsEagerly: there are several, or one that no code is generated for.
    """
    given = [t for t in (*arguments, *held_tensors(module)) if isinstance(t, torch.Tensor)]
    steps = [node for node in module.graph.nodes if node.op.startswith("call_")]
    (last,) = module.graph.find_nodes(op="output")
    inner = [t for t in _traced(steps) if t.device != PROCESSOR_DEVICE or t.dim()]
    inner += _traced(last.all_input_nodes)
    devices = sorted({str(t.device) for t in (*given, *inner)}) or ["cpu"]
    if len(devices) > 1:
        raise RunsEagerly(f"its tensors are on several devices ({', '.join(devices)}): move them to one")
    device = torch.device(devices[0])
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
        raise RunsEagerly(f"its tensors are on {device}: code runs on the processor and NVIDIA's GPUs")
    return device


def _traced(nodes: Sequence[Any]) -> Iterator[Any]:
    """The tensors of nodes, as TorchDynamo traced them."""
    for node in nodes:
        value = node.meta.get("example_value")
        values = value if isinstance(value, list | tuple) else (value,)
        yield from (t for t in values if isinstance(t, torch.Tensor))


def target_on(device: Any, target: TargetRef) -> TargetRef:
    """What compiles for tensors of a device: the target that is asked for, on this GPU if it is cuda."""
    if device.type != "cuda" or not (target.is_cpu or target.name == "cuda"):
        return target
    options = () if target.is_cpu else target.options
    if device.index and "ordinal" not in dict(options):
        options = (*options, ("ordinal", str(device.index)))
    return TargetRef("cuda", options)


def torch_device(place: tuple[int, int]) -> Any:
    """A device of DLPack as torch names it."""
    return PROCESSOR_DEVICE if place == PROCESSOR else torch.device("cuda", place[1])


def on_processor(graph: Any, held: Mapping[str, Any]) -> dict[str, Any]:
    """Make all that a graph computes tensors of the processor, for the exporter; gives what it holds, there.

    Raises:
        RunsEagerly: the GPU's autocast is in it.
    """
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") == "_enter_autocast":
            raise RunsEagerly("it casts by the GPU's autocast, whose types are not the processor's")
        if node.op == "call_method" and node.target == "cuda":
            node.target, node.args, node.kwargs = "cpu", node.args[:1], {}
        if node.op.startswith("call_"):
            node.args = map_aggregate(node.args, _on_processor)
            node.kwargs = map_aggregate(node.kwargs, _on_processor)
    return {name: _moved(value) for name, value in held.items()}


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    module = copy.deepcopy(value).cpu()
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            on_processor(part.graph, {})
            part.recompile()
    return module


def _on_processor(value: Any) -> Any:
    is_gpu = isinstance(value, torch.device | str) and str(value).partition(":")[0] == "cuda"
    return PROCESSOR_DEVICE if is_gpu else value
