"""A graph of TorchDynamo compiled for one set of shapes and weights, and how its arguments become a feed."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx.node import map_arg

from tilewright.api.kept import compile_or_reuse
from tilewright.api.models import load
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo
from tilewright.dlpack import as_numpy, as_torch, torch_stream
from tilewright.dynamo.devices import (
    PROCESSOR_DEVICE,
    RunsEagerly,
    device_of,
    on_processor,
    target_on,
    torch_device,
)
from tilewright.dynamo.fast_paths import take_apart
from tilewright.dynamo.weights import BoundWeights
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx.protos import one_line
from tilewright.options import Options
from tilewright.targets.runs import PROCESSOR, CodeAtAddresses

Output = Callable[[Sequence[Any], Sequence[Any]], Any]
"""One output of the graph, of the results of the code, as tensors, and the arguments of the call."""

MAX_COMPARED_ELEMENTS = 1 << 26
"""Elements of a value whose views are compared, one byte each."""

_NO_INDEX = torch.iinfo(torch.int32).max
_INDICES: Mapping[Any, tuple[int, str]] = {
    torch.nn.functional.embedding: (0, "input"),
    torch.embedding: (1, "indices"),
    torch.gather: (2, "index"),
    "gather": (2, "index"),
    torch.index_select: (2, "index"),
    "index_select": (2, "index"),
    torch.scatter: (2, "index"),
    "scatter": (2, "index"),
    torch.scatter_add: (2, "index"),
    "scatter_add": (2, "index"),
}
"""Where operators have indices of which none may be negative: by place and by name."""

_BOUND = "bound_"
"""Begins the names of attributes that were inputs of a graph."""


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
    device = device_of(module, arguments)
    options = replace(options, target=target_on(device, options.target))
    varying = [i for i in range(len(arguments)) if i not in numbers and i not in places]
    weights = BoundWeights.of(module, arguments, places)  # as they are before they are read
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            bound = bound_module(module, {i: arguments[i] for i in places}, numbers, device)
            # Of an argument that is a view the exporter would follow, and complain about, the whole storage.
            given = [arguments[i] for i in varying]
            examples = tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in given)
            program = torch.export.export(bound, examples)
            functional = program.run_decompositions({})  # which tells writes and views
    except Exception as error:  # whatever the exporter raises: the graph runs in eager mode
        raise RunsEagerly(f"torch cannot export it ({one_line(error)})") from error
    outputs = _outputs(functional, varying)
    argument_of = dict(zip(program.graph_signature.user_inputs, varying, strict=True))
    try:
        compiled = compile_or_reuse(load(program), options)
        direct = DirectRun.of(compiled, argument_of)
    except TilewrightError as error:
        raise RunsEagerly(str(error)) from error
    if device.type != "cpu" and (direct is None or direct.device != device):
        raise RunsEagerly(_why_not_on(device, compiled, direct))
    names = [spec.name for spec in compiled.get_inputs()]
    given = [(str(spec.dtype), spec.shape) for spec in compiled.get_outputs()]
    if not argument_of.keys() >= set(names) or given != _tensors_of(program):
        raise RunsEagerly("the exported model has other inputs or outputs than the graph")
    feed = tuple((name, argument_of[name]) for name in names)
    return Variant(compiled, feed, outputs, weights, direct)


def is_scalar(node: Any, value: Any) -> bool:
    """Whether an input of a graph is a float in a tensor that is only taken out of it.

    So TorchDynamo hands over attributes such as the epsilon of a norm where all that may differ is symbolic.
    """
    is_float = isinstance(value, torch.Tensor) and value.dtype is torch.float64 and not value.shape
    return is_float and bool(node.users) and all(map(_takes_out, node.users))


def _takes_out(node: Any) -> bool:
    """Whether a node gives the number in a tensor."""
    return bool(node.op == "call_method" and node.target == "item")


def _require_plain_tensors(arguments: Sequence[Any], numbers: Mapping[int, Any]) -> None:
    for place, value in enumerate(arguments):
        if place in numbers:
            if not isinstance(numbers[place], int | float):
                raise RunsEagerly(f"an input is a {type(value).__name__}")
        elif type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise RunsEagerly(f"an input is a {type(value).__name__} with layout {value.layout}")


def bound_module(
    module: Any, constants: Mapping[int, Any], numbers: Mapping[int, Any], device: Any = PROCESSOR_DEVICE
) -> Any:
    """The graph with some of its inputs bound: tensors as attributes, numbers in place of their uses. That of
    another device is one of the processor then."""
    graph = torch.fx.Graph()
    values: dict[Any, Any] = {}
    attributes: dict[str, Any] = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if place in numbers:
            values[node] = numbers[place]
            values |= {user: numbers[place] for user in node.users if _takes_out(user)}
        elif place in constants:
            name = f"{_BOUND}{node.name}"
            attributes[name] = constants[place]
            values[node] = graph.get_attr(name)
    results = graph.graph_copy(module.graph, values)
    graph.output(results)
    _refuse_negative_indices(graph)
    take_apart(graph)
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            attributes[node.target] = operator.attrgetter(node.target)(module)
    if device.type != "cpu":
        attributes = on_processor(graph, attributes)
    return torch.fx.GraphModule(attributes, graph).eval()


def _refuse_negative_indices(graph: Any) -> None:
    """Make negative indices of what counts from the start alone ones that no axis has: ONNX counts them from
    the end, torch raises an error."""
    for node in list(graph.nodes):
        place, name = _INDICES.get(node.target, (0, "")) if node.op.startswith("call_") else (0, "")
        index = node.args[place] if name and len(node.args) > place else node.kwargs.get(name)
        if not isinstance(index, torch.fx.Node):
            continue
        with graph.inserting_before(node):
            is_negative = graph.call_function(torch.lt, (index, 0))
            checked = graph.call_function(torch.masked_fill, (index, is_negative, _NO_INDEX))
        node.replace_input_with(index, checked)


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
    pairs = list(zip(program.graph_signature.output_specs, last.args[0], strict=True))
    tensors = [node for spec, node in pairs if isinstance(spec.arg, TensorArgument)]
    views = _Views(program, varying, tensors)
    outputs: list[Output] = []
    num_results = num_views = 0
    for spec, node in pairs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            place = (spec.target or "an input").removeprefix(_BOUND)
            raise RunsEagerly(f"it writes to {place}, and compiled code changes nothing")
        if isinstance(spec.arg, ConstantArgument):
            outputs.append(_constant(spec.arg.value))
        elif not isinstance(spec.arg, TensorArgument):
            raise RunsEagerly(f"an output is a {type(spec.arg).__name__}")
        else:
            is_view = views.is_view(node, num_results)
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
    """Outputs that share memory: the program that asks for them may write to one and read another.

    Some are inputs or views of them, some views of another output. torch makes such views, of the arguments
    of a call and of the results of the code.
    """

    def __init__(self, program: ExportedProgram, varying: Sequence[int], outputs: Sequence[Any]) -> None:
        """`outputs` are those that are tensors, in the order of the results.

        Raises:
            RunsEagerly: two of them share memory of a value that is none of them.
        """
        signature = program.graph_signature
        self._places = dict(zip(signature.user_inputs, varying, strict=True))
        self._held: dict[str, Any] = {
            spec.arg.name: program.state_dict.get(spec.target, program.constants.get(spec.target))
            for spec in signature.input_specs
            if spec.target is not None
        }
        sharing: dict[Any, list[Any]] = {}
        for node in outputs:
            sharing.setdefault(_base_of(node), []).append(node)
        self._result_of = {node: outputs.index(node) for node in sharing if node in outputs}
        for base, nodes in sharing.items():
            if base.op == "placeholder":
                continue
            if base not in self._result_of and _overlap([node.meta["val"] for node in nodes]):
                raise RunsEagerly("outputs share the memory of a value that is no output")
            for node in nodes if base in self._result_of else ():
                self._require_replay(node, base)

    def is_view(self, node: Any, number: int) -> bool:
        """Whether the output at this place of the results is made of an argument or another result."""
        base = _base_of(node)
        return bool(base.op == "placeholder") or self._result_of.get(base, number) != number

    def of(self, node: Any) -> Output:
        """Such an output of a call."""
        return lambda results, arguments: self._value(node, results, arguments)

    def _value(self, node: Any, results: Sequence[Any], arguments: Sequence[Any]) -> Any:
        if node in self._result_of:
            return results[self._result_of[node]]
        if node.op == "placeholder":
            place = self._places.get(node.name)
            return self._held[node.name] if place is None else arguments[place]

        def inner(part: Any) -> Any:
            return self._value(part, results, arguments)

        return node.target(*map_arg(node.args, inner), **map_arg(node.kwargs, inner))

    def _require_replay(self, node: Any, base: Any) -> None:
        """Results are contiguous where torch's own may not be, so that not every view of one can be made."""
        number = self._result_of[base]
        results = [None] * number + [torch.empty(base.meta["val"].shape, dtype=base.meta["val"].dtype)]
        try:
            self._value(node, results, ())
        except RuntimeError as error:
            raise RunsEagerly(f"torch makes no such view of an output ({one_line(error)})") from error


def _base_of(node: Any) -> Any:
    """The node that made the memory in which a value lies, as the schemas of operators say."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        source = node.args[0]
        if node.target is operator.getitem:
            is_view = _base_of(source) is not source  # else one of several results with memory of their own
        else:
            schema = getattr(node.target, "_schema", None)
            is_view = bool(schema is not None and schema.returns and schema.returns[0].alias_info)
        if not is_view:
            break
        node = source
    return node


def _overlap(views: Sequence[Any]) -> bool:
    """Whether two views of one storage, as fake tensors, have an element in common."""
    num_elements = max(view.untyped_storage().nbytes() // view.element_size() for view in views)
    if num_elements > MAX_COMPARED_ELEMENTS:
        return True
    taken = torch.zeros(num_elements, dtype=torch.bool)
    for view in views:
        own = torch.zeros_like(taken)
        own.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
        if bool((own & taken).any()):
            return True
        taken |= own
    return False


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True, eq=False)
class DirectRun:
    """Code that reads and writes tensors where they are, on one device: place, type and shape of each."""

    code: CodeAtAddresses
    device: Any
    inputs: tuple[tuple[int, Any, Any], ...]
    outputs: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, compiled: CompiledModel, place_of: Mapping[str, int]) -> DirectRun | None:
        """That of a model whose inputs are these arguments of a call; None where its target has none."""
        find = getattr(compiled.load(), "at_addresses", None)
        code = None if find is None else find()
        if code is None:
            return None
        inputs = [(place_of[spec.name], *_kind(spec)) for spec in compiled.get_inputs()]
        return cls(code, torch_device(code.place), tuple(inputs), tuple(map(_kind, compiled.get_outputs())))

    def __call__(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The results, in tensors of their own; None where an argument is not what the code reads.

        On a GPU the run comes behind what torch's current stream holds, and may go on when this returns.
        """
        read = []
        for place, dtype, shape in self.inputs:
            tensor = arguments[place]
            if (
                type(tensor) not in _PLAIN_TYPES
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or tensor.device != self.device
            ):
                return None
            if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() % self.code.alignment_bytes:
                tensor = torch.empty(shape, dtype=dtype, device=self.device).copy_(tensor)
            read.append(tensor)
        results = [torch.empty(shape, dtype=dtype, device=self.device) for dtype, shape in self.outputs]
        stream = None if self.code.place == PROCESSOR else torch_stream(self.device)
        self.code.run([t.data_ptr() for t in read], [t.data_ptr() for t in results], stream)
        return results


def _kind(spec: TensorInfo) -> tuple[Any, Any]:
    """Type and shape, as torch has them."""
    return getattr(torch, str(spec.dtype)), torch.Size(spec.shape)


def _why_not_on(device: Any, compiled: CompiledModel, direct: DirectRun | None) -> str:
    """Why code does not serve tensors of a GPU."""
    if direct is not None:
        return f"its tensors are on {device}, and the code runs on {direct.device}"
    kernels = [kernel for step in compiled.steps for kernel in step.kernels if kernel.template == "host"]
    names = ", ".join(name for kernel in kernels for name in kernel.nodes)
    return f"the host runs operators of it ({names}), and its tensors are on {device}"
