"""`tilewright targets` and described machines: listed, printed to start from, shown, and each mapped onto."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset, preset_names, preset_text


def test_machines_are_listed_beside_targets() -> None:
    document = tilewright("targets", "--json").document
    assert [m["name"] for m in document["machines"]] == list(preset_names())
    assert all(m["about"] for m in document["machines"])
    text = tilewright("targets").out
    assert all(name in text for name in preset_names())


def test_a_machine_is_printed_as_the_file_it_is() -> None:
    assert tilewright("targets", "k80").out == preset_text("k80")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", preset_names())
def test_a_table_shows_every_part_and_every_source(name: str) -> None:
    machine = load_preset(name)
    text = tilewright("targets", name, "--table").out
    words = " ".join(text.split())
    names = [level.name for level in machine.levels] + [unit.name for unit in machine.units]
    for part in (*names, *(network.name for network in machine.networks)):
        assert part in words
    for path in machine.sources:
        assert f" {path} " in text


def test_the_document_cites_every_number() -> None:
    document = tilewright("targets", "stcp920", "--json").document
    assert Machine.model_validate(document["machine"]).levels == load_preset("stcp920").levels
    assert len(document["numbers"]) > 50
    assert all(n["source"] for n in document["numbers"])
    by_path = {n["path"]: n for n in document["numbers"]}
    assert by_path["levels[1].capacity_bytes"]["value"] == 8 << 20


def test_a_file_of_ones_own_is_checked_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(preset_text("eyeriss").replace("name: eyeriss", "name: mine"))
    assert "mine: Eyeriss" in tilewright("targets", path, "--table").out
    assert parse_machine(tilewright("targets", path).out).name == "mine"
    path.write_text(path.read_text().replace("word_bits", "word_bit", 1))
    result = tilewright("targets", path)
    assert result.code == 2
    assert result.complaint == f"{path}: levels[0].word_bit: unknown key; did you mean word_bits."


def test_this_machine_as_a_table() -> None:
    assert "DRAM" in tilewright("targets", "host", "--table").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("targets", "stcp921"), ("'stcp921'", "did you mean stcp920")),
        (("targets", "cpu", "--table"), ("--table is for machines",)),
        (("targets", "--table"), ("--table is for machines",)),
        (("targets", "none.yaml"), ("none.yaml", "No such file")),
        (("map", "1_1_1_1_1", "-t", "stcp921"), ("'stcp921'", "did you mean stcp920")),
    ],
)
def test_what_is_no_machine_is_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = tilewright(*arguments)
    assert result.code == 2
    assert all(word in result.complaint for word in words)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", preset_names())
def test_every_machine_takes_a_layer(name: str) -> None:
    result = tilewright("map", "3_14_64_64_1", "-t", name, "--mapper", "cosa", "--json")
    assert result.code == 0, result.err
    (layer,) = result.document["layers"]
    assert layer["cycles"] >= layer["bound_cycles"] > 0
    assert layer["energy_pJ"] >= layer["bound_energy_pJ"] > 0
    assert 0 < layer["utilization"] <= 1


def test_a_part_of_a_machine_is_named() -> None:
    text = tilewright("map", "3_14_64_64_1", "-t", "stcp920", "--mapper", "cosa").out
    assert "mapped onto one of 4 DDR with 16,384 multiply-accumulates of float16 per cycle by MME" in text
    assert "mapped onto" not in tilewright("map", "3_14_64_64_1", "--mapper", "cosa").out


def test_a_machine_without_units_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "memory.yaml"
    path.write_text("name: memory\nlevels: [{name: DRAM}]\nunits: []\n")
    result = tilewright("map", "3_14_64_64_1", "-t", path)
    assert result.code == 2
    assert "units: none multiplies and accumulates" in result.complaint


def test_the_host_is_a_machine_as_others_are(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(tilewright("targets", "host").out)
    for name in (path, "host"):
        mapped = tilewright("map", "1_4_4_4_1", "-t", name, "--mapper", "cosa")
        assert "multiply-accumulates of float32 per cycle by vector" in mapped.out
    assert "instructions" in tilewright("targets", "host", "--table").out


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["stcp920", "stcp920-paper", "ascend910", "a310", "ipu-mk1", "ipu-mk2", "goya"]
)
def test_accelerators_with_scratchpads_of_their_cores_simulate_networks(name: str, tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "small.onnx")
    lowered = ["--dtype", "int8"] if name == "goya" else []  # which multiplies integers only
    asked = [tmp_path / "small.onnx", "-t", name, "--recipe", "graphturbo", *lowered]
    result = tilewright("simulate", *asked, "--json")
    assert result.code == 0, result.err
    assert result.document["time_s"] >= result.document["lower_bound_s"] > 0


@pytest.mark.sampled(0)
def test_a_mapping_onto_a_gpu_says_how_it_is_launched(tmp_path: Path) -> None:
    result = tilewright("map", "3_14_64_64_1", "-t", "k80", "--mapper", "cosa-paper", "--json")
    (layer,) = result.document["layers"]
    block = layer["block"]
    assert block["num_threads"] <= 1024
    assert block["shared_bytes"] <= 48 << 10
    assert block["num_threads"] * block["registers_per_thread"] * 4 <= 64 << 10
    assert "multiprocessors" in result.document["mapped_onto"]
    # Given back, the mapping costs the same.
    case = {"id": "one", "dims": layer["dims"], "stride": layer["stride"], "mapping": layer["mapping"]}
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps({"cases": [case]}))
    (again,) = tilewright("map", "--evaluate", cases, "-t", "k80", "--json").document["cases"]
    assert (again["error"], again["summary"]["cycles"]) == (None, layer["cycles"])
    text = tilewright("map", "3_14_64_64_1", "-t", "k80", "--mapper", "cosa-paper").out
    assert "registers per thread" in text
    assert "threads (x = " in text
    refused = tilewright("map", "3_14_64_64_1", "-t", "k80", "--export-timeloop", tmp_path)
    assert refused.code == 2
    assert "blocks of threads" in refused.complaint


def test_other_machines_have_no_blocks() -> None:
    (layer,) = tilewright("map", "1_1_8_8_1", "--mapper", "cosa", "--json").document["layers"]
    assert layer["block"] is None
