"""`tilewright map` with Timeloop's files: in, out, and mistakes as one line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net
from tests.support.timeloop import FLAT, MAPPING, PROCESSED, PRODUCT, TWO_LEVELS, written

from tilewright.mapping.timeloop import FILES

EXAMPLES = Path(__file__).parents[1] / "data" / "mapping" / "timeloop_examples.json"


def test_cases_are_written_and_count_the_same_when_read(tmp_path: Path) -> None:
    cases = tilewright("map", "--evaluate", str(EXAMPLES), "--export-timeloop", str(tmp_path), "--json")
    assert cases.code == 0, cases.err
    for case in cases.document["cases"]:
        folder = tmp_path / case["id"].replace("/", "_")
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        arch, problem, maps = (str(folder / name) for name in FILES)
        again = tilewright("map", problem, "-t", arch, "--evaluate", maps, "--json")
        (found,) = again.document["cases"]
        assert (found["summary"], found["levels"]) == (case["summary"], case["levels"])


def test_what_was_found_is_written_for_each_layer(tmp_path: Path) -> None:
    layers = ["3_14_256_256_1", "K=13,C=8", "3_14_256_256_1"]
    new = tmp_path / "new"
    result = tilewright("map", *layers, "--mapper", "cosa", "--export-timeloop", str(new), "--json")
    assert result.code == 0, result.err
    assert {path.name for path in new.iterdir()} == set(layers)
    for layer in result.document["layers"]:
        folder = new / layer["name"]
        arch, problem, maps = (str(folder / name) for name in FILES)
        (again,) = tilewright("map", problem, "-t", arch, "--evaluate", maps, "--json").document["cases"]
        assert again["summary"]["energy_pJ"] == layer["energy_pJ"]
        assert again["levels"] == layer["levels"]


def test_a_model_gives_a_folder_for_each_distinct_node(tmp_path: Path) -> None:
    model, folder = tmp_path / "net.onnx", tmp_path / "x"
    onnx.save(small_net(), model)
    result = tilewright("map", str(model), "--mapper", "cosa", "--export-timeloop", str(folder), "--json")
    assert result.code == 0, result.err
    assert len(list(folder.rglob("map.yaml"))) == result.document["total"]["num_distinct"]


def test_a_file_that_has_it_all(tmp_path: Path) -> None:
    path = str(written(tmp_path, PROCESSED))
    refused = tilewright("map", path, "-t", path, "--mapper", "random", "--json")
    assert refused.code != 0
    assert "constraints: DRAM.order=*,N is kept by the mapper exact" in refused.err
    result = tilewright("map", path, "-t", path, "--mapper", "random", "--ignore-constraints", "--json")
    assert result.code == 0, result.err
    (layer,) = result.document["layers"]
    assert layer["dims"] == {"C": 3, "M": 32, "R": 3, "S": 3, "N": 1, "P": 112, "Q": 112}
    memories = {"DRAM", "shared_glb", "ifmap_spad", "weights_spad", "psum_spad"}
    assert layer["levels"].keys() == {"MAC"} | memories


def test_a_mapping_onto_a_machine_of_ours(tmp_path: Path) -> None:
    machine, problem = written(tmp_path, TWO_LEVELS, "m.yaml"), written(tmp_path, PRODUCT, "p.yaml")
    maps = written(tmp_path, MAPPING, "map.yaml")
    result = tilewright("map", str(problem), "-t", str(machine), "--evaluate", str(maps), "--json")
    assert result.code == 0, result.err
    (case,) = result.document["cases"]
    assert case["summary"]["cycles"] == 4 * 2 * 4 * 3  # all loops but the spatial one


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("3_7_8_8_1 --with flat.yaml", "flat.yaml goes with one of Timeloop's architectures, but simba-cosa"),
        ("3_7_8_8_1 -t ours.yaml --with flat.yaml", "ours.yaml is none"),
        ("--evaluate map.yaml", "needs its problem; give one YAML file"),
        ("3_7_8_8_1 --evaluate map.yaml", "needs its problem; give one YAML file"),
        ("product.yaml product.yaml --evaluate map.yaml", "needs its problem; give one YAML file"),
        ("ours.yaml", "ours.yaml: name: unknown section"),
        ("flat.yaml", "flat.yaml: there is no problem section"),
        ("3_7_8_8_1 -t product.yaml", "product.yaml: there is no architecture section"),
        ("missing.yaml", "missing.yaml: cannot be read: No such file"),
        ("product.yaml -t missing.yaml", "missing.yaml: cannot be read: No such file"),
        ("product.yaml -t flat.yaml --with missing.yaml", "missing.yaml: cannot be read: No such file"),
        ("product.yaml -t flat.yaml --with broken.yaml", "broken.yaml, line 1: "),
        (
            "product.yaml -t flat.yaml --evaluate map.yaml",
            "there is no level 'Memory'; known are DRAM",
        ),
        ("K=2 --mapper cosa --export-timeloop ours.yaml", "ours.yaml: cannot be written: File exists"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"flat": FLAT, "ours": TWO_LEVELS, "product": PRODUCT, "map": MAPPING, "broken": "mapping: ["}
    for name, text in texts.items():
        written(tmp_path, text, f"{name}.yaml")
    result = tilewright("map", *arguments.split())
    assert result.code == 2
    assert named in result.complaint
