"""The rule of writing in place against walking elements, one iteration after another."""

# mypy: disable-error-code="index"

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from tests.support.graphs import GraphBuilder, random_graph
from tests.support.integer_networks import integer_network

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.in_place import in_place_operands
from tilewright.ir.nest import Access, Affine, Lookup, Nest, Opaque
from tilewright.ir.ops import describe

MAX_ITERATIONS = 4096


def element(access: Access, point: dict[str, int]) -> int | None:
    """The row-major element that an access names; None: outside, or known from data only."""
    place = 0
    for index, extent in zip(access.index, access.shape, strict=True):
        match index:
            case Affine(terms, offset):
                at = offset + sum(c * point[name] for name, c in terms)
            case Lookup(table, dim):
                at = table[point[dim]]
            case _:
                return None
        if not 0 <= at < extent:
            return None
        place = place * extent + at
    return place


def points(nest: Nest) -> Iterator[dict[str, int]]:
    for values in product(*(range(dim.extent) for dim in nest.dims)):
        yield dict(zip((dim.name for dim in nest.dims), values, strict=True))


def elements_read(node: Node, value: Value) -> dict[int, set[int | None]] | None:
    """By element of the one result: what the pass that writes it reads of a value; None: no such pass."""
    nests = describe(node)
    if isinstance(nests, Opaque) or not nests or len(list(node.results())) != 1:
        return None
    *earlier, last = nests
    if last.combine is not None or any(n.write.operand.kind == "output" for n in earlier):
        return None
    found: dict[int, set[int | None]] = {}
    for point in points(last):
        written = element(last.write, point)
        assert written is not None
        if written in found:
            return None
        found[written] = {
            element(read, point)
            for read in last.reads
            if read.operand.kind == "input" and node.inputs[read.operand.position] is value
        }
    return found


def walked(nodes: list[Node], operand: Value, result: Value) -> bool:
    """Whether element i of the result needs of the operand no element but i, whatever the way between."""
    needs: dict[Value, dict[int, set[int | None]] | None] = {
        result: {i: {i} for i in range(result.num_elements)}
    }

    def needed(value: Value) -> dict[int, set[int | None]] | None:
        """By element of the result, what it needs of a value."""
        if value not in needs:
            total: dict[int, set[int | None]] | None = {i: set() for i in range(result.num_elements)}
            for reader in nodes:
                if value not in reader.operands():
                    continue
                wanted, read = needed(reader.output), elements_read(reader, value)
                if wanted is None or read is None:
                    total = None
                    break
                for i, of_reader in wanted.items():
                    for j in of_reader:
                        total[i] |= {None} if j is None else read[j]
            needs[value] = total
        return needs[value]

    found = needed(operand)
    return found is not None and all(reads <= {i} for i, reads in found.items())


@cache
def special() -> Graph:
    """Rows of one element, broadcasts, prefixes, reductions on the way, softmax after softmax."""
    b = GraphBuilder()
    x, row, one = b.input(2, 1, 4), b.input(4), b.input(1, 1, 1)
    y = b.op("Add", b.op("Softmax", x), x)
    y = b.op("Add", b.op("Softmax", b.op("Softmax", y)), row)
    y = b.op("Mul", y, one)
    turned = b.op("Transpose", y, shape=(1, 2, 4), perm=(1, 0, 2))
    crossed = b.op("Transpose", turned, shape=(4, 2, 1), perm=(2, 1, 0))
    prefix = b.op("Slice", y, b.integers(0), b.integers(1), b.integers(0), shape=(1, 1, 4))
    suffix = b.op("Slice", y, b.integers(1), b.integers(2), b.integers(0), shape=(1, 1, 4))
    image = b.input(1, 2, 4, 4)
    joined = b.op("Add", b.conv(image, 2), image)
    pooled = b.op("MaxPool", joined, shape=(1, 2, 4, 4), kernel_shape=(1, 1))
    return b.finish(
        b.op("Add", prefix, suffix), crossed, b.op("Concat", pooled, image, shape=(1, 4, 4, 4), axis=1)
    )


def graphs() -> list[Graph]:
    return [special(), *(random_graph(seed, 14) for seed in range(12)), *map(integer_network, range(4))]


def is_small(node: Node) -> bool:
    nests = describe(node)
    return isinstance(nests, Opaque) or all(n.num_iterations <= MAX_ITERATIONS for n in nests)


def groups(graph: Graph) -> Iterator[tuple[list[Node], Value]]:
    """Runs of up to five neighbours that make one result for others."""
    for start in range(len(graph.nodes)):
        for stop in range(start + 1, min(start + 5, len(graph.nodes)) + 1):
            nodes = list(graph.nodes[start:stop])
            results = [
                v
                for n in nodes
                for v in n.results()
                if v in graph.outputs or any(u not in nodes for u in v.users)
            ]
            if len(results) == 1 and all(map(is_small, nodes)):
                yield nodes, results[0]


def operands_of(nodes: list[Node]) -> set[Value]:
    return {v for n in nodes for v in n.operands() if v.producer not in nodes and not v.is_constant}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(len(graphs())))
def test_the_rule_is_what_walking_elements_finds(number: int) -> None:
    """Never more; and of single nodes no less. Two transposes that undo each other are not seen through."""
    graph = graphs()[number]
    for nodes, result in groups(graph):
        operands = operands_of(nodes)
        expected = {v for v in operands if walked(nodes, v, result)}
        found = in_place_operands(nodes, operands, result)
        assert found <= expected, [n.name for n in nodes]
        assert len(nodes) > 1 or found == expected, nodes[0].name


def test_the_graphs_above_have_both_answers() -> None:
    in_place = refused = 0
    for graph in graphs():
        for nodes, result in groups(graph):
            operands = {
                v for n in nodes for v in n.operands() if v.producer not in nodes and not v.is_constant
            }
            found = in_place_operands(nodes, operands, result)
            in_place += len(found)
            refused += len(operands) - len(found)
    assert in_place > 100
    assert refused > 100
