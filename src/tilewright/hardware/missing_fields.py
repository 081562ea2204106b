"""What a machine's description lacks for running whole networks, and the lines of YAML that add it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.parts import MULTIPLYING, TensorKind, Unit, Work

COMPUTED = tuple(work for work in Work if work is not Work.MOVEMENT)
"""Operation classes that a unit has to take. What only moves, a DMA engine may do."""


@dataclass(frozen=True, slots=True)
class MissingField:
    """Something that is not described: where, what, and the line to add there, with N for a number."""

    where: str
    what: str
    line: str

    def __str__(self) -> str:
        return f"{self.where} `{self.line}` ({self.what})"


def missing_fields(machine: Machine, works: Collection[Work] = COMPUTED) -> tuple[MissingField, ...]:
    """What is missing to run networks of some operation classes; without a word on these, of any.

    >>> from tilewright.hardware.presets import load_preset
    >>> missing_fields(load_preset("stcp920"))
    ()
    >>> [field.line for field in missing_fields(load_preset("tpu-v1"), ())]
    ['per: core', 'read_bytes_per_s: N GB/s']
    """
    return (*_of_levels(machine), *_of_units(machine, works))


def require_networks(machine: Machine, works: Collection[Work], network: str = "") -> None:
    """Raise if something is missing to run a network of these operation classes.

    Raises:
        MachineError: says everything that is, on one line.
    """
    if missing := missing_fields(machine, works):
        raise MachineError(refusal(machine, missing, network))


def refusal(machine: Machine, missing: Collection[MissingField], network: str = "") -> str:
    """One line that says what is missing and what the machine serves without."""
    is_for_mapping = not set(_of_levels(machine)).isdisjoint(missing)
    serves = " serves mapping alone (`tilewright map`)" if is_for_mapping else ""
    whole = f"network {network!r}" if network else "networks"
    numbers = ", with your numbers for N" if any(" N" in field.line for field in missing) else ""
    add = "; ".join(map(str, missing))
    return f"machine {machine.name!r}{serves}: to run {whole}, add to its file{numbers}: {add}."


def _of_levels(machine: Machine) -> Iterator[MissingField]:
    if machine.clock_hz is None:
        yield MissingField("clock_hz", "is missing, and rates are per cycle", "clock_hz: N GHz")
    local = machine.local
    if local is None:
        local = _likely_local(machine)
        where = "levels" if local is None else _place(machine, local)
        line = "per: core" if local is not None else "- {name: Local, per: core, capacity_bytes: N KiB, ...}"
        yield MissingField(where, "no level is a scratchpad of each core", line)
    for level in dict.fromkeys((local, machine.shared, machine.outermost)):
        if level is not None and not _has_rate(level):
            yield MissingField(_place(machine, level), "no bandwidth", "read_bytes_per_s: N GB/s")


def _likely_local(machine: Machine) -> Level | None:
    """The innermost level on the chip that inputs lie in and of which there are as many as cores."""
    fitting = (
        level
        for level in machine.levels[:-1]
        if machine.num_instances(level) == machine.num_cores
        and TensorKind.INPUT in level.holds
        and level.managed_by == "software"
    )
    return next(fitting, None)


def _has_rate(level: Level) -> bool:
    """Whether a bandwidth is given; that of one way stands for the other's."""
    return any(
        rate is not None
        for rate in (
            level.read_bytes_per_s,
            level.read_bytes_per_cycle,
            level.write_bytes_per_s,
            level.write_bytes_per_cycle,
        )
    )


def _place(machine: Machine, level: Level) -> str:
    return f"levels[{machine.levels.index(level)}] {level.name}"


def _of_units(machine: Machine, works: Collection[Work]) -> Iterator[MissingField]:
    """Operation classes that no unit has a rate for, those that one line adds together."""
    for rates in ("macs_per_cycle", "ops_per_cycle"):
        missing = [
            work
            for work in COMPUTED
            if work in works
            and (work in MULTIPLYING) == (rates == "macs_per_cycle")
            and not any(unit.takes(work) and unit.rates_of(work) for unit in machine.units)
        ]
        if missing:
            what = f"none runs {' or '.join(missing)}"
            yield _added_to_unit(machine, missing, rates, what)


def _added_to_unit(machine: Machine, missing: Sequence[Work], rates: str, what: str) -> MissingField:
    """The line that lets a unit take classes of work: one with such rates, one that runs them without, a
    new one."""
    dtype = next((name for unit in machine.units for name in unit.macs_per_cycle), "float32")
    for number, unit in enumerate(machine.units):
        if getattr(unit, rates):
            runs = ", ".join(work for work in Work if unit.takes(work) or work in missing)
            return MissingField(_place_of_unit(number, unit), what, f"runs: [{runs}]")
    for number, unit in enumerate(machine.units):
        if all(unit.takes(work) for work in missing):
            return MissingField(_place_of_unit(number, unit), what, f"{rates}: {{{dtype}: N}}")
    kind = "matrix" if rates == "macs_per_cycle" else "vector"
    level = (machine.local or _likely_local(machine) or machine.innermost).name
    runs = ", ".join(missing)
    line = f"- {{name: Added, kind: {kind}, level: {level}, runs: [{runs}], {rates}: {{{dtype}: N}}}}"
    return MissingField("units", what, line)


def _place_of_unit(number: int, unit: Unit) -> str:
    return f"units[{number}] {unit.name}"
