"""Processors as parts of a machine: what they execute, how wide, how fast.

A machine that has what the name of an instruction set promises can be narrowed to it; a machine that was
never seen is described by the promise alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.hardware.instruction_sets import AMX_NEEDS, InstructionSet, widest_in
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.parts import Instructions, Unit, Work

_WORK = (Work.CONTRACTION, Work.DEPTHWISE, Work.ELEMENTWISE, Work.REDUCTION, Work.SPECIAL, Work.MOVEMENT)


# TDPBF16PS multiplies 16x32 by 32x16 elements in 16 cycles, TDPBSSD 16x64 by 64x16.
_AMX_TILE = (16, 16, 32)
_AMX_MACS_PER_CYCLE = {"bfloat16": 512.0, "int8": 1024.0, "uint8": 1024.0}
# Bytes that the pipes for multiply-adds take in a cycle, where these are not two as wide as the vectors.
_FMA_BYTES_PER_CYCLE = {
    "znver1": 32,
    "znver4": 64,
    "neoverse-v1": 64,
    "neoverse-v2": 64,
    "apple-m1": 64,
    "apple-m2": 64,
    "apple-m3": 64,
    "apple-m4": 64,
}


def promised_machine(instruction_set: InstructionSet) -> Machine:
    """A machine of which nothing else is known: code for it runs wherever the promise holds."""
    instructions = Instructions(
        triple=instruction_set.triple, processor=instruction_set.processor, features=instruction_set.features
    )
    return Machine(
        name=instruction_set.name,
        description=f"a processor with {instruction_set.name}, of which nothing else is known",
        levels=(Level(name="DRAM", managed_by="hardware", word_bits=32),),
        units=(vector_unit(instructions, instruction_set.vector_bytes), *_matrix_units(instructions, 1)),
        instructions=instructions,
    )


def narrowed(machine: Machine, instruction_set: InstructionSet) -> Machine | None:
    """The same machine if code for it keeps to what a name promises; None if it lacks some of that."""
    instructions = machine.instructions
    if instructions is None or not instruction_set.is_in(instructions):
        return None
    promised = Instructions(
        triple=instructions.triple, processor=instruction_set.processor, features=instruction_set.features
    )
    num_cores = next((unit.num_per_instance for unit in machine.units if unit.kind == "vector"), 1)
    unit = vector_unit(instructions, instruction_set.vector_bytes, num_cores)
    units = (unit, *_matrix_units(promised, num_cores))
    return machine.model_copy(update={"instructions": promised, "units": units, "sources": {}})


def described_units(instructions: Instructions, num_per_instance: int) -> tuple[Unit, ...]:
    """The units of a processor that its features tell of, beside each instance of the innermost level."""
    widest = widest_in(instructions)
    if widest is None:
        return ()
    vectors = vector_unit(instructions, widest.vector_bytes, num_per_instance)
    return (vectors, *_matrix_units(instructions, num_per_instance))


def _matrix_units(instructions: Instructions, num_per_instance: int) -> tuple[Unit, ...]:
    """The unit that multiplies tiles, where a processor has one."""
    if not set(AMX_NEEDS) <= set(instructions.features):
        return ()
    return (
        Unit(
            name="matrix",
            kind="matrix",
            num_per_instance=num_per_instance,
            macs_per_cycle=dict(_AMX_MACS_PER_CYCLE),
            tile=_AMX_TILE,
        ),
    )


def vector_unit(instructions: Instructions, widths: tuple[int, ...], num_per_instance: int = 1) -> Unit:
    """The vectors of a processor: as many multiply-adds in a cycle as its pipes take."""
    wide = 2 * widths[0]
    bytes_per_cycle = min(wide, _FMA_BYTES_PER_CYCLE.get(instructions.processor, wide))
    rates = {"float32": bytes_per_cycle / 4, "float64": bytes_per_cycle / 8}
    products_of_bytes = _has_any(instructions, ("avx512vnni", "avxvnni", "dotprod"))
    return Unit(
        name="vector",
        kind="vector",
        num_per_instance=num_per_instance,
        runs=_WORK,
        macs_per_cycle={**rates, **({"int8": bytes_per_cycle} if products_of_bytes else {})},
        ops_per_cycle=rates,
        vector_bytes=widths,
    )


def rate_sources(instructions: Instructions, units: Sequence[Unit]) -> dict[str, str]:
    """Where the rates of a machine's units, which are `described_units`, come from: citations by path."""
    is_known = instructions.processor in _FMA_BYTES_PER_CYCLE
    pipes = "the pipes of this processor" if is_known else "two pipes as wide as the vectors"
    of_kind = {"vector": f"assumed: {pipes}", "matrix": "public: Intel 64 and IA-32 optimization manual"}
    return {f"units[{number}].macs_per_cycle": of_kind[unit.kind] for number, unit in enumerate(units)}


def _has_any(instructions: Instructions, features: Iterable[str]) -> bool:
    return not set(features).isdisjoint(instructions.features)
