"""Equal work is generated once, and only work that is equal in everything generators see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.compiler import compile_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Read
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Access, Dim, Nest, Operand, affine
from tilewright.options import Options
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.kernel import Kernel, Layout
from tilewright.targets.cpu.repeats import Repeats, nest_facts
from tilewright.targets.cpu.template import Context


def a_nest(fill: float = 0.0, constant: float = 1.0, position: int = 0, extent: int = 4) -> Nest:
    dim = Dim("i", extent)
    source = Operand("input", position, DType.FLOAT32, (4,))
    read = Access(source, (affine("i"),), fill)
    write = Access(Operand("output", 0, DType.FLOAT32, (extent,)), (affine("i"),))
    return Nest((dim,), (read,), write, Read(0, DType.FLOAT32) * Const(constant, DType.FLOAT32))


def test_equal_nests_of_other_operands_are_made_once() -> None:
    repeats, made = Repeats(), []

    def make() -> tuple[Kernel, ...]:
        made.append(Kernel("tw_x", "", 1, ()))
        return (made[-1],)

    first = repeats.nests((a_nest(),), {}, make)
    assert repeats.nests((a_nest(),), {}, make) is first
    context = Context(host_isa())
    product = repeats.product(a_nest(), context, make)
    assert repeats.product(a_nest(), context, make) is product
    # A constant the nest does not read makes no difference, one that it reads does.
    unread, read = (frozenset({("input", position)}) for position in (7, 0))
    assert repeats.product(a_nest(), replace(context, constants=unread), make) is product
    assert repeats.product(a_nest(), replace(context, constants=read), make) is not product
    assert repeats.product(a_nest(), replace(context, next_local=1), make) is not product
    assert len(made) == 4


def test_no_more_code_is_remembered_than_is_allowed() -> None:
    repeats, made = Repeats(max_characters=25), []

    def make() -> tuple[Kernel, ...]:
        made.append(Kernel("tw_x", 10 * "x", 1, ()))
        return (made[-1],)

    for extent in (1, 2, 1, 2, 3, 3, 1):
        repeats.nests((a_nest(extent=extent),), {}, make)
    assert len(made) == 4, "the third forgets the first two and stays"


@pytest.mark.parametrize(
    "other",
    [
        a_nest(fill=-0.0),
        a_nest(constant=-1.0),
        replace(a_nest(constant=0.0), body=Const(-0.0, DType.FLOAT32)),
        a_nest(position=1),
        a_nest(extent=3),
    ],
)
def test_whatever_code_depends_on_tells_nests_apart(other: Nest) -> None:
    assert nest_facts(a_nest(), {}) != nest_facts(other, {})


def test_negative_zero_is_another_constant() -> None:
    plus, minus = (replace(a_nest(), body=Const(zero, DType.FLOAT32)) for zero in (0.0, -0.0))
    assert nest_facts(plus, {}) != nest_facts(minus, {})


def test_layouts_tell_nests_apart() -> None:
    strided = {("input", 0): Layout((0,), (2,))}
    assert nest_facts(a_nest(), {}) != nest_facts(a_nest(), strided)


def test_nests_with_tables_are_made_each_time() -> None:
    nest = a_nest()
    table = Operand("table", 0, DType.FLOAT32, (4,), np.ones(4, np.float32))
    with_table = replace(nest, reads=(replace(nest.reads[0], operand=table),))
    assert nest_facts(with_table, {}) is None


def layers(count: int) -> Graph:
    """Products of equal shapes with weights of their own, softmax between them."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.input(3, 16)
    for _ in range(count):
        weight = g.graph.constant(rng.standard_normal((16, 16)).astype(np.float32))
        x = g.op("Softmax", g.op("MatMul", x, weight), axis=-1)
        x = g.op("Add", x, g.graph.constant(rng.standard_normal(16).astype(np.float32)))
    return g.finish(x)


def test_layers_that_share_code_keep_their_own_weights() -> None:
    graph = layers(4)
    code: Any = compile_graph(graph, Options(no_cache=True, threads=1)).code
    launches = code.lowered.launches
    products = [launch.kernel for launch in launches if launch.kernel.macs]
    assert len(products) == 4
    assert len(set(map(id, products))) == 1
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    (found,) = code.load(1).run({"x": x}).values()
    (expected,) = run_graph(graph, {"x": x}, dtype=DType.FLOAT64).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
