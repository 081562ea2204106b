"""Numbers with units as machine descriptions write them: `64KiB`, `27 GB/s`, `1.2 GHz`, `5 us`, `4.7 pJ`.

The key of every number names its unit (`capacity_bytes`, `clock_hz`); a value may be a plain number in that
unit, or text with a unit of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema

from tilewright.records import dataclass


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
        raise ValueError("is true or false where a number is expected; write the number")
    if not isinstance(value, str):
        return value
    match = _TEXT.fullmatch(value)
    units = UNITS[kind]
    if match is None:
        example = f"5 {list(units)[-1]}" if units else "5"
        raise ValueError(f"{_shown(value)} is not a number; write one, such as {example}")
    number, unit = match.groups()
    if unit and unit not in units:
        known = f"expected one of {', '.join(units)}" if units else "write the number alone"
        raise ValueError(f"{_shown(value)} has the unit {_shown(unit)}; {known}")
    result = float(number) * units.get(unit, 1.0)
    return int(result) if result.is_integer() else result


def number_of(text: str) -> float | None:
    """The number that a text with any unit of a description stands for; None if it is none.

    >>> number_of("64 KiB"), number_of("7"), number_of("true")
    (65536.0, 7.0, None)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    factors = {unit: factor for units in UNITS.values() for unit, factor in units.items()}
    number, unit = match.groups()
    return float(number) * factors.get(unit, 1.0)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:37]!r}..."


def _before(kind: str) -> BeforeValidator:
    def validate(value: object) -> object:
        return parse_quantity(value, kind)

    return BeforeValidator(validate)


MAX_COUNT = 10**9
MAX_BYTES = 1 << 60
MAX_NUMBER = 1e24
"""Larger numbers are mistakes, and would overflow what is computed from them."""

_MORE_THAN_ZERO = Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)
_NOT_LESS_THAN_ZERO = Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Quantity:
    """How a sort of number is written: the kind of its units, and its limits."""

    kind: str
    maximum: float = MAX_NUMBER
    is_integer: bool = False
    may_be_zero: bool = False


QUANTITIES: Mapping[str, Quantity] = {
    "Count": Quantity("a plain number", MAX_COUNT, is_integer=True),
    "Bytes": Quantity("bytes", MAX_BYTES, is_integer=True),
    "Number": Quantity("a plain number"),
    "NotNegative": Quantity("a plain number", may_be_zero=True),
    "BytesPerSecond": Quantity("bytes per second"),
    "Hertz": Quantity("hertz"),
    "Watts": Quantity("watts"),
    "Nanoseconds": Quantity("nanoseconds", may_be_zero=True),
    "Picojoules": Quantity("picojoules", may_be_zero=True),
}
"""Every sort of number, by its name in the JSON Schema."""


def quantity_schema(quantity: Quantity) -> dict[str, Any]:
    """JSON Schema of a number, or of text with a number and a unit; says which units."""
    units = UNITS[quantity.kind]
    number = {
        "type": "integer" if quantity.is_integer else "number",
        "minimum" if quantity.may_be_zero else "exclusiveMinimum": 0,
        "maximum": quantity.maximum,
    }
    suffix = f" *(?:{'|'.join(units)})?" if units else ""
    text = {"type": "string", "pattern": rf"^ *\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?{suffix} *$"}
    described = (
        f"In {quantity.kind}; or text with a unit: {', '.join(units)}." if units else "A plain number."
    )
    return {"description": described, "anyOf": [number, text]}


def _named(name: str) -> WithJsonSchema:
    """What stands for a number in pydantic's own schema, to be replaced by its definition."""
    return WithJsonSchema({"$comment": name})


Count = Annotated[int, _before("a plain number"), Field(gt=0, le=MAX_COUNT), _named("Count")]
Bytes = Annotated[int, _before("bytes"), Field(gt=0, le=MAX_BYTES), _named("Bytes")]
Number = Annotated[float, _before("a plain number"), _MORE_THAN_ZERO, _named("Number")]
NotNegative = Annotated[float, _before("a plain number"), _NOT_LESS_THAN_ZERO, _named("NotNegative")]
BytesPerSecond = Annotated[float, _before("bytes per second"), _MORE_THAN_ZERO, _named("BytesPerSecond")]
Hertz = Annotated[float, _before("hertz"), _MORE_THAN_ZERO, _named("Hertz")]
Watts = Annotated[float, _before("watts"), _MORE_THAN_ZERO, _named("Watts")]
Nanoseconds = Annotated[float, _before("nanoseconds"), _NOT_LESS_THAN_ZERO, _named("Nanoseconds")]
Picojoules = Annotated[float, _before("picojoules"), _NOT_LESS_THAN_ZERO, _named("Picojoules")]
Flag = StrictBool
