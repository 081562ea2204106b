"""The JSON Schema of a machine file, for editors that complete and validate while one writes.

It describes the file, not the object: numbers may be texts with a unit or carry their source, so may tables,
lists of numbers and choices, and every part may have a `source`. What only the whole shows (names of levels,
sources of energies) is checked by `machine_file.py` alone.
"""

from __future__ import annotations

from typing import Any

from tilewright.hardware.machine import Machine
from tilewright.hardware.quantity import QUANTITIES, quantity_schema
from tilewright.ir.dtype import DType

_NUMBER = {"$ref": "#/$defs/Number"}
_TABLES: dict[str, dict[str, Any]] = {
    "PerDType": {
        "type": "object",
        "properties": {str(dtype): _NUMBER for dtype in DType},
        "additionalProperties": False,
    },
    "PerOperator": {"type": "object", "additionalProperties": _NUMBER},
}
_CITE = {"type": "string", "description": "Where the number comes from."}
_CITE_PART = "Where the numbers of this part come from that do not say it themselves."


def machine_schema() -> dict[str, Any]:
    """JSON Schema of a machine description: draft 2020-12, self-contained."""
    schema = Machine.model_json_schema()
    parts = [schema, *(part for part in schema["$defs"].values() if part["type"] == "object")]
    for part in parts:
        part["properties"] = {key: _property(value) for key, value in part["properties"].items()}
        if part is not schema:
            part["properties"]["source"] = {"type": "string", "description": _CITE_PART}
            part.pop("title", None)
    for name, quantity in QUANTITIES.items():
        plain = quantity_schema(quantity)
        schema["$defs"][name] = {
            "description": plain.pop("description"),
            "anyOf": [*plain["anyOf"], _cited(plain)],
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _property(value: dict[str, Any]) -> dict[str, Any]:
    """A key's schema, its text in front; tables, lists of numbers and choices may carry their source."""
    text = {key: value[key] for key in ("description", "default") if value.get(key) is not None}
    plain = _plain(value)
    holds_numbers = plain.get("items") == {"$ref": "#/$defs/Count"} or plain.get("type") == "number"
    if value.get("$comment") in _TABLES or holds_numbers or "enum" in plain:
        return {**_joined(text), "anyOf": [plain, _cited(plain)]}
    return {**_joined(text), **plain}


def _joined(text: dict[str, Any]) -> dict[str, Any]:
    return {k: " ".join(v.split()) if k == "description" else v for k, v in text.items()}


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Without titles, defaults, texts and null (which a file may not hold); numbers by their definition."""
    name = value.get("$comment")
    if name in QUANTITIES:
        return {"$ref": f"#/$defs/{name}"}
    if name in _TABLES:
        return _TABLES[name]
    if "anyOf" in value:
        (only,) = [choice for choice in value["anyOf"] if choice.get("type") != "null"]
        return _plain(only)
    plain = {k: v for k, v in value.items() if k not in ("title", "default", "description")}
    for key in ("items", "prefixItems"):
        if isinstance(plain.get(key), dict):
            plain[key] = _plain(plain[key])
        elif isinstance(plain.get(key), list):
            plain[key] = [_plain(item) for item in plain[key]]
    return plain


def _cited(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"value": value, "source": _CITE},
        "required": ["value", "source"],
        "additionalProperties": False,
    }
