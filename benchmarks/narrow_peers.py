"""Peers kept to AVX2 on a processor with AVX-512: the wider instructions are hidden from them.

Engines ask the processor what it can; onnxruntime has no setting for less, and OpenVINO's reaches its own
kernels, not those of MLAS that it has, too. So `cpuid` instructions that ask for such features (leaf 7) are
replaced, in a copy of their libraries, by an instruction that is not one; a handler of that signal asks in
their place and clears the bits of AVX-512, AVX-VNNI and AMX.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import shutil
import signal
import sys
from pathlib import Path

from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.llvm.codegen import JitLibrary, compile_object

# Bits of AVX-512, AVX-VNNI, AVX-IFMA, AVX10 and AMX in answers (eax, ebx, ecx, edx) to leaf 7, by its part.
_HIDDEN = {
    0: (0, 0xDC230000, 0x00005842, 0x03C0010C),
    1: (0x00A00030, 0, 0, 0x00080530),
}
# A number of the leaf that is loaded into eax, or first into another register, up to so many bytes before.
_LEAF_7 = re.compile(rb"(?:\xb8|\x41[\xb8-\xbf])\x07\x00\x00\x00")
_CPUID, _NO_INSTRUCTION, _REACH_BYTES = b"\x0f\xa2", b"\x0f\x0b", 40
_SA_SIGINFO = 4
# Places of registers in what a handler of signals is given on Linux.
_PLACES = {"ebx": 128, "edx": 136, "eax": 144, "ecx": 152, "rip": 168}


class _Action(ctypes.Structure):
    """What is done for a signal, as the C library has it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def handler_text() -> str:
    """The handler as LLVM's text: `cpuid` as asked, less what is hidden, then the next instruction."""
    lines = [
        "define void @handle(i32 %number, ptr %info, ptr %context) {",
        *(f"%at.{name} = getelementptr i8, ptr %context, i64 {place}" for name, place in _PLACES.items()),
        "%leaf = load i32, ptr %at.eax",
        "%part = load i32, ptr %at.ecx",
        "%told = call { i32, i32, i32, i32 } asm sideeffect "
        '"cpuid", "={eax},={ebx},={ecx},={edx},{eax},{ecx}"(i32 %leaf, i32 %part)',
        "%is.7 = icmp eq i32 %leaf, 7",
        *(f"%is.part.{part} = icmp eq i32 %part, {part}" for part in _HIDDEN),
        *(f"%is.{part} = and i1 %is.7, %is.part.{part}" for part in _HIDDEN),
    ]
    for number, name in enumerate(("eax", "ebx", "ecx", "edx")):
        lines.append(f"%{name} = extractvalue {{ i32, i32, i32, i32 }} %told, {number}")
        kept = f"%{name}"
        for part, hidden in _HIDDEN.items():
            mask = ~hidden[number] & 0xFFFFFFFF
            lines.append(f"%{name}.mask.{part} = select i1 %is.{part}, i32 {mask}, i32 -1")
            lines.append(f"%{name}.{part} = and i32 {kept}, %{name}.mask.{part}")
            kept = f"%{name}.{part}"
        lines.append(f"%{name}.wide = zext i32 {kept} to i64")
        lines.append(f"store i64 %{name}.wide, ptr %at.{name}")
    lines += [
        "%rip = load i64, ptr %at.rip",
        f"%next = add i64 %rip, {len(_CPUID)}",
        "store i64 %next, ptr %at.rip",
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def places(code: bytes) -> list[int]:
    """Where code asks for leaf 7."""
    found: set[int] = set()
    for leaf in _LEAF_7.finditer(code):
        near = code[leaf.end() : leaf.end() + _REACH_BYTES]
        found |= {leaf.end() + at.start() for at in re.finditer(re.escape(_CPUID), near)}
    return sorted(found)


@functools.cache
def handler() -> JitLibrary:
    """The handler, which lives as long as the process."""
    return JitLibrary([compile_object(handler_text(), host_isa())], ["handle"])


def prepare(package: str, folder: Path) -> None:
    """Hide what is wider than AVX2 from a package in this process: import it from a copy, which stays there.

    Raises:
        RuntimeError: the package is loaded already, or asks in another way than was expected.
    """
    found = importlib.util.find_spec(package)
    if package in sys.modules or found is None or found.origin is None:
        raise RuntimeError(f"{package} is not installed, or loaded already")
    _handle()
    place = folder / f"narrow-{package}"
    if not copied(Path(found.origin).parent, place / package):
        raise RuntimeError(f"{package} asks for the processor's features in another way than was expected")
    sys.path.insert(0, str(place))
    importlib.import_module(package)


def copied(package: Path, copy: Path) -> int:
    """Copy a package with other instructions in its libraries; how many there are."""
    shutil.copytree(package, copy, copy_function=_link)
    count = 0
    for library in (path for path in copy.rglob("*.so*") if path.is_file()):
        code = bytearray(library.read_bytes())
        for at in places(bytes(code)):
            code[at : at + len(_CPUID)] = _NO_INSTRUCTION
            count += 1
        library.unlink()
        library.write_bytes(code)
    return count


def _link(source: str, place: str) -> None:
    Path(place).symlink_to(source)


def _handle() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    action = _Action(handler=handler()["handle"], flags=_SA_SIGINFO)
    if libc.sigaction(int(signal.SIGILL), ctypes.byref(action), None):
        raise OSError(ctypes.get_errno(), "no handler of SIGILL")
