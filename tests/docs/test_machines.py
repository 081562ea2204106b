"""docs/machines.md is what the machine's parts say, and what it tells people to type works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.write_machines import EXAMPLE, document
from tests.support.cli import tilewright

from tilewright.hardware.diagnostic import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "machines.md"


def test_the_page_is_current() -> None:
    """Written anew by `python -m tests.docs.write_machines > docs/machines.md`."""
    assert PAGE.read_text() == document()


def test_every_key_of_every_part_is_explained() -> None:
    sections = re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)
    for word, part in PARTS.items():
        (section,) = [s for s in sections if s.startswith(f"{word.capitalize()}\n")]
        rows = re.findall(r"^\| `(\w+)` \| .+ \| .* \| (.+) \|$", section, flags=re.MULTILINE)
        assert {key for key, _ in rows} - {"source"} == set(part.model_fields)
        assert all(len(meaning.split()) >= 2 for _, meaning in rows)


def typed_commands() -> list[str]:
    blocks = re.findall(r"^```\n(tilewright.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


def test_what_it_says_to_type_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(typed_commands()) >= 4
    for command in typed_commands():
        words, _, to_file = command.removeprefix("tilewright ").partition(" > ")
        result = tilewright(*words.split())
        assert result.code == 0, result.err
        if to_file:
            Path(to_file.strip()).write_text(result.out)


def test_its_machine_is_one_that_layers_are_mapped_onto(tmp_path: Path) -> None:
    assert EXAMPLE in PAGE.read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(EXAMPLE)
    layer = tilewright("map", "3_14_256_256_1", "-t", path, "--json").document["layers"][0]
    assert layer["cycles"] >= layer["bound_cycles"] > 0
    assert layer["energy_pJ"] >= layer["bound_energy_pJ"] > 0
