"""A model at one set of shapes, made to run: its static part, and what data decide after that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.errors import InputError, InternalError
from tilewright.frontend.onnx.prepared import Division, HostOperator, PreparedModel
from tilewright.ir.derive import flops
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Shape
from tilewright.ir.interpret import run_graph
from tilewright.ir.ops.registry import sizing_by_data
from tilewright.ir.work import MAX_HOST_ELEMENTS
from tilewright.records import dataclass
from tilewright.targets import host_runner
from tilewright.targets.runs import HostRunner

Shapes = Mapping[str, Shape]
Compile = Callable[[Graph, Shapes], CompiledModel]

MAX_INTERPRETED_FLOP = 1 << 20
"""Of a part behind a shape that data decide. Such shapes differ from run to run, and compiling a part takes
as long as the reference takes for so many operations hundreds of times."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPart:
    """The static part of a model, compiled or interpreted, and what follows it.

    Neither where nothing static is asked for. `rest` is what the results of `operators` lead to; `graph` is
    the static part as it was loaded, where others may be compared with it.
    """

    compiled: CompiledModel | None
    interpreted: Graph | None
    constants: Mapping[str, Array]
    operators: tuple[HostOperator, ...]
    rest: PreparedModel | None
    dtypes: Mapping[str, DType]
    graph: Graph | None = None
    run_operator: HostRunner = field(default_factory=host_runner)

    @classmethod
    def of(
        cls,
        division: Division,
        shapes: Shapes,
        compile_part: Compile,
        *,
        interprets: bool = False,
        keeps: bool = False,
        run_operator: HostRunner | None = None,
    ) -> CompiledPart:
        """Compile what is static; `interprets` leaves that to the reference, `keeps` its graph."""
        graph, compiled = division.graph, None
        if not interprets and graph.outputs:
            compiled = compile_part(graph, shapes)
            compiled.load()  # so that the first run does not
        return cls(
            compiled,
            graph if interprets and graph.outputs else None,
            division.constants,
            division.operators,
            division.rest,
            division.dtypes,
            graph if keeps else None,
            run_operator or host_runner(),
        )

    @property
    def whole(self) -> CompiledModel | None:
        """The compiled model, if that is all of it."""
        return self.compiled if self.rest is None else None

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Every value that is known when its operators have run, by name."""
        values = {**self.constants, **feed}
        if self.compiled is not None:
            names = [output.name for output in self.compiled.facts.outputs]
            values.update(zip(names, self.compiled.run_numbers(names, feed), strict=True))
        elif self.interpreted is not None:
            values.update(run_graph(self.interpreted, feed))
        for operator in self.operators:
            arrays = [None if name is None else values[name] for name in operator.inputs]
            captures = [values[name] for name in operator.captures]
            values.update(operator_results(operator.node, arrays, captures, self.run_operator))
        return values


def interpreted_values(
    model: PreparedModel, feed: Mapping[str, Array], run_operator: HostRunner
) -> tuple[dict[str, Array], dict[str, DType]]:
    """Outputs of a model by the reference, whichever shapes data decide, and the types of its values."""

    def refuse(graph: Graph, shapes: Shapes) -> CompiledModel:
        raise InternalError(f"{graph.name} is interpreted.")

    rest: PreparedModel | None = model
    outputs, dtypes = dict[str, Array](), dict[str, DType]()
    while rest is not None:
        shapes = {name: array.shape for name, array in feed.items()}
        part = CompiledPart.of(
            rest.divided(shapes), shapes, refuse, interprets=True, run_operator=run_operator
        )
        values = part.values(feed)
        outputs.update({name: values[name] for name in rest.outputs if name in values})
        dtypes.update(part.dtypes)
        rest = part.rest
        feed = {} if rest is None else {name: values[name] for name in rest.inputs}
    return outputs, dtypes


def operator_results(
    node: Node, arrays: Sequence[Array | None], captures: Sequence[Array], run_operator: HostRunner
) -> dict[str, Array]:
    """What an operator gives on the host, by name.

    Raises:
        InputError: operands that it does not take, or that make a result larger than the host may hold.
    """
    _require_small(node, arrays)
    results = run_operator(node, arrays, captures=captures)
    return {
        value.name: array if array.flags.c_contiguous else np.ascontiguousarray(array)
        for value, array in zip(node.outputs, results, strict=True)
        if value is not None and array is not None
    }


def _require_small(node: Node, arrays: Sequence[Array | None]) -> None:
    """Refuse a result that an operand makes larger than the host may hold at once.

    Raises:
        InputError: it does, or the operand is no valid one.
    """
    sizing = sizing_by_data(node)
    if sizing is None:
        return
    source, data = arrays[0], arrays[sizing.operand]
    assert source is not None
    assert data is not None
    label = f"{node.op_type} {node.name!r}: its {sizing.name}"
    try:
        shape = sizing.shape(node, source.shape, data)
    except (ValueError, IndexError) as error:
        raise InputError(f"{label} cannot be: {' '.join(str(error).split())}.") from error
    if math.prod(shape) > MAX_HOST_ELEMENTS:
        raise InputError(
            f"{label} makes a result of {math.prod(shape):,} elements, more than the {MAX_HOST_ELEMENTS:,} "
            "(MAX_HOST_ELEMENTS) that the host may hold."
        )


def is_light(graph: Graph) -> bool:
    """Whether the reference computes a graph in less time than it takes to compile it."""
    return sum(flops(node) for node in graph.nodes) <= MAX_INTERPRETED_FLOP
