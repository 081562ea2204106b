"""Mapped operators on the network: the compiled simulator against the plain one, both against counting."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as cartesian
from math import prod
from statistics import geometric_mean
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.support.noc_layer import FlitLayer

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.noc import NocOptions, NocResult, simulate
from tilewright.cost.noc.mesh import EAST, WEST
from tilewright.cost.noc.phases import Walk
from tilewright.cost.noc.traffic import TrafficPlan, plan
from tilewright.errors import InfeasibleMapping, MachineError, UsageError
from tilewright.hardware.machine import Level, Machine, TensorKind, Unit
from tilewright.hardware.parts import Network
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.hybrid import Hybrid
from tilewright.mapping.random import Random
from tilewright.planning import Budget

WEIGHT, INPUT, OUTPUT = TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.OUTPUT
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
MAC = Unit(name="MAC", kind="mac", macs_per_cycle={"int8": 1.0})


def machine(
    num_elements: int = 4,
    buffered: tuple[TensorKind, ...] = (INPUT, OUTPUT),
    bytes_per_cycle: float | None = 10.0,
    *,
    input_bits: int = 8,
) -> Machine:
    """Elements with a room for sums and one for the rest, a global buffer unless it holds nothing, DRAM."""
    big = 1 << 40
    levels = [
        Level(name="Sums", capacity_bytes=big, holds=(OUTPUT,), word_bits=24),
        Level(
            name="Tiles",
            capacity_bytes=big,
            holds=(WEIGHT, INPUT),
            word_bits=input_bits,
            num_instances_per_parent=num_elements,
        ),
    ]
    if buffered:
        levels.append(Level(name="Buffer", capacity_bytes=big, holds=buffered, word_bits=8))
    levels.append(
        Level(
            name="DRAM",
            word_bits=8,
            words_per_access=64,
            read_bytes_per_cycle=bytes_per_cycle,
            write_bytes_per_cycle=bytes_per_cycle,
        )
    )
    return Machine(name="small", levels=tuple(levels), units=(MAC,))


def mapping(shared: str, elements: str = "", spatial: str = "", outermost: str = "") -> Mapping:
    """Loops written `K2 C3`, the outermost first: of the buffer, inside an element, spatial, of DRAM."""

    def loops(text: str) -> tuple[Loop, ...]:
        return tuple(Loop(word[0], int(word[1:])) for word in text.split())

    return Mapping(
        (
            LevelLoops("DRAM", loops(outermost)),
            LevelLoops("Buffer", loops(shared), loops(spatial)),
            LevelLoops("Tiles", loops(elements)),
        )
    )


def agree(made: TrafficPlan) -> NocResult:
    """The result, which is the same cycle by cycle; of long ones only itself."""
    fast = Walk(made).run()
    if fast.cycles > 4000:
        return fast
    assert replace(fast, num_simulated_steps=made.num_steps) == FlitLayer(made).run()
    assert fast.cycles == fast.compute_cycles + sum(fast.wait_cycles.values())
    return fast


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, Machine, Mapping, NocOptions]:
    num_elements = draw(st.integers(2, 6))
    kinds = draw(st.sampled_from([(INPUT, OUTPUT), (), (WEIGHT, INPUT, OUTPUT), (INPUT,), (OUTPUT, WEIGHT)]))
    made = machine(num_elements, kinds, draw(st.sampled_from([3.0, 10.0, 16.0, None])))
    names = ["DRAM", "Buffer", "Tiles"] if kinds else ["DRAM", "Tiles"]
    temporal: dict[str, list[Loop]] = {name: [] for name in names}
    spatial: list[Loop] = []
    extents = dict.fromkeys("RSPQCKN", 1)
    for dim in draw(st.lists(st.sampled_from("RSPQCKN"), min_size=1, max_size=6)):
        factor = draw(st.sampled_from([2, 3, 5, 16, 29]))
        place = draw(st.sampled_from([*names, "side"]))
        if place == "side":
            if prod(loop.factor for loop in spatial) * factor <= num_elements:
                spatial.append(Loop(dim, factor))
                extents[dim] *= factor
        elif len(temporal[place]) < 4:
            temporal[place].append(Loop(dim, factor))
            extents[dim] *= factor
    levels = [
        LevelLoops(name, tuple(temporal[name]), tuple(spatial) if name == names[-2] else ()) for name in names
    ]
    stride = draw(st.integers(1, 2))
    options = NocOptions(
        has_multicast=draw(st.booleans()),
        header_flits=draw(st.integers(0, 2)),
        payload_flits=draw(st.integers(1, 9)),
        fifo_flits=draw(st.integers(1, 4)),
        hop_cycles=draw(st.sampled_from([1, 1, 2, 4])),
        dram_latency_cycles=draw(st.integers(0, 40)),
        staging_flits=draw(st.integers(0, 40)),
    )
    return convolution(extents, stride=(stride, stride)), made, Mapping(tuple(levels)), options


@pytest.mark.sampled(0)
@given(cases())
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_what_repeats_is_skipped_exactly(
    case: tuple[Problem, Machine, Mapping, NocOptions],
) -> None:
    assume(agree(plan(*case)).cycles <= 4000)  # more are not compared


@given(cases())
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
def test_the_network_carries_the_changes_of_all_tiles(
    case: tuple[Problem, Machine, Mapping, NocOptions],
) -> None:
    """Flits derived by walking all steps with sets of elements, not with boxes and moves."""
    problem, made, given_mapping, options = case
    planned = plan(problem, made, given_mapping, options)
    assume(planned.num_steps <= 60 and problem.num_macs <= 5000)
    found = simulate(problem, made, given_mapping, options)
    for number, operand in enumerate(problem.operands):
        if operand.kind is OUTPUT:
            continue
        expected = 0
        for words in new_words(problem, given_mapping, number, options.has_multicast):
            flits = -(-words * 8 // options.flit_bits)
            expected += flits + -(-flits // options.payload_flits) * options.header_flits
        assert found.sent_flits[operand.name] == expected


def new_words(problem: Problem, given_mapping: Mapping, number: int, has_multicast: bool) -> list[int]:
    """Words that each different element gets in each step, by sets of words in boxes."""
    operand = problem.operands[number]
    *shared, inside = given_mapping.levels
    tile: dict[str, int] = dict.fromkeys(problem.extents, 1)
    for loop in inside.temporal:
        tile[loop.dim] *= loop.factor
    loops = [loop for level in shared for loop in level.temporal]
    side = [loop for level in shared for loop in level.spatial]

    def box(counters: tuple[int, ...]) -> frozenset[tuple[int, ...]]:
        start, reach = dict.fromkeys(problem.extents, 0), dict(tile)
        for loop, counter in zip(reversed([*loops, *side]), reversed(counters), strict=True):
            start[loop.dim] += counter * reach[loop.dim]
            reach[loop.dim] *= loop.factor
        at = [sum(step * start[dim] for dim, step in axis) for axis in operand.axes]
        return frozenset(
            cartesian(*(range(a, a + extent) for a, extent in zip(at, operand.box(tile), strict=True)))
        )

    found: list[int] = []
    last: list[frozenset[tuple[int, ...]]] = []
    for step in cartesian(*(range(loop.factor) for loop in loops)):
        elements = [box((*step, *place)) for place in cartesian(*(range(loop.factor) for loop in side))]
        groups = list(dict.fromkeys(elements)) if has_multicast else elements
        if not last:
            found += [len(group) for group in groups]
        elif elements != last:
            changes = dict(zip(elements, last, strict=True))
            found += [len(group - changes[group]) for group in groups]
        last = elements
    return [words for words in found if words]


def test_a_step_alone_takes_what_its_parts_take() -> None:
    # One element's weights and inputs: 8 words each are a flit, and a result of 8 words.
    problem = convolution({"C": 8, "K": 1, "P": 1})
    given_mapping = mapping("", "C8")
    options = NocOptions(dram_latency_cycles=20)
    found = agree(plan(problem, machine(), given_mapping, options))
    assert found.num_steps == 1
    assert found.compute_cycles == 8
    assert found.sent_flits == {"Weights": 2, "Inputs": 2, "Outputs": 0}
    # The second flit of 8 bytes leaves DRAM after 1.6 cycles; it comes in cycle 2 + 20. The first packet came
    # in cycle 1 + 20 and takes 2 cycles of the port, so the second begins in cycle 23 and needs 2 + 2 - 1.
    assert found.wait_cycles["Weights"] + found.wait_cycles["Inputs"] == 23 + 2 + 1
    # The result: 3 channels, no: into the router and out of it, 2 flits; then its word goes to DRAM.
    assert found.returned_flits == 2
    assert found.dram_written_flits == 1
    assert found.dram_read_flits == 2


def test_multicast_sends_once_what_all_elements_need() -> None:
    problem = convolution({"K": 8, "C": 64, "P": 4})
    found = simulate(problem, machine(), mapping("K2", "C64 P4", "K4"))
    alone = simulate(problem, machine(1 + 1), mapping("K8", "C64 P4"))
    # Inputs are the same for all elements: 256 words are 32 flits and 4 heads, once.
    assert found.sent_flits["Inputs"] == 36
    assert found.sent_flits["Weights"] == alone.sent_flits["Weights"] == 8 * 9
    for router in range(4):
        assert found.link_flits[router][0] == 36 + 2 * 9


def test_without_multicast_every_element_gets_its_own() -> None:
    problem = convolution({"K": 8, "C": 64, "P": 4})
    found = simulate(
        problem, machine(), mapping("K2", "C64 P4", "K4"), NocOptions(has_multicast=False, shape=(1, 4))
    )
    assert found.sent_flits["Inputs"] == 4 * 36
    # In a row, router 0 sends on what is for the three others.
    assert found.link_flits[0][EAST] == 3 * (36 + 2 * 9)


def test_a_machine_says_what_its_network_is() -> None:
    described = NocOptions.of(load_preset("simba-cosa-paper"))
    assert (described.shape, described.flit_bits, described.has_multicast) == ((4, 4), 64, True)
    made = machine(2)
    network = Network(name="n", inner="Tiles", outer="Buffer", kind="mesh", shape=(1, 2), flit_bytes=4)
    other = made.model_copy(update={"networks": (network,)})
    problem, given_mapping = convolution({"K": 2, "C": 64}), mapping("", "C64", "K2")
    wide, narrow = simulate(problem, made, given_mapping), simulate(problem, other, given_mapping)
    assert wide.sent_flits == {"Weights": 2 * 9, "Inputs": 9, "Outputs": 0}
    assert narrow.sent_flits == {"Weights": 4 * 9, "Inputs": 2 * 2 * 9, "Outputs": 0}  # without multicast
    bus = made.model_copy(update={"networks": (network.model_copy(update={"kind": "bus"}),)})
    with pytest.raises(MachineError, match="its network 'n' is a bus"):
        simulate(problem, bus, given_mapping)
    circuit = made.model_copy(update={"networks": (network.model_copy(update={"switching": "circuit"}),)})
    with pytest.raises(MachineError, match="switches by circuit; the simulator knows wormhole"):
        simulate(problem, circuit, given_mapping)
    link = Network(name="n", inner="Tiles", outer="Buffer", kind="mesh", bytes_per_cycle=16.0)
    assert NocOptions.of(made.model_copy(update={"networks": (link,)})).flit_bits == 128
    with pytest.raises(MachineError, match="1 x 2 cannot hold 4 elements"):
        simulate(problem, machine(4), given_mapping, NocOptions(shape=(1, 2)))


CLOCK = {"clock_hz": 2e9}


def described(made: Machine, clock: dict[str, float] = CLOCK, **keys: Any) -> Machine:
    """A machine with a mesh of one row; from JSON, so that everything is checked."""
    network = {"name": "n", "inner": "Tiles", "outer": "Buffer", "kind": "mesh", "shape": (1, 2), **keys}
    document = {**made.model_dump(mode="json", exclude_none=True), **clock, "networks": [network]}
    return Machine.model_validate({**document, "energy_source": "made up"})


def test_the_latency_of_hops_and_of_the_memory_are_the_machine_s() -> None:
    made, problem, given_mapping = machine(2), convolution({"K": 2, "C": 64}), mapping("", "C64", "K2")
    assert NocOptions.of(described(made)).hop_cycles == 1
    slow = described(made, hop_latency_ns=2.6)  # 5.2 cycles: more than 5
    options = NocOptions.of(slow)
    assert (options.hop_cycles, options.fifo_flits) == (6, 4 + 5)
    assert NocOptions.of(described(made, hop_latency_cycles=3)).hop_cycles == 3
    assert NocOptions.of(described(made, hop_latency_cycles=0)).hop_cycles == 1
    near, far = (simulate(problem, one, given_mapping) for one in (described(made), slow))
    # Weights of element 1 go over the link; its result comes back over it. With a hop of one cycle it waits
    # for that of element 0 to pass the memory's port, a cycle of two flits.
    assert far.wait_cycles["Weights"] == near.wait_cycles["Weights"] + 5
    assert far.wait_cycles["End"] == near.wait_cycles["End"] - 1 + 5
    *inner, dram = made.levels
    late = made.model_copy(update={"levels": (*inner, dram.model_copy(update={"latency_ns": 60.0})), **CLOCK})
    assert NocOptions.of(late).dram_latency_cycles == 120
    assert simulate(problem, late, given_mapping).cycles == simulate(problem, made, given_mapping).cycles + 20
    for lacking in (described(made, {}, hop_latency_ns=2), late.model_copy(update={"clock_hz": None})):
        with pytest.raises(MachineError, match=r"latency_ns of (n|DRAM) needs clock_hz"):
            NocOptions.of(lacking)


def test_hops_have_the_energy_that_the_machine_gives_them() -> None:
    made, problem, given_mapping = machine(2), convolution({"K": 2, "C": 64}), mapping("", "C64", "K2")
    found = simulate(problem, described(made, flit_bytes=4, hop_pj_per_byte=0.5), given_mapping)
    # To element 1: 64 weights and 64 inputs in flits of 4, a head for each 8; back a result and its head.
    assert found.num_hop_flits == found.link_flits[0][EAST] + found.link_flits[1][WEST] == 2 * 18 + 2
    assert found.hop_energy_pj == (2 * 18 + 2) * 4 * 0.5
    assert simulate(problem, described(made), given_mapping).hop_energy_pj == 0


def test_a_link_carries_a_flit_each_cycle() -> None:
    made = machine(2)
    assert NocOptions.of(described(made, bytes_per_s=16e9)).flit_bits == 64
    assert NocOptions.of(described(made, bytes_per_s=16e9, flit_bytes=8)).flit_bits == 64
    with pytest.raises(MachineError, match="'n' carries 16 bytes per cycle in flits of 8; the simulator"):
        NocOptions.of(described(made, bytes_per_s=32e9, flit_bytes=8))
    with pytest.raises(MachineError, match="network 'n' needs clock_hz"):
        NocOptions.of(described(made, {}, bytes_per_s=16e9))


def test_a_network_among_the_elements_is_theirs() -> None:
    made = described(machine(2), outer="Tiles", flit_bytes=4)
    assert NocOptions.of(made).flit_bits == 32
    with pytest.raises(MachineError, match="its network 'exchange' is a crossbar"):
        NocOptions.of(load_preset("ipu-mk2"))


def test_sums_go_down_a_chain_and_come_out_once() -> None:
    problem = convolution({"K": 8, "C": 8})
    found = simulate(problem, machine(), mapping("", "C2 K8", "C4"))
    # 8 sums of 24 bits are 3 flits and a head over three links of the chain; 8 results a flit and a head.
    assert found.returned_flits == 3 * 4 + 2
    assert found.sent_flits["Outputs"] == 0
    assert found.dram_written_flits == 1


def test_partial_sums_come_back_when_a_sum_is_interrupted() -> None:
    problem = convolution({"K": 4, "C": 6})
    # C outside K: every tile of K leaves as partial sums twice, and comes back twice.
    found = simulate(problem, machine(), mapping("C3 K4", "C2"))
    assert found.sent_flits["Outputs"] == 2 * 4 * 2
    assert found.returned_flits == 3 * 4 * 2
    # K outside C: none of that.
    assert simulate(problem, machine(), mapping("K4 C3", "C2")).sent_flits["Outputs"] == 0


def test_long_layers_are_bound_by_the_narrowest_part() -> None:
    # All weights are used once: 2048 x 64 words through DRAM of 4 bytes a cycle.
    problem = convolution({"K": 2048, "C": 64})
    found = simulate(problem, machine(4, (INPUT, OUTPUT), 4.0), mapping("K512", "C64", "K4"))
    read = 2048 * 64 / 4
    written = 2048 / 4  # at the end: the buffer holds all results until then
    assert read + written < found.cycles < 1.01 * (read + written)
    # With much DRAM bandwidth by the memory's port: 8 bytes a cycle, and a head for each 8 flits.
    problem = convolution({"K": 8192, "C": 64})
    wide = simulate(problem, machine(16, (INPUT, OUTPUT), 64.0), mapping("K512", "C64", "K16"))
    sent = 8192 * 64 / 8 * 9 / 8
    assert sent < wide.cycles < 1.02 * sent
    assert wide.memory_utilization > 0.98
    # With much work per word by the elements.
    busy = simulate(convolution({"K": 64, "C": 64, "P": 256}), machine(), mapping("K16 P4", "P64 C64", "K4"))
    assert busy.compute_cycles < busy.cycles < 1.05 * busy.compute_cycles


def test_long_loops_are_not_run_through() -> None:
    problem = convolution({"K": 4096, "P": 1024, "C": 512})
    found = simulate(problem, machine(), mapping("K512 P512", "P2 C512 K2", "K4"))
    assert found.num_steps == 512 * 512
    assert found.num_simulated_steps < 2000
    assert found.cycles >= found.compute_cycles == problem.num_macs // 4


def test_a_result_is_the_same_each_time() -> None:
    problem = convolution({"K": 16, "P": 6, "Q": 6, "R": 3, "S": 3, "C": 8})
    given_mapping = mapping("K2 P3", "R3 S3 C8 P2 Q2", "K4", "K2 Q3")
    assert simulate(problem, machine(), given_mapping) == simulate(problem, machine(), given_mapping)


def test_words_in_are_those_that_the_analytical_model_counts() -> None:
    preset = load_preset("simba-cosa-repo")
    problem = convolution({"K": 64, "C": 32, "P": 8, "Q": 8})
    given_mapping = Mapping(
        (
            LevelLoops("DRAM", (Loop("P", 2), Loop("K", 2))),
            LevelLoops("GlobalBuffer", (Loop("Q", 2), Loop("K", 2)), (Loop("C", 4), Loop("P", 4))),
            LevelLoops("InputBuffer", (Loop("K", 16), Loop("C", 8), Loop("Q", 4))),
        )
    )
    cost = {level.level: level for level in evaluate(problem, preset, given_mapping).levels}
    found = simulate(problem, preset, given_mapping, NocOptions(header_flits=0))
    assert found.sent_flits["Inputs"] * 8 == cost["GlobalBuffer"].tensors["Inputs"].reads
    assert found.sent_flits["Weights"] * 8 == cost["DRAM"].tensors["Weights"].reads
    assert found.dram_written_flits * 8 == cost["DRAM"].tensors["Outputs"].updates


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Machine(name="m", levels=(Level(name="DRAM"),), units=(MAC,)), "no level has several instances"),
        (
            Machine(
                name="m",
                levels=(
                    Level(name="E", capacity_bytes=9, num_instances_per_parent=2, holds=(WEIGHT,)),
                    Level(name="DRAM"),
                ),
                units=(MAC,),
            ),
            "no level of the elements holds Inputs",
        ),
        (
            Machine(
                name="m",
                levels=(
                    Level(name="E", capacity_bytes=9, num_instances_per_parent=2),
                    Level(name="L2", capacity_bytes=9),
                    Level(name="L3", capacity_bytes=9),
                    Level(name="DRAM"),
                ),
                units=(MAC,),
            ),
            "3 levels are shared",
        ),
    ],
)
def test_machines_that_it_cannot_simulate_are_named(made: Machine, message: str) -> None:
    problem = convolution({"K": 2})
    given_mapping = Mapping((LevelLoops("DRAM", (Loop("K", 2),)),))
    with pytest.raises(MachineError, match=message):
        simulate(problem, made, given_mapping)


def test_illegal_mappings_and_options_are_refused() -> None:
    with pytest.raises(InfeasibleMapping, match="level Buffer: spatial loops ask for 8 instances"):
        simulate(convolution({"K": 8}), machine(), mapping("", "", "K8"))
    with pytest.raises(UsageError, match="multiply one by 4"):
        simulate(convolution({"K": 8}), machine(), mapping("K2"))
    with pytest.raises(UsageError, match="payload"):
        NocOptions(payload_flits=0)
    with pytest.raises(UsageError, match="staging"):
        NocOptions(staging_flits=-1)


@pytest.mark.slow
def test_mappers_come_in_the_order_of_the_paper() -> None:
    """CoSA ahead of Timeloop's hybrid mapper ahead of random mappings (its figure 10)."""
    preset = load_preset("simba-cosa-repo")
    names = ["3_56_64_64_1", "1_28_128_512_1", "3_14_256_256_1", "1_14_1024_256_1", "3_7_512_512_1"]
    mappers: list[Mapper] = [Cosa(), Hybrid(num_threads=32, timeout=0), Random()]
    means = []
    for mapper in mappers:
        cycles = []
        for name in names:
            answer = mapper.solve(MappingProblem(layer(name), preset), Budget())
            assert isinstance(answer, MappingSolution)
            cycles.append(simulate(layer(name), preset, answer.mapping).cycles)
        means.append(geometric_mean(cycles))
    assert means[0] < means[1] < means[2]
