"""Kernels of an artifact: PTX, and cubins, of each compute capability that was asked for.

Launches and their graph are derived again from the plan in the file, which is checked; what is kept of a
kernel goes by its symbol, which is made of its text. So nothing in a file says where a kernel reads or
writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tilewright.errors import UsageError
from tilewright.fields import FieldError, decoded, field_of
from tilewright.private_files import default_cache_directory
from tilewright.records import dataclass
from tilewright.targets.cuda.device import DeviceError
from tilewright.targets.cuda.ptx import OLDEST, GpuIsa, gpu_isa, ptx_of
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.stored import StoredCode, StoredParts
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.program import Program
    from tilewright.targets.cuda.code import CudaCode

PTX, CUBIN = "ptx", "cubin"
_FOLDER = "kernels"
_CUBIN_MACHINE = 190
"""`e_machine` of cubins, which are ELF files."""


class Generates(Protocol):
    """The target, as far as stored code needs it."""

    def code_of(self, program: Program) -> CudaCode:
        """The kernels of a program and their graph."""
        ...


@dataclass(frozen=True, slots=True)
class _MadeFor:
    isa: str
    generator: str


@dataclass(frozen=True, slots=True)
class CudaStore:
    """See `CodeStore`; `ordinal` is the number of the GPU.

    Kernels are trusted; they are those of the program, each for what the file says.
    """

    target: Generates
    has_cubins: bool
    ordinal: int = 0

    def pack(self, code: CudaCode) -> tuple[StoredCode, ...]:
        """PTX of each compute capability that was asked for, the newest first; without any of the oldest,
        which every GPU runs."""
        options = code.program.options
        isas = sorted(map(gpu_isa, options.isas or (OLDEST,)), key=lambda isa: isa.capability, reverse=True)
        kept_in = None if options.no_cache else options.cache_dir or default_cache_directory()
        cache = None if kept_in is None else ObjectCache(kept_in)
        return tuple(self._packed(code.texts, isa, cache) for isa in dict.fromkeys(isas))

    def _packed(self, texts: Mapping[str, str], isa: GpuIsa, cache: ObjectCache | None) -> StoredCode:
        parts: dict[str, tuple[bytes, ...]] = {}
        for symbol, ptx in zip(texts, ptx_of(tuple(texts.values()), isa, cache=cache), strict=True):
            parts[_part(symbol, PTX)] = (ptx,)
            if self.has_cubins:
                from tilewright.targets.cuda.assembler import assembled

                parts[_part(symbol, CUBIN)] = (assembled(ptx, isa.name)[0],)
        facts = {"symbols": sorted(texts), "has_cubins": self.has_cubins}
        return StoredCode({"isa": isa.name, "generator": __version__}, facts, parts)

    def refusal(self, made_for: Mapping[str, str]) -> str | None:
        """Why the GPU of this host cannot run it; where there is none, loading says so."""
        made = decoded(_MadeFor, made_for)
        try:
            isa = gpu_isa(made.isa)
        except UsageError as error:
            raise FieldError(str(error).rstrip("."), ".isa") from error
        if made.generator != __version__:
            return f"its kernels are of tilewright {made.generator[:40]}, not {__version__}"
        try:
            from tilewright.targets.cuda.driver import gpu_here

            name, capability = gpu_here(self.ordinal)
        except (DeviceError, UsageError):
            return None
        if isa.capability > capability:
            major, minor = capability
            return f"its code is for {isa.name}, and {name} has compute capability {major}.{minor}"
        return None

    def adapted(self, program: Program, made_for: Mapping[str, str]) -> Program:
        """For the GPU of this host."""
        return replace(program, options=replace(program.options, isa=None))

    def unpack(self, parts: StoredParts) -> CudaCode:
        """The code of the program, with what its kernels were assembled to."""
        isa = gpu_isa(field_of(parts.made_for, "isa", str))
        has_cubins = field_of(parts.facts, "has_cubins", bool)
        code = self.target.code_of(parts.program())
        if field_of(parts.facts, "symbols", tuple[str, ...]) != tuple(sorted(code.texts)):
            raise FieldError("are not the kernels of the program", ".symbols")
        images: dict[str, dict[str, bytes]] = {}
        for symbol in code.texts:
            images[symbol] = {f"{isa.name}.{PTX}": _checked_ptx(parts.read(_part(symbol, PTX)), symbol, isa)}
            if has_cubins:
                images[symbol][f"{isa.name}.{CUBIN}"] = _checked_cubin(
                    parts.read(_part(symbol, CUBIN)), symbol
                )
        return replace(code, images=images)


def _part(symbol: str, kind: str) -> str:
    return f"{_FOLDER}/{symbol}.{kind}"


def _checked_ptx(data: bytes, symbol: str, isa: GpuIsa) -> bytes:
    """PTX, which is for the capability that its label says and has the kernel."""
    found = re.search(rb"^\.target ([\w, ]+)$", data, re.MULTILINE)
    if found is None or found[1].decode() != isa.name:
        stated = "no PTX" if found is None else f"for {found[1].decode()[:40]}"
        raise FieldError(f"{_part(symbol, PTX)} is {stated}, where the manifest says {isa.name}", ".symbols")
    if re.search(rb"^\.visible \.entry " + re.escape(symbol.encode()) + rb"\(", data, re.MULTILINE) is None:
        raise FieldError(f"{_part(symbol, PTX)} does not have the kernel", ".symbols")
    return data


def _checked_cubin(data: bytes, symbol: str) -> bytes:
    """A cubin, which is one."""
    if data[:4] != b"\x7fELF" or int.from_bytes(data[18:20], "little") != _CUBIN_MACHINE:
        raise FieldError(f"{_part(symbol, CUBIN)} is no code of a GPU", ".symbols")
    return data
