"""Rates that were measured on this machine, once, on request: `tilewright doctor --calibrate`.

They lie in the user's cache, sealed with its key, and count until they are measured again. Without them, for
`--isa NAME`, with `--frozen` and where nothing is kept, estimates use the profile of the processor
(`rates.processor_rates`): the same code comes out on every machine with such a processor.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import asdict, fields
from typing import Any

from tilewright.hardware.rates import MatrixRates, Rates
from tilewright.private_files import CALIBRATIONS, PrivateFolder, Records, default_cache_directory
from tilewright.records import dataclass

logger = logging.getLogger(__name__)

_VERSION = 1
# Measurements of one machine scatter: rates are kept in steps of 19 %, so that most calibrations agree.
_STEPS_PER_OCTAVE = 4
_MOST = 1e6


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rates of this machine. Of `num_threads` threads at a time `num_cores` computed as one does alone."""

    rates: Rates
    matrix_rates: MatrixRates
    fmas_per_cycle: float
    fmas_per_s: float
    num_threads: int
    num_cores: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Calibration | None:
        """What `to_json` gave; None for anything else, and for numbers that no machine has."""
        try:
            document = json.loads(text)
            numbers, matrix = document.pop("rates"), document.pop("matrix_rates")
            version = document.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return None
        rest = {**document, "rates": 1, "matrix_rates": 1}
        if version != _VERSION or not all(map(_is_of, (numbers, matrix, rest), (Rates, MatrixRates, cls))):
            return None
        counts = document["num_threads"], document["num_cores"]
        if not all(type(n) is int for n in counts) or document["num_cores"] > document["num_threads"]:
            return None
        return cls(Rates(**numbers), MatrixRates(**matrix), **document)


def _is_of(numbers: Any, kind: type) -> bool:
    """Whether these are the fields of a record, each a positive number."""
    if not isinstance(numbers, dict) or set(numbers) != {f.name for f in fields(kind)}:
        return False
    most = {"fmas_per_s": 1e15}
    return all(type(n) in (int, float) and 0 < n <= most.get(name, _MOST) for name, n in numbers.items())


def in_steps(rate: float) -> float:
    """A measured rate, rounded to what measurements agree on.

    >>> in_steps(19.2) == in_steps(20.5), in_steps(19.2) == in_steps(24.0)
    (True, False)
    """
    return round(2 ** (round(_STEPS_PER_OCTAVE * math.log2(rate)) / _STEPS_PER_OCTAVE), 3)


def kept_calibration(machine: str) -> Calibration | None:
    """What was measured on a machine, which these facts tell from others; None where nothing may be used.

    A record that is damaged or forged is not used, and said in one line.
    """
    folder = default_cache_directory()
    if folder is None or not folder.is_dir():
        return None
    try:
        content = Records(PrivateFolder(folder), CALIBRATIONS).get(_name(machine))
    except OSError:
        return None
    found = None if content is None else Calibration.from_json(content.decode(errors="replace"))
    if content is not None and found is None:
        logger.warning(
            "%s: rates of this machine are of another version: not used, until doctor --calibrate", folder
        )
    return found


def keep_calibration(calibration: Calibration, machine: str) -> bool:
    """Keep what was measured, for later processes; False where nothing is kept.

    Raises:
        OSError: it cannot be kept.
    """
    folder = default_cache_directory()
    if folder is not None:
        Records(PrivateFolder(folder), CALIBRATIONS).put(_name(machine), calibration.to_json().encode())
    return folder is not None


def _name(machine: str) -> str:
    """Of the record: machines that share a home folder have one each."""
    return hashlib.sha256(machine.encode()).hexdigest()[:32]
