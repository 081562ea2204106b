"""Where chains are cut, and what runs together in a graph."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.loops.problem import Problem
from tilewright.mapping.chains import chain, plan, solve
from tilewright.mapping.chains.chain import CannotFuse, chain_of
from tilewright.mapping.chains.check import check_plan
from tilewright.mapping.chains.plan import check_countable
from tilewright.mapping.chains.runs import alike_key, runs_of, stages_of
from tilewright.mapping.chains.separate import outside
from tilewright.mapping.chains.solve import ChainSolver, fusing_level
from tilewright.mapping.network import layers_of
from tilewright.mapping.solve import MapItem, MapProblem, Workload, map_layers


def conv(build: GraphBuilder, x: Value, channels: int, window: int, group: int = 1) -> Value:
    weights = build.constant(channels, x.shape[1] // group, window, window)
    shape = (x.shape[0], channels, *x.shape[2:])
    return build.op("Conv", x, weights, shape=shape, pads=(window // 2,) * 4, group=group)


def inverted_residual() -> Graph:
    build = GraphBuilder()
    x = build.input(1, 2, 4, 3)
    y = build.op("Relu", conv(build, x, 4, 1))
    y = build.op("Relu", conv(build, y, 4, 3, 4))
    return build.finish(build.op("Add", conv(build, y, 2, 1), x))


def with_buffer(machine: Machine, capacity_bytes: int) -> Machine:
    """The machine with so large a level where values wait."""
    name = fusing_level(machine).name
    sized = {"capacity_bytes": capacity_bytes, "shares": ()}
    levels = (x.model_copy(update=sized) if x.name == name else x for x in machine.levels)
    return machine.model_copy(update={"levels": tuple(levels)})


def test_a_run_is_cut_where_operators_that_are_not_pointwise_begin() -> None:
    (run,) = runs_of(inverted_residual())
    assert [[node.op_type for node in stage] for stage in stages_of(run)] == [
        ["Conv", "Relu"],
        ["Conv", "Relu"],
        ["Conv", "Add"],
    ]


def test_a_run_goes_on_where_a_residual_block_reads_a_value_twice() -> None:
    build = GraphBuilder()
    x = conv(build, build.input(1, 2, 4, 3), 2, 1)
    y = build.op("Add", conv(build, build.op("Relu", conv(build, x, 4, 1)), 2, 1), x)
    (run,) = runs_of(build.finish(conv(build, y, 2, 1), y))
    assert [node.op_type for node in run] == ["Conv", "Conv", "Relu", "Conv", "Add", "Conv"]
    machine = with_buffer(load_preset("eyeriss"), 1 << 20)
    solution = ChainSolver(machine, deadline_s=5).solve(run, frozenset([y]))
    (segment,) = solution.segments
    assert segment.chain is not None
    assert [part.value for part in segment.chain.parts if part.leaves][1:] == [y]
    # The input, two values that leave, and the weights.
    assert segment.moved_words == solution.bound_words == 24 + 24 + 24 + 4 + 8 + 8 + 4


@pytest.mark.parametrize("objective", ["traffic", "energy"])
def test_what_leaves_before_an_operator_element_by_element_is_written_too(
    objective: Literal["traffic", "energy"],
) -> None:
    build = GraphBuilder()
    x = conv(build, build.input(1, 4, 2, 2), 4, 1)
    graph = build.finish(conv(build, build.op("Relu", x), 4, 1), x)
    (run,) = runs_of(graph)
    solver = ChainSolver(with_buffer(load_preset("eyeriss"), 32), objective, deadline_s=1)
    solution = solver.solve(run, frozenset(graph.outputs))
    for segment in (*solution.segments, *solution.separate):
        read = sum(value.num_elements for value in outside(segment.nodes))
        left = [v for n in segment.nodes for v in n.results() if not set(v.users) <= set(segment.nodes)]
        left += [v for n in segment.nodes for v in n.results() if v in graph.outputs and v not in left]
        assert segment.moved_words >= read + sum(value.num_elements for value in left)


def test_a_cut_chain_reads_nothing_that_strides_jump_over_before_a_window() -> None:
    build = GraphBuilder()
    x = build.op(
        "Conv",
        build.input(1, 8, 4, 4),
        build.constant(1, 8, 1, 1),
        shape=(1, 1, 2, 2),
        pads=(0,) * 4,
        strides=(2, 2),
        group=1,
    )
    weight = build.constant(1, 1, 2, 2)
    graph = build.finish(build.op("Conv", x, weight, shape=(1, 1, 1, 1), pads=(0,) * 4, group=1))
    solution = ChainSolver(with_buffer(load_preset("eyeriss"), 1024), deadline_s=1).solve(graph.nodes)
    # Of the input four places of sixteen; what is between the two is written and read.
    assert solution.moved_words == 8 * 4 + 8 + 2 * 4 + 4 + 1
    assert solution.bound_words == 8 * 4 + 8 + 4 + 1


def test_a_run_ends_before_what_is_computed_beside_it() -> None:
    build = GraphBuilder()
    x = conv(build, build.input(1, 2, 4, 3), 2, 1)
    inner = conv(build, conv(build, x, 2, 1), 2, 1)
    graph = build.finish(conv(build, build.op("Add", inner, conv(build, x, 2, 1)), 2, 1))
    assert [[node.op_type for node in run] for run in runs_of(graph)] == [
        ["Conv", "Conv", "Conv"],
        ["Conv", "Add", "Conv"],
    ]


@pytest.mark.parametrize("capacity_bytes", [64, 128, 4096])
def test_a_chain_moves_no_more_than_its_operators_one_by_one(capacity_bytes: int) -> None:
    machine = with_buffer(load_preset("eyeriss"), capacity_bytes)
    level = fusing_level(machine)
    (run,) = runs_of(inverted_residual())
    solution = ChainSolver(machine, deadline_s=5).solve(run)
    assert solution.bound_words <= solution.moved_words <= solution.separate_words
    assert [node for segment in solution.segments for node in segment.nodes] == list(run)
    for segment in solution.segments:
        if segment.chain is not None and segment.tiling is not None:
            words = capacity_bytes * 8 // level.word_bits
            assert not check_plan(segment.chain, segment.tiling.plan, segment.tiling.count, words)


def test_what_fits_as_a_whole_moves_once() -> None:
    machine = with_buffer(load_preset("eyeriss"), 1 << 20)
    (run,) = runs_of(inverted_residual())
    solution = ChainSolver(machine, deadline_s=5).solve(run)
    assert len(solution.segments) == 1
    # The input and the result, and weights of 1x1, depthwise 3x3 and 1x1.
    assert solution.moved_words == solution.bound_words == 24 + 24 + 8 + 36 + 8


def test_a_machine_without_a_level_for_what_passes_between_operators_is_refused() -> None:
    machine = load_preset("eyeriss")
    alone = machine.model_copy(update={"levels": (machine.levels[0], machine.levels[-1])})
    with pytest.raises(MachineError, match="chains need one"):
        fusing_level(alone)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("objective", ["latency", "energy"])
@pytest.mark.parametrize("name", ["eyeriss", "simba-cosa-repo"])
def test_a_chain_takes_no_more_than_its_operators_mapped_one_by_one(
    name: str, objective: Literal["latency", "energy"]
) -> None:
    machine = with_buffer(load_preset(name), 128)
    graph = inverted_residual()
    (run,) = runs_of(graph)
    solver = ChainSolver(machine, objective, deadline_s=5)
    solution = solver.solve(run)
    by_themselves = map_layers(
        MapProblem(
            machine=machine,
            workloads=(Workload("block", tuple(MapItem(p) for p in problems_of(graph))),),
            objective=objective,
        ),
        lambda *_: None,
    )
    value = by_themselves.total.cycles if objective == "latency" else by_themselves.total.energy_pj
    # What the last operator adds to the result is read besides, whoever runs it.
    added = 24 * solver.view.outermost.read_access_pj / solver.view.outermost.words_per_access
    assert solution.value <= value + (24 if objective == "latency" else added)
    assert solution.bound <= solution.quality.bound <= solution.value <= solution.separate_value
    assert all(segment.cost is not None for segment in solution.segments)


def problems_of(graph: Graph) -> list[Problem]:
    return [layer.problem for layer in layers_of(graph) if layer.problem is not None]


def test_chains_that_differ_in_names_and_weights_alone_are_solved_once() -> None:
    solver = ChainSolver(load_preset("eyeriss"), deadline_s=5)
    (first,), (second,) = runs_of(inverted_residual()), runs_of(inverted_residual())
    one, other = solver.solve(first), solver.solve(second)
    assert other.moved_words == one.moved_words
    assert [node for segment in other.segments for node in segment.nodes] == list(second)
    for segment, twin in zip(one.segments, other.segments, strict=True):
        assert segment.tiling is twin.tiling


def test_changes_of_layout_alone_move_nothing() -> None:
    build = GraphBuilder()
    y = build.op("MatMul", build.input(4, 6), build.constant(6, 8), shape=(4, 8))
    y = build.op("Transpose", y, shape=(8, 4), perm=(1, 0))
    y = build.op("MatMul", y, build.constant(4, 2), shape=(8, 2))
    (run,) = runs_of(build.finish(y))
    solution = ChainSolver(with_buffer(load_preset("eyeriss"), 1 << 20), deadline_s=5).solve(run)
    assert [segment.moved_words for segment in solution.separate] == [24 + 48 + 32, 0, 32 + 8 + 16]
    assert solution.moved_words == 24 + 48 + 8 + 16


def test_an_operator_without_a_mapping_of_its_own_runs_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "map_stage", lambda *_: None)
    (run,) = runs_of(inverted_residual())
    solution = ChainSolver(with_buffer(load_preset("eyeriss"), 256), deadline_s=5).solve(run)
    assert all(segment.chain is not None for segment in solution.segments)


def test_what_is_too_long_or_too_much_to_count_runs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(inverted_residual())
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_MAX_COUNT", 100)
        with pytest.raises(CannotFuse, match="too much to count"):
            check_countable(chain_of(run))
    monkeypatch.setattr(chain, "_MAX_EXTENT", 3)
    with pytest.raises(CannotFuse, match="oh has 4 iterations, more than 3"):
        chain_of(run)
    solution = ChainSolver(load_preset("eyeriss"), deadline_s=5).solve(run)
    assert [segment.num_stages for segment in solution.segments] == [1, 1, 1]
    assert solution.moved_words == solution.separate_words


def test_operators_that_differ_in_a_table_are_not_alike() -> None:
    def picked(*rows: int) -> Graph:
        build = GraphBuilder()
        y = build.op("MatMul", build.input(4, 6), build.constant(6, 8), shape=(4, 8))
        y = build.op("Gather", y, build.integers(*rows), shape=(2, 8), axis=0)
        return build.finish(build.op("MatMul", y, build.constant(8, 2), shape=(2, 2)))

    keys = [alike_key(picked(*rows).nodes, frozenset()) for rows in ((0, 1), (0, 1), (0, 3))]
    assert keys[0] == keys[1] != keys[2]
