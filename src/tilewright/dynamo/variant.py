"""A graph of TorchDynamo compiled for one set of shapes and weights, and how its arguments become a feed."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx.node import map_arg

from tilewright.api.kept import compile_or_reuse
from tilewright.api.models import load
from tilewright.compiled import CompiledModel
from tilewright.dynamo.direct import DirectRun
from tilewright.dynamo.weights import BoundWeights
from tilewright.errors import TilewrightError
from tilewright.exchange import as_numpy, as_torch
from tilewright.frontend.onnx.protos import one_line
from tilewright.options import Options

Output = Callable[[Sequence[Any], Sequence[Any]], Any]
"""One output of the graph, of the results of the code, as tensors, and the arguments of the call."""

_BOUND = "bound_"
"""Begins the names of attributes that were inputs of a graph."""


class RunsEagerly(Exception):  # it is no error: the graph runs, by torch
    """Why a graph is not compiled."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Code for one set of shapes, weights included.

    `feed` says which argument each input is; `outputs` is None where they are the results of the code, in
    their order.
    """

    compiled: CompiledModel
    feed: tuple[tuple[str, int], ...]
    outputs: tuple[Output, ...] | None
    weights: BoundWeights
    direct: DirectRun | None

    def run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The graph's outputs."""
        results = None if self.direct is None else self.direct(arguments)
        if results is None:
            arrays = self.compiled.run(None, {name: as_numpy(arguments[i]) for name, i in self.feed})
            results = [as_torch(array) for array in arrays]
        if self.outputs is None:
            return tuple(results)
        return tuple(output(results, arguments) for output in self.outputs)


def built(
    module: Any,
    arguments: Sequence[Any],
    places: tuple[int, ...],
    numbers: Mapping[int, Any],
    options: Options,
) -> Variant:
    """Compile a graph for the arguments of a call: constants at `places`, numbers as they are.

    Raises:
        RunsEagerly: it cannot be compiled; says why.
    """
    _require_plain_tensors(arguments, numbers)
    varying = [i for i in range(len(arguments)) if i not in numbers and i not in places]
    weights = BoundWeights.of(module, arguments, places)  # as they are before they are read
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            bound = bound_module(module, {i: arguments[i] for i in places}, numbers)
            program = torch.export.export(bound, tuple(arguments[i] for i in varying))
            functional = program.run_decompositions({})  # which tells writes and views
    except Exception as error:  # whatever the exporter raises: the graph runs in eager mode
        raise RunsEagerly(f"torch cannot export it ({one_line(error)})") from error
    outputs = _outputs(functional, varying)
    try:
        compiled = compile_or_reuse(load(program), options)
    except TilewrightError as error:
        raise RunsEagerly(str(error)) from error
    argument_of = dict(zip(program.graph_signature.user_inputs, varying, strict=True))
    names = [spec.name for spec in compiled.get_inputs()]
    given = [(str(spec.dtype), spec.shape) for spec in compiled.get_outputs()]
    if not argument_of.keys() >= set(names) or given != _tensors_of(program):
        raise RunsEagerly("the exported model has other inputs or outputs than the graph")
    feed = tuple((name, argument_of[name]) for name in names)
    return Variant(compiled, feed, outputs, weights, DirectRun.of(compiled, argument_of))


def _require_plain_tensors(arguments: Sequence[Any], numbers: Mapping[int, Any]) -> None:
    for place, value in enumerate(arguments):
        if place in numbers:
            if not isinstance(value, int):
                raise RunsEagerly(f"an input is a {type(value).__name__}")
        elif type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise RunsEagerly(f"an input is a {type(value).__name__} with layout {value.layout}")
        elif value.device.type != "cpu":
            raise RunsEagerly(f"an input is on the device {value.device}: compiled code runs on the cpu")


def bound_module(module: Any, constants: Mapping[int, Any], numbers: Mapping[int, Any]) -> Any:
    """The graph with some of its inputs bound: tensors as attributes, numbers in place of their uses."""
    graph = torch.fx.Graph()
    values: dict[Any, Any] = {}
    attributes: dict[str, Any] = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if place in numbers:
            values[node] = numbers[place]
        elif place in constants:
            name = f"{_BOUND}{node.name}"
            attributes[name] = constants[place]
            values[node] = graph.get_attr(name)
    results = graph.graph_copy(module.graph, values)
    graph.output(results)
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            attributes[node.target] = operator.attrgetter(node.target)(module)
    return torch.fx.GraphModule(attributes, graph).eval()


def _tensors_of(program: ExportedProgram) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of the outputs that are tensors."""
    (last,) = program.graph.find_nodes(op="output")
    nodes = zip(program.graph_signature.output_specs, last.args[0], strict=True)
    values = [node.meta["val"] for spec, node in nodes if isinstance(spec.arg, TensorArgument)]
    return [(str(value.dtype).removeprefix("torch."), tuple(value.shape)) for value in values]


def _outputs(program: ExportedProgram, varying: Sequence[int]) -> tuple[Output, ...] | None:
    """How each output of a functional program comes about; None where each is a result of the code.

    Raises:
        RunsEagerly: the graph writes to its inputs, or gives something that is no tensor.
    """
    (last,) = program.graph.find_nodes(op="output")
    nodes = last.args[0]
    views = _Views(program, varying)
    outputs: list[Output] = []
    num_results = num_views = 0
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        if spec.kind is not OutputKind.USER_OUTPUT:
            place = (spec.target or "an input").removeprefix(_BOUND)
            raise RunsEagerly(f"it writes to {place}, and compiled code changes nothing")
        if isinstance(spec.arg, ConstantArgument):
            outputs.append(_constant(spec.arg.value))
        elif not isinstance(spec.arg, TensorArgument):
            raise RunsEagerly(f"an output is a {type(spec.arg).__name__}")
        else:
            is_view = views.is_view(node)
            outputs.append(views.of(node) if is_view else _result(num_results))
            num_results += 1
            num_views += is_view
    if not num_results:
        raise RunsEagerly("it gives no tensor")
    return None if num_results == len(outputs) and not num_views else tuple(outputs)


def _constant(value: Any) -> Output:
    return lambda results, arguments: value


def _result(number: int) -> Output:
    return lambda results, arguments: results[number]


class _Views:
    """Outputs that are inputs, or views of them: the program that asks for them may write to them later."""

    def __init__(self, program: ExportedProgram, varying: Sequence[int]) -> None:
        signature = program.graph_signature
        self._places = dict(zip(signature.user_inputs, varying, strict=True))
        self._held: dict[str, Any] = {
            spec.arg.name: program.state_dict.get(spec.target, program.constants.get(spec.target))
            for spec in signature.input_specs
            if spec.target is not None
        }

    def is_view(self, node: Any) -> bool:
        """Whether what a node gives may share the memory of an input, as the schemas of operators say."""
        while node.op == "call_function":
            schema = getattr(node.target, "_schema", None)
            alias = schema.returns[0].alias_info if schema is not None and schema.returns else None
            if alias is None or not isinstance(node.args[0], torch.fx.Node):
                return False
            node = node.args[0]
        return bool(node.op == "placeholder")

    def of(self, node: Any) -> Output:
        """Such an output, of the arguments of a call: torch makes its own views."""

        def value(node: Any, arguments: Sequence[Any]) -> Any:
            if node.op == "placeholder":
                place = self._places.get(node.name)
                return self._held[node.name] if place is None else arguments[place]

            def inner(part: Any) -> Any:
                return value(part, arguments)

            return node.target(*map_arg(node.args, inner), **map_arg(node.kwargs, inner))

        return lambda results, arguments: value(node, arguments)
