"""The invariants of a graph, checked from scratch: after the import and after every pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.progress import checkpoint
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its name, the node or value where it is broken, and how."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.where}: {self.message}"


def verify(graph: Graph) -> tuple[Violation, ...]:
    """Every broken invariant, in graph order. O(nodes + edges); constant data are only measured.

    >>> graph = Graph()
    >>> graph.outputs.append(Value("y", DType.FLOAT32, (2,)))
    >>> print(*verify(graph))
    output-defined at 'y': it is a graph output, but nothing produces it
    """
    return (
        *_boundary(graph),
        *_names(graph),
        *_order(graph),
        *_links(graph),
        *(violation for value in _all_values(graph) for violation in _type(value)),
        *(violation for node in graph.nodes for violation in _captures(node)),
    )


def require_valid(graph: Graph, after: str) -> None:
    """Raise if an invariant is broken.

    Raises:
        InternalError: naming the first violation, how many there are, and the step that caused them.
    """
    violations = verify(graph)
    if violations:
        more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
        raise InternalError(
            f"graph {graph.name!r} is invalid after {after}: {violations[0]}{more}; please report this."
        )


def _boundary(graph: Graph) -> Iterator[Violation]:
    for value, count in Counter(graph.inputs).items():
        if count > 1:
            yield Violation("input-once", repr(value.name), f"it is listed {count} times as an input")
        if value.producer is not None:
            yield Violation("input-free", repr(value.name), f"{value.producer!r} produces this graph input")
    nodes = set(graph.nodes)
    inputs = set(graph.inputs)
    for value in graph.outputs:
        if value.producer is not None and value.producer not in nodes:
            yield Violation(
                "output-defined", repr(value.name), f"its producer {value.producer!r} is not in the graph"
            )
        if value.producer is None and value not in inputs and not value.is_constant:
            yield Violation(
                "output-defined", repr(value.name), "it is a graph output, but nothing produces it"
            )


def _names(graph: Graph) -> Iterator[Violation]:
    for name, count in Counter(value.name for value in _all_values(graph)).items():
        if not name:
            yield Violation("named", "a value", f"{count} values have an empty name")
        elif count > 1:
            yield Violation("unique-names", repr(name), f"{count} values share this name")


def _order(graph: Graph) -> Iterator[Violation]:
    for node, count in Counter(graph.nodes).items():
        if count > 1:
            yield Violation("node-once", repr(node), f"the node is listed {count} times")
    defined = set(graph.inputs)
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        checkpoint()
        for value in dict.fromkeys(node.operands()):
            if value in defined or value.is_constant:
                continue
            if value.producer in position:
                problem = f"it runs before {value.producer!r}, which produces its operand"
            else:
                problem = "nothing in the graph produces its operand"
            yield Violation("topological-order", repr(node), f"{problem} {value.name!r}")
        defined.update(node.results())


def _links(graph: Graph) -> Iterator[Violation]:
    reads: dict[Value, Counter[Node]] = {}
    for node in graph.nodes:
        checkpoint()
        for value in node.operands():
            reads.setdefault(value, Counter())[node] += 1
        for value in node.results():
            if value.producer is not node:
                yield Violation(
                    "producer", repr(value.name), f"it is a result of {node!r}, but names {value.producer!r}"
                )
            if value.is_constant:
                yield Violation("constant", repr(value.name), f"an initializer is a result of {node!r}")
        for value, count in Counter(node.results()).items():
            if count > 1:
                yield Violation("producer", repr(value.name), f"{node!r} lists it {count} times as a result")
    for value in _all_values(graph):
        expected, recorded = reads.get(value, Counter()), Counter(value._uses)
        if expected != recorded:
            yield Violation(
                "uses",
                repr(value.name),
                f"it is read by {_listed(expected)}, but records {_listed(recorded)}",
            )


def _type(value: Value) -> Iterator[Violation]:
    where = repr(value.name)
    if not isinstance(value.dtype, DType):
        yield Violation("type", where, f"its element type is {value.dtype!r}")
        return
    if any(not isinstance(d, int) or d < 0 for d in value.shape):
        yield Violation("static-shape", where, f"its shape is {list(value.shape)}")
    stored = value.stored
    if stored is None:
        return
    if tuple(stored.shape) != value.shape:
        yield Violation(
            "constant", where, f"its data have shape {list(stored.shape)}, it has {list(value.shape)}"
        )
    if DType.from_numpy(stored.dtype) is not value.dtype:
        yield Violation("constant", where, f"its data are {stored.dtype}, it is {value.dtype}")


def _captures(node: Node) -> Iterator[Violation]:
    bodies = [a for a in node.attributes.values() if isinstance(a, SubgraphAttribute)]
    captured = {value.name for value in node.captures}
    if not bodies and not captured:
        return
    from onnx import GraphProto

    from tilewright.ir.bodies import free_names

    free = {name for body in bodies for name in free_names(GraphProto.FromString(body.serialized))}
    for name in sorted(free - captured):
        yield Violation("captures", repr(node), f"its body reads {name!r}, which it does not capture")
    for name in sorted(captured - free):
        yield Violation("captures", repr(node), f"it captures {name!r}, which its body does not read")


def _all_values(graph: Graph) -> tuple[Value, ...]:
    values = dict.fromkeys(graph.inputs)
    for node in graph.nodes:
        checkpoint()
        values.update(dict.fromkeys(node.operands()))
        values.update(dict.fromkeys(node.results()))
    values.update(dict.fromkeys(graph.outputs))
    return tuple(values)


def _listed(nodes: Counter[Node]) -> str:
    return ", ".join(f"{node!r}x{count}" for node, count in nodes.items()) or "nobody"
