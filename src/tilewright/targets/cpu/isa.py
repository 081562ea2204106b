"""What kernel generators must know of an instruction set: vectors, registers, register tiles, caches."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite.binding as llvm

from tilewright.errors import UsageError
from tilewright.targets.cpu.values import ELEMENT_BYTES

_CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Per-core data caches in bytes."""

    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    l3_bytes: int = 8 * 1024 * 1024
    line_bytes: int = 64


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
    has_fma: bool = True

    @property
    def arch(self) -> str:
        """First word of the triple, e.g. `x86_64`."""
        return self.triple.split("-", 1)[0]

    @property
    def has_matrix_unit(self) -> bool:
        """Whether tiles of bfloat16 can be multiplied: the processor's AMX, allowed to this process."""
        return all(f"+{need}" in self.features.split(",") for need in _AMX_NEEDS)

    @property
    def fingerprint(self) -> str:
        """Stable digest of what decides the machine code (not the caches, which only decide tile sizes)."""
        listed = "\n".join((self.name, self.triple, self.cpu, *sorted(self.features.split(","))))
        return hashlib.sha256(listed.encode()).hexdigest()[:16]

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
        16 none does: 4x3 uses them all and is the fastest measured (spec/cpu.md section 1).
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
    def max_vectors(self) -> int:
        """Widest tile, in vectors, that still leaves room for one row of accumulators."""
        return max(n for n in range(1, self.num_vector_registers) if self.fits(1, n))

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Register tiles (rows, vectors) with the preferred number of accumulators, best measured first."""
        return _TILES[self.name]

    def target_machine(self, *, opt_level: int = 2, jit: bool = False) -> llvm.TargetMachine:
        """LLVM's code generator for this instruction set; `jit` when the code runs in this process."""
        initialize_llvm()
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=opt_level,
            reloc="pic",
            codemodel="jitdefault" if jit else "default",
            jit=jit,
        )


# Best measured first; NEON's leave room for by-lane FMAs (spec/cpu.md section 1).
_TILES = {
    "avx512": ((8, 3), (12, 2), (6, 4), (24, 1)),
    "avx2": ((4, 3), (6, 2), (12, 1)),
    "neon": ((8, 3), (12, 2), (6, 4), (24, 1)),
}
_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512_NEEDS = (*_AVX2_NEEDS, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")
_AMX_NEEDS = ("amx-tile", "amx-bf16", "avx512bf16")
_X86_TRIPLE = "x86_64-unknown-linux-gnu"
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"
_KINDS = {
    "avx512": Isa("avx512", _X86_TRIPLE, "x86-64-v4", "", (64, 32, 16), 32, 1, 24, CacheSizes(), False),
    "avx2": Isa("avx2", _X86_TRIPLE, "x86-64-v3", "", (32, 16), 16, 0, 12, CacheSizes(), False),
    "neon": Isa("neon", _ARM_TRIPLE, "generic", "", (16,), 32, 1, 24, CacheSizes(), False),
}
ISA_NAMES = tuple(_KINDS)


@functools.cache
def initialize_llvm() -> None:
    """Register every code generator in the llvmlite wheel; cheap after the first call."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


@functools.cache
def host_isa() -> Isa:
    """This machine, with every feature its processor has.

    Raises:
        UsageError: a processor without a vector unit that kernels are generated for.
    """
    for name in ISA_NAMES:
        kind = isa_by_name(name)
        if kind.runs_on_host:
            return replace(
                kind,
                triple=llvm.get_process_triple(),
                cpu=llvm.get_host_cpu_name(),
                features=_host_features(),
            )
    raise UsageError(
        f"this {platform.machine()} processor has none of {', '.join(ISA_NAMES)}: "
        "use --target interpreter, or compile for another machine"
    )


def _host_features() -> str:
    """LLVM's list for this processor, less the tile registers where the system does not give them."""
    features: str = llvm.get_host_cpu_features().flatten()
    if allow_tile_registers():
        return features
    return ",".join(f"-{f[1:]}" if f.startswith("+amx") else f for f in features.split(","))


@functools.cache
def allow_tile_registers() -> bool:
    """Ask Linux for AMX's tile registers, which every process must before it uses them. Cheap."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        asked = ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
        return int(asked) == 0
    except (AttributeError, OSError):
        return False


# Linux's numbers on x86-64 (asm/unistd_64.h, asm/prctl.h) and the processor's for tile data.
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@functools.cache
def isa_by_name(name: str) -> Isa:
    """The generic record of an instruction set, whether or not this machine runs it; `host` is `host_isa()`.

    Raises:
        UsageError: an unknown name.
    """
    if name == "host":
        return host_isa()
    kind = _KINDS.get(name)
    if kind is None:
        raise UsageError(f"unknown instruction set {name!r}: expected host, {', '.join(ISA_NAMES)}")
    runs = _host_runs(kind)
    if not runs:
        return kind
    return replace(kind, triple=llvm.get_process_triple(), caches=read_cache_sizes(), runs_on_host=True)


# What else people call the instruction sets.
_ALIASES = {
    "aarch64": "neon",
    "arm64": "neon",
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512",
}


def isa_for_export(name: str) -> Isa:
    """The record for code that other programs run: of `isa_by_name`, by its aliases too.

    The matrix unit is left out: a program must ask its system for the unit's registers before it runs.

    Raises:
        UsageError: an unknown name.
    """
    known = _ALIASES.get(name, name)
    if known not in (*ISA_NAMES, "host"):
        listed = ", ".join(("host", *ISA_NAMES, *_ALIASES))
        raise UsageError(f"unknown instruction set {name!r}: expected one of {listed}")
    isa = isa_by_name(known)
    features = (f"-{f[1:]}" if f.startswith("+amx") else f for f in isa.features.split(","))
    return replace(isa, features=",".join(features))


def require_host(isa: Isa) -> Isa:
    """`isa`, if this machine can execute its code.

    Raises:
        UsageError: it cannot; code for it can only be emitted.
    """
    if not isa.runs_on_host:
        raise UsageError(
            f"this {platform.machine()} processor ({llvm.get_host_cpu_name()}) cannot run {isa.name} code: "
            f"pick --isa {host_isa().name}, or only emit an object for it"
        )
    return isa


def _host_runs(kind: Isa) -> bool:
    host_arch = llvm.get_process_triple().split("-", 1)[0]
    arm = ("aarch64", "arm64")
    if kind.name == "neon":
        return host_arch in arm
    if host_arch != "x86_64":
        return False
    features = llvm.get_host_cpu_features()
    return all(
        features.get(need, False) for need in (_AVX512_NEEDS if kind.name == "avx512" else _AVX2_NEEDS)
    )


def read_cache_sizes(root: Path = _CACHE_ROOT) -> CacheSizes:
    """Data caches of the first core as Linux lists them under `root`; defaults for what is not listed."""
    found: dict[str, int] = {}
    for entry in sorted(root.glob("index*")):
        facts = {key: _read(entry / key) for key in ("level", "type", "size", "coherency_line_size")}
        if facts["type"] not in ("Data", "Unified") or not facts["size"]:
            continue
        found[f"l{facts['level']}_bytes"] = _parse_size_bytes(facts["size"])
        if facts["coherency_line_size"]:
            found["line_bytes"] = int(facts["coherency_line_size"])
    known = {key: found[key] for key in CacheSizes.__slots__ if found.get(key)}
    return replace(CacheSizes(), **known)


def _read(path: Path) -> str:
    """Content of a one-line file, empty when the kernel does not provide it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _parse_size_bytes(text: str) -> int:
    """`48K` or `2M` in bytes.

    >>> _parse_size_bytes("48K"), _parse_size_bytes("2M")
    (49152, 2097152)
    """
    factor = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1])
    return int(text) if factor is None else int(text[:-1]) * factor
