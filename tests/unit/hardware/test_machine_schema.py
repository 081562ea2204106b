"""The JSON Schema of machine files: what the parser takes it takes, and what editors show is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tilewright
from tilewright.errors import MachineError
from tilewright.hardware.diagnostic import PARTS
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.machine_schema import machine_schema
from tilewright.hardware.presets import preset_names, preset_text

SCHEMA = machine_schema()
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def violations(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where a document departs from a schema; knows the keywords of JSON Schema that ours uses."""
    unknown = set(schema) - {
        "$ref", "$defs", "$schema", "anyOf", "type", "enum", "properties", "required", "items", "prefixItems",
        "additionalProperties", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum",
        "maximum", "exclusiveMinimum", "description", "default", "title", "const",
    }  # fmt: skip
    assert not unknown, unknown
    if "$ref" in schema:
        yield from violations(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], path)
    if "anyOf" in schema and all(any(violations(value, choice)) for choice in schema["anyOf"]):
        yield f"{path}: fits no choice"
    kind = schema.get("type")
    if kind is not None and (
        not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        yield f"{path}: is no {kind}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{path}: is not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not in {schema['enum']}"
    match value:
        case dict():
            properties = schema.get("properties", {})
            yield from (f"{path}.{key}: is missing" for key in schema.get("required", ()) if key not in value)
            for key, inner in value.items():
                rest = schema.get("additionalProperties", True)
                if key in properties:
                    yield from violations(inner, properties[key], f"{path}.{key}")
                elif rest is False:
                    yield f"{path}.{key}: unknown"
                elif isinstance(rest, dict):
                    yield from violations(inner, rest, f"{path}.{key}")
        case list():
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                yield f"{path}: has {len(value)} items"
            for number, inner in enumerate(value):
                first = schema.get("prefixItems", [])
                item = first[number] if number < len(first) else schema.get("items", {})
                yield from violations(inner, item, f"{path}[{number}]")
        case str():
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
                yield f"{path}: has {len(value)} characters"
            if "pattern" in schema and re.search(schema["pattern"], value) is None:
                yield f"{path}: {value!r} does not match"
        case int() | float():
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                yield f"{path}: {value} is out of range"
            if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
                yield f"{path}: {value} is out of range"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_it(name: str) -> None:
    assert list(violations(yaml.safe_load(preset_text(name)), SCHEMA)) == []


STCP920 = preset_text("stcp920")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("capacity_bytes: 8 MiB", "capacity_bytes: 8 MiB/s"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: -8 MiB"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: [8]"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: 0"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: true"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: 1.5"),
        ("capacity_bytes: 8 MiB", "capacity_bytes: {value: 8 MiB}"),
        ("capacity_bytes: 8 MiB", "capacity_byte: 8 MiB"),
        ("capacity_bytes: 8 MiB", "capacity_bytes:"),
        ("value: 1 GHz", "value: 1 GB"),
        ("has_shared_port: true", "has_shared_port: maybe"),
        ("kind: matrix", "kind: tensor"),
        ("tile: [64, 32]", "tile: [64, 0]"),
        ("{float16: 2048, int8: 4096}", "{float15: 2048}"),
        ("{float16: 2048, int8: 4096}", "2048"),
        ("runs: [contraction]", "runs: contraction"),
        ("runs: [contraction]", "runs: [contractions]"),
        ("efficiency: {value: 0.85", "efficiency: {value: 85"),
        ("between: [L1, LLB]", "between: [L1]"),
        ("name: stcp920", "title: stcp920"),
        ("name: stcp920", "name: 920"),
        ("shape: [4, 4]", "shape: 4"),
    ],
)
def test_what_it_refuses_the_parser_refuses_too(old: str, new: str) -> None:
    assert old in STCP920
    text = STCP920.replace(old, new, 1)
    assert list(violations(yaml.safe_load(text), SCHEMA))
    with pytest.raises(MachineError):
        parse_machine(text)


def test_it_has_every_key_of_every_part_with_a_text_and_no_others() -> None:
    parts = {part.__name__: part for part in PARTS.values()}
    for name, part in parts.items():
        schema = SCHEMA if name == "Machine" else SCHEMA["$defs"][name]
        own = set(schema["properties"]) - ({"source"} if name != "Machine" else set())
        assert own == set(part.model_fields)
        assert all(value.get("description") for value in schema["properties"].values())
        assert schema["additionalProperties"] is False
    assert SCHEMA["$schema"].endswith("2020-12/schema")
    assert SCHEMA["required"] == ["name", "levels", "units"]


# Keys that nothing computes with: facts for readers, and what no estimate counts yet.
FOR_PEOPLE = {"line_bytes", "max_power_w", "description"}
NOT_MODELLED = {"copy_setup_ns"}


def test_every_key_is_read_by_something_that_computes() -> None:
    """A key that is accepted and passed over misleads who wrote it."""
    package = Path(tilewright.__file__).parent
    paths = (path for path in sorted(package.rglob("*.py")) if package / "cli" not in path.parents)
    text = "\n".join(path.read_text() for path in paths)
    read = set(re.findall(r"\.(\w+)", text))
    unread = {key for part in PARTS.values() for key in part.model_fields if key not in read}
    assert unread <= FOR_PEOPLE | NOT_MODELLED
