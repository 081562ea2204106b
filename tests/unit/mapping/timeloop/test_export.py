"""What is written in Timeloop's format, and what that cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.timeloop import TWO_LEVELS, written

from tilewright.cost.bound import num_mac_units
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.errors import UsageError
from tilewright.hardware.machine import TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem, convolution, layer
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.cases import Case, load_cases
from tilewright.mapping.random import Random
from tilewright.mapping.timeloop import dump, load_architecture, load_mapping, load_problem, write
from tilewright.planning import Budget

EXAMPLES = Path(__file__).parents[3] / "data" / "mapping" / "timeloop_examples.json"
ODD = Problem(
    "odd",
    (("oc", 12), ("step", 5), ("x", 9), ("w", 3)),
    (
        Operand("Filter", TensorKind.WEIGHT, ((("oc", 1),), (("w", 1),))),
        Operand("In", TensorKind.INPUT, ((("x", 4), ("w", 7), ("step", 1)),)),
        Operand("Out", TensorKind.OUTPUT, ((("oc", 1),), (("x", 1),), (("step", 1),))),
    ),
)


def test_dims_get_a_letter_each(tmp_path: Path) -> None:
    """Timeloop's permutations name dims by one letter, so others are renamed, and a comment says how."""
    machine = load_preset("simba-cosa-repo")
    found = Random(num_valid=1).solve(MappingProblem(ODD, machine), Budget())
    assert isinstance(found, MappingSolution)
    texts = dump(ODD, machine, found.mapping)
    again = load_problem(written(tmp_path, texts["problem.yaml"]))
    letters = dict(zip(again.extents, ODD.extents, strict=True))
    assert all(len(letter) == 1 for letter in letters)
    assert all(f"# {a} is {b}:" in texts["problem.yaml"] for a, b in letters.items() if a != b)
    mapping = load_mapping(written(tmp_path, texts["map.yaml"]), again, machine)
    renamed = tuple(
        LevelLoops(
            loops.level,
            tuple(Loop(letters[x.dim], x.factor) for x in loops.temporal),
            tuple(Loop(letters[x.dim], x.factor) for x in loops.spatial),
        )
        for loops in mapping.levels
    )
    assert Mapping(renamed) == found.mapping
    assert evaluate(again, machine, mapping) == evaluate(ODD, machine, found.mapping)


def test_an_extent_that_the_mapping_pads_is_written_as_padded(tmp_path: Path) -> None:
    machine = parse_machine(TWO_LEVELS)
    prime = convolution({"K": 13, "C": 3})
    buffer = LevelLoops("Buffer", (Loop("K", 7),))
    mapping = Mapping((LevelLoops("Memory", (Loop("C", 3),), (Loop("K", 2),)), buffer))
    texts = dump(prime, machine, mapping)
    assert "# K is 13 in the layer; the mapping pads it to 14." in texts["problem.yaml"]
    again = load_problem(written(tmp_path, texts["problem.yaml"]))
    assert again.extents == prime.extents | {"K": 14}
    assert load_mapping(written(tmp_path, texts["map.yaml"]), again, machine) == mapping
    ours, theirs = evaluate(prime, machine, mapping), evaluate(again, machine, mapping)
    assert (ours.cycles, ours.levels) == (theirs.cycles, theirs.levels)


def test_two_loops_of_a_dim_at_one_level_are_one_or_an_error() -> None:
    machine = parse_machine(TWO_LEVELS)
    problem = convolution({"K": 8, "C": 3})

    def text(*loops: Loop) -> str:
        return dump(problem, machine, Mapping((LevelLoops("Memory", loops),)))["map.yaml"]

    assert "K=8" in text(Loop("K", 2), Loop("K", 4), Loop("C", 3))
    with pytest.raises(UsageError, match="level Memory: two separate loops of K"):
        text(Loop("K", 2), Loop("C", 3), Loop("K", 4))


def test_what_timeloop_cannot_say_is_a_comment() -> None:
    machine = load_preset("simba-cosa-repo")
    buffer = machine.level("GlobalBuffer").model_copy(update={"write_pj": 3.0})
    levels = tuple(buffer if level.name == buffer.name else level for level in machine.levels)
    text = dump(layer("1_1_1_1_1"), machine.model_copy(update={"levels": levels}), Mapping(()))["arch.yaml"]
    assert text.startswith("# A write to GlobalBuffer costs 3.0 pJ")


@pytest.mark.parametrize(
    ("dtype", "bits", "said"),
    [
        ("float16", 16, "# The multipliers take float16; here they are of integers as wide (int16).\n"),
        ("bfloat16", 16, "# The multipliers take bfloat16; here they are of integers as wide (int16).\n"),
        ("uint8", 8, "# The multipliers take uint8; here they are of integers as wide (int8).\n"),
        ("int8", 8, ""),
        ("int32", 32, ""),
    ],
)
def test_an_element_type_that_timeloop_has_no_word_for_is_a_comment(dtype: str, bits: int, said: str) -> None:
    text = TWO_LEVELS.replace("macs_per_cycle: {int8: 1}", f"macs_per_cycle: {{{dtype}: 1}}")
    assert dtype in text
    arch = dump(layer("1_1_1_1_1"), parse_machine(text), Mapping(()))["arch.yaml"]
    assert arch.split("arch:")[0] == said
    assert f"word-bits: {bits}\n  " in arch.split("storage")[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", load_cases(EXAMPLES), ids=lambda case: case.id)
def test_timeloops_own_results_survive_the_way_there_and_back(case: Case, tmp_path: Path) -> None:
    machine = load_preset("simba-cosa-repo")
    write(tmp_path, case.problem, machine, case.mapping)
    problem = load_problem(tmp_path / "problem.yaml")
    written = load_architecture(tmp_path / "arch.yaml", tmp_path / "map.yaml", problems=[problem])
    mapping = load_mapping(tmp_path / "map.yaml", problem, written)
    assert mapping == case.mapping
    for cost_options in (CostOptions(), CostOptions(link_transfers=True)):
        assert evaluate(problem, written, mapping, cost_options) == evaluate(
            case.problem, machine, case.mapping, cost_options
        )


def test_spatial_loops_where_nothing_fans_out_are_refused() -> None:
    machine = parse_machine(TWO_LEVELS)
    with pytest.raises(UsageError, match="level Buffer: spatial loops, but one instance feeds only one"):
        dump(convolution({"K": 2}), machine, Mapping((LevelLoops("Buffer", (), (Loop("K", 2),)),)))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: cannot be written: File exists") as caught:
        write(tmp_path / "file", convolution({}), load_preset("simba-cosa-repo"), Mapping(()))
    assert "\n" not in str(caught.value)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_one_that_timeloop_can_have(name: str, tmp_path: Path) -> None:
    machine, problem = load_preset(name), layer("1_8_16_16_1")
    found = Random(num_valid=1).solve(MappingProblem(problem, machine), Budget())
    assert isinstance(found, MappingSolution)
    write(tmp_path, problem, machine, found.mapping)
    written = load_architecture(tmp_path / "arch.yaml", tmp_path / "map.yaml", problems=[problem])
    mapping = load_mapping(tmp_path / "map.yaml", problem, written)
    assert mapping == found.mapping
    ours, theirs = evaluate(problem, machine, mapping), evaluate(problem, written, mapping)
    head = (tmp_path / "arch.yaml").read_text().split("arch:")[0]
    if "A write to" in head:
        assert ours.cycles == theirs.cycles
    else:
        assert (ours.cycles, ours.levels) == (theirs.cycles, theirs.levels)
    assert ours.utilization == theirs.utilization
    described = sum(machine.num_units(unit) for unit in machine.units if unit.kind in ("mac", "matrix"))
    assert ("compute units" in head) == (described not in (0, num_mac_units(machine)))
