"""Counts, cycles and energies of mappings: equal to Timeloop's; what cannot be counted is said clearly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping, MachineError, UsageError
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, layer

EXAMPLES: dict[str, Any] = {
    case["id"]: case
    for case in json.loads(
        (Path(__file__).parents[2] / "data" / "mapping" / "timeloop_examples.json").read_text()
    )["cases"]
}
FIELDS = {
    "tile_words": "tile_words",
    "partition_words": "partition_words",
    "num_instances": "instances",
    "reads": "reads_per_instance",
    "updates": "updates_per_instance",
    "fills": "fills_per_instance",
    "temporal_reductions": "temporal_reductions_per_instance",
}


def problem_of(case: dict[str, Any]) -> Problem:
    stride = (case["stride"]["W"], case["stride"]["H"])
    return convolution(case["dims"], stride=stride, name=case["id"])


def mapping_of(case: dict[str, Any]) -> Mapping:
    def loops(pairs: list[tuple[str, int]]) -> tuple[Loop, ...]:
        return tuple(Loop(dim, factor) for dim, factor in pairs)

    return Mapping(
        tuple(
            LevelLoops(
                level["level"],
                loops(level["temporal_outer_to_inner"]),
                loops(level["spatial_outer_to_inner"]),
            )
            for level in case["mapping"]
        )
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_counts_are_timeloops(name: str) -> None:
    case = EXAMPLES[name]
    want = case["timeloop_link_off"]
    got = evaluate(problem_of(case), load_preset("simba-cosa-repo"), mapping_of(case))
    assert got.cycles == want["summary"]["cycles"]
    assert got.energy_pj / 1e6 == pytest.approx(want["summary"]["energy_uJ"], rel=2e-3, abs=0.006)
    mac = want["levels"]["MAC"]
    assert (got.num_units_used, got.compute_cycles) == (mac["utilized_instances"], mac["cycles"])
    assert got.mac_energy_pj == mac["energy_pJ_total"]
    seen = 0
    for level in got.levels:
        theirs = want["levels"][level.level]
        assert level.cycles == theirs["cycles"]
        assert set(level.tensors) == set(theirs["tensors"])
        for tensor, count in level.tensors.items():
            expected = theirs["tensors"][tensor]
            assert {f: getattr(count, f) for f in FIELDS} == {f: expected[k] for f, k in FIELDS.items()}
            assert count.energy_pj == pytest.approx(expected["energy_pJ_total"], rel=2e-3)
            seen += 1
    assert seen == 9


def simple(**loops: tuple[list[tuple[str, int]], list[tuple[str, int]]]) -> Mapping:
    return Mapping(
        tuple(
            LevelLoops(name, tuple(Loop(*x) for x in temporal), tuple(Loop(*x) for x in spatial))
            for name, (temporal, spatial) in loops.items()
        )
    )


@pytest.mark.parametrize(
    ("mapping", "error", "words"),
    [
        (simple(DRAM=([("K", 4), ("C", 16)], [])), UsageError, ["K", "4 of 8"]),
        (simple(DRAM=([("K", 8), ("Z", 2)], [])), UsageError, ["Z", "R, S, P"]),
        (simple(Dram=([("K", 8)], [])), MachineError, ["Dram", "DRAM"]),
        (simple(DRAM=([("K", 8), ("C", 8)], [("C", 2)])), InfeasibleMapping, ["DRAM", "2", "1"]),
        (simple(GlobalBuffer=([], [("K", 8), ("C", 16)])), InfeasibleMapping, ["GlobalBuffer", "128", "16"]),
        (
            simple(DRAM=([("C", 16)], []), Registers=([("K", 8)], [])),
            InfeasibleMapping,
            ["Registers", "Weights", "8 words", "1"],
        ),
        (simple(DRAM=([("K", 0), ("C", 16)], [])), UsageError, ["0", "K"]),
    ],
)  # fmt: skip
def test_impossible_mappings_say_what_is_wrong(mapping: Mapping, error: Any, words: list[str]) -> None:
    problem = convolution({"C": 16, "K": 8}, name="product")
    with pytest.raises(error) as caught:
        evaluate(problem, load_preset("simba-cosa-repo"), mapping)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rules_that_timeloop_lacks() -> None:
    machine = load_preset("simba-cosa-repo")
    problem = layer("1_14_8_8_2")
    mapping = simple(DRAM=([("C", 8), ("K", 8)], []), GlobalBuffer=([("P", 14), ("Q", 14)], []))
    counted, skipped = (
        evaluate(problem, machine, mapping, CostOptions(skips_pixels=s)) for s in (False, True)
    )
    tiles = [c.levels[1].tensors["Inputs"].tile_words for c in (counted, skipped)]
    assert tiles == [27 * 27, 14 * 14]
    full = simple(DRAM=([("C", 8), ("K", 8), ("Q", 2)], []), GlobalBuffer=([("P", 14), ("Q", 7)], []))
    evaluate(problem, machine, full, CostOptions(double_buffered=True))
    large = convolution({"P": 240, "Q": 200})
    whole = simple(DRAM=([], []), GlobalBuffer=([("P", 240), ("Q", 200)], []))
    with pytest.raises(InfeasibleMapping, match="96000 words"):
        evaluate(large, machine, whole)
    half = simple(DRAM=([("Q", 2)], []), GlobalBuffer=([("P", 240), ("Q", 100)], []))
    evaluate(large, machine, half)
    with pytest.raises(InfeasibleMapping, match="there are 32768"):
        evaluate(large, machine, half, CostOptions(double_buffered=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_laws_of_any_mapping(data: st.DataObject) -> None:
    """What enters a level covers its tensor; compute covers the work; bandwidth only ever adds cycles."""
    machine = load_preset("simba-cosa-repo")
    extents = {d: data.draw(st.sampled_from([1, 2, 3, 4, 6])) for d in "RSPQCKN"}
    problem = convolution(extents, stride=(1, 1))
    places: dict[str, list[tuple[str, int]]] = {}
    for dim, extent in extents.items():
        rest = extent
        for name in ("AccumulationBuffer", "InputBuffer", "GlobalBuffer"):
            factor = data.draw(st.sampled_from([f for f in (1, 2, 3) if rest % f == 0]))
            places.setdefault(name, []).append((dim, factor))
            rest //= factor
        places.setdefault("DRAM", []).append((dim, rest))
    mapping = simple(**{name: (data.draw(st.permutations(loops)), []) for name, loops in places.items()})
    try:
        cost = evaluate(problem, machine, mapping)
    except InfeasibleMapping:
        return
    assert cost.cycles >= cost.compute_cycles == problem.num_macs
    whole = {o.name: problem.num_words(o) for o in problem.operands}
    for level in cost.levels[1:]:
        for name, count in level.tensors.items():
            assert count.fills >= count.tile_words
            assert count.fills * count.num_instances >= whole[name] or name == "Outputs"
    assert cost.energy_pj > cost.mac_energy_pj > 0
