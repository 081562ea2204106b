"""The pipeline: which passes run, what they report, what is printed after them."""

from __future__ import annotations

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.options import Options
from tilewright.passes import PASSES, PIPELINE, ROUNDING_PASSES, STEPS_PASSES, Pass, run_passes


def silu_graph() -> Graph:
    b = GraphBuilder()
    x = b.input(4)
    return b.finish(b.op("Mul", x, b.op("Sigmoid", x)))


def test_the_pipeline_names_every_pass_once() -> None:
    assert sorted(PIPELINE) == list(PASSES.names())


@pytest.mark.parametrize("name", PIPELINE)
def test_a_pass_has_one_name_three_times(name: str) -> None:
    member = PASSES.get(name)
    assert isinstance(member, Pass)
    assert member.name == name
    assert type(member).__name__ == "".join(word.capitalize() for word in name.split("-"))
    assert type(member).__module__ == f"tilewright.passes.{name.replace('-', '_')}"


def test_results_are_in_the_order_of_the_pipeline() -> None:
    report = run_passes(silu_graph(), runs_steps=True)
    assert tuple(name for name, _ in report.results) == PIPELINE
    assert report.num_changes == sum(result.num_changes for _, result in report.results) == 1


def test_loops_over_steps_are_made_for_targets_that_run_them() -> None:
    report = run_passes(silu_graph())
    assert tuple(name for name, _ in report.results) == tuple(n for n in PIPELINE if n not in STEPS_PASSES)


def test_a_disabled_pass_does_not_run() -> None:
    graph = silu_graph()
    report = run_passes(graph, disabled=["recognise-silu"])
    assert "recognise-silu" not in dict(report.results)
    assert [n.op_type for n in graph.nodes] == ["Sigmoid", "Mul"]


def test_what_is_dumped_is_the_graph_after_the_pass_whether_or_not_it_ran() -> None:
    graph = silu_graph()
    before = print_graph(graph)
    report = run_passes(graph, dump_after=["fold-constants", "recognise-silu"])
    assert report.dumps == {"fold-constants": before, "recognise-silu": print_graph(graph)}
    assert parse_graph(report.dumps["recognise-silu"]).nodes[0].op_type == "Swish"


def test_options_switch_passes_and_ask_for_dumps() -> None:
    options = Options(disabled_passes=("recognise-silu",), dump_after=("dead-code",))
    graph = silu_graph()
    planned = plan(graph, options)
    assert len(planned.program.graph.nodes) == 2
    assert planned.passes.dumps == {"dead-code": print_graph(graph)}


def test_compiling_leaves_the_callers_graph_alone() -> None:
    graph = silu_graph()
    before = print_graph(graph)
    assert len(plan(graph, Options()).program.graph.nodes) == 1
    assert print_graph(graph) == before


@pytest.mark.parametrize("keyword", ["disabled", "dump_after"])
def test_an_unknown_pass_is_an_error_that_lists_the_passes(keyword: str) -> None:
    with pytest.raises(
        UsageError, match=r"unknown pass 'fold-bn': the passes are merge-quantization, .*dead-code"
    ):
        run_passes(silu_graph(), **{keyword: ["fold-bn"]})  # type: ignore[arg-type]  # either keyword takes names


def rounding_graph() -> Graph:
    b = GraphBuilder()
    x = b.input(2, 3, 4, 4)
    y = b.op("Mul", b.conv(x, 5), b.constant(5, 1, 1, value=0.7))
    return b.finish(b.op("Div", y, b.constant(value=3.0)))


def test_strict_passes_leave_every_rounding_where_the_model_has_it() -> None:
    strict, default = rounding_graph(), rounding_graph()
    report = run_passes(strict, accuracy="strict")
    run_passes(default)
    assert [n.op_type for n in strict.nodes] == ["Conv", "Mul", "Div"]
    assert [n.op_type for n in default.nodes] == ["Conv"]
    assert {name for name, _ in report.results}.isdisjoint(ROUNDING_PASSES)


def test_options_decide_how_exact_passes_are() -> None:
    planned = plan(rounding_graph(), Options(accuracy="strict"))
    assert len(planned.program.graph.nodes) == 3
