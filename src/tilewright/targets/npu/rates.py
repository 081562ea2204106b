"""How fast the units of a machine compute: which unit takes a class of work, in which type, at which rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.errors import MachineError
from tilewright.hardware.element_types import (
    LOWERED,
    ElementTypes,
    computing_dtype,
    product_rate_in_words,
    rate_in_lanes,
)
from tilewright.hardware.machine import Machine, Unit, Work
from tilewright.hardware.missing_fields import missing_fields, refusal
from tilewright.hardware.parts import MULTIPLYING
from tilewright.hardware.presets import preset_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node


@dataclass(frozen=True, slots=True)
class Rate:
    """Operations per cycle of one unit, and the type in which it computes them; how many there are for each
    core."""

    unit: Unit
    dtype: DType
    per_cycle: float
    num_of_core: float = 1.0

    @property
    def of_core(self) -> float:
        """What all these units for a core really reach."""
        return self.per_cycle * self.unit.efficiency * self.num_of_core


class Rates:
    """The rates of a machine that keeps elements as `types` say."""

    def __init__(self, machine: Machine, types: ElementTypes) -> None:
        self.machine, self.types = machine, types
        self._known: dict[tuple[Work, tuple[DType, ...]], Rate] = {}

    def of(self, work: Work, dtypes: tuple[DType, ...], node: Node) -> Rate:
        """The first unit that takes a class of work on elements of these types of the file.

        Factors of a product are multiplied in one type that holds both; all else goes at the rate of the
        slowest type. Integers that no type of the unit holds are computed in several words: sums of words in
        lanes, products of each word with each.

        Raises:
            MachineError: there is no such unit; names one that lacks a rate, the type, and the node.
        """
        known = self._known.get((work, dtypes))
        if known is not None:
            return known
        stored = tuple(dict.fromkeys(map(self.types.stored, dtypes)))
        lacking: tuple[int, DType] | None = None
        for number, unit in enumerate(self.machine.units):
            if not unit.takes(work) or not unit.rates_of(work):
                continue
            rates = [_product_rate(unit, stored)] if work in MULTIPLYING else [_rate(unit, d) for d in stored]
            if None not in rates:
                found = self._of_core(_slowest(rate for rate in rates if rate is not None))
                self._known[work, dtypes] = found
                return found
            lacking = lacking or (number, _lacking(unit, work, stored))
        if lacking is None:
            raise MachineError(refusal(self.machine, missing_fields(self.machine, (work,))))
        raise self._no_rate(work, *lacking, node)

    def copying(self, dtype: DType) -> Rate | None:
        """How fast a unit that computes lays out elements anew; None where none is named for movement."""
        units = (u for u in self.machine.units if u.takes(Work.MOVEMENT) and u.ops_per_cycle)
        unit = next(units, None)
        return None if unit is None else self._of_core(_any_rate(unit, self.types.stored(dtype)))

    def converting(self, dtype: DType) -> Rate:
        """How fast inputs or results of a type of the file are converted to or from what is kept.

        It is plain arithmetic, at the rate of the slower of both types; a type that the unit has no rate for
        takes as many bytes a cycle as others.

        Raises:
            MachineError: no unit does plain arithmetic.
        """
        for unit in self.machine.units:
            if unit.takes(Work.ELEMENTWISE) and unit.ops_per_cycle:
                kinds = (dtype, self.types.stored(dtype))
                return self._of_core(_slowest(_any_rate(unit, kind) for kind in kinds))
        raise MachineError(refusal(self.machine, missing_fields(self.machine, (Work.ELEMENTWISE,))))

    def _of_core(self, rate: Rate) -> Rate:
        """The same with the units that a core has, beside it or as its part of those that cores share."""
        return replace(rate, num_of_core=self.machine.num_units(rate.unit) / self.machine.num_cores)

    def _no_rate(self, work: Work, number: int, dtype: DType, node: Node) -> MachineError:
        unit = self.machine.units[number]
        key = "macs_per_cycle" if work in MULTIPLYING else "ops_per_cycle"
        known = list(unit.rates_of(work))
        lower = next((name for name in known if name in LOWERED), None) if dtype.is_float else None
        name = self.machine.name if self.machine.name in preset_names() else "FILE"
        option = f"-t '{name}{{dtype={lower}}}'"
        return MachineError(
            f"machine {self.machine.name!r}: units[{number}].{key}: {unit.name} has a rate for "
            f"{', '.join(known)}, and {node.op_type} {node.name!r} is {dtype}; "
            f"{f'lower the network with {option}, or ' if lower else ''}give it {dtype}: RATE."
        )


def _slowest(rates: Iterable[Rate]) -> Rate:
    return min(rates, key=lambda rate: rate.per_cycle)


def _product_rate(unit: Unit, dtypes: tuple[DType, ...]) -> Rate | None:
    dtype = computing_dtype(unit.macs_per_cycle, *dtypes)
    if dtype is not None:
        return Rate(unit, dtype, unit.macs_per_cycle[str(dtype)])
    per_cycle = product_rate_in_words(unit.macs_per_cycle, dtypes)
    widest = max(dtypes, key=lambda kind: kind.size_bytes)
    return None if per_cycle is None else Rate(unit, widest, per_cycle)


def _rate(unit: Unit, dtype: DType) -> Rate | None:
    computing = computing_dtype(unit.ops_per_cycle, dtype)
    if computing is not None:
        return Rate(unit, computing, unit.ops_per_cycle[str(computing)])
    return None if dtype.is_float else Rate(unit, dtype, rate_in_lanes(unit.ops_per_cycle, dtype))


def _any_rate(unit: Unit, dtype: DType) -> Rate:
    """The rate of what needs no arithmetic in a type."""
    return _rate(unit, dtype) or Rate(unit, dtype, rate_in_lanes(unit.ops_per_cycle, dtype))


def _lacking(unit: Unit, work: Work, dtypes: tuple[DType, ...]) -> DType:
    """The type that a unit cannot take; of factors that it could take alone, the widest."""
    table = unit.rates_of(work)
    alone = [d for d in dtypes if computing_dtype(table, d) is None and (work in MULTIPLYING or d.is_float)]
    return alone[0] if alone else max(dtypes, key=lambda d: d.size_bytes)
