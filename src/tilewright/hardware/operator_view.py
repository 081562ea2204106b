"""The part of a machine that one operator is mapped onto.

A mapper places the loops of one operator on levels that lead to single multipliers. A machine may have more:
several memories whose clusters work alone, units of other sorts, levels that multipliers do not read from.
What is left without them is a machine again, so every mapper and cost model takes it as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine, SameMachine, TensorKind, Unit, Work
from tilewright.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class OperatorView:
    """A machine as a mapper takes it, and what was left out of it, for people."""

    machine: Machine
    note: str


def operator_view(machine: Machine, work: Work = Work.CONTRACTION) -> OperatorView:
    """The levels, one outermost instance of them, and the fastest multipliers of a machine for some work.

    A unit counts as as many multipliers as it has multiply-accumulates per cycle with elements as wide as a
    word of inputs: the shape of its tile is not modelled. Of a unit that reaches a share of its rate the view
    has a clock that is slower by so much, and of static power one outermost instance's part. A machine that
    is this already is not copied.

    Raises:
        MachineError: nothing multiplies and accumulates, or runs that class; or the outermost level passes a
            tensor by.
    """
    return _operator_view(SameMachine(machine), work)


@functools.lru_cache(maxsize=64)
def _operator_view(same: SameMachine, work: Work) -> OperatorView:
    machine = same.machine
    for kind in TensorKind:
        if kind not in machine.outermost.holds:
            at = f"levels[{len(machine.levels) - 1}].holds"
            raise MachineError(
                f"machine {machine.name!r}: {at}: the outermost level {machine.outermost.name!r} must hold "
                f"{kind}; add it."
            )
    unit, levels, dtype, rate = fastest_multipliers(machine, work)
    num_lanes = max(1, int(unit.num_per_instance * rate))
    num_alike = machine.outermost.num_instances_per_parent
    if (
        num_alike == 1
        and unit.efficiency == 1
        and unit.kind in ("mac", "matrix")
        and len(levels) == len(machine.levels)
        and num_lanes == sum(u.num_per_instance for u in machine.units if u.kind in ("mac", "matrix"))
        and machine.mac_pj == (unit.mac_pj or 0.0)
    ):
        return OperatorView(machine, "")
    lanes = Unit(
        name=unit.name,
        kind="mac",
        level=levels[0].name,
        num_per_instance=num_lanes,
        axes=unit.axes,
        zeros=unit.zeros,
        macs_per_cycle={dtype: 1},
        mac_pj=unit.mac_pj,
    )
    alone = [_in_cycles(level, unit.efficiency).model_copy(update={"per": None}) for level in levels]
    alone[0] = alone[0].model_copy(update={"axes": ()})  # of an array inside, if any
    alone[-1] = alone[-1].model_copy(update={"num_instances_per_parent": 1})
    names = {level.name for level in alone}
    static_w = machine.static_power_w
    view = machine.model_copy(
        update={
            "levels": tuple(alone),
            "units": (lanes,),
            "clock_hz": None if machine.clock_hz is None else machine.clock_hz * unit.efficiency,
            "networks": tuple(n for n in machine.networks if {n.inner, n.outer} <= names),
            "static_power_w": None if static_w is None else static_w / num_alike,
            "num_clusters": 1,
            "num_cores_per_cluster": 1,
            "threads": None,
            "sources": _sources(machine, len(machine.levels) - len(levels), machine.units.index(unit)),
            "energy_source": machine.energy_source or "see the machine",
        }
    )
    return OperatorView(view, _note(machine, unit, dtype, rate, view.num_units(lanes)))


def fastest_multipliers(
    machine: Machine, work: Work = Work.CONTRACTION
) -> tuple[Unit, tuple[Level, ...], str, float]:
    """(Unit, levels from the one it reads from outwards, element type, multiply-accumulates per cycle).

    Of all units those that are together the fastest with elements as wide as a word of inputs; of any width
    where no unit takes such elements. One that states `axes` or what it `runs` must run that class of work.

    Raises:
        MachineError: nothing multiplies and accumulates, or runs that class.
    """
    mac_units = [unit for unit in machine.units if unit.macs_per_cycle]
    if not mac_units:
        raise MachineError(
            f"machine {machine.name!r}: units: none multiplies and accumulates, which mapping an operator "
            "needs; give one macs_per_cycle, such as {name: MAC, kind: mac, macs_per_cycle: {int8: 1}}."
        )

    states_axes = any(level.axes for level in machine.levels)
    running = [u for u in mac_units if u.takes(work) or not (states_axes or u.axes or u.runs)]
    if not running:
        number = machine.units.index(mac_units[0])
        runs = ", ".join(work_of for work_of in Work if mac_units[0].takes(work_of) or work_of is work)
        raise MachineError(
            f"machine {machine.name!r}: units[{number}]: {mac_units[0].name} does not run {work}, nor "
            f"does any other; give it runs: [{runs}], which its axes may make slow, or add a unit that does."
        )

    def suits(unit: Unit) -> tuple[bool, float]:
        dtype, rate = _rate(unit, _levels(machine, unit))
        return _bits(dtype) == word_bits(_levels(machine, unit)), machine.num_units(unit) * rate

    unit = max(running, key=suits)
    levels = _levels(machine, unit)
    return unit, levels, *_rate(unit, levels)


def multipliers(part: Machine) -> Unit:
    """The unit on which mapped operators multiply, of a machine as `operator_view` gives it."""
    units = [unit for unit in part.units if unit.macs_per_cycle]
    return next((unit for unit in units if unit.kind in ("mac", "matrix")), units[0])


def _sources(machine: Machine, num_inside: int, unit: int) -> dict[str, str]:
    """Citations of what is left of a machine: without the innermost levels, with one unit."""
    found = {}
    for path, source in machine.sources.items():
        listed, number = re.fullmatch(r"(\w+)(?:\[(\d+)\])?.*", path).groups()  # type: ignore[union-attr]
        new = {"levels": int(number or 0) - num_inside, "units": int(number or 0) - unit}.get(listed)
        if new is None and number is None:
            found[path] = source
        elif new is not None and new >= 0 and (listed == "levels" or new == 0):
            found[path.replace(f"[{number}]", f"[{new}]", 1)] = source
    return {path: source for path, source in found.items() if path.split(".")[-1] in _KEPT}


_KEPT = ("read_pj", "write_pj", "mac_pj", "static_power_w", "clock_hz")


def _in_cycles(level: Level, efficiency: float) -> Level:
    """A level in the cycles of a clock that is slower by an efficiency."""
    rates = {
        "read_bytes_per_cycle": level.read_bytes_per_cycle,
        "write_bytes_per_cycle": level.write_bytes_per_cycle,
    }
    slower = {key: rate / efficiency for key, rate in rates.items() if rate is not None}
    return level.model_copy(update=slower) if efficiency < 1 else level


def _levels(machine: Machine, unit: Unit) -> tuple[Level, ...]:
    """The levels from the one that a unit reads from outwards."""
    home = machine.innermost if unit.level is None else machine.level(unit.level)
    return machine.levels[machine.levels.index(home) :]


def _rate(unit: Unit, levels: Sequence[Level]) -> tuple[str, float]:
    """The element type that a unit is taken to work on: the fastest as wide as inputs' words, else of all."""
    of_word = {n: r for n, r in unit.macs_per_cycle.items() if _bits(n) == word_bits(levels)}
    rates = of_word or unit.macs_per_cycle
    best = max(rates, key=lambda name: rates[name])
    return best, rates[best]


def word_bits(levels: Sequence[Level]) -> int:
    """Bits of a word of inputs, where they are nearest."""
    return next(level.word_bits for level in levels if TensorKind.INPUT in level.holds)


def _bits(dtype: str) -> int:
    return 8 * next(d for d in DType if str(d) == dtype).size_bytes


def _note(machine: Machine, unit: Unit, dtype: str, rate: float, num_lanes: int) -> str:
    num_alike = machine.outermost.num_instances_per_parent
    part = f"one of {num_alike} {machine.outermost.name} with " if num_alike > 1 else ""
    how = f" ({rate:g} per cycle each)" if rate > 1 else ""
    clock = f", at {unit.efficiency:.0%} of the clock" if unit.efficiency < 1 else ""
    return f"{part}{num_lanes:,} multiply-accumulates of {dtype} per cycle by {unit.name}{how}{clock}"
