"""Edits keep output names, and what control-flow bodies read by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.verify import require_valid, verify
from tilewright.passes.edit import Editor, is_in_graph
from tilewright.passes.rules import Kept, Rule, apply_rules


def names(graph: Graph) -> list[str]:
    return [v.name for v in graph.outputs]


class TestReplace:
    def test_an_output_keeps_its_name(self) -> None:
        b = GraphBuilder()
        relu = b.op("Relu", b.input(2), name="hidden")
        y = b.op("Identity", relu, name="y")
        graph = b.finish(y)
        assert Editor(graph).replace(y, relu)
        assert names(graph) == ["y"]
        assert [n.op_type for n in graph.nodes] == ["Relu"]
        assert verify(graph) == ()

    @pytest.mark.parametrize("kind", ["input", "output"])
    def test_an_output_cannot_become_an_input_or_another_output(self, kind: str) -> None:
        b = GraphBuilder()
        x = b.input(2)
        source = x if kind == "input" else b.op("Relu", x)
        y = b.op("Identity", source, name="y")
        graph = b.finish(y) if kind == "input" else b.finish(y, source)
        before = names(graph)
        assert not Editor(graph).replace(y, source)
        assert names(graph) == before
        assert verify(graph) == ()

    def test_what_a_body_reads_by_name_stays(self) -> None:
        b = GraphBuilder()
        relu = b.op("Relu", b.input(2))
        copy = b.op("Identity", relu, name="read_by_name")
        result = b.graph.value("y", DType.FLOAT32, (2,))
        b.graph.append(Node("If", [b.graph.constant(np.array(True))], [result], captures=[copy]))
        graph = b.finish(result)
        assert not Editor(graph).replace(copy, relu)
        assert copy.producer is not None

    def test_what_only_the_old_value_needed_goes(self) -> None:
        b = GraphBuilder()
        x = b.input(2)
        old = b.op("Exp", b.op("Neg", x))
        graph = b.finish(b.op("Relu", old))
        assert Editor(graph).replace(old, x)
        assert [n.op_type for n in graph.nodes] == ["Relu"]


def test_become_keeps_results_and_removes_what_only_the_old_inputs_needed() -> None:
    b = GraphBuilder()
    x = b.input(2)
    shared = b.op("Abs", x)
    y = b.op("Mul", b.op("Exp", shared), shared, name="y")
    graph = b.finish(y)
    Editor(graph).become(b.node(y), "Swish", [shared], {"alpha": 2.0}, since=24)
    assert [(n.op_type, n.name) for n in graph.nodes] == [("Abs", "abs"), ("Swish", "y")]
    assert b.node(y).opset == 24
    require_valid(graph, after="the edit")


def test_a_default_that_callers_may_replace_is_not_known() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (1,), np.ones(1, np.float32)))
    w = graph.constant(np.ones(1, np.float32))
    editor = Editor(graph)
    assert editor.data(x) is None
    assert editor.data(None) is None
    assert editor.data(w) is w.data


class TestRules:
    def graph(self) -> Graph:
        b = GraphBuilder()
        return b.finish(b.op("Neg", b.op("Neg", b.op("Neg", b.input(2)))))

    def test_an_edit_makes_neighbours_candidates_again(self) -> None:
        def match(editor: Editor, node: Node) -> Value | None:
            inner = node.require(0).producer
            return inner.require(0) if inner is not None and editor.is_output(node.output) else None

        def build(editor: Editor, node: Node, source: Value) -> str:
            editor.become(node, "Neg", [source])
            return "shortened"

        graph = self.graph()
        result = apply_rules(graph, [Rule(("Neg",), match, build)])
        assert result.num_changes == 2
        assert len(graph.nodes) == 1
        assert [str(r) for r in result.remarks] == ["neg_2: shortened"] * 2

    def test_a_refusal_is_a_remark_unless_another_rule_takes_the_node(self) -> None:
        def refuse(editor: Editor, node: Node) -> Kept | None:
            return Kept("no reason")

        def first(editor: Editor, node: Node) -> bool | None:
            return True if node.op_type == "Neg" and node.require(0).producer is None else None

        def build(editor: Editor, node: Node, found: object) -> str:
            editor.become(node, "Abs", node.inputs)
            return "changed"

        rules: list[Rule[Any]] = [Rule(("Neg",), refuse, build), Rule(("Neg",), first, build)]
        result = apply_rules(self.graph(), rules)
        assert [str(r) for r in result.remarks] == [
            "neg: changed",
            "neg_1: kept: no reason",
            "neg_2: kept: no reason",
        ]

    def test_rules_that_feed_on_their_own_results_are_an_error(self) -> None:
        def build(editor: Editor, node: Node, found: bool) -> str:
            editor.become(node, "Neg", node.inputs)
            return "again"

        with pytest.raises(InternalError, match=r"rewrites of Neg\(neg.*\) do not come to an end \(again\)"):
            apply_rules(self.graph(), [Rule(("Neg",), lambda editor, node: True, build)])


def test_a_removed_node_is_not_in_the_graph() -> None:
    b = GraphBuilder()
    x = b.input(2)
    dead = b.node(b.op("Neg", x))
    kept = b.node(b.op("Abs", x))
    graph = b.finish(kept.output)
    assert is_in_graph(dead)
    Editor(graph).discard([dead, kept, None])
    assert not is_in_graph(dead)
    assert is_in_graph(kept)
