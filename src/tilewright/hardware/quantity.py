"""Numbers with units as machine descriptions write them: `64KiB`, `27 GB/s`, `1.2 GHz`, `5 us`, `4.7 pJ`.

The key of every number names its unit (`capacity_bytes`, `clock_hz`); a value may be a plain number in that
unit, or text with a unit of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema


def _bytes_units() -> dict[str, float]:
    units = {"B": 1.0}
    for power, letter in enumerate("kMGT", start=1):
        units[f"{letter}B"] = 1000.0**power
        units[f"{letter.upper()}iB"] = 1024.0**power
    return units


_BYTES = _bytes_units()
UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": _BYTES,
    "bytes per second": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "hertz": {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    "nanoseconds": {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "picojoules": {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3, "uJ": 1e6},
    "watts": {"mW": 1e-3, "W": 1.0, "kW": 1e3},
    "a plain number": {},
}
_TEXT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")


def parse_quantity(value: object, kind: str) -> object:
    """The number that a value of a description stands for; other things pass for the schema to refuse.

    Raises:
        ValueError: text that is no number, or whose unit is of another kind.

    >>> parse_quantity("64 KiB", "bytes"), parse_quantity("1.2GHz", "hertz"), parse_quantity(5, "bytes")
    (65536, 1200000000, 5)
    """
    if isinstance(value, bool):
        raise ValueError("is true or false where a number is expected")
    if not isinstance(value, str):
        return value
    match = _TEXT.fullmatch(value)
    units = UNITS[kind]
    if match is None:
        raise ValueError(f"{value!r} is not a number")
    number, unit = match.groups()
    if unit and unit not in units:
        known = f"one of {', '.join(units)}" if units else "none"
        raise ValueError(f"{value!r} has the unit {unit!r}; expected {known}")
    result = float(number) * units.get(unit, 1.0)
    return int(result) if result.is_integer() else result


def _before(kind: str) -> BeforeValidator:
    def validate(value: object) -> object:
        return parse_quantity(value, kind)

    return BeforeValidator(validate)


def _json(number: Mapping[str, Any], kind: str) -> WithJsonSchema:
    """A number in the key's unit, text with a unit, or either of them with its source."""
    text = {"type": "string", "pattern": _TEXT.pattern.replace("\\s*", " *")}
    plain = [dict(number), text]
    cited = {
        "type": "object",
        "properties": {"value": {"anyOf": plain}, "source": {"type": "string"}},
        "required": ["value", "source"],
        "additionalProperties": False,
    }
    return WithJsonSchema({"anyOf": [*plain, cited], "description": f"In {kind}, or text with a unit."})


MAX_COUNT = 10**9
MAX_BYTES = 1 << 60
MAX_NUMBER = 1e24
"""Larger numbers are mistakes, and would overflow what is computed from them."""

_MORE_THAN_ZERO = Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)
_NOT_LESS_THAN_ZERO = Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)
_POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_NUMBER}
_NOT_NEGATIVE = {"type": "number", "minimum": 0, "maximum": MAX_NUMBER}


def _integer(maximum: int) -> dict[str, Any]:
    return {"type": "integer", "exclusiveMinimum": 0, "maximum": maximum}


Count = Annotated[
    int,
    _before("a plain number"),
    Field(gt=0, le=MAX_COUNT),
    _json(_integer(MAX_COUNT), "a plain number"),
]
Bytes = Annotated[int, _before("bytes"), Field(gt=0, le=MAX_BYTES), _json(_integer(MAX_BYTES), "bytes")]
Number = Annotated[float, _before("a plain number"), _MORE_THAN_ZERO, _json(_POSITIVE, "a plain number")]
NotNegative = Annotated[
    float, _before("a plain number"), _NOT_LESS_THAN_ZERO, _json(_NOT_NEGATIVE, "a plain number")
]
BytesPerSecond = Annotated[
    float, _before("bytes per second"), _MORE_THAN_ZERO, _json(_POSITIVE, "bytes per second")
]
Hertz = Annotated[float, _before("hertz"), _MORE_THAN_ZERO, _json(_POSITIVE, "hertz")]
Watts = Annotated[float, _before("watts"), _MORE_THAN_ZERO, _json(_POSITIVE, "watts")]
Nanoseconds = Annotated[
    float, _before("nanoseconds"), _NOT_LESS_THAN_ZERO, _json(_NOT_NEGATIVE, "nanoseconds")
]
Picojoules = Annotated[float, _before("picojoules"), _NOT_LESS_THAN_ZERO, _json(_NOT_NEGATIVE, "picojoules")]
Flag = StrictBool
