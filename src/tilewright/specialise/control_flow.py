"""Control flow whose shapes arrive with a run: bodies are compiled for them, or are models with open shapes.

Where a body is static at the shapes of its operands it is compiled for these. A branch in which data decide
shapes is an open model of its own; so is the body of a loop. A body whose states change their shape from step
to step runs node by node, as what follows a shape that data decide does.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo, tensor_info
from tilewright.compiler import compile_graph
from tilewright.content_pool import ContentPool
from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.body_models import BodyModel, body_model
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.ir.control_flow import CONTROL_FLOW, run_control_flow
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Shape, SubgraphAttribute
from tilewright.options import Options
from tilewright.specialise.accumulators import Unaccumulated, without_accumulators
from tilewright.specialise.binding import Binding
from tilewright.specialise.model import OpenCompiledModel
from tilewright.specialise.parts import interpreted_values, is_light
from tilewright.specialise.tails import Tail
from tilewright.system.forks import ForkSafeLock
from tilewright.targets import compiled_control_flow, host_runner
from tilewright.targets.base import Code, Executable, SharingCode
from tilewright.targets.runs import HostRunner, RunsControlFlow
from tilewright.version import __version__

_MAX_KEPT = 64
"""Nodes that are kept, and for each the sets of shapes whose code is."""

_CONSTANTS = ContentPool()
"""Of all bodies: it keeps what one of them uses."""

_MAX_LITTLE_ELEMENTS, _MAX_LITTLE_STEPS = 1 << 14, 16
"""Of operands whose shapes data decide: so few take less time without code than to compile for them."""


class CompiledBodies:
    """What targets ask for the code of bodies."""

    def compile_body(self, graph: Graph, options: Options) -> Executable:
        """A body at given shapes."""
        return _loaded(compile_graph(graph, _of_bodies(options)).code, options.num_threads)

    def runner(self, options: Options, *, is_data_decided: bool = False) -> HostRunner:
        """What runs operators on the host, bodies of control flow by code where the target has some.

        `is_data_decided`: shapes may be others in every run, so that little work is interpreted.
        """
        return _Runner(options, is_data_decided) if options.target.is_cpu else host_runner()


def _loaded(code: Code, num_threads: int | None) -> Executable:
    """The code, with constants that bodies have in common held once."""
    if isinstance(code, SharingCode):
        return code.load_sharing(num_threads, _CONSTANTS)
    return code.load(num_threads)


def _of_bodies(options: Options) -> Options:
    """Of a whole model, those that its bodies have."""
    return dataclasses.replace(options, shapes={}, budget=None, dump_after=(), frozen_shapes=False)


class _Runner:
    """See `HostRunner`."""

    def __init__(self, options: Options, is_data_decided: bool) -> None:
        self.options, self.is_data_decided = options, is_data_decided
        self._nodes: OrderedDict[Any, _ControlFlow] = OrderedDict()
        self._lock = ForkSafeLock()

    def __call__(
        self, node: Node, arrays: Sequence[Array | None], *, captures: Sequence[Array] = ()
    ) -> tuple[Array | None, ...]:
        if node.op_type not in CONTROL_FLOW or _has_text(arrays) or _has_text(captures):
            return host_runner()(node, arrays, captures=captures)
        operands = [None if a is None else np.require(a, requirements=["C", "A"]) for a in arrays]
        captured = [np.require(a, requirements=["C", "A"]) for a in captures]
        try:
            return self._of(node).run(operands, captured)
        except UnsupportedOp:
            # Sequences inside a body, or an operator without a definition: the reference may know it.
            return host_runner()(node, arrays, captures=captures)

    def _of(self, node: Node) -> _ControlFlow:
        """What is kept of a node: of another with equal attributes, reading the same constants, too."""
        attributes = tuple(
            (name, a.serialized if isinstance(a, SubgraphAttribute) else repr(a))
            for name, a in node.attributes.items()
        )
        captures = tuple((v.name, v.dtype, id(v.data)) for v in node.captures)
        dtypes = tuple(None if v is None else v.dtype for v in node.inputs)
        key = (node.name, node.op_type, attributes, dtypes, captures)
        with self._lock:
            found = self._nodes.get(key)
            if found is None:
                found = self._nodes[key] = _ControlFlow(node, self)
                while len(self._nodes) > _MAX_KEPT:
                    self._nodes.popitem(last=False)
            self._nodes.move_to_end(key)
            return found


def _has_text(arrays: Sequence[Array | None]) -> bool:
    return any(array is not None and array.dtype.kind in "OUS" for array in arrays)


class _ControlFlow:
    """A control-flow node, at whatever shapes arrive."""

    def __init__(self, node: Node, runner: _Runner) -> None:
        self._node, self._runner = node, runner
        self._lock = ForkSafeLock()
        self._code: OrderedDict[Any, RunsControlFlow | None] = OrderedDict()
        self._open: dict[str, _OpenBody] = {}
        self._rest = without_accumulators(node)

    def run(self, operands: Sequence[Array | None], captures: Sequence[Array]) -> tuple[Array | None, ...]:
        """The node's results."""
        node = self._node
        if not self._is_little(operands, captures):
            code = self._coded(self._node, operands, captures)
            results = None if code is None else code.run(operands, captures)
            if results is None and self._rest is not None:
                results = self._appended(self._rest, operands, captures)
            if results is not None:
                return results
        fed = dict(zip((value.name for value in node.captures), captures, strict=True))
        return run_control_flow(node, operands, captures, lambda name: self._opened(name).body(fed))

    def _is_little(self, operands: Sequence[Array | None], captures: Sequence[Array]) -> bool:
        """Whether it is so little work that shapes which data decide are not worth compiling for."""
        node = self._node
        if not self._runner.is_data_decided:
            return False
        given = (*operands, *captures)
        if sum(a.size for a in given if a is not None) > _MAX_LITTLE_ELEMENTS:
            return False
        if node.op_type == "If":
            return True
        if node.op_type == "Loop":
            count = operands[0] if operands else None
            return count is not None and int(count.reshape(-1)[0]) <= _MAX_LITTLE_STEPS
        axes = node.ints_attr("scan_input_axes", ()) or (0,)
        scanned = operands[len(operands) - node.int_attr("num_scan_inputs", 1)]
        return scanned is not None and scanned.shape[axes[0]] <= _MAX_LITTLE_STEPS

    def _appended(
        self, rest: Unaccumulated, operands: Sequence[Array | None], captures: Sequence[Array]
    ) -> tuple[Array | None, ...] | None:
        """Results of a loop to whose states steps append; None where others change their shape."""
        given = rest.operands(operands)
        code = self._coded(rest.node, given, captures)
        found = None if code is None else code.run(given, captures)
        return None if found is None else rest.results(operands, found)

    def _coded(
        self, node: Node, operands: Sequence[Array | None], captures: Sequence[Array]
    ) -> RunsControlFlow | None:
        shapes = [None if a is None else a.shape for a in operands]
        captured = [a.shape for a in captures]
        key = (node is self._node, tuple(shapes), tuple(captured))
        with self._lock:
            if key not in self._code:
                compile_body = partial(CompiledBodies().compile_body, options=self._runner.options)
                self._code[key] = compiled_control_flow(node, shapes, captured, compile_body)
                while len(self._code) > _MAX_KEPT:
                    self._code.popitem(last=False)
            self._code.move_to_end(key)
            return self._code[key]

    def _opened(self, name: str) -> _OpenBody:
        with self._lock:
            if name not in self._open:
                self._open[name] = _OpenBody(body_model(self._node, name), self._runner)
            return self._open[name]


class _OpenBody:
    """A body in which data decide shapes: it runs node by node, or with much work as a model of its own."""

    def __init__(self, model: BodyModel, runner: _Runner) -> None:
        self._model, self._runner = model, runner
        self._tail: Tail | None = None
        self._compiled: OpenCompiledModel | None = None

    def body(self, captures: Mapping[str, Array]) -> Callable[[Sequence[Array]], list[Array]]:
        """What runs it on these captures."""
        model = self._model
        fed = {name: captures[name] for name in model.captures}
        names = list(model.results)
        first: list[tuple[Shape, ...]] = []

        def run(arrays: Sequence[Array]) -> list[Array]:
            feed = {name: a for name, a in zip(model.parameters, arrays, strict=True) if name}
            feed.update(fed)
            shapes = tuple(a.shape for a in feed.values())
            first.append(shapes) if not first else None
            if shapes == first[0] and self._is_heavy(feed):
                return self._model_of().run(names, feed)
            values = self._interpreted(feed)
            return [values[name] for name in names]

        return run

    def _is_heavy(self, feed: Mapping[str, Array]) -> bool:
        if self._compiled is None and self._tail is None:
            division = self._model.prepared.divided({name: a.shape for name, a in feed.items()})
            if not is_light(division.graph):
                self._model_of()
        return self._compiled is not None

    def _model_of(self) -> OpenCompiledModel:
        if self._compiled is None:
            self._compiled = _open_model(self._model.prepared, self._runner.options)
        return self._compiled

    def _interpreted(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        if self._tail is not None:
            return self._tail.values(feed)
        values, dtypes = interpreted_values(self._model.prepared, feed, self._runner)
        self._tail = Tail.of(self._model.prepared, dtypes, feed, self._runner)
        return values


def _open_model(prepared: PreparedModel, options: Options) -> OpenCompiledModel:
    """A body as a model whose shapes are open."""
    options = _of_bodies(options)
    binding = Binding(prepared.inputs, prepared.defaulted, {})
    facts = CompiledFacts(
        target=options.target,
        tool_version=__version__,
        model_sha256="",
        options=options,
        inputs=tuple(tensor_info(n, d.dtype, binding.shape_of(n)) for n, d in prepared.inputs.items()),
        outputs=tuple(TensorInfo(name, DType.FLOAT32, ()) for name in prepared.outputs),
    )

    def compile_part(
        graph: Graph, shapes: Mapping[str, Shape], time_left_s: float | None, is_whole: bool
    ) -> CompiledModel:
        compilation = compile_graph(graph, options)
        own = dataclasses.replace(
            facts,
            inputs=tuple(map(TensorInfo.of, compilation.program.graph.inputs)),
            outputs=tuple(map(TensorInfo.of, compilation.program.graph.outputs)),
        )
        body = Body(lambda: compilation.program, lambda: (), lambda number: _loaded(compilation.code, number))
        return CompiledModel(own, body, num_threads=options.num_threads)

    return OpenCompiledModel(prepared, binding, facts, compile_part)
