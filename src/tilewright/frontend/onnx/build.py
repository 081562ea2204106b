"""From a validated model to a `Graph`: one walk over the nodes in order, each shape static on the way.

Operators that the registry knows become nodes; others are replaced by the function body that ONNX, or
`microsoft`, defines for them, down to operators that are known. `If` on a constant is replaced by the branch
it takes, `Loop` and `Scan` of a known number of steps by these; other control flow stays one opaque node
whose body reads outer values by their names in the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs

from tilewright.errors import ModelRejected, UnsupportedOp, error_context
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.attributes import constant_of, import_attributes
from tilewright.frontend.onnx.bodies import bind_captures, branch_of, function_body, inlined
from tilewright.frontend.onnx.external import is_external
from tilewright.frontend.onnx.fold import fold
from tilewright.frontend.onnx.infer import find_schema, infer_types
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.inputs import (
    BoundInputs,
    Declaration,
    completed,
    declaration,
    dims_text,
    resolve,
)
from tilewright.frontend.onnx.limits import MAX_FOLDED_BYTES, MAX_NODES, MAX_UNROLLED_NODES_IN_ALL
from tilewright.frontend.onnx.loops import ResultType, loop_types
from tilewright.frontend.onnx.other_domains import definition_of
from tilewright.frontend.onnx.prepare import opset_versions
from tilewright.frontend.onnx.protos import all_nodes, node_label
from tilewright.frontend.onnx.ranges import check_ranges
from tilewright.frontend.onnx.scope import Scope, unused
from tilewright.frontend.onnx.sequences import holds_sequences
from tilewright.frontend.onnx.tensors import checked_shape
from tilewright.frontend.onnx.unroll import loop_body, unroll
from tilewright.frontend.onnx.validate import refuse_random
from tilewright.ir.bodies import own_names
from tilewright.ir.bounds import require_bounded
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Graph, Node, Shape, Value
from tilewright.ir.ops.check_shape import CHECK_SHAPE, assumed_operand, check_attributes
from tilewright.ir.ops.registry import (
    INTERNAL_DOMAIN,
    MICROSOFT_DOMAIN,
    find_operator,
    result_shapes,
    sizing_by_data,
)

logger = logging.getLogger(__name__)

# Composed operators are defined by composed operators a few levels deep.
_MAX_EXPANSION_DEPTH = 12
_LOOPS = frozenset({"Loop", "Scan"})
# Loops inside the body of one that is unrolled: trying each anew at every level must come to an end.
_MAX_INNER_LOOPS = 1


class DataDependentShape(UnsupportedOp):
    """A result whose shape data decide: a graph of static shapes cannot hold its node."""


class Importer:
    """Makes the graph of a validated model whose versions are prepared, at static shapes of its inputs."""

    def __init__(self, initializers: Initializers, bound: BoundInputs) -> None:
        self._arrays = initializers
        self._bound = bound
        self._graph = Graph()
        self._folded_bytes = 0
        self._num_unrolled = 0
        self._value_names: dict[str, int] = {}
        self._node_names: dict[str, int] = {}
        self._infos: dict[str, list[ValueInfoProto]] = {}  # what declares each shape of the model

    def run(self, model: ModelProto) -> Graph:
        """The whole model.

        Raises:
            ModelRejected, UnsupportedOp, UsageError: see `load_onnx`.
        """
        scope = self.begin(model)
        self._nodes(model.graph.node, scope)
        return self.finish(scope, [info.name for info in model.graph.output])

    def begin(self, model: ModelProto) -> Scope:
        """The inputs and initializers of a model; its nodes may follow one by one."""
        proto = model.graph
        self._graph.name = proto.name or "graph"
        scope = Scope(opset_versions(model))
        results = [name for node in proto.node for name in node.output if name]
        # Names of the model itself stay as they are; names inside expanded bodies make way.
        scope.targets = {name: name for name in results}
        own = [*(v.name for v in proto.input), *(t.name for t in proto.initializer), *results]
        self._value_names = dict.fromkeys(own, 1)
        for info in (*proto.value_info, *proto.output):
            found = declaration(info, "value")
            if found is not None:
                scope.declared[info.name] = found
                self._infos.setdefault(info.name, []).append(info)
        for info in proto.input:
            if info.name in self._bound.types:
                value = Value(info.name, *self._bound.types[info.name])
                scope.values[info.name] = self._graph.add_input(value)
        self._initializers(proto.initializer, scope)
        return scope

    @property
    def input_names(self) -> list[str]:
        """Names of the graph's inputs."""
        return [value.name for value in self._graph.inputs]

    def try_node(self, proto: NodeProto, scope: Scope) -> bool:
        """Add a node of the model; False, and nothing is added, if data decide the shape of a result."""
        num_nodes = len(self._graph.nodes)
        try:
            self._nodes((proto,), scope)
        except DataDependentShape:
            for name in proto.output:
                scope.values.pop(name, None)
            self._undo(num_nodes)
            return False
        return True

    def taken_branch(self, proto: NodeProto, scope: Scope) -> list[NodeProto] | None:
        """The nodes that stand for an `If` whose condition is a constant; None for all other nodes."""
        condition = scope.find(proto.input[0]) if proto.op_type == "If" else None
        if condition is None or condition.data is None:
            return None
        branch = branch_of(proto, bool(condition.data.reshape(-1)[0]))
        if any(map(is_external, branch.initializer)) or holds_sequences(branch):
            return None  # which no node of the model may hold
        prefix = self._inner_prefix(proto, scope)
        names = {name: unused(f"{prefix}{name}", self._value_names) for name in sorted(own_names(branch))}
        scope.targets.update((name, name) for name in names.values())
        return inlined(branch, names, proto.output)

    def finish(self, scope: Scope, outputs: Iterable[str]) -> Graph:
        """The graph, with these names as its outputs."""
        self._graph.outputs = [self._output(name, scope) for name in outputs]
        return self._graph

    def detached_node(self, proto: NodeProto, scope: Scope) -> Node:
        """A node that no graph holds: its results have a type and no shape."""
        inputs = [scope.find(name) if name else None for name in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        proto, captures = bind_captures(proto, scope.find)
        return _described(proto, inputs, captures, scope)[0]

    def _initializers(self, tensors: Iterable[TensorProto], scope: Scope) -> None:
        for tensor in tensors:
            if tensor.name in scope.values:
                continue  # An input with a default that the user chose to feed.
            if scope.parent is None:
                name, data = tensor.name, self._arrays.of_model(tensor)
            else:
                name, data = self._name(tensor.name, scope), self._arrays.of_body(tensor)
            scope.values[tensor.name] = _constant(name, data)

    def _nodes(self, nodes: Iterable[NodeProto], scope: Scope) -> None:
        for proto in nodes:
            native.check_time()
            with error_context(f"node {node_label(proto)}"):
                self._node(proto, scope)

    def _node(self, proto: NodeProto, scope: Scope) -> None:
        refuse_random(proto)
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            self._bind_constant(proto.output[0], constant_of(proto), scope)
            return
        inputs = [scope.find(name) if name else None for name in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if proto.domain not in ("", "ai.onnx") and self._native(proto, inputs, scope):
            return
        if proto.domain not in ("", "ai.onnx"):
            body = definition_of(proto, inputs)
            self._folded_bytes += body.ByteSize()
            if self._folded_bytes > MAX_FOLDED_BYTES:
                raise ModelRejected(
                    f"constants made at import take more than {MAX_FOLDED_BYTES >> 20} MiB; split the model."
                )
            self._expand(proto, body, inputs, scope)
            return
        check_ranges(proto, inputs)
        condition = inputs[0] if inputs else None
        if proto.op_type == "If" and condition is not None and condition.data is not None:
            taken = bool(condition.data.reshape(-1)[0])
            if not holds_sequences(branch_of(proto, taken)):
                self._take_branch(proto, taken, scope)
                return
        if proto.op_type in _LOOPS and self._unrolled(proto, inputs, scope):
            return
        if proto.output and not proto.output[0]:
            proto = self._with_first_result(proto, scope)
        given = proto
        proto, captures = bind_captures(given, scope.find)
        node, schema, inferred = _described(proto, inputs, captures, scope)
        types = [
            self._result_type(name, inferred[name], shape, scope) if name else None
            for name, shape in zip(proto.output, result_shapes(node), strict=True)
        ]
        for value, found in zip(node.outputs, types, strict=True):
            if value is not None and found is not None:
                value.dtype, value.shape = found[0], found[1] or ()
        data = fold(node, [None if t is None else t[1] for t in types])
        if data is not None and self._has_room(data):
            for name, array in zip(proto.output, data, strict=False):
                if name and array is not None:
                    self._bind_constant(name, array, scope)
            return
        if find_operator(node) is None and self._expanded(proto, schema, inputs, types, scope):
            return
        if proto.op_type in _LOOPS and not _all_known(proto, types):
            derived = loop_types(given, inputs, lambda body, values: self._body_results(body, values, scope))
            types = [t if t and t[1] is not None else d for t, d in zip(types, derived, strict=False)]
        elif proto.op_type == "If" and not _all_known(proto, types):
            types = [*self._branch_types(given, types, scope)]
        elif not _all_known(proto, types):
            types = [*self._definition_types(proto, schema, inputs, types, scope)]
        self._append(proto, node, types, scope)

    def _branch_types(
        self, proto: NodeProto, types: Sequence[ResultType], scope: Scope
    ) -> Sequence[ResultType]:
        """Types of an If's results, known where all branches that fit these shapes give the same.

        A branch that does not fit them is not taken in a run that succeeds.
        """
        found: list[Sequence[Value]] = []
        for condition in (True, False):
            try:
                found.append(self._body_results(branch_of(proto, condition), [], scope))
            except ModelRejected:
                continue
            except UnsupportedOp:
                return types
        if not found or any(len(results) != len(proto.output) for results in found):
            return types
        derived: list[ResultType] = [(v.dtype, v.shape) for v in found[0]]
        if any([(v.dtype, v.shape) for v in results] != derived for results in found):
            return types
        return [t if t and t[1] is not None else d for t, d in zip(types, derived, strict=True)]

    def _definition_types(
        self,
        proto: NodeProto,
        schema: defs.OpSchema,
        inputs: Sequence[Value | None],
        types: Sequence[ResultType],
        scope: Scope,
    ) -> Sequence[ResultType]:
        """Types of the results of an operator that ONNX infers nothing of, but defines by others.

        Those are GreaterOrEqual and LessOrEqual before opset 16.
        """
        body = function_body(proto, schema, scope.opsets[""], inputs)
        if body is None:
            return types
        trial = Importer(self._arrays, self._bound)
        inner = Scope(scope.opsets, depth=scope.depth + 1)
        inner.values = dict(zip(body.input, [*inputs, *[None] * len(body.input)], strict=False))
        try:
            trial._nodes(body.node, inner)
            found = [inner.find(name) for name in body.output]
        except (UnsupportedOp, ModelRejected):
            # Operators of a definition may know fewer types than the one defined: Sub of opset 13, and Range.
            return types
        finally:
            trial._undo(0)
        derived = [None if v is None else (v.dtype, v.shape) for v in found]
        pairs = zip(types, (*derived, *[None] * len(types)), strict=False)
        return [t if t and t[1] is not None else d for t, d in pairs]

    def _native(self, proto: NodeProto, inputs: Sequence[Value | None], scope: Scope) -> bool:
        """Add a node of another domain that is an operator here; results are of its first input's type.

        Only definitions may have nodes of our own domain.
        """
        if proto.output and not proto.output[0]:
            proto = self._with_first_result(proto, scope)
        results = [Value(name, DType.FLOAT32, ()) if name else None for name in proto.output]
        node = Node(
            proto.op_type, inputs, results, import_attributes(proto), name=proto.name, domain=proto.domain
        )
        operator = find_operator(node)
        is_allowed = proto.domain == MICROSOFT_DOMAIN or scope.is_definition
        if not is_allowed or operator is None or operator.shapes is None:
            return False
        dtype = node.require(0).dtype
        types = [
            None if v is None else self._result_type(v.name, Declaration(dtype, s), s, scope)
            for v, s in zip(results, result_shapes(node), strict=True)
        ]
        self._append(proto, node, types, scope)
        return True

    def _has_room(self, data: Sequence[np.ndarray[Any, Any] | None]) -> bool:
        """Whether constants computed here may be kept: all together are bounded, however small each."""
        self._folded_bytes += sum(array.nbytes for array in data if array is not None)
        return self._folded_bytes <= MAX_FOLDED_BYTES

    def _with_first_result(self, proto: NodeProto, scope: Scope) -> NodeProto:
        """The node with a name for its omitted first result: every node of a graph has one."""
        named = NodeProto()
        named.CopyFrom(proto)
        named.output[0] = self._name(f"{proto.name or proto.op_type}/unread", scope)
        scope.targets[named.output[0]] = named.output[0]
        return named

    def _result_type(
        self, name: str, found: Declaration | None, own: Shape | None, scope: Scope
    ) -> ResultType:
        """Type and, where it is known, shape of a result.

        What the operator itself says comes first, then what ONNX infers. The model's own declaration fills
        gaps of both; one that contradicts them is dropped with a warning.
        """
        declared = scope.declared.get(name)
        if found is not None and declared is not None and found.dtype is not declared.dtype:
            raise ModelRejected(
                f"{name!r} is declared as {declared.dtype}, but its node computes {found.dtype}; "
                "export the model again."
            )
        known = [d for d in (found, declared) if d is not None]
        if not known:
            return None
        dtype = known[0].dtype
        if own is not None:
            found = Declaration(dtype, own)
        complete = found if declared is None else completed(found, declared)
        if complete is None and found is not None and declared is not None:
            self._drop_declaration(name, found, declared, scope)
            complete = found
        shape = None if complete is None else resolve(complete, self._bound.symbols)
        return dtype, None if shape is None else checked_shape(shape, dtype, f"{name!r}")

    def _drop_declaration(self, name: str, found: Declaration, declared: Declaration, scope: Scope) -> None:
        """Say that a declared shape is wrong, once: later imports of the model do not see it any more."""
        logger.warning(
            "%r is declared with shape %s, but its node gives %s: the declared shape is not used",
            name, dims_text(declared.dims), dims_text(found.dims),
        )  # fmt: skip
        del scope.declared[name]
        for info in self._infos.pop(name, ()):
            info.type.tensor_type.ClearField("shape")

    def _append(self, proto: NodeProto, node: Node, types: Sequence[ResultType], scope: Scope) -> None:
        for name, value, found in zip(proto.output, node.outputs, types, strict=True):
            if value is None:
                continue
            if found is None or found[1] is None:
                raise DataDependentShape(
                    f"node {node_label(proto)}: the shape of its result {name!r} depends on data, and this "
                    "needs shapes that are known before running. `tilewright run` and `tw.compile(...).run` "
                    "do not; else replace the operator, or make its inputs constants."
                )
            value.name, (value.dtype, value.shape) = self._result_name(name, scope), (found[0], found[1])
            scope.values[name] = value
        # A node without a name goes by its first result, whose name is complete already.
        first = next((v.name for v in node.results()), proto.op_type)
        node.name = self._node_name(proto.name, scope) if proto.name else unused(first, self._node_names)
        if len(self._graph.nodes) >= MAX_NODES:
            raise ModelRejected(f"the model expands to more than {MAX_NODES} nodes; split it.")
        self._fix_shape(proto, node)
        require_bounded(node)
        self._graph.append(node)

    def _fix_shape(self, proto: NodeProto, node: Node) -> None:
        """Where data decide the shape of a result, compute the declared one and check the data beside it."""
        sizing = sizing_by_data(node)
        if sizing is None:
            return
        operand = node.require(sizing.operand)
        data = assumed_operand(node, sizing)
        if data is None:
            raise DataDependentShape(
                f"node {node_label(proto)}: its result is declared as {list(node.output.shape)}, but no "
                f"{sizing.name} makes that of {list(node.require(0).shape)}; export the model again."
            )
        name = unused(f"{node.name}/{sizing.name}", self._value_names)
        checked = Value(unused(f"{node.name}/checked", self._value_names), DType.BOOL, ())
        check = Node(
            CHECK_SHAPE,
            [operand],
            [checked],
            check_attributes(node),
            name=unused(f"{node.name}/check", self._node_names),
            domain=INTERNAL_DOMAIN,
            opset=node.opset,
        )
        self._graph.append(check)
        fixed = _constant(name, data)
        node.inputs = tuple(fixed if i == sizing.operand else v for i, v in enumerate(node.inputs))

    def _take_branch(self, proto: NodeProto, condition: bool, scope: Scope) -> None:
        graph = branch_of(proto, condition)
        inner = Scope(scope.opsets, self._inner_prefix(proto, scope), scope.depth, parent=scope)
        self._inline(inner, [v.name for v in graph.output], proto, scope, graph.node, graph.initializer)

    def _unrolled(self, proto: NodeProto, inputs: Sequence[Value | None], scope: Scope) -> bool:
        """Put the steps of a loop in its place, if they are known and few."""
        body = loop_body(proto)
        if sum(node.op_type in _LOOPS for node, _ in all_nodes(body.node)) > _MAX_INNER_LOOPS:
            return False
        if self._num_unrolled >= MAX_UNROLLED_NODES_IN_ALL:
            return False
        num_nodes = len(self._graph.nodes)
        try:
            results = unroll(proto, inputs, _Steps(self, proto, scope))
        except UnsupportedOp:
            # As one node it may be supported: then only the shapes of its results must be known.
            results = None
        self._num_unrolled += len(self._graph.nodes) - num_nodes
        if results is None:
            self._undo(num_nodes)
            return False
        scope.values.update({n: v for n, v in zip(proto.output, results, strict=False) if n})
        return True

    def _body_results(self, body: GraphProto, inputs: Sequence[Value], scope: Scope) -> Sequence[Value]:
        """Results of a loop's body for their types only: what it takes to find them is undone."""
        trial = Importer(self._arrays, self._bound)
        inner = Scope(scope.opsets, scope.prefix, scope.depth + 1, parent=scope)
        inner.values = dict(zip((v.name for v in body.input), inputs, strict=False))
        try:
            trial._initializers(body.initializer, inner)
            trial._nodes(body.node, inner)
            found = [inner.find(v.name) for v in body.output]
        finally:
            trial._undo(0)
        return [value for value in found if value is not None]

    def _undo(self, num_nodes: int) -> None:
        """Remove all nodes but the first `num_nodes`."""
        for node in reversed(self._graph.nodes[num_nodes:]):
            self._graph.remove(node)

    def _expanded(
        self,
        proto: NodeProto,
        schema: defs.OpSchema,
        inputs: Sequence[Value | None],
        types: Sequence[ResultType],
        scope: Scope,
    ) -> bool:
        """Put ONNX's definition of an operator in its place, if there is one that can be imported."""
        body = function_body(proto, schema, scope.opsets[""], inputs)
        if body is None:
            return False
        num_nodes = len(self._graph.nodes)
        try:
            self._expand(proto, body, inputs, scope)
        except UnsupportedOp:
            if not _all_known(proto, types):
                raise
            # Inside, a shape depends on data, but the results' shapes do not: it stays one opaque node.
            self._undo(num_nodes)
            return False
        return True

    def _expand(
        self, proto: NodeProto, body: FunctionProto, inputs: Sequence[Value | None], scope: Scope
    ) -> None:
        if scope.depth >= _MAX_EXPANSION_DEPTH:
            raise UnsupportedOp(f"node {node_label(proto)}: its definition by other operators does not end.")
        opsets = {
            **scope.opsets,
            **{("" if e.domain == "ai.onnx" else e.domain): e.version for e in body.opset_import},
        }
        inner = Scope(opsets, self._inner_prefix(proto, scope), scope.depth + 1, is_definition=True)
        padded = [*inputs, *[None] * (len(body.input) - len(inputs))]
        inner.values = dict(zip(body.input, padded, strict=False))
        self._inline(inner, list(body.output), proto, scope, body.node, ())

    def _inline(
        self,
        inner: Scope,
        results: Sequence[str],
        proto: NodeProto,
        scope: Scope,
        nodes: Iterable[NodeProto],
        initializers: Iterable[TensorProto],
    ) -> None:
        """Import a node list in place of `proto`, whose outputs are the inner `results`."""
        pairs = [(inside, outside) for inside, outside in zip(results, proto.output, strict=False) if outside]
        for inside, outside in pairs:
            inner.targets.setdefault(inside, self._result_name(outside, scope))
        self._initializers(initializers, inner)
        self._nodes(nodes, inner)
        for inside, outside in pairs:
            scope.values[outside] = inner.find(inside)

    def _output(self, name: str, scope: Scope) -> Value:
        value = scope.find(name)
        assert value is not None
        if value.name == name:
            return value
        # The result is another value under a second name; the user asked for this one.
        result = Value(name, value.dtype, value.shape)
        self._graph.append(Node("Identity", [value], [result], name=name, opset=scope.opsets[""]))
        return result

    def _bind_constant(self, name: str, data: np.ndarray[Any, Any], scope: Scope) -> None:
        checked_shape(data.shape, DType.from_numpy(data.dtype), f"{name!r}")
        scope.values[name] = _constant(self._result_name(name, scope), data)

    def _result_name(self, name: str, scope: Scope) -> str:
        return scope.targets[name] if name in scope.targets else self._name(name, scope)

    def _inner_prefix(self, proto: NodeProto, scope: Scope) -> str:
        label = proto.name or next((o for o in proto.output if o), proto.op_type)
        return f"{scope.prefix}{label}/"

    def _name(self, name: str, scope: Scope) -> str:
        return unused(f"{scope.prefix}{name}", self._value_names)

    def _node_name(self, name: str, scope: Scope) -> str:
        return unused(f"{scope.prefix}{name}", self._node_names)


class _Steps:
    """A loop's body, imported step by step; its initializers are shared."""

    def __init__(self, importer: Importer, proto: NodeProto, scope: Scope) -> None:
        self._importer = importer
        self._body = loop_body(proto)
        prefix = importer._inner_prefix(proto, scope)
        self._shared = Scope(scope.opsets, prefix, scope.depth, parent=scope)
        importer._initializers(self._body.initializer, self._shared)

    @property
    def num_nodes(self) -> int:
        return len(self._importer._graph.nodes)

    def step(self, arguments: Sequence[Value]) -> Sequence[Value | None]:
        shared = self._shared
        inner = Scope(shared.opsets, shared.prefix, shared.depth, parent=shared)
        inner.values.update(zip((v.name for v in self._body.input), arguments, strict=False))
        self._importer._nodes(self._body.node, inner)
        return [inner.find(v.name) for v in self._body.output]

    def constant(self, data: np.ndarray[Any, Any]) -> Value:
        return _constant(self._importer._name("constant", self._shared), data)

    def node(
        self, op_type: str, inputs: Sequence[Value], shape: Sequence[int], attributes: Attributes
    ) -> Value:
        importer, shared = self._importer, self._shared
        dtype, name = inputs[0].dtype, importer._name(op_type.lower(), shared)
        value = Value(name, dtype, checked_shape(tuple(shape), dtype, f"{name!r}"))
        node_name = unused(name, importer._node_names)
        made = Node(op_type, inputs, [value], attributes, name=node_name, opset=shared.opsets[""])
        require_bounded(made)
        importer._graph.append(made)
        return value


def _described(
    proto: NodeProto, inputs: Sequence[Value | None], captures: Sequence[Value], scope: Scope
) -> tuple[Node, defs.OpSchema, Mapping[str, Declaration | None]]:
    """A node that no graph holds, its operator's schema, and what ONNX infers of its results."""
    schema = find_schema(proto, scope.opsets[""])
    inferred = infer_types(proto, schema, scope.opsets, inputs, captures)
    node = Node(
        proto.op_type,
        inputs,
        [_placeholder(name, inferred[name]) if name else None for name in proto.output],
        import_attributes(proto),
        name=proto.name,
        opset=scope.opsets[""],
        captures=captures,
    )
    return node, schema, inferred


def _all_known(proto: NodeProto, types: Sequence[ResultType]) -> bool:
    return all(
        t is not None and t[1] is not None for name, t in zip(proto.output, types, strict=True) if name
    )


def _placeholder(name: str, found: Declaration | None) -> Value:
    """The result before its shape and whether the node stays are known; no other gets past `_append`."""
    return Value(name, DType.FLOAT32 if found is None else found.dtype, ())


def _constant(name: str, data: np.ndarray[Any, Any]) -> Value:
    return Value(name, DType.from_numpy(data.dtype), data.shape, data)
