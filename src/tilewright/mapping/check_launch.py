"""Independent check of a mapping onto a GPU. Shares no code with views, mappers or cost models.

It reads the limits from the described machine itself and counts a thread's and a block's words from the
corners of their tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.launch import Launch
from tilewright.planning import Violation


def check_launch(
    problem: Problem, machine: Machine, mapping: Mapping, launch: Launch
) -> tuple[Violation, ...]:
    """Everything that makes a launch impossible, or another than its mapping's: nothing, if it is valid.

    Checked: every iteration is covered; multiprocessors in use; extents of the block and their product;
    registers of a thread, and of all threads with idle ones of the last warp; shared memory; that no threads
    or blocks add to the same output; and that block, grid, bytes and registers follow from the loops.
    """
    threads = machine.threads
    if threads is None:
        return (Violation("machine", f"{machine.name} has no threads"),)
    return (
        *_check_cover(problem, machine, mapping),
        *_check_block(machine, mapping, launch),
        *_check_memory(problem, machine, mapping, launch),
        *_check_grid(problem, machine, mapping, launch),
    )


def _check_cover(problem: Problem, machine: Machine, mapping: Mapping) -> Iterator[Violation]:
    known = [level.name for level in machine.levels]
    given = [loops.level for loops in mapping.levels]
    if given != [name for name in reversed(known) if name in given]:
        yield Violation("level", f"the levels are {', '.join(given)}, not each once from the outside in")
    covered: dict[str, int] = {}
    for _, _, loop in mapping.loops():
        covered[loop.dim] = covered.get(loop.dim, 1) * loop.factor
    for dim, extent in problem.dims:
        if covered.pop(dim, 1) < extent:
            yield Violation("cover", f"{dim} does not run {extent} times")
    for dim in covered:
        yield Violation("dim", f"there is no dim {dim!r}")


def _factors(mapping: Mapping, names: set[str], kinds: tuple[str, ...]) -> dict[str, int]:
    """Product of the factors of each dim over some levels and kinds of loop."""
    totals: dict[str, int] = {}
    for loops, kind, loop in mapping.loops():
        if loops.level in names and kind in kinds and loop.factor > 1:
            totals[loop.dim] = totals.get(loop.dim, 1) * loop.factor
    return totals


_BOTH = ("temporal", "spatial")


def _check_block(machine: Machine, mapping: Mapping, launch: Launch) -> Iterator[Violation]:
    threads = machine.threads
    assert threads is not None
    of_loops = _factors(mapping, {threads.shared}, ("spatial",))
    of_axes: dict[str, int] = {}
    for axis in launch.axes:
        for loop in axis:
            of_axes[loop.dim] = of_axes.get(loop.dim, 1) * loop.factor
    if of_axes != of_loops:
        yield Violation("axes", f"the axes run {of_axes}, the threads' loops {of_loops}")
    extents = threads.max_block_shape
    if extents and len(launch.axes) > len(extents):
        yield Violation("shape", f"{len(launch.axes)} axes, a block has {len(extents)}")
    for axis, name, extent in zip(launch.axes, "xyz", extents or (threads.max_per_block,) * 3, strict=False):
        size = prod(loop.factor for loop in axis)
        if size > extent:
            yield Violation("shape", f"{size} threads along {name}, at most {extent}")
    count = prod(of_loops.values())
    if count > min(threads.max_per_block, threads.max_per_core):
        yield Violation("threads", f"{count} threads in a block, at most {threads.max_per_block}")
    # Every level outside feeds so many of the next one; from the shared memory in, threads are checked above.
    names = [level.name for level in machine.levels]
    for outer in range(names.index(threads.shared) + 1, len(names)):
        side_by_side = prod(_factors(mapping, {names[outer]}, ("spatial",)).values())
        there = machine.levels[outer - 1].num_instances_per_parent
        if side_by_side > there:
            yield Violation("instances", f"{names[outer]} feeds {there}, its loops ask for {side_by_side}")


def _check_memory(
    problem: Problem, machine: Machine, mapping: Mapping, launch: Launch
) -> Iterator[Violation]:
    threads = machine.threads
    assert threads is not None
    inner = _factors(mapping, {threads.registers}, _BOTH)
    registers = ceil(_bytes(problem, machine, threads.registers, inner) / threads.register_bytes)
    if registers != launch.registers_per_thread:
        yield Violation("registers", f"{registers} per thread, said are {launch.registers_per_thread}")
    if registers > (threads.max_registers_per_thread or registers):
        yield Violation("registers", f"{registers} per thread, at most {threads.max_registers_per_thread}")
    count = prod(_factors(mapping, {threads.shared}, ("spatial",)).values())
    warps = ceil(count / threads.num_per_warp)
    allocated = min(warps * threads.num_per_warp, threads.max_per_block)
    file = machine.level(threads.registers)
    per_core = (file.capacity_bytes or 0) * file.num_instances_per_parent
    there = min(per_core, threads.max_register_bytes_per_block or per_core)
    needed = registers * allocated * threads.register_bytes
    if needed > there:
        yield Violation("registers", f"{needed} bytes in all threads, a block has {there}")
    outer = _factors(mapping, {threads.registers, threads.shared}, _BOTH)
    shared = _bytes(problem, machine, threads.shared, outer)
    if shared != launch.shared_bytes:
        yield Violation("shared", f"{shared} bytes of shared memory, said are {launch.shared_bytes}")
    has = machine.level(threads.shared).capacity_bytes or 0
    limit = min(has, threads.max_shared_bytes_per_block or has)
    if shared > limit:
        yield Violation("shared", f"{shared} bytes of shared memory, a block has {limit}")
    together = {
        "registers": (launch.max_resident * needed, per_core),
        "shared": (launch.max_resident * shared, has),
        "threads": (launch.max_resident * allocated, threads.max_per_core),
    }
    for what, (used, capacity) in together.items():
        if used > capacity:
            yield Violation(what, f"{launch.max_resident} blocks use {used} of {capacity} together")


def _bytes(problem: Problem, machine: Machine, name: str, tile: dict[str, int]) -> int:
    """Bytes of the boxes around a tile, of the tensors that a level holds."""
    level = machine.level(name)
    words = 0
    for operand in problem.operands:
        if operand.kind in level.holds:
            corners = (sum(step * (tile.get(dim, 1) - 1) for dim, step in axis) for axis in operand.axes)
            words += prod(corner + 1 for corner in corners)
    return ceil(words * level.word_bits / 8)


def _check_grid(problem: Problem, machine: Machine, mapping: Mapping, launch: Launch) -> Iterator[Violation]:
    threads = machine.threads
    assert threads is not None
    outside = {level.name for level in machine.levels} - {threads.shared, threads.registers}
    written = {dim for axis in problem.output.axes for dim, _ in axis}
    every = _factors(mapping, outside, _BOTH)
    grid = {dim: factor for dim, factor in every.items() if dim in written}
    if {loop.dim: loop.factor for loop in launch.grid} != grid:
        yield Violation("grid", f"blocks are {grid}, said are {launch.grid}")
    summed = prod(factor for dim, factor in every.items() if dim not in written)
    if summed != launch.num_steps:
        yield Violation("steps", f"{summed} steps of a block, said are {launch.num_steps}")
    beside = _factors(mapping, outside | {threads.shared}, ("spatial",))
    for dim in beside.keys() - written:
        yield Violation("sums", f"{beside[dim]} threads or blocks add to the same output along {dim}")
