"""Expected costs with zeros against counting over every placement of the nonzeros of small operands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import comb, isclose
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.models import small_net

import tilewright as tw
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.sparsity import bounds_with_zeros, empty_probability, format_share, with_zeros
from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.parts import Format
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import convolution
from tilewright.mapping.cases import Case
from tilewright.targets.npu.mapped_products import SEARCH

EXTENTS = {"K": 2, "C": 3, "P": 2}
PROBLEM = convolution(EXTENTS)
Words = tuple[int, ...]


def machine(zeros: str, densities: str, formats: str = "") -> Machine:
    return parse_machine(
        f"""
name: small
densities: {{{densities}}}
levels:
  - {{name: Spad, capacity_bytes: 64, read_pj: 1, write_pj: 2, formats: [{formats}]}}
  - {{name: Memory, read_pj: 50}}
units:
  - {{name: mac, kind: mac, num_per_instance: 3, zeros: {{{zeros}}},
     macs_per_cycle: {{int8: 1}}, mac_pj: 0.5}}
energy_source: made up
"""
    )


def steps(order: tuple[str, ...], spread: str) -> Iterator[list[dict[str, int]]]:
    """The iterations that units run together, step after step."""
    temporal = [dim for dim in order if dim != spread]
    for at in product(*(range(EXTENTS[dim]) for dim in temporal)):
        fixed = dict(zip(temporal, at, strict=True))
        yield [{**fixed, spread: i} for i in range(EXTENTS[spread])]


def word(kind: TensorKind, at: dict[str, int]) -> Words:
    dims = {TensorKind.WEIGHT: "CK", TensorKind.INPUT: "CP", TensorKind.OUTPUT: "KP"}[kind]
    return tuple(at[dim] for dim in dims)


def groups(kind: TensorKind, order: tuple[str, ...], spread: str) -> list[list[dict[str, int]]]:
    """Multiplications that one access to a word of a tensor serves: of all units, for as long as it stays."""
    found: list[list[dict[str, int]]] = []
    before: dict[Words, int] = {}
    for units in steps(order, spread):
        now: dict[Words, int] = {}
        for at in units:
            key = word(kind, at)
            if key not in now:
                now[key] = before.get(key, len(found))
                if now[key] == len(found):
                    found.append([])
            found[now[key]].append(at)
        before = now
    return found


def placements(extents: tuple[int, int], density: float) -> list[frozenset[Words]]:
    every = list(product(*map(range, extents)))
    return [frozenset(chosen) for chosen in combinations(every, round(density * len(every)))]


def dense_cost(order: tuple[str, ...], spread: str, on: Machine) -> Cost:
    temporal = tuple(Loop(dim, EXTENTS[dim]) for dim in order if dim != spread)
    spad = LevelLoops("Spad", temporal, (Loop(spread, EXTENTS[spread]),))
    return evaluate(PROBLEM, on, Mapping((LevelLoops("Memory"), spad)))


@given(
    order=st.permutations(("K", "C", "P")).map(tuple),
    spread=st.sampled_from(("K", "C", "P")),
    weight=st.sampled_from((1 / 3, 0.5, 1.0)),
    input_=st.sampled_from((0.5, 5 / 6)),
    first=st.sampled_from(("weight", "input")),
    both=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_expected_counts_are_those_of_all_placements(
    order: tuple[str, ...], spread: str, weight: float, input_: float, first: str, both: bool
) -> None:
    """What the unit looks at first is always read; the other operand only where that is not zero."""
    second = "input" if first == "weight" else "weight"
    zeros = f"{first}: gate" + (f", {second}: gate" if both else "")
    on = machine(zeros, f"weight: {weight}, input: {input_}")
    dense = dense_cost(order, spread, on)
    found = with_zeros(PROBLEM, on, dense)
    tensors = found.levels[1].tensors
    kinds = {TensorKind.WEIGHT: "Weights", TensorKind.INPUT: "Inputs", TensorKind.OUTPUT: "Outputs"}
    looked_at = [TensorKind(first)] + ([TensorKind(second)] if both else [])
    every = [(w, i) for w in placements((3, 2), weight) for i in placements((3, 2), input_)]

    def is_done(
        at: dict[str, int], w: frozenset[Words], i: frozenset[Words], kinds: list[TensorKind]
    ) -> bool:
        there = {TensorKind.WEIGHT: w, TensorKind.INPUT: i}
        return all(word(kind, at) in there[kind] for kind in kinds)

    macs = sum(
        is_done(at, w, i, looked_at) for w, i in every for units in steps(order, spread) for at in units
    ) / len(every)
    assert isclose(found.mac_energy_pj, 0.5 * macs)
    assert found.compute_cycles == dense.compute_cycles, "gating saves no time"
    for kind, name in kinds.items():
        served = groups(kind, order, spread)
        there = dense.levels[1].tensors[name]
        if len(served) != (there.updates if kind is TensorKind.OUTPUT else there.reads):
            continue  # the count of words without zeros sees more than one run as one
        ahead = looked_at if kind is TensorKind.OUTPUT else [k for k in looked_at[:1] if k is not kind]
        expected = sum(
            any(is_done(at, w, i, ahead) for at in group) for w, i in every for group in served
        ) / len(every)
        counted = tensors[name].updates if kind is TensorKind.OUTPUT else tensors[name].reads
        assert expected - 1e-9 <= counted < expected + 1, (kind, len(served), expected, counted)


def test_skipping_saves_time_too_and_needs_places() -> None:
    formats = "{holds: [weight, input], kind: bitmask}"
    on = machine("weight: skip, input: gate", "weight: 0.5, input: 0.5", formats)
    dense = dense_cost(("P", "K", "C"), "P", on)
    found = with_zeros(PROBLEM, on, dense)
    assert (dense.compute_cycles, found.compute_cycles) == (6, 3)
    assert found.mac_energy_pj == pytest.approx(dense.mac_energy_pj / 4)
    with pytest.raises(MachineError, match=r"units\[0\]\.zeros: skips those of weight.*formats"):
        machine("weight: skip", "weight: 0.5")


def test_no_zeros_cost_what_they_cost_without_the_model() -> None:
    on = machine("weight: gate, input: gate", "weight: 1.0, input: 1.0")
    dense = dense_cost(("P", "K", "C"), "P", on)
    assert with_zeros(PROBLEM, on, dense) == dense
    assert with_zeros(PROBLEM, machine("weight: gate", ""), dense) is dense


@pytest.mark.parametrize(("words", "density", "group"), [(6, 0.5, 2), (9, 1 / 3, 3), (5, 0.8, 1)])
def test_a_group_is_empty_as_often_as_placements_leave_it(words: int, density: float, group: int) -> None:
    nonzeros = round(words * density)
    empty = sum(min(chosen) >= group for chosen in combinations(range(words), nonzeros))
    assert empty_probability(words, density, group) == pytest.approx(empty / comb(words, nonzeros))


@pytest.mark.parametrize("density", [0.01, 0.1, 0.6])
def test_runs_are_as_long_as_in_random_tensors(density: float) -> None:
    """Entries of 5 bits of zeros before a value of 8 bits, in a tensor of two hundred thousand words."""
    nonzero = np.flatnonzero(np.random.default_rng(7).random(200_000) < density)
    gaps = np.diff(nonzero) - 1
    entries = len(gaps) + int((gaps // 32).sum())
    level = Level(name="L", formats=(Format(holds=(TensorKind.WEIGHT,), kind="run-length"),))
    share = format_share(level, TensorKind.WEIGHT, density, 64)
    assert share == pytest.approx(entries / 200_000 * 13 / 8, rel=0.03)


SPARSE = """
name: sparse
clock_hz: 1 GHz
levels:
  - {name: Scratch, capacity_bytes: 64 KiB, per: core, read_bytes_per_cycle: 64, read_pj: 20,
     formats: [{holds: [weight], kind: bitmask}]}
  - {name: Lake, read_bytes_per_s: 12.8 GB/s, read_pj: 6400, words_per_access: 64,
     formats: [{holds: [weight], kind: bitmask}]}
units:
  - {name: Array, kind: mac, level: Scratch, num_per_instance: 64, zeros: {weight: skip, input: gate},
     macs_per_cycle: {int8: 1}, mac_pj: 0.25}
  - {name: Lanes, kind: vector, level: Scratch, ops_per_cycle: {int8: 16}}
energy_source: "the test's own"
"""


def test_layers_and_networks_take_less_with_zeros(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE)
    dense, half = (tw.map("3_8_16_16_1", path, density=text) for text in (None, "weight=0.5,input=0.5"))
    one, other = dense.layers[0], half.layers[0]
    assert other.compute_cycles == one.compute_cycles // 2
    assert other.energy_pj < one.energy_pj
    lake = {n: x.cost.levels[0].tensors["Weights"] for n, x in (("dense", one), ("half", other))}
    assert lake["half"].reads == round(lake["dense"].reads * (0.5 + 1 / 8))
    options = ("dtype=int8", "dtype=int8, weight_density=0.5, input_density=0.5")
    plans = [tw.simulate(small_net(), f"{path}{{{text}}}", recipe="graphturbo") for text in options]
    assert plans[1].time_s < plans[0].time_s
    assert plans[1].energy_by_j["Array"] < 0.3 * plans[0].energy_by_j["Array"]


def test_sweeps_count_zeros_as_single_mappings_do(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE)
    density = {"weight": 0.5}
    alone = tw.map("3_4_8_8_1", path, density=density).layers[0]
    swept = tw.map("3_4_8_8_1", path, density=density, sweep=["levels.Scratch.capacity=64KiB"])
    (layer,) = swept.variants[0].layers
    assert (layer.cycles, layer.energy_pj) == (alone.cycles, pytest.approx(alone.energy_pj))


@given(
    order=st.permutations(("K", "C", "P")).map(tuple),
    spread=st.sampled_from(("K", "C", "P")),
    weight=st.floats(0.01, 1.0),
    input_=st.floats(0.01, 1.0),
    way=st.sampled_from(("gate", "skip")),
    kind=st.sampled_from(("bitmask", "coordinates", "run-length")),
)
@settings(max_examples=25, deadline=None)
def test_no_count_is_below_the_bound_of_its_densities(
    order: tuple[str, ...], spread: str, weight: float, input_: float, way: str, kind: str
) -> None:
    """Of operands of six words, too, of which a density may ask for less than one."""
    formats = f"{{holds: [weight, input], kind: {kind}}}"
    on = machine(f"weight: {way}, input: {way}", f"weight: {weight}, input: {input_}", formats)
    dense = dense_cost(order, spread, on)
    found = with_zeros(PROBLEM, on, dense)
    cycles, energy_pj = bounds_with_zeros(on, dense.cycles, dense.energy_pj)
    assert found.cycles >= cycles
    assert found.energy_pj >= energy_pj * (1 - 1e-12)


def test_a_bound_is_no_cycle_above_what_floats_make_of_a_whole_number() -> None:
    assert 100 * 0.55 > 55
    assert bounds_with_zeros(machine("weight: gate", "weight: 0.55"), 100, 1.0) == (55, 0.55)


def test_zeros_are_those_of_the_unit_that_operators_are_mapped_onto(tmp_path: Path) -> None:
    """A vector unit that multiplies may be listed before the array."""
    lines = SPARSE.splitlines(keepends=True)
    lanes = next(line for line in lines if "name: Lanes" in line)
    first = lanes.replace("ops_per_cycle", "macs_per_cycle: {int8: 1}, ops_per_cycle")
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE.replace(lanes, "").replace("units:\n", f"units:\n{first}"))
    dense, half = (tw.map("3_8_16_16_1", path, density=text) for text in (None, "weight=0.5"))
    assert half.layers[0].compute_cycles == dense.layers[0].compute_cycles // 2
    assert [part.name for part in half.components] == ["Array", "Scratch", "Lake"]


def test_given_mappings_are_counted_with_the_zeros_of_the_search(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE)
    found = tw.map("3_8_16_16_1", path, density="weight=0.5").layers[0]
    again = tw.map(
        (), path, density="weight=0.5", evaluate=[Case("it", found.problem, found.solution.mapping)]
    )
    assert again.cases[0].cost == found.cost


def test_a_density_of_one_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE.replace("clock_hz", "densities: {weight: 0.5}\nclock_hz"))
    texts = "dtype=int8", "dtype=int8, weight_density=1"
    half, whole = (tw.simulate(small_net(), f"{path}{{{text}}}", recipe="graphturbo") for text in texts)
    assert half.energy_by_j["Array"] == pytest.approx(whole.energy_by_j["Array"] / 2)


def test_networks_wait_for_the_cores_buffers_as_mappings_with_zeros_do(tmp_path: Path) -> None:
    """Where few weights are left, the inputs, which are read whole, decide."""
    path = tmp_path / "sparse.yaml"
    path.write_text(SPARSE.replace("read_bytes_per_cycle: 64", "read_bytes_per_cycle: 8"))
    densities = "weight_density=0.1, input_density=0.9"
    mapped = tw.map(small_net(), path, density="weight=0.1,input=0.9", mapper=SEARCH)
    found = tw.simulate(small_net(), f"{path}{{dtype=int8, {densities}}}", recipe="graphturbo", mappings=True)
    assert found.mappings is not None
    array = next(level for level in found.mappings.levels if level.level == "Array")
    scratch = [max(x.compute_cycles, x.cost.levels[1].cycles) for x in mapped.layers]
    assert sum(scratch) > 1.1 * sum(x.compute_cycles for x in mapped.layers)
    assert (array.simulated_s or 0.0) >= 0.9 * sum(scratch) / 1e9
