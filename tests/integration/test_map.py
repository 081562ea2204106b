"""`tilewright map`: layers mapped, given mappings counted; as documents, as tables, as errors of one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net
from tests.support.pictures import marks, own_text, pictures

from tilewright.cli.schemas import violations
from tilewright.cost.nest_analysis import evaluate
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.presets import load_preset
from tilewright.mapping.cases import load_cases

pytestmark = pytest.mark.sampled(24)

EXAMPLES = Path(__file__).parents[1] / "data" / "mapping" / "timeloop_examples.json"


def report(*arguments: str) -> dict[str, Any]:
    result = tilewright("map", *arguments, "--json")
    assert result.code == 0, result.err
    document: dict[str, Any] = json.loads(result.out)
    assert violations(document) == []
    return document


def test_given_mappings_are_counted_as_timeloop_does() -> None:
    document = report("--evaluate", str(EXAMPLES), "-t", "simba-cosa-repo", "--no-link-transfers")
    cases = {case["id"]: case for case in json.loads(EXAMPLES.read_text())["cases"]}
    assert [case["id"] for case in document["cases"]] == list(cases)
    for found in document["cases"]:
        want = cases[found["id"]]["timeloop_link_off"]
        assert found["summary"]["cycles"] == want["summary"]["cycles"]
        assert found["summary"]["energy_uJ"] == pytest.approx(
            want["summary"]["energy_uJ"], rel=2e-3, abs=0.005
        )
        assert found["levels"].keys() == want["levels"].keys()
        for level, counts in want["levels"].items():
            for tensor, numbers in counts.get("tensors", {}).items():
                ours = found["levels"][level]["tensors"][tensor]
                for key in ("tile_words", "instances", "reads_per_instance", "fills_per_instance"):
                    assert ours[key] == numbers[key], (found["id"], level, tensor, key)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mapper", ["cosa", "cosa-paper"])
def test_a_printed_mapping_costs_what_was_printed(mapper: str, tmp_path: Path) -> None:
    document = report("3_14_256_256_1", "K=64,C=3,P=112,Q=112,R=7,S=7,stride=2", "--mapper", mapper)
    path = tmp_path / "cases.json"
    layers = document["layers"]
    path.write_text(json.dumps({"cases": [{**layer, "id": layer["name"]} for layer in layers]}))
    machine = load_preset("simba-cosa-repo")
    for layer, case in zip(layers, load_cases(path), strict=True):
        cost = evaluate(case.problem, machine, case.mapping)
        assert (layer["cycles"], layer["energy_pJ"]) == (cost.cycles, cost.energy_pj)
        assert layer["cycles"] >= layer["bound_cycles"] > 0
        assert layer["energy_pJ"] >= layer["bound_energy_pJ"] > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["simba-cosa-repo", "k80"])
@pytest.mark.parametrize("mapper", ["random", "hybrid"])
def test_a_budget_of_trials_is_how_many_mappings_are_looked_at(mapper: str, target: str) -> None:
    """Over all sizes of blocks together, on a GPU."""

    def answer(trials: int) -> dict[str, Any]:
        arguments = ("--mapper", mapper, "-t", target, "--budget", f"{trials}trials")
        (layer,) = report("1_14_64_64_1", *arguments)["layers"]
        return {**layer, "seconds": 0}

    found = answer(9)
    counts = re.findall(r"(\d+) (?:mappings of \d+ )?legal", found["note"])
    assert sum(map(int, counts)) <= 9
    assert answer(9) == found
    assert answer(900)["cycles"] < found["cycles"]


def test_people_see_a_table_and_the_loops() -> None:
    result = tilewright("map", "3_7_512_512_1", "--mapper", "cosa")
    assert result.code == 0
    assert "245,607" in result.out
    assert "spatial" in result.out


def test_an_impossible_mapping_is_said_beside_the_others(tmp_path: Path) -> None:
    cases = json.loads(EXAMPLES.read_text())["cases"][:2]
    cases[0]["mapping"][-2]["temporal_outer_to_inner"].append(["Q", 1000])
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": cases}))
    first, second = report("--evaluate", str(path))["cases"]
    assert "AccumulationBuffer" in first["error"]
    assert first["summary"] is None
    assert second["error"] is None


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_only_impossible_mappings_are_an_error(tmp_path: Path, flags: tuple[str, ...]) -> None:
    cases = json.loads(EXAMPLES.read_text())["cases"][:2]
    for case in cases:
        case["mapping"][-2]["temporal_outer_to_inner"].append(["Q", 1000])
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": cases}))
    result = tilewright("map", "--evaluate", str(path), *flags)
    assert result.code == InfeasibleMapping.exit_code
    assert "AccumulationBuffer" in result.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "nothing to map"),
        ("3_14_256_256", "R_P_C_K_stride"),
        ("3_14_256_0_1", "at least 1"),
        ("K=64,Z=3", "'Z'"),
        ("K=64,K=3", "each once"),
        ("C=9999999999999", "at most 1099511627776"),
        ("K=x", "K=x"),
        ("1_1_1_1_1 --mapper cossa", "cosa"),
        ("1_1_1_1_1 --objective delay", "latency"),
        ("1_1_1_1_1 -t simba-cosa-rep", "simba-cosa-repo"),
        ("1_1_1_1_1 -t missing.yaml", "missing.yaml"),
        ("1_1_1_1_1 --budget 0s", "0s"),
        ("--evaluate missing.json", "missing.json"),
        ("1_1_1_1_1 --evaluate missing.json", "leave out the layers"),
        ("1_1_1_1_1 --budget 50trials", "exact does not try mappings one by one"),
        ("1_1_1_1_1 --budget 50trials --mapper cosa", "(hybrid, random)"),
        ("--evaluate x.json --mapper cosa", "--mapper has no effect beside --evaluate"),
        ("--evaluate x.json --mapper exact", "--mapper has no effect beside --evaluate"),
        ("--evaluate x.json --objective energy", "--objective has no effect beside --evaluate"),
        ("--evaluate x.json --budget 2s", "--budget has no effect beside --evaluate"),
        ("--evaluate x.json --shapes x:1", "--shapes has no effect beside --evaluate"),
        ("--evaluate x.json --sweep levels.DRAM.read_pj=1", "--sweep has no effect beside --evaluate"),
        ("--evaluate x.json --plot x.html", "--plot has no effect beside --evaluate"),
        ("1_1_1_1_1 --sweep levels.DRAM.read_pj=1 --noc", "--noc has no effect beside --sweep"),
        (
            "1_1_1_1_1 --sweep levels.DRAM.read_pj=1 --export-timeloop x",
            "--export-timeloop has no effect beside --sweep",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: str, named: str) -> None:
    result = tilewright("map", *arguments.split())
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert named in result.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not JSON"),
        ("[]", "the document"),
        ('{"cases": [{"id": "a"}]}', "cases.0.dims"),
        ('{"cases": [{"id": "a", "dims": {"K": 0}, "mapping": []}]}', "cases.0.dims.K"),
        ('{"cases": [{"id": "a", "dims": {"X": 2}, "mapping": []}]}', "'X'"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_file_of_cases_is_one_line(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    result = tilewright("map", "--evaluate", str(path))
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert named in result.err
    assert str(path) in result.err


def test_a_model_is_mapped_node_by_node_equal_ones_once(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path)
    document = report(str(path), "--mapper", "cosa")
    assert [layer["operator"] for layer in document["layers"]] == ["Conv", "Conv", "Gemm"]
    total = document["total"]
    for key in ("macs", "cycles", "energy_pJ", "bound_cycles"):
        assert total[key] == pytest.approx(sum(layer[key] for layer in document["layers"]))
    assert {node["operator"] for node in document["streamed"]} == {"Relu", "Add", "GlobalAveragePool"}
    name = document["layers"][1]["name"]
    (one,) = report(f"{path}:{name}", "--mapper", "cosa")["layers"]
    assert {**one, "seconds": 0} == {**document["layers"][1], "seconds": 0}
    twice = report(str(path), str(path), "--mapper", "cosa")["total"]
    assert twice["cycles"] == 2 * total["cycles"]
    assert twice["num_distinct"] == total["num_distinct"] == 3


def test_a_node_that_is_not_there_lists_some_that_are(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path)
    result = tilewright("map", f"{path}:classifier")
    assert result.code == 2
    assert "'classifier'" in result.err
    assert "classify" in result.err
    assert str(path) in result.err


def test_a_sweep_maps_onto_every_combination_and_marks_what_no_other_beats(tmp_path: Path) -> None:
    plot = tmp_path / "sweep.html"
    document = report(
        "3_14_64_64_1",
        *("--sweep", "levels.GlobalBuffer.capacity=4KiB,64KiB"),
        *("--sweep", "levels.DRAM.read_bytes_per_cycle=1,10"),
        *("--plot", str(plot)),
    )
    assert document["axes"] == ["levels.GlobalBuffer.capacity_bytes", "levels.DRAM.read_bytes_per_cycle"]
    rows = {tuple(row["values"]): row for row in document["variants"]}
    assert list(rows) == [("4KiB", "1"), ("4KiB", "10"), ("64KiB", "1"), ("64KiB", "10")]
    (plain,) = report("3_14_64_64_1")["layers"]
    assert rows["64KiB", "10"]["total"]["cycles"] == plain["cycles"]
    assert rows["64KiB", "10"]["total"]["energy_pJ"] == plain["energy_pJ"]
    figures = {
        key: (row["total"]["cycles"], row["total"]["energy_pJ"], row["area_mm2"]) for key, row in rows.items()
    }
    for key, own in figures.items():
        as_good = [f for f in figures.values() if all(a <= b for a, b in zip(f, own, strict=True))]
        assert rows[key]["is_best"] is (set(as_good) == {own})
    drawn = plot.read_text()
    dots = [found["num"] for picture in pictures(drawn) for found in marks(picture, "dot")]
    assert dots == [4] * 9, "each two of three figures, and each over what is swept, of four variants"
    assert "http" not in own_text(drawn), "the page needs no network"


@pytest.mark.parametrize("mapper", ["cosa", "exact", "random"])
def test_of_several_layers_the_one_that_does_not_fit_is_named(mapper: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    levels = "{name: Buffer, capacity_bytes: 64}, {name: Memory, capacity_bytes: 100}"
    unit = "{name: mac, kind: mac, macs_per_cycle: {int8: 1}}"
    path.write_text(f"name: small\nlevels: [{levels}]\nunits: [{unit}]\n")
    result = tilewright("map", "1_1_2_2_1", "1_1_10_9_1", "-t", str(path), "--mapper", mapper)
    assert result.code == 3
    assert result.complaint.startswith(
        "layer 1_1_10_9_1 on small: level Memory: Weights, Inputs and Outputs need"
    )
    assert len(result.err.splitlines()) == 1


def test_a_variant_without_room_is_a_row_not_the_end() -> None:
    document = report("1_1_4_4_1", "--sweep", "levels.AccumulationBuffer.capacity_bytes=2,192")
    first, second = document["variants"]
    assert "AccumulationBuffer" in first["error"]
    assert first["total"] is None
    assert second["error"] is None


@pytest.mark.parametrize(
    ("axis", "named"),
    [
        ("levels.GlobalBufer.capacity=1KiB", "GlobalBuffer"),
        ("levels.GlobalBuffer.size=1KiB", "size"),
        ("level.GlobalBuffer.capacity=1KiB", "levels"),
        ("levels.GlobalBuffer.capacity", "expected a path"),
        ("levels.GlobalBuffer.capacity=", "expected a path"),
        (
            "levels.GlobalBuffer.capacity=1KiB --sweep levels.GlobalBuffer.capacity_bytes=2KiB,4KiB",
            "in one sweep, levels.GlobalBuffer.capacity_bytes=1KiB,2KiB,4KiB",
        ),
        ("levels.GlobalBuffer.capacity=1KiX", "levels[4].capacity_bytes"),
        ("levels.GlobalBuffer.read=8", "read_bytes_per_cycle or read_pj"),
        ("levels.GlobalBuffer.num_instances_per_parent=0", "write more than 0"),
        ("levels.GlobalBuffer.word_bits.y=2", "set it in the machine file"),
        ("threads.max_per_block=4", "set it in the machine file"),
        ("sources.levels.capacity_bytes=4", "it has no parts"),
    ],
)
def test_a_wrong_sweep_says_what_is_there(axis: str, named: str) -> None:
    result = tilewright("map", "1_1_4_4_1", "--sweep", *axis.split())
    assert result.code != 0
    assert named in result.err
    assert result.err.strip().count("\n") <= 1


def test_mappings_are_simulated_on_the_network() -> None:
    document = report("1_14_64_64_1", "1_14_64_64_1", "--mapper", "cosa", "--noc")
    first, second = document["layers"]
    assert first["noc"] == second["noc"]
    noc = first["noc"]
    assert noc["cycles"] == noc["compute_cycles"] + sum(noc["wait_cycles"].values())
    assert noc["compute_cycles"] == first["compute_cycles"]
    assert len(noc["link_flits"]) == 16
    given = report("--evaluate", str(EXAMPLES), "--noc")["cases"]
    assert all(case["noc"]["cycles"] >= case["summary"]["cycles"] > 0 for case in given)
    table = tilewright("map", "1_14_64_64_1", "--mapper", "cosa", "--noc")
    assert "on the network, cycle by cycle: a mesh as in CoSA's paper" in table.out
    assert f"{noc['cycles']:,}" in table.out
    assert noc["hop_energy_pJ"] == 0
    refused = tilewright("map", "1_14_64_64_1", "-t", "eyeriss", "--mapper", "cosa", "--noc")
    assert refused.code == 2
    assert "its network 'bus' is a bus; the simulator knows meshes" in refused.err
    # Of a machine whose part is mapped onto, too, the network is not taken for another.
    refused = tilewright("map", "1_14_64_64_1", "-t", "stcp920", "--mapper", "cosa", "--noc")
    assert "its network 'cluster' is a crossbar" in refused.err
    refused = tilewright("map", "1_14_64_64_1", "-t", "k80", "--mapper", "cosa", "--noc")
    assert "noc: blocks of threads on k80 have no mesh" in refused.err


def test_hops_with_an_energy_are_in_the_table(tmp_path: Path) -> None:
    text = tilewright("targets", "simba-cosa-paper").out
    path = tmp_path / "mesh.yaml"
    path.write_text(text.replace("flit_bytes: 8\n", "flit_bytes: 8\n    hop_pj_per_byte: 2\n"))
    arguments = ("1_14_64_64_1", "-t", str(path), "--mapper", "cosa", "--noc")
    (layer,) = report(*arguments)["layers"]
    (plain,) = report(*arguments[:1], "-t", "simba-cosa-paper", *arguments[3:])["layers"]
    assert layer["noc"]["hop_energy_pJ"] > 0 == plain["noc"]["hop_energy_pJ"]
    assert layer["noc"]["cycles"] == plain["noc"]["cycles"]
    assert layer["energy_pJ"] == plain["energy_pJ"]
    table = tilewright("map", *arguments).out
    assert f"{layer['noc']['hop_energy_pJ'] / 1e6:,.2f} µJ" in table
    assert "cycle by cycle: mesh" in table
