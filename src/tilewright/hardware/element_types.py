"""Element types on a machine: as what it keeps those of a file, and in which of them a unit computes.

A network is lowered to a machine once: each type of floating-point numbers in its file is kept as one that
the machine multiplies. From then on a unit computes in the fastest of its types that holds every value of
what it is given, so that nothing is lost but what lowering loses. Widening is a part of reading an operand;
narrowing is work, and occurs at the network's border alone, where inputs and results keep the file's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import ceil
from types import MappingProxyType
from typing import Literal, get_args

from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine, Work
from tilewright.ir.dtype import DType
from tilewright.records import dataclass

Lowered = Literal["float32", "float16", "bfloat16", "int16", "int8"]
"""What floating-point numbers of a network may be lowered to."""

LOWERED: tuple[str, ...] = get_args(Lowered)

FLOATS = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""Types of floating-point numbers, the widest first."""

_DIGITS = {DType.FLOAT64: 53, DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}
_WIDER_FLOATS = {
    DType.FLOAT32: (DType.FLOAT64,),
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.BFLOAT16: (DType.FLOAT32, DType.FLOAT64),
}


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """As what a machine keeps elements. `floats` are the types of floating-point numbers that it changes.

    `keeps_border`: the network's inputs and results lie in main memory as the file's types say, so that they
    are converted on their way. Otherwise they come and go as everything else is kept.
    """

    floats: Mapping[DType, DType] = field(default_factory=dict)
    keeps_border: bool = False

    def stored(self, dtype: DType) -> DType:
        """As what an element of a type of the file is kept."""
        return self.floats.get(dtype, dtype)

    def sizes(self, dtypes: Iterable[DType]) -> Mapping[str, int]:
        """Bytes of an element of each of these types of the file, by its name."""
        return MappingProxyType({str(dtype): self.stored(dtype).size_bytes for dtype in dtypes})

    def border_sizes(self, dtypes: Iterable[DType]) -> Mapping[str, int] | None:
        """The same in the network's inputs and results; None where these are kept as everything else."""
        if not self.keeps_border or not self.floats:
            return None
        return MappingProxyType({str(dtype): dtype.size_bytes for dtype in dtypes})

    def is_converted(self, dtype: DType) -> bool:
        """Whether inputs and results of a type are converted on their way."""
        return self.keeps_border and self.stored(dtype) is not dtype

    @property
    def inside(self) -> ElementTypes:
        """The same for a part of a network, whose inputs and results are the machine's own."""
        return replace(self, keeps_border=False)


def element_types(machine: Machine, dtype: DType | None = None) -> ElementTypes:
    """As what a machine keeps the elements of a network whose floating-point numbers are lowered to `dtype`.

    Without one a type that the machine multiplies, or one that holds all its values, is kept as it is, any
    other as the widest that it multiplies; and the network's inputs and results keep the file's types. With
    one, they have it too. A machine that multiplies no floating-point numbers keeps those that it has other
    rates for, and else all, as they are.

    Raises:
        MachineError: nothing multiplies in `dtype`.

    >>> from tilewright.hardware.presets import load_preset
    >>> str(element_types(load_preset("stcp920")).stored(DType.FLOAT32))
    'float16'
    """
    if dtype is not None:
        _require_products(machine, dtype)
        return ElementTypes({f: dtype for f in FLOATS if f is not dtype})
    known = _floats_of(machine)
    changed = {f: known[0] for f in FLOATS if known and not any(k is f or _is_wider(k, f) for k in known)}
    return ElementTypes(changed, keeps_border=True)


def computing_dtype(rates: Mapping[str, float], *dtypes: DType) -> DType | None:
    """The type in which a unit of these rates computes elements of some types: the fastest that holds them.

    None where none does. Of equally fast ones one of theirs, else the narrowest.

    >>> str(computing_dtype({"float16": 64, "float32": 16}, DType.INT8))
    'float16'
    """
    able = [k for k in map(_dtype, rates) if all(holds(k, dtype) for dtype in dtypes)]
    return min(able, key=lambda k: (-rates[str(k)], k not in dtypes, k.size_bytes), default=None)


def rate_in_lanes(rates: Mapping[str, float], dtype: DType) -> float:
    """Elements per cycle of a type in which a unit does not compute: as many as the bytes it takes otherwise.

    Copies are so for all types, and plain arithmetic of integers, which goes in several words.
    """
    widest = max(rate * _dtype(name).size_bytes for name, rate in rates.items())
    return widest / dtype.size_bytes


def product_rate_in_words(rates: Mapping[str, float], dtypes: Iterable[DType]) -> float | None:
    """Products per cycle of integers that no type of a unit holds: in words, of which each meets each.

    None where some are no integers.

    >>> product_rate_in_words({"int8": 64.0}, [DType.INT32])
    4.0
    """
    kinds = list(dtypes)
    if not all(kind.is_integer for kind in kinds):
        return None
    bits = max(map(_bits, kinds))
    held = {name: _DIGITS.get(_dtype(name), _bits(_dtype(name))) for name in rates}
    return max(rate / ceil(bits / held[name]) ** 2 for name, rate in rates.items())


def holds(wide: DType, narrow: DType) -> bool:
    """Whether a unit that computes in one type takes all values of another as they are.

    Integers count by their width: of what is signed and what is not, units take either.

    >>> holds(DType.FLOAT16, DType.INT8), holds(DType.BFLOAT16, DType.FLOAT16)
    (True, False)
    """
    if wide is narrow:
        return True
    if narrow.is_float:
        return _is_wider(wide, narrow)
    if not (narrow.is_integer or narrow is DType.BOOL):
        return False
    return wide.size_bytes >= narrow.size_bytes if wide.is_integer else _DIGITS.get(wide, 0) >= _bits(narrow)


def _dtype(name: str) -> DType:
    return DType[name.upper()]


def _bits(dtype: DType) -> int:
    return 1 if dtype is DType.BOOL else 8 * dtype.size_bytes


def _is_wider(wide: DType, narrow: DType) -> bool:
    return wide in _WIDER_FLOATS.get(narrow, ())


def _rates_of_products(machine: Machine) -> list[tuple[str, float]]:
    """Rates of the units that multiply matrices. Of a processor, and where none is for matrices, of all that
    multiply."""
    units = [u for u in machine.units if u.macs_per_cycle]
    chosen = units if machine.instructions else [u for u in units if u.takes(Work.CONTRACTION)] or units
    return [(n, r * u.num_per_instance * u.efficiency) for u in chosen for n, r in u.macs_per_cycle.items()]


def _floats_of(machine: Machine) -> list[DType]:
    """The floating-point types that a machine has rates for, the widest first, the faster of equal ones."""
    rates = _rates_of_products(machine)
    if not any(_dtype(name).is_float for name, _ in rates):
        rates = [item for unit in machine.units for item in unit.ops_per_cycle.items()]
    fastest: dict[DType, float] = {}
    for name, rate in rates:
        kind = _dtype(name)
        if kind.is_float:
            fastest[kind] = max(rate, fastest.get(kind, 0.0))
    return sorted(fastest, key=lambda kind: (-kind.size_bytes, -fastest[kind], FLOATS.index(kind)))


def _require_products(machine: Machine, dtype: DType) -> None:
    known = dict.fromkeys(name for name, _ in _rates_of_products(machine))
    if str(dtype) not in known:
        raise MachineError(
            f"machine {machine.name!r}: dtype {dtype}: no unit multiplies matrices in it; "
            f"macs_per_cycle of its units has {', '.join(known) or 'nothing'}."
        )
