"""A GPU as a mapper takes it: levels whose innermost is the registers of one thread.

A described GPU has the registers and the shared memory of a whole multiprocessor. A kernel has a block's
share of them: so many threads, each with its part of the block's registers. The view is a machine with that
many instances of a thread's registers below a block's shared memory, and one block at a time on a
multiprocessor.
What depends on the number of threads is fixed with it, so that there is one view for each number:

* registers of a thread: those of a block divided by its threads, at most what a thread can name;
* cycles: a block with more threads than work at once takes turns, so a cycle of the view is longer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine, SameMachine, Threads, Unit
from tilewright.hardware.operator_view import fastest_multipliers, operator_view


@dataclass(frozen=True, slots=True)
class BlockView:
    """The machine that a block of `num_threads` threads sees. `threads` are its limits, none left open.

    Of the threads `num_at_once` work in a cycle. A multiprocessor has the bytes of `core_`, of which a block
    may have less.
    """

    machine: Machine
    threads: Threads
    num_threads: int
    num_at_once: int
    core_register_bytes: int
    core_shared_bytes: int

    @property
    def note(self) -> str:
        """What the view is, for people."""
        num_cores = self.machine.num_instances(self.machine.level(self.threads.shared))
        return (
            f"blocks of threads, one at a time on each of {num_cores} multiprocessors, where "
            f"{self.num_at_once} threads work at once"
        )

    def real_cycles(self, cycles: int) -> int:
        """Cycles of the real machine that so many of the view take: threads beyond those at once wait."""
        return -(-cycles * max(self.num_threads, self.num_at_once) // self.num_at_once)

    @property
    def cycle_length(self) -> float:
        """Cycles of the real machine that one of the view takes."""
        return max(self.num_threads, self.num_at_once) / self.num_at_once

    @property
    def share_at_work(self) -> float:
        """The share of what works at once that the block's threads fill."""
        return min(1.0, self.num_threads / self.num_at_once)


def block_view(machine: Machine, num_threads: int, *, shares_registers: bool = True) -> BlockView:
    """The view of blocks of `num_threads` threads, at most what a block may have.

    Without `shares_registers` a thread has all that it can name: mappers that see to a block's registers
    themselves take this one.

    Raises:
        MachineError: the machine has no threads, its registers are not next to its shared memory and its
            multipliers, a level of both has shares, or nothing multiplies and accumulates.
    """
    return _block_view(SameMachine(machine), num_threads, shares_registers)


@functools.lru_cache(maxsize=512)
def _block_view(same: SameMachine, num_threads: int, shares_registers: bool) -> BlockView:
    machine = same.machine
    limits = block_limits(machine)
    registers, shared, *outside = operator_view(machine).machine.levels
    unit, _, dtype, rate = fastest_multipliers(machine)
    # A warp works on one tile of a matrix unit together.
    threads_of_unit = limits.num_per_warp if unit.kind == "matrix" else 1
    at_once = unit.num_per_instance * registers.num_instances_per_parent * threads_of_unit
    longer = max(num_threads, at_once) / at_once
    of_thread = _full(limits.max_registers_per_thread)
    if shares_registers:
        of_thread = min(
            of_thread, _full(limits.max_register_bytes_per_block) // limits.register_bytes // num_threads
        )
    thread = _at_rate(registers, longer, registers.num_instances_per_parent / num_threads).model_copy(
        update={
            "capacity_bytes": of_thread * limits.register_bytes,
            "num_instances_per_parent": num_threads,
            "per": None,
        }
    )
    block = _at_rate(shared, longer).model_copy(
        update={"capacity_bytes": limits.max_shared_bytes_per_block, "per": None}
    )
    outer = [_at_rate(level, longer).model_copy(update={"per": None}) for level in outside]
    outer[-1] = outer[-1].model_copy(update={"num_instances_per_parent": 1})
    multiplier = Unit(
        name=unit.name,
        kind="mac",
        level=registers.name,
        num_per_instance=max(1, int(rate) // threads_of_unit),
        macs_per_cycle={dtype: 1},
        mac_pj=unit.mac_pj,
    )
    view = machine.model_copy(
        update={
            "levels": (thread, block, *outer),
            "units": (multiplier,),
            "clock_hz": None if machine.clock_hz is None else machine.clock_hz / longer,
            "networks": (),
            "num_clusters": 1,
            "num_cores_per_cluster": 1,
            "threads": None,
            "sources": {},
            "energy_source": machine.energy_source or "see the machine",
        }
    )
    return BlockView(
        view,
        limits,
        num_threads,
        at_once,
        core_register_bytes=_full(registers.capacity_bytes) * registers.num_instances_per_parent,
        core_shared_bytes=_full(shared.capacity_bytes),
    )


def block_limits(machine: Machine) -> Threads:
    """The limits of a block, with what the description leaves out filled in.

    Raises:
        MachineError: there are none, or levels that a view cannot be made of.
    """
    return _block_limits(SameMachine(machine))


@functools.lru_cache(maxsize=16)
def _block_limits(same: SameMachine) -> Threads:
    machine = same.machine
    threads, name = machine.threads, f"machine {machine.name!r}"
    if threads is None:
        raise MachineError(f"{name}: threads: is missing; only a GPU has blocks of threads.")
    levels = operator_view(machine).machine.levels
    if [level.name for level in levels[:2]] != [threads.registers, threads.shared] or len(levels) < 3:
        raise MachineError(
            f"{name}: threads: levels from the multipliers outwards must be {threads.registers!r}, "
            f"{threads.shared!r} and at least one more; they are {', '.join(level.name for level in levels)}."
        )
    for level in levels[:2]:
        if level.shares:
            at = [inner.name for inner in machine.levels].index(level.name)
            raise MachineError(f"{name}: levels[{at}].shares: a block's part has none; leave them out.")
    registers, shared = levels[:2]
    in_core = _full(registers.capacity_bytes) * registers.num_instances_per_parent
    of_block = min(in_core, threads.max_register_bytes_per_block or in_core)
    in_shared = _full(shared.capacity_bytes)
    return threads.model_copy(
        update={
            "max_per_block": min(threads.max_per_block, threads.max_per_core),
            "max_block_shape": threads.max_block_shape or (threads.max_per_block,) * 3,
            "max_blocks_per_core": threads.max_blocks_per_core or threads.max_per_core,
            "max_registers_per_thread": threads.max_registers_per_thread
            or of_block // threads.register_bytes,
            "max_register_bytes_per_block": of_block,
            "max_shared_bytes_per_block": min(in_shared, threads.max_shared_bytes_per_block or in_shared),
        }
    )


def _at_rate(level: Level, longer: float, share: float = 1.0) -> Level:
    """A level whose bandwidth is a share of what it was, in cycles that are so many times longer."""
    factors = {"bytes_per_cycle": longer * share, "bytes_per_s": share}
    rates = {f"{way}_{unit}": factor for way in ("read", "write") for unit, factor in factors.items()}
    return level.model_copy(
        update={
            key: getattr(level, key) * factor
            for key, factor in rates.items()
            if getattr(level, key) is not None
        }
    )


def _full(value: int | None) -> int:
    """A limit that the description must have, or that was filled in."""
    if value is None:
        raise MachineError("threads: a limit of the block is missing; give the levels a capacity_bytes.")
    return value
