"""`tw.load`: a model from a file, from bytes, or from a torch module; what it holds."""

from __future__ import annotations

import dataclasses
import html
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.arguments import argument, checked
from tilewright.compiled_facts import ModelMetadata, TensorInfo
from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import UsageError, error_context
from tilewright.explain import OnnxNode
from tilewright.extents import Axis, axes_text, canonical_axis, fixed_shape
from tilewright.frontend.onnx import (
    Opened,
    PreparedModel,
    Source,
    Survey,
    import_open_model,
    open_model,
    survey_graph,
    survey_model,
)
from tilewright.frontend.onnx.protos import bounded_messages
from tilewright.frontend.torch import is_torch_source, onnx_of_torch
from tilewright.ir.derive import flops, macs
from tilewright.ir.graph import Graph
from tilewright.parallel import beside
from tilewright.records import dataclass
from tilewright.results import Result, Table, in_json
from tilewright.text.formatting import counted
from tilewright.text.printable import printable

Shapes = Mapping[str, Sequence[Axis]]
"""Of inputs: a number for each axis, or what it may be, as `tilewright.extents` reads it."""


@dataclass(frozen=True, slots=True)
class ModelSummary(Result):
    """Counts of a model as it was loaded. Multiply-accumulates and operations are of one inference."""

    name: str
    sha256: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operator_counts: Mapping[str, int]
    num_parameters: int
    parameter_bytes: int
    macs: int
    flop: int

    @in_json
    def num_nodes(self) -> int:
        """Operators in the graph."""
        return sum(self.operator_counts.values())

    def tables(self) -> Sequence[Table]:
        """Label and text of each line a person reads."""
        counts = ", ".join(f"{count} {name}" for name, count in self.operator_counts.items())
        rows = (
            ("model", self.name),
            ("sha256", self.sha256),
            ("inputs", ", ".join(map(str, self.inputs)) or "none"),
            ("outputs", ", ".join(map(str, self.outputs))),
            ("operators", f"{self.num_nodes}: {counts}" if counts else "none"),
            ("parameters", f"{self.num_parameters:,} in {self.parameter_bytes / 1e6:.1f} MB"),
            ("work", f"{self.macs / 1e9:.3f} G multiply-accumulates"),
        )
        return (Table(("", ""), rows),)

    def __str__(self) -> str:
        return "\n".join(f"{label:>10}  {printable(str(text))}" for label, text in self.rows())


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: its graph, where it came from, and the nodes that its file lists.

    Where shapes are open, it is what builds a graph for given ones: `at` gives the model at these. `shapes`
    are what was said of them. `edges` say which inputs and outputs are texts or maps: in the graph there are
    numbers in their place.
    """

    source: Graph | PreparedModel
    sha256: str
    name: str
    shapes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    listed: tuple[OnnxNode, ...] = ()
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    edges: Edges = NO_EDGES

    @property
    def is_open(self) -> bool:
        """Whether shapes are open: of inputs, or those that data decide."""
        return isinstance(self.source, PreparedModel)

    @property
    def graph(self) -> Graph:
        """The graph, in which every shape is a tuple of integers.

        Raises:
            UsageError: the model leaves dimensions open; says which.
            UnsupportedOp: data decide a shape; says which.
        """
        return self.source if isinstance(self.source, Graph) else self.source.graph(self._fixed())

    def at(self, shapes: Shapes) -> Model:
        """The model at these shapes; one that leaves some open is open still.

        Raises:
            UsageError: they do not fit the model.
        """
        if isinstance(self.source, Graph):
            return as_model(self, shapes)
        fixed = {**self.shapes, **_canonical(shapes)}
        model = dataclasses.replace(self, shapes=fixed)
        graph = self.source.static_graph(model._fixed())
        return model if graph is None else dataclasses.replace(model, source=graph)

    def _fixed(self) -> dict[str, tuple[int, ...]]:
        """Shapes of which every axis is a number."""
        return _numbers(self.shapes)

    def summary(self) -> ModelSummary:
        """Operators, parameters and work."""
        counts = Counter(node.op_type for node in self.graph.nodes)
        constants = self.graph.initializers
        return ModelSummary(
            name=self.name,
            sha256=self.sha256,
            inputs=tuple(TensorInfo.of(v) for v in self.graph.inputs),
            outputs=tuple(TensorInfo.of(v) for v in self.graph.outputs),
            operator_counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
            num_parameters=sum(v.num_elements for v in constants),
            parameter_bytes=sum(v.size_bytes for v in constants),
            macs=sum(macs(node) for node in self.graph.nodes),
            flop=sum(flops(node) for node in self.graph.nodes),
        )

    def to_json(self) -> dict[str, Any]:
        """The summary as plain values."""
        return self.summary().to_json()

    def __repr__(self) -> str:
        if isinstance(self.source, PreparedModel):
            return f"Model({self.name!r}, open shapes)"
        return f"Model({self.name!r}, {counted(len(self.source.nodes), 'node')})"

    def _repr_html_(self) -> str:
        return html.escape(repr(self)) if self.is_open else self.summary()._repr_html_()


@checked
def load(source: Any, example_inputs: Any = None, *, shapes: Shapes | None = None) -> Model:
    """Load a model: an ONNX file, its bytes, a `ModelProto`, a `torch.nn.Module`, or an `ExportedProgram`.

    `shapes` fixes the inputs whose sizes the model leaves open; what it leaves open stays so. A module needs
    example inputs: a tensor, a sequence of them in the order of `forward`'s arguments, a mapping by name, or
    a sequence that ends in one.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: a valid model that uses something this version does not run.
        UsageError: no such file, or `shapes` that do not fit.
    """
    given = _canonical(shapes or {})
    fixed = _numbers(given)
    name = type(source).__name__
    is_of_torch = example_inputs is not None or is_torch_source(source)
    if is_of_torch:
        source = onnx_of_torch(source, example_inputs)
    model = _loaded(source, given, lambda opened: import_open_model(opened, fixed), maps=True)
    if isinstance(model.source, PreparedModel):
        from tilewright.specialise.binding import Binding

        Binding(model.source.inputs, model.source.defaulted, given)  # refuses shapes that do not fit
    return dataclasses.replace(model, name=name) if is_of_torch else model


def survey(
    model: Model | Source, shapes: Shapes | None = None, *, tries: bool = False
) -> tuple[Model, Survey]:
    """What of a model its graph can hold, and the nodes that it cannot, each with the reason.

    `tries`: where shapes are open, likely ones are taken.

    Raises:
        ModelRejected, UnsupportedOp: as `load`, but for nodes that are not supported.
        UsageError: dimensions stay open, or the shapes do not fit the model.
    """
    if isinstance(model, Model):
        model = as_model(model, shapes)
        if isinstance(model.source, Graph):
            return model, Survey(model.source, (), {})
        found = survey_graph(model.source, model._fixed(), tries=tries)
        return dataclasses.replace(model, source=found.graph), found
    given = _canonical(shapes or {})
    fixed = _numbers(given)
    kept: list[Survey] = []

    def build(opened: Opened) -> Graph:
        kept.append(survey_model(opened, shapes=fixed, tries=tries))
        return kept[0].graph

    return _loaded(model, given, build), kept[0]


def _loaded(
    source: Any,
    shapes: Mapping[str, tuple[Axis, ...]],
    build: Callable[[Opened], Graph | PreparedModel],
    *,
    maps: bool = False,
) -> Model:
    """A model opened and built."""
    opened = open_model(argument("model", source, Source), maps=maps)
    with error_context(f"in {opened.origin.label}"), bounded_messages():
        listed = _listed(opened)
    model_name = opened.model.graph.name or "graph"
    if opened.locations:
        built = build(opened)
        digest = opened.sha256()
    else:
        # Hashing lets go of the interpreter.
        digest, built = beside(opened.sha256, lambda: build(opened))
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else model_name
    return Model(built, digest, str(name), shapes, listed, _metadata(opened), opened.edges)


def as_model(model: Model | Source, shapes: Shapes | None) -> Model:
    """The model, loaded if it is not yet.

    Raises:
        UsageError: shapes that a loaded model does not have.
    """
    if not isinstance(model, Model):
        return load(model, shapes=shapes)
    if model.is_open:
        return model.at(shapes) if shapes else model
    known = {v.name: v.shape for v in model.graph.inputs}
    for name, shape in (shapes or {}).items():
        if name not in known:
            raise UsageError(f"shapes: the model has no input {name!r}; inputs: {', '.join(known)}.")
        if known[name] != tuple(shape):
            raise UsageError(
                f"shapes: input {name!r} is {axes_text(known[name])} in the model as it was loaded, not "
                f"{axes_text(shape)}; leave that out, or load or export the model with open sizes."
            )
    return model


def _canonical(shapes: Shapes) -> dict[str, tuple[Axis, ...]]:
    return {name: tuple(map(canonical_axis, shape)) for name, shape in shapes.items()}


def _numbers(shapes: Mapping[str, tuple[Axis, ...]]) -> dict[str, tuple[int, ...]]:
    """Those shapes of which every axis is a number."""
    return {name: numbers for name in shapes if (numbers := fixed_shape(shapes[name])) is not None}


def _listed(opened: Opened) -> tuple[OnnxNode, ...]:
    """Nodes of the file, named as the frontend names them: by their first result if they have no name."""
    return tuple(
        OnnxNode(n.name or next(filter(None, n.output), n.op_type), n.op_type, tuple(n.output), bool(n.name))
        for n in opened.model.graph.node
    )


def _metadata(opened: Opened) -> ModelMetadata:
    model = opened.model
    return ModelMetadata(
        producer_name=model.producer_name,
        graph_name=model.graph.name,
        domain=model.domain,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        version=model.model_version,
        custom_metadata_map={entry.key: entry.value for entry in model.metadata_props},
    )
