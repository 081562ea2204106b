"""Features follow from the nests: what a convolution's loops say, and what fusing changes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.cost.features import FEATURES, MachineFacts, WorkFacts, features_of, work_structure
from tilewright.errors import UsageError
from tilewright.hardware.host import host_machine
from tilewright.hardware.presets import load_preset
from tilewright.partition.base import Subgraph, make_subgraph


def convolution(extra_channels: int = 0) -> tuple[Subgraph, Subgraph]:
    """A strided convolution of 3x3 with its activation, and the convolution alone."""
    b = GraphBuilder()
    x = b.input(1, 8, 10, 10)
    w = b.constant(16 + extra_channels, 8, 3, 3)
    y = b.op("Conv", x, w, shape=(1, 16 + extra_channels, 4, 4), strides=(2, 2), kernel_shape=(3, 3))
    b.finish(b.op("Relu", y))
    nodes = b.graph.nodes
    return make_subgraph(0, nodes, b.graph), make_subgraph(1, nodes[:1], b.graph)


def test_a_convolution_is_told_by_its_loops() -> None:
    fused, alone = map(WorkFacts.of, convolution())
    assert alone.macs == 16 * 8 * 9 * 16
    assert (alone.window, alone.stride, alone.channels) == (9, 2, 8)
    assert (alone.rows, alone.columns, alone.batch) == (16, 16, 1)
    assert (alone.weight_bytes, alone.input_bytes, alone.output_bytes) == (
        16 * 72 * 4,
        8 * 100 * 4,
        16 * 16 * 4,
    )
    assert (alone.num_nodes, alone.num_complex, alone.num_algebraic) == (1, 1, 0)
    assert (fused.num_nodes, fused.num_complex, fused.num_algebraic) == (2, 1, 1)
    assert fused.intermediate_bytes == alone.output_bytes
    assert fused.moved_bytes == alone.moved_bytes


def test_what_is_read_with_jumps_is_told_from_what_is_read_in_a_row() -> None:
    b = GraphBuilder()
    x = b.input(6, 10)
    b.finish(b.op("Transpose", x, shape=(10, 6), perm=(1, 0)), b.op("Relu", x))
    moved, plain = (WorkFacts.of(make_subgraph(i, [n], b.graph)) for i, n in enumerate(b.graph.nodes))
    assert (moved.shortest_run, moved.num_runs, moved.strided_iterations) == (1, 60, 60)
    assert (plain.shortest_run, plain.num_runs, plain.strided_iterations) == (60, 1, 0)


def test_features_are_numbers_with_names_on_every_machine() -> None:
    facts = WorkFacts.of(convolution()[0])
    for machine in (host_machine(), *map(load_preset, ("jetson-nano", "a310", "zcu102"))):
        features = features_of(facts, MachineFacts.of(machine), 2, 1000.0)
        assert features.shape == (len(FEATURES),)
        assert np.isfinite(features).all()
    assert len(set(FEATURES)) == len(FEATURES)
    assert features[FEATURES.index("estimate_ns")] == np.log2(1001)


def test_a_roofline_is_the_longer_of_arithmetic_and_traffic_and_has_the_energy_of_its_table() -> None:
    machine = MachineFacts.of(load_preset("jetson-nano"))
    busy, moving = machine.roofline(WorkFacts(macs=10**9)), machine.roofline(WorkFacts(input_bytes=10**9))
    assert busy.time_ns == pytest.approx(10**9 / machine.macs_per_ns + machine.launch_ns)
    assert moving.time_ns == pytest.approx(10**9 / 25.6 + machine.launch_ns)
    assert busy.energy_pj is not None
    assert busy.energy_pj > 10**9 * 0.87


def test_equal_work_has_one_structure() -> None:
    first, second, other = convolution()[0], convolution()[0], convolution(extra_channels=8)[0]
    assert work_structure(first) == work_structure(second) != work_structure(other)


def test_an_operator_without_loop_nests_has_no_features() -> None:
    b = GraphBuilder()
    x = b.input(4)
    b.finish(b.op("NonZero", x, shape=(1, 4)))
    with pytest.raises(UsageError, match=r"NonZero '.*': has no loop nests, so no features"):
        WorkFacts.of(make_subgraph(0, b.graph.nodes, b.graph))
