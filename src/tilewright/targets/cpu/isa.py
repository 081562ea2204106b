"""What kernel generators must know of a machine's processors: vectors, registers, register tiles, caches."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace

from tilewright.errors import UsageError
from tilewright.hardware.host import host_instructions, host_machine
from tilewright.hardware.instruction_sets import (
    AMX_NEEDS,
    HOST,
    INSTRUCTION_SETS,
    InstructionSet,
    instruction_set_by_name,
    instruction_set_names,
    widest_in,
)
from tilewright.hardware.machine import Machine
from tilewright.hardware.probe import host_calibration
from tilewright.hardware.processor import narrowed, promised_machine
from tilewright.hardware.rates import PROFILE, Rates, processor_rates
from tilewright.hardware.rates import MatrixRates as MatrixRates
from tilewright.hardware.rates import UnitState as UnitState
from tilewright.records import dataclass
from tilewright.targets.llvm.values import ELEMENT_BYTES

# First caches find a line by the bits within a page, which are the same before and after translation.
L1_WAY_BYTES = 4096
# Register tiles were measured on cores with two pipes as wide as the vectors, and on some with half of that.
_MOST_FMAS_PER_CYCLE = 2.0


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Data caches in bytes, as a core sees them; what a machine's description leaves out is assumed."""

    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    l3_bytes: int = 8 * 1024 * 1024
    line_bytes: int = 64

    @property
    def l1_ways(self) -> int:
        """Lines of the first cache that may lie a multiple of `L1_WAY_BYTES` apart."""
        return max(1, self.l1_bytes // L1_WAY_BYTES)

    @property
    def l1_fill_cycles(self) -> float:
        """Cycles for a line from the second cache: cores with a larger first one fill it faster."""
        return 1.0 if self.l1_bytes > 32 * 1024 else 2.0


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set as kernels see it; `triple`, `cpu` and `features` are LLVM's words."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: tuple[int, ...]  # widths worth using, widest first
    num_vector_registers: int
    num_spare_registers: int
    preferred_accumulators: int
    caches: CacheSizes
    runs_on_host: bool
    fmas_per_cycle: float = 2.0  # of the widest vectors; cores whose pipes are narrower take one
    matrix_rates: MatrixRates = MatrixRates()
    rates: Rates = PROFILE

    @property
    def arch(self) -> str:
        """First word of the triple, e.g. `x86_64`."""
        return self.triple.split("-", 1)[0]

    @property
    def vectors(self) -> str:
        """Name of the instruction set of its vectors, without what units beside them add.

        >>> isa_by_name("avx512+amx").vectors
        'avx512'
        """
        return self.name.split("+", 1)[0]

    @property
    def has_matrix_unit(self) -> bool:
        """Whether tiles of bfloat16 and of bytes can be multiplied: AMX, allowed to this process."""
        return all(f"+{need}" in self.features.split(",") for need in AMX_NEEDS)

    @property
    def without_matrix_unit(self) -> Isa:
        """The same processor but for its matrix unit."""
        features = (f"-{f[1:]}" if f.startswith("+amx") else f for f in self.features.split(","))
        return replace(self, name=self.vectors, features=",".join(features))

    @property
    def fingerprint(self) -> str:
        """Stable digest of what decides the machine code (not the caches, which only decide tile sizes)."""
        listed = "\n".join((self.name, self.triple, self.cpu, *sorted(self.features.split(","))))
        return hashlib.sha256(listed.encode()).hexdigest()[:16]

    @property
    def rates_digest(self) -> str:
        """What tells rates from others; empty for those of processors that are not known to be otherwise."""
        if (self.rates, self.matrix_rates) == (PROFILE, MatrixRates()):
            return ""
        rates = self.rates, self.matrix_rates, self.fmas_per_cycle
        return hashlib.sha256(repr(rates).encode()).hexdigest()[:12]

    @property
    def function_attributes(self) -> str:
        """Attributes for emitted functions: LLVM must not split the widest vectors."""
        return f'nounwind "prefer-vector-width"="{8 * self.vector_bytes[0]}"'

    def lanes(self, element: str = "float") -> int:
        """Lanes of the widest vector of an LLVM element type.

        >>> isa_by_name("neon").lanes("float")
        4
        """
        return self.vector_bytes[0] // ELEMENT_BYTES[element]

    def lane_choices(self, element: str = "float") -> tuple[int, ...]:
        """Lanes of every vector width, widest first: a remainder takes the narrowest that holds it."""
        return tuple(size // ELEMENT_BYTES[element] for size in self.vector_bytes)

    def fits(self, rows: int, num_vectors: int) -> bool:
        """Whether a tile of `rows` x `num_vectors` accumulators stays in registers.

        Beside the accumulators live `num_vectors` loaded operands and one broadcast. With 32 registers one
        stays free: tiles that fill the file spill at some unroll factors and then lose half their speed. With
        16 none does: 4x3 uses them all and is the fastest that `benchmarks/micro_contraction.py` measured.
        """
        used = rows * num_vectors + num_vectors + 1
        return used <= self.num_vector_registers - self.num_spare_registers

    def tile(self, num_vectors: int) -> int:
        """Rows of the best register tile that is `num_vectors` wide; at least 1.

        The preferred number of accumulators, less where the registers do not hold them.

        >>> [isa_by_name("avx2").tile(n) for n in (1, 2, 3)]
        [12, 6, 4]
        """
        rows = max(1, self.preferred_accumulators // num_vectors)
        while rows > 1 and not self.fits(rows, num_vectors):
            rows -= 1
        return rows

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Register tiles (rows, vectors) with the preferred number of accumulators, best measured first."""
        return _REGISTER_USE[self.vectors].tiles


@dataclass(frozen=True, slots=True)
class _RegisterUse:
    """How kernels use the vector registers of an instruction set; tiles are the best measured first."""

    num_spare_registers: int
    preferred_accumulators: int
    tiles: tuple[tuple[int, int], ...]


# NEON's tiles leave free registers for by-lane FMAs.
_REGISTER_USE = {
    "avx512": _RegisterUse(1, 24, ((8, 3), (12, 2), (6, 4), (24, 1))),
    "avx2": _RegisterUse(0, 12, ((4, 3), (6, 2), (12, 1))),
    "neon": _RegisterUse(1, 24, ((8, 3), (12, 2), (6, 4), (24, 1))),
}
ISA_NAMES = tuple(known.name for known in INSTRUCTION_SETS)


def isa_of(machine: Machine, name: str | None = None) -> Isa:
    """What code for a machine may use: every feature of its processor, or what an instruction set promises.

    Raises:
        UsageError: an unknown name, one that the machine lacks, or a machine without a processor that
            kernels are generated for.
    """
    instructions = machine.instructions
    widest = None if instructions is None else widest_in(instructions)
    if instructions is None or widest is None:
        raise UsageError(
            f"machine {machine.name!r} has none of {', '.join(ISA_NAMES)}: "
            "use --target interpreter, or compile for another machine"
        )
    if name is None or name == HOST:
        return _isa(machine, widest)
    wanted = instruction_set_by_name(name)
    narrow = narrowed(machine, wanted)
    if narrow is None:
        raise UsageError(
            f"machine {machine.name!r} ({instructions.processor}) cannot run {wanted.name} code: "
            f"pick --isa {widest.name}, or {HOST},{wanted.name} for both; export needs no such machine"
        )
    return replace(_isa(narrow, wanted), rates=processor_rates(instructions.processor))


@functools.cache
def host_isa() -> Isa:
    """This machine, with every feature its processor has.

    Raises:
        UsageError: a processor without a vector unit that kernels are generated for.
    """
    return calibrated(isa_of(host_machine()), host_machine())


def calibrated(isa: Isa, machine: Machine) -> Isa:
    """The record with the rates that were measured on a machine, if it is this host and they were."""
    found = host_calibration() if machine is host_machine() else None
    if found is None:
        return isa
    return replace(
        isa, rates=found.rates, matrix_rates=found.matrix_rates, fmas_per_cycle=found.fmas_per_cycle
    )


@functools.cache
def isa_by_name(name: str) -> Isa:
    """What an instruction set promises, on this machine if it has it; `host` is `host_isa()`.

    Raises:
        UsageError: an unknown name.
    """
    if name == HOST:
        return host_isa()
    wanted = instruction_set_by_name(name)
    if narrowed(host_machine(), wanted) is None:
        return _isa(promised_machine(wanted), wanted)
    return isa_of(host_machine(), name)


def _isa(machine: Machine, instruction_set: InstructionSet) -> Isa:
    """The record of a machine whose code keeps to an instruction set that it has."""
    instructions = machine.instructions
    assert instructions is not None
    use = _REGISTER_USE[instruction_set.name.split("+", 1)[0]]
    signs = {**dict.fromkeys(instructions.features, "+"), **dict.fromkeys(instructions.missing_features, "-")}
    widths = {width for unit in machine.units for width in unit.vector_bytes}
    return Isa(
        name=instruction_set.name,
        triple=instructions.triple,
        cpu=instructions.processor,
        features=",".join(signs[feature] + feature for feature in sorted(signs)),
        vector_bytes=tuple(w for w in instruction_set.vector_bytes if w in widths or not widths),
        num_vector_registers=instruction_set.num_vector_registers,
        num_spare_registers=use.num_spare_registers,
        preferred_accumulators=use.preferred_accumulators,
        caches=_caches(machine),
        runs_on_host=_host_runs(instruction_set, instructions.features),
        fmas_per_cycle=_fmas_per_cycle(machine, max(instruction_set.vector_bytes)),
        rates=processor_rates(instructions.processor),
    )


def _fmas_per_cycle(machine: Machine, vector_bytes: int) -> float:
    """Multiply-adds of whole vectors in a cycle, as the machine is described; no more than two count."""
    rates = [unit.macs_per_cycle.get("float32") for unit in machine.units if unit.kind == "vector"]
    per_cycle = [rate * ELEMENT_BYTES["float"] / vector_bytes for rate in rates if rate]
    return min(_MOST_FMAS_PER_CYCLE, *per_cycle) if per_cycle else _MOST_FMAS_PER_CYCLE


def _caches(machine: Machine) -> CacheSizes:
    """The levels that are caches, by their names; a level that is not described is as large as usual."""
    sizes: dict[str, int] = {}
    for level in machine.levels:
        if level.managed_by == "hardware" and level.capacity_bytes:
            sizes[f"{level.name.lower()}_bytes"] = level.capacity_bytes
            sizes["line_bytes"] = level.line_bytes or sizes.get("line_bytes", 0)
    return replace(CacheSizes(), **{key: sizes[key] for key in CacheSizes.__slots__ if sizes.get(key)})


def _host_runs(instruction_set: InstructionSet, features: tuple[str, ...]) -> bool:
    """Whether this host has what an instruction set promises, and these features."""
    instructions = host_instructions()
    return instruction_set.is_in(instructions) and set(features) <= set(instructions.features)


def isa_for_export(name: str) -> Isa:
    """The record for code that other programs run: that of `isa_by_name`.

    The matrix unit is left out: a program must ask its system for the unit's registers before it runs.

    Raises:
        UsageError: an unknown name.
    """
    exported = tuple(known for known in instruction_set_names() if "+" not in known)
    if name not in exported:
        raise UsageError(f"unknown instruction set {name!r}: give {', '.join(exported)}.")
    isa = isa_of(host_machine()) if name == HOST else isa_by_name(name)
    return isa.without_matrix_unit
