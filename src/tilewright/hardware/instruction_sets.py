"""The instruction sets by name: what each promises.

A name such as `avx2` promises features, vectors and registers. What machines make of that is `processor.py`:
this loads at once, where stored code is opened.
"""

from __future__ import annotations

from typing import Protocol

from tilewright.errors import UsageError
from tilewright.records import dataclass


class Executes(Protocol):
    """What a processor executes, in LLVM's words."""

    @property
    def triple(self) -> str: ...  # noqa: D102

    @property
    def processor(self) -> str: ...  # noqa: D102

    @property
    def features(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def missing_features(self) -> tuple[str, ...]: ...  # noqa: D102


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

    def is_in(self, instructions: Executes) -> bool:
        """Whether a processor has all that the name promises."""
        architecture, found = (triple.split("-", 1)[0] for triple in (self.triple, instructions.triple))
        if _ARCHITECTURES.get(found, found) != architecture:
            return False
        promised = (
            known.needs
            for known in INSTRUCTION_SETS
            if known.processor == instructions.processor and not known.features
        )
        has = {*instructions.features, *(need for needs in promised for need in needs)}
        return set(self.needs) <= has - set(instructions.missing_features)


# What else architectures are called.
_ARCHITECTURES = {"arm64": "aarch64"}
_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512_NEEDS = (*_AVX2_NEEDS, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")
AMX_NEEDS = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")
"""Features of a unit that multiplies tiles of bfloat16 and of bytes."""
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
"""By width; one that adds a unit to another's vectors behind that."""

ALIASES = {"aarch64": "neon", "arm64": "neon", "x86-64-v3": "avx2", "x86-64-v4": "avx512"}
"""What else people call the instruction sets."""

COMPUTE_CAPABILITIES = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120")
"""Those of NVIDIA's GPUs that code is generated for, the oldest first."""

HOST = "host"
"""What stands for all that the processor of this host has."""


def instruction_set_names() -> tuple[str, ...]:
    """Every name that an instruction set may be given by."""
    return (HOST, *(known.name for known in INSTRUCTION_SETS), *ALIASES)


def canonical_isa(name: str) -> str:
    """What an instruction set or a compute capability is called in files, by that name or an alias.

    Raises:
        UsageError: nothing has that name.
    """
    if name in COMPUTE_CAPABILITIES:
        return name
    try:
        return instruction_set_by_name(name).name
    except UsageError as error:
        raise UsageError(f"{str(error)[:-1]}; of a GPU {', '.join(COMPUTE_CAPABILITIES)}.") from None


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


def widest_in(instructions: Executes) -> InstructionSet | None:
    """The instruction set that promises most of what a processor has; None if none is known of it."""
    found = (known for known in INSTRUCTION_SETS if known.is_in(instructions))
    return max(found, key=lambda known: len(known.needs), default=None)
