"""Sizes and ages as people write them: `512MiB`, `2GB`, `4096`; `30d`, `12h`."""

from __future__ import annotations

import contextlib
import re

from tilewright.errors import UsageError

_BINARY = ("TiB", "GiB", "MiB", "KiB")


def parse_bytes(text: str) -> int:
    """Read a positive size such as `512MiB`, `2GB` or a plain number of bytes.

    Raises:
        UsageError: any other text.

    >>> parse_bytes("1.5KiB"), parse_bytes("2MB")
    (1536, 2000000)
    """
    units = {"": 1, "b": 1}
    for power, letter in enumerate("kmgt", start=1):
        units[f"{letter}b"] = 1000**power
        units[f"{letter}ib"] = 1024**power
    stripped = text.strip()
    digits = stripped.rstrip("bBiIkKmMgGtT ")
    unit = stripped[len(digits) :].strip().lower()
    number: float = -1
    with contextlib.suppress(ValueError):
        number = int(digits) if digits.isascii() and digits.isdigit() else float(digits)
    if unit not in units or not 0 < number < float("inf"):
        raise UsageError(f"size {text!r}: expected bytes, or a number with KiB, MiB, GiB, KB, MB or GB.")
    return int(number * units[unit])


def parse_age_s(text: str) -> float:
    """Read an age such as `30d`, `12h` or `90min`, in seconds.

    Raises:
        UsageError: any other text.

    >>> parse_age_s("2d"), parse_age_s("1.5h")
    (172800.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w)\s*", text, re.ASCII)
    if match is None:
        raise UsageError(f"age {text!r}: expected a number with s, min, h, d or w, such as 30d.")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[match[2]]


def bytes_text(size_bytes: int) -> str:
    """A size as short as it can be said exactly, as `parse_bytes` reads it.

    >>> bytes_text(524288), bytes_text(1000)
    ('512KiB', '1000')
    """
    for power, unit in zip((4, 3, 2, 1), _BINARY, strict=True):
        count, rest = divmod(size_bytes, 1024**power)
        if count > 0 and not rest:
            return f"{count}{unit}"
    return str(size_bytes)
