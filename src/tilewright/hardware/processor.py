"""Processors as parts of a machine: what they execute, how wide, how fast; and the instruction sets by name.

A name such as `avx2` promises features, vectors and registers. A machine that has what it promises can be
narrowed to it; a machine that was never seen is described by the promise alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.parts import Instructions, Unit, Work

_WORK = (Work.CONTRACTION, Work.DEPTHWISE, Work.ELEMENTWISE, Work.REDUCTION, Work.SPECIAL, Work.MOVEMENT)


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What the name of an instruction set promises; `processor`, `needs` and `features` are LLVM's words.

    `features` are those that the processor of that name lacks; `vector_bytes` are the widths of vectors that
    code uses, the widest first.
    """

    name: str
    triple: str
    processor: str
    needs: tuple[str, ...]
    vector_bytes: tuple[int, ...]
    num_vector_registers: int
    features: tuple[str, ...] = ()

    def is_in(self, instructions: Instructions) -> bool:
        """Whether a processor has all that the name promises."""
        architecture = self.triple.split("-", 1)[0]
        if _ARCHITECTURES.get(instructions.architecture, instructions.architecture) != architecture:
            return False
        promised = (
            known.needs
            for known in INSTRUCTION_SETS
            if known.processor == instructions.processor and not known.features
        )
        has = {*instructions.features, *(need for needs in promised for need in needs)}
        return set(self.needs) <= has - set(instructions.missing_features)

    @property
    def machine(self) -> Machine:
        """A machine of which nothing else is known: code for it runs wherever the promise holds."""
        instructions = Instructions(triple=self.triple, processor=self.processor, features=self.features)
        return Machine(
            name=self.name,
            description=f"a processor with {self.name}, of which nothing else is known",
            levels=(Level(name="DRAM", managed_by="hardware", word_bits=32),),
            units=(vector_unit(instructions, self.vector_bytes), *_matrix_units(instructions, 1)),
            instructions=instructions,
        )


# What else architectures are called.
_ARCHITECTURES = {"arm64": "aarch64"}
_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512_NEEDS = (*_AVX2_NEEDS, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")
AMX_NEEDS = ("amx-tile", "amx-bf16", "avx512bf16")
"""Features of a unit that multiplies tiles of bfloat16."""
_X86_TRIPLE = "x86_64-unknown-linux-gnu"
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"
INSTRUCTION_SETS = (
    InstructionSet("avx512", _X86_TRIPLE, "x86-64-v4", _AVX512_NEEDS, (64, 32, 16), 32),
    InstructionSet(
        "avx512+amx",
        _X86_TRIPLE,
        "x86-64-v4",
        (*_AVX512_NEEDS, *AMX_NEEDS),
        (64, 32, 16),
        32,
        features=AMX_NEEDS,
    ),
    InstructionSet("avx2", _X86_TRIPLE, "x86-64-v3", _AVX2_NEEDS, (32, 16), 16),
    InstructionSet("neon", _ARM_TRIPLE, "generic", (), (16,), 32),
)
"""The widest of each architecture first; one that adds a unit to another's vectors behind that."""

ALIASES = {
    "aarch64": "neon",
    "arm64": "neon",
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512",
}
"""What else people call the instruction sets."""

HOST = "host"
"""What stands for all that the processor of this host has."""

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


def instruction_set_names() -> tuple[str, ...]:
    """Every name that an instruction set may be given by."""
    return (HOST, *(known.name for known in INSTRUCTION_SETS), *ALIASES)


def instruction_set_by_name(name: str) -> InstructionSet:
    """What a name, or an alias, promises.

    Raises:
        UsageError: no instruction set has that name.
    """
    known = {instruction_set.name: instruction_set for instruction_set in INSTRUCTION_SETS}
    meant = ALIASES.get(name, name)
    if meant not in known:
        raise UsageError(f"unknown instruction set {name!r}: give {', '.join(instruction_set_names())}.")
    return known[meant]


def widest_in(instructions: Instructions) -> InstructionSet | None:
    """The widest instruction set that a processor has; None if none is known of it."""
    return next((known for known in INSTRUCTION_SETS if known.is_in(instructions)), None)


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
    types = ("bfloat16", "int8", "uint8") if "amx-int8" in instructions.features else ("bfloat16",)
    rates = {dtype: _AMX_MACS_PER_CYCLE[dtype] for dtype in types}
    return (
        Unit(
            name="matrix",
            kind="matrix",
            num_per_instance=num_per_instance,
            macs_per_cycle=rates,
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
