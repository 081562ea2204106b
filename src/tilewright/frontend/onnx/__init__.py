"""The ONNX frontend: a file, bytes or a `ModelProto` becomes a `Graph`.

The flow is `read` (bytes, safely) → `normalise` (forms that runtimes accept beside ONNX's own) → `validate`
(is it a model at all) → `prepare` (one version, no local functions) → `build` (nodes, static shapes); a model
whose shapes are open stays `prepared`. A file that fails any step is refused whole, in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from onnx import ModelProto

from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import error_context
from tilewright.frontend.onnx import ml, native
from tilewright.frontend.onnx.external import check_external_data, embed_external_attributes
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.microsoft import place_operators
from tilewright.frontend.onnx.normalise import normalise_model
from tilewright.frontend.onnx.prepare import is_prepared, prepare_model
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.frontend.onnx.protos import bounded_messages
from tilewright.frontend.onnx.read import Opened, Source, open_model
from tilewright.frontend.onnx.sequences import group_sequences
from tilewright.frontend.onnx.survey import OtherNode, Survey, require_known_operators, survey_graph
from tilewright.frontend.onnx.validate import require_few_nodes, run_checker, validate_model
from tilewright.ir.graph import Graph, Shape
from tilewright.system.mapped_file import let_go, mapped_file_of

__all__ = [
    "Opened",
    "OtherNode",
    "PreparedModel",
    "Source",
    "Survey",
    "import_model",
    "import_open_model",
    "load_onnx",
    "open_model",
    "survey_graph",
    "survey_model",
]

T = TypeVar("T")


def load_onnx(source: Source, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Import an ONNX model as a graph in which every shape is a tuple of integers.

    `shapes` fixes the inputs whose dimensions the model leaves open; a symbol fixed by one input is fixed
    for all of them. An input that has an initializer too is that constant, unless `shapes` names it.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: a valid model that uses something this version does not run.
        UsageError: no such file, open dimensions, or `shapes` that do not fit.

    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }'
    >>> load_onnx(parse_model(text), shapes={"x": (3, 2)}).outputs
    [%y: float32[3, 2]]
    """
    return import_model(open_model(source), shapes=shapes)


def import_model(opened: Opened, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """`load_onnx` of a model that was read already; it is changed on the way.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: a valid model that uses something this version does not run.
        UsageError: open dimensions, or `shapes` that do not fit.
    """
    fixed = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    return _imported(opened, lambda prepared: prepared.graph(fixed))


def import_open_model(opened: Opened, shapes: Mapping[str, Shape]) -> Graph | PreparedModel:
    """The graph of a model that was read already; where shapes stay open, what builds graphs of it.

    Raises:
        ModelRejected, UnsupportedOp, UsageError: as for `import_model`, but for open dimensions.
    """

    def build(prepared: PreparedModel) -> Graph | PreparedModel:
        graph = prepared.static_graph(shapes)
        if graph is None:
            return prepared
        for value in graph.initializers:  # its own: no error where the file is written to
            if value.data is not None and mapped_file_of(value.data) is not None:
                mapped, value.data = value.data, value.data.copy("K")
                value.data.flags.writeable = False
                let_go(mapped)
        return graph

    return _imported(opened, build, keeps=True)


def survey_model(opened: Opened, *, shapes: Mapping[str, Sequence[int]], tries: bool) -> Survey:
    """What of a model can be imported, and the nodes that cannot, which are no error here.

    `tries` is as for `survey_graph`.

    Raises:
        ModelRejected, UnsupportedOp, UsageError: as `import_model`, but for nodes that are not supported.
    """
    fixed = {name: tuple(shape) for name, shape in shapes.items()}
    return _imported(opened, lambda prepared: survey_graph(prepared, fixed, tries=tries), surveys=True)


def _edges(model: ModelProto) -> Edges:
    """What is at the edges of a model with operators of ai.onnx.ml, which has numbers in its place now."""
    if all(entry.domain != ml.DOMAIN for entry in model.opset_import):
        return NO_EDGES
    from tilewright.frontend.onnx.ml.texts import take_edges

    return take_edges(model)


def _imported(
    opened: Opened, build: Callable[[PreparedModel], T], *, keeps: bool = False, surveys: bool = False
) -> T:
    """What is built of a model that is checked and prepared.

    `keeps`: that may be the model itself. `surveys`: operators that are not known are no error.
    """
    model, origin = opened.model, opened.origin
    with error_context(f"in {origin.label}"), bounded_messages():
        if not is_prepared(model):
            opened.embed()
        require_few_nodes(model)
        opened.data = normalise_model(model, opened.data)
        num_nodes = validate_model(model, opened.data)
        size_bytes = opened.size_bytes + check_external_data(model, origin)
        with native.session(num_nodes, size_bytes):
            embed_external_attributes(model, origin)
            place_operators(model)
            run_checker(model)
            opened.edges = _edges(model)
            apart = {model.graph.initializer[number].name: data for number, data in opened.data.items()}
            initializers = Initializers(origin, apart=apart, releases=keeps)
            model = prepare_model(model)
            group_sequences(model)
            if not surveys:
                require_known_operators(model)
            return build(PreparedModel(model, origin, initializers, size_bytes))
