"""Targets as people name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import tilewright

from tilewright.errors import UsageError
from tilewright.options import Options
from tilewright.target_ref import CPU, TargetRef


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("cpu", "cpu"),
        ("host", "cpu"),
        (" host { barriers = strict } ", "cpu{barriers=strict}"),
        ("stcp920{overlap=none,mapper=cosa}", "stcp920{overlap=none, mapper=cosa}"),
        (Path("machines/chip.yaml"), "machines/chip.yaml"),
    ],
)
def test_a_target_is_printed_as_it_is_read_again(text: str | Path, printed: str) -> None:
    target = TargetRef.parse(text)
    assert str(target) == printed
    assert TargetRef.parse(printed) == target == TargetRef.parse(target)
    assert Options(target=str(text)).target == target  # type: ignore[arg-type]  # as the command line gives it


@pytest.mark.parametrize("text", ["", "cpu{", "a\0b", "cpu{barriers}", "cpu}", "\ud800"])
def test_other_texts_are_refused_where_a_request_is_made(text: str) -> None:
    with pytest.raises(UsageError):
        Options(target=text)  # type: ignore[arg-type]  # as above


def test_a_reference_says_what_it_names() -> None:
    cpu, chip, preset, unknown = map(TargetRef.parse, ("cpu{barriers=strict}", "a/b.yaml", "eyeriss", "moon"))
    assert (cpu.is_cpu, cpu.is_machine, cpu == CPU) == (True, False, False)
    assert all(target.is_machine for target in (chip, preset, unknown))
    assert [t.is_known_machine for t in (chip, preset, unknown)] == [True, True, False]
    assert preset.with_options(overlap="none") == TargetRef.parse("eyeriss{overlap=none}")


def test_what_is_written_of_a_request_has_the_text_of_its_target() -> None:
    options = Options(target=TargetRef.parse("stcp920{overlap=none}"))
    assert json.loads(options.to_json())["target"] == "stcp920{overlap=none}"
    schema = json.loads(tilewright("schema", "options").out)
    assert schema["properties"]["target"].items() >= {"type": "string", "default": "cpu"}.items()
    assert "TargetRef" not in schema["$defs"]
