"""The ONNX node suite through loop nests: what code is generated from means what the standard says.

In the suite shapes, axes and scales are inputs. Models have them as constants, and only then do nests
exist; so every input but the first becomes an initializer here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from tests.support.node_suite import EXCEPTIONS, Case, Wider, mismatch, node_cases

import tilewright as tw
from tilewright.arrays import Array
from tilewright.backend import as_array
from tilewright.errors import UnsupportedOp
from tilewright.ir.graph import Graph, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe

# Nests add in their own order, the suite's expected values in numpy's.
REORDERED = 2e-6
# Operators of the suite that must have nests in all of its cases.
ALWAYS_NESTS = (
    *("Add", "Clip", "Concat", "Conv", "DepthToSpace", "DequantizeLinear", "Erf", "Expand", "Flatten"),
    *("Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "MatMul", "OneHot", "Pad", "Pow", "Reshape"),
    *("Resize", "Slice", "Softmax", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu"),
    *("Unsqueeze", "Where"),
)


PARTS = 3
"""Parts of the operators, so that a run may check some of them."""


@cache
def single_node_cases() -> tuple[Case, ...]:
    return tuple(c for c in node_cases() if len(c.model.graph.node) == 1)


def with_constants(case: Case) -> tuple[ModelProto, dict[str, Array], dict[str, Array]]:
    """The model with all inputs but the first as initializers, what to feed it, and what it must give."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs, outputs = case.data_sets[0]
    names = [i.name for i in model.graph.input]
    for name, data in zip(names[1:], inputs[1:], strict=True):
        model.graph.initializer.append(numpy_helper.from_array(as_array(data), name))
    del model.graph.input[1:]
    model.ir_version = max(4, model.ir_version)  # earlier versions repeat initializers among the inputs
    expected = {o.name: as_array(data) for o, data in zip(model.graph.output, outputs, strict=True)}
    return model, {n: as_array(d) for n, d in zip(names[:1], inputs[:1], strict=True)}, expected


def run_through_nests(graph: Graph, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name; every node must have nests."""
    arrays: dict[Value, Array] = {v: feed[v.name] for v in graph.inputs}
    arrays.update({v: v.data for v in graph.values() if v.data is not None})
    for node in graph.nodes:
        results = run_described(node, [None if v is None else arrays[v] for v in node.inputs])
        arrays.update(
            {v: a for v, a in zip(node.outputs, results, strict=True) if v is not None and a is not None}
        )
    return {v.name: arrays[v] for v in graph.outputs}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_nests_give_the_values_of_the_node_suite(part: int) -> None:
    wrong: dict[str, str] = {}
    opaque: set[str] = set()
    compared: set[str] = set()
    always = set(ALWAYS_NESTS[part::PARTS])
    others = {case.operator for case in single_node_cases()} - set(ALWAYS_NESTS)
    chosen = always | set(sorted(others)[part::PARTS])
    for case in single_node_cases():
        if case.operator not in chosen:
            continue
        try:
            model, feed, expected = with_constants(case)
            loaded = tw.load(model)
            graph = loaded.graph
        except UnsupportedOp:
            continue  # types and operators that the import refuses are the node suite table's business
        numbers, texts = loaded.edges.encoded(feed)
        without = {node.op_type for node in graph.nodes if isinstance(describe(node), Opaque)}
        opaque |= without
        if without:
            continue
        compared |= {node.op_type for node in graph.nodes}
        wider = EXCEPTIONS.get(case.name, Wider("sums in another order", error=REORDERED))
        with np.errstate(all="ignore"):
            found = run_through_nests(graph, numbers)
        for (name, actual), want in zip(found.items(), expected.values(), strict=True):
            decoded = loaded.edges.decoded(name, actual, texts)
            problem = mismatch(decoded, want, wider.error, units=wider.units)
            if problem:
                wrong[case.name] = f"{name}: {problem}"
    assert wrong == {}
    assert sorted(always & opaque) == []
    assert sorted(always - compared) == []
