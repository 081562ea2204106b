"""Instances that keep rows make none twice, and the values of the network bit for bit."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.support.integer_networks import integer_feed
from tests.support.scopes import levels, placed_in
from tests.support.window_networks import window_network

from tilewright import load, zoo
from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.fields import FieldError
from tilewright.hardware.presets import load_preset
from tilewright.ir.derive import macs
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.interpret import run_graph
from tilewright.ir.region import Region, full_region, volume
from tilewright.memory.check_scopes import check_scopes
from tilewright.memory.scopes import ScopePlan
from tilewright.options import Options
from tilewright.partition import Partition, PartitionProblem
from tilewright.partition.check_rows import chain_links
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import LayerRegions, cut_layers
from tilewright.partition.rows import RowChain, chain_slices
from tilewright.partition.split import split_of
from tilewright.planning import Budget
from tilewright.program import Program
from tilewright.schedule import Instance, ScheduleProblem, check_schedule
from tilewright.schedule.binding import Bindings, bind
from tilewright.schedule.check_instances import check_instances, check_order
from tilewright.schedule.instance_orders import (
    BreadthFirst,
    DepthFirst,
    ExactOrder,
    MinDelta,
    demand_of,
    peaks_of,
)
from tilewright.schedule.instances import InstanceGraph, instance_graph
from tilewright.schedule.orders import breadth_first, depth_first, min_delta
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import simulated

pytestmark = pytest.mark.sampled(20)

SEEDS = range(20)


@cache
def network(seed: int) -> Graph:
    return window_network(seed)


def capacity_of(seed: int) -> int:
    """A share of the network's largest value, so that images are cut in few or many slices."""
    return int(max(v.size_bytes for v in network(seed).values()) * (0.5, 1.0, 1.8)[seed % 3])


@cache
def partition(seed: int, rows: str = "keep") -> Partition:
    planner = GraphTurbo(
        capacity_bytes=capacity_of(seed),
        element_bytes=4,
        recompute_limit=4.0,
        rows=rows,  # type: ignore[arg-type]
    )
    return planner.solve(PartitionProblem(network(seed)), Budget())


@cache
def instances(seed: int) -> InstanceGraph:
    return instance_graph(partition(seed))


@cache
def planned(seed: int) -> tuple[ScopePlan, Bindings]:
    graph = instances(seed)
    order = (depth_first, breadth_first, min_delta)[seed % 3](demand_of(graph))
    bindings = bind(graph, order, 8)
    capacity = capacity_of(seed)
    return placed_in(levels(capacity, 2 * capacity), graph, order, bindings), bindings


def kept_splits(seed: int) -> list[int]:
    return [i for i, split in enumerate(partition(seed).splits) if split.chain_length > 1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_the_same_bit_for_bit(seed: int) -> None:
    feed = integer_feed(network(seed))
    found = execute(planned(seed)[0], feed)
    for name, array in run_graph(network(seed), feed).items():
        assert np.array_equal(found[name], array), name


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_checkers_find_nothing(seed: int) -> None:
    plan, bindings = planned(seed)
    assert check_splits(partition(seed), recompute_limit=4.0) == ()
    assert check_instances(instances(seed)) == ()
    assert check_order(instances(seed), plan.order) == ()
    assert check_scopes(plan, bindings) == ()


def test_rows_are_kept_in_every_way_in_these_tests() -> None:
    kept = [k for s in SEEDS for n in instances(s).nodes if n.rows for k in n.rows.kept.values()]
    far = [
        k
        for s in SEEDS
        for n in instances(s).nodes
        if n.rows
        for k in n.rows.kept.values()
        if k.until > n.rows.position + 1
    ]
    assert sum(len(kept_splits(s)) for s in SEEDS) > 8
    assert sum(k.is_all for k in kept) > 40
    assert sum(not k.is_all for k in kept) > 15
    assert len(far) > 25


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("rows", [2, 4, 8])
def test_two_layers_that_read_a_value_along_different_axes_keep_what_either_reads(
    rows: int, columns: int
) -> None:
    """A convolution reads rows beyond those of its slice, but few columns; the sum beside it all of these."""
    graph = load(zoo.build("mobilenet_v2", image=64)).graph
    layers = cut_layers(graph)[1:10]
    regions, outputs = LayerRegions(RegionMaps()), layers[-1].outputs
    for cuts in (((2, rows), (3, columns)), ((3, rows), (2, columns))):
        split = split_of([cut for cut in cuts if cut[1] > 1], keeps_rows=True)
        for number in range(split.num_instances // split.chain_length):
            slices = chain_slices(outputs, split, number)
            links = chain_links([layer.nodes for layer in layers], slices)
            chain = RowChain(layers, slices, regions).instances
            assert any(link.kept for link in links)
            for instance, link in zip(chain, links, strict=True):
                assert {v: (k.region, k.until) for v, k in instance.kept.items()} == link.kept


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_is_made_twice(seed: int) -> None:
    """The work of all steps of instances that keep rows is that of the whole subgraph."""
    plan, _ = planned(seed)
    for number in kept_splits(seed):
        subgraph, split = partition(seed).subgraphs[number], partition(seed).splits[number]
        if 3 in dict(split.cuts):
            continue  # columns of slices compute what they share with their neighbours
        done = 0.0
        for step in plan.steps:
            if plan.graph.nodes[step.node].subgraph_id == number and step.operators:
                made = {plan.buffers[i].value: plan.buffers[i].region for i in step.writes}
                done += work_of(step.operators, made)
        whole = {v: full_region(v.shape) for v in subgraph.outputs}
        assert done == pytest.approx(work_of(subgraph.nodes, whole))


def work_of(nodes: Sequence[Node], wanted: Mapping[Value, Region]) -> float:
    """Multiply-accumulates that make regions of results of nodes."""
    regions = value_regions(nodes, wanted, RegionMaps())
    return sum(macs(n) * volume(regions[n.output]) / n.output.num_elements for n in nodes)


def test_without_kept_rows_some_are_made_twice() -> None:
    weighed = [partition(seed, "recompute").weighed for seed in SEEDS]
    factors = [o.recompute for w in weighed if w is not None for options in w.options for o in options]
    assert max(factors) > 1.1


def test_the_simulator_counts_the_work_of_the_whole() -> None:
    machine = load_preset("stcp920")
    for seed in SEEDS:
        problem = ScheduleProblem(partition(seed), machine, allows_slices=True)
        sliced, whole = (DepthFirst(split).solve(problem, Budget()) for split in (True, False))
        chosen = [o for o in partition(seed).weighed.options if o]  # type: ignore[union-attr]
        if kept_splits(seed) and all(max(o, key=lambda x: x.rank).recompute == 1 for o in chosen):
            assert simulated(sliced, machine).simulation.macs == pytest.approx(
                simulated(whole, machine).simulation.macs
            )


@pytest.mark.parametrize("seed", [s for s in SEEDS if s % 4 == 0])
def test_every_order_runs_the_slices_of_an_image_in_order(seed: int) -> None:
    problem = ScheduleProblem(partition(seed), allows_slices=True)
    for scheduler in (BreadthFirst(True), DepthFirst(True), MinDelta(True), ExactOrder(True, max_states=500)):
        schedule = scheduler.solve(problem, Budget())
        assert check_schedule(problem, schedule) == ()
        for number in kept_splits(seed):
            length = partition(seed).splits[number].chain_length
            indices = [i.index for i in schedule.instances() if i.subgraph_id == number]
            chains = {i // length: [x for x in indices if x // length == i // length] for i in indices}
            assert all(chain == sorted(chain) for chain in chains.values())


def test_slices_out_of_order_are_a_violation() -> None:
    for seed in (s for s in SEEDS if kept_splits(s)):
        problem = ScheduleProblem(partition(seed), allows_slices=True)
        schedule = BreadthFirst(True).solve(problem, Budget())
        stages = list(schedule.stages)
        first = Instance(kept_splits(seed)[0], 0)
        place = next(i for i, stage in enumerate(stages) if first in stage.instances())
        stages[place], stages[place + 1] = stages[place + 1], stages[place]
        turned = replace(schedule, stages=tuple(stages))
        assert {v.rule for v in check_schedule(problem, turned)} == {"order"}
        a, b = [n.id for n in instances(seed).nodes if n.rows and n.subgraph_id == first.subgraph_id][:2]
        order = [{a: b, b: a}.get(place, place) for place in breadth_first(demand_of(instances(seed)))]
        assert check_order(instances(seed), order)


def test_rows_that_are_not_kept_are_noticed() -> None:
    """An instance that keeps nothing, one that keeps too few rows, a step that reads others than it needs."""
    for seed in (s for s in SEEDS if kept_splits(s)):
        graph = instances(seed)
        node = next(n for n in graph.nodes if n.rows and n.rows.kept)
        assert node.rows is not None
        forgetful = replace(node, rows=replace(node.rows, kept={}))
        damaged = replace(graph, nodes=tuple(forgetful if n is node else n for n in graph.nodes))
        assert {v.rule for v in check_instances(damaged)} == {"rows"}
        unordered = replace(graph, waits=())
        assert {v.rule for v in check_instances(unordered)} == {"rows"}
        plan, bindings = planned(seed)
        steps = list(plan.steps)
        place = next(i for i, s in enumerate(steps) if len({r.value for r in s.reads}) < len(s.reads))
        steps[place] = replace(steps[place], reads=steps[place].reads[:-1])
        shortened = ScopePlan(replace(plan.timeline, steps=tuple(steps)), plan.memory)
        assert "regions" in {v.rule for v in check_scopes(shortened, bindings)}


def test_a_peak_without_the_kept_rows_is_noticed() -> None:
    for seed in (s for s in SEEDS if kept_splits(s)):
        found, number = partition(seed), kept_splits(seed)[0]
        assert found.weighed is not None
        peaks = list(found.weighed.peak_bytes)
        kept = max(
            sum(found.bytes_of(v, k.region) for v, k in n.rows.kept.items())
            for n in instances(seed).nodes
            if n.rows and n.subgraph_id == number
        )
        peaks[number] -= kept
        wrong = replace(found, weighed=replace(found.weighed, peak_bytes=tuple(peaks)))
        assert {v.rule for v in check_splits(wrong)} >= {"choice"}


@pytest.mark.parametrize("seed", [s for s in SEEDS if s % 3 == 0])
def test_peaks_are_those_that_the_partition_states(seed: int) -> None:
    found = partition(seed)
    assert found.weighed is not None
    peaks = peaks_of(instance_graph(replace(found, weighed=None)))
    assert [peaks[i] for i in kept_splits(seed)] == [found.weighed.peak_bytes[i] for i in kept_splits(seed)]


def test_a_plan_that_keeps_rows_is_stored() -> None:
    seed = next(s for s in SEEDS if kept_splits(s))
    problem = ScheduleProblem(partition(seed), allows_slices=True)
    program = Program(network(seed), partition(seed), DepthFirst(True).solve(problem, Budget()), Options())
    stored = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(stored, network(seed), Options())
    assert read.partition.splits == partition(seed).splits == read.schedule.splits
    stored["partition"]["keeps_rows"] = [len(partition(seed).subgraphs)]
    with pytest.raises(FieldError, match="keeps no rows"):
        decode_plan(stored, network(seed), Options())
