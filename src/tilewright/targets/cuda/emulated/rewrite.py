"""Kernels for a GPU rewritten for this processor: intrinsics become functions, accesses are checked.

The text is parsed and printed by LLVM first, which gives one instruction a line in one spelling.
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm

from tilewright.errors import InternalError
from tilewright.records import dataclass
from tilewright.system.forks import let_forks_pass
from tilewright.targets.cuda.emulated.collectives import (
    BARRIER_WARP,
    LDMATRIX,
    MMA,
    PRODUCTS,
    SHUFFLE,
    SHUFFLES,
)
from tilewright.targets.cuda.emulated.records import (
    AT_BARRIER,
    AT_COLLECTIVE,
    NUMBER,
    OPERANDS,
    RESULTS,
    SHARED,
    SPACE_SHIFT,
    TID,
    WRITES,
)

GLOBAL = 1
MAX_DYNAMIC_BYTES = 227 * 1024
MAX_DECLARED_BYTES = 48 * 1024
"""Of shared memory that a kernel's text declares: ptxas takes no more."""

_NAME = r'(?:"[^"]+"|[\w.$-]+)'
_DEFINE = re.compile(rf"define ptx_kernel void @({_NAME})\((.*)\)(?: [^()]*)?{{$")
_FUNCTION = re.compile(rf"define .*@({_NAME})\(")
_INTRINSIC = re.compile(r"@llvm\.nvvm\.([\w.]+)")
_LOAD = re.compile(r"(\s*%\S+ = load (?:volatile )?)(.+?), ptr( addrspace\((\d+)\))? (.+?), align (\d+)(.*)")
_STORE = re.compile(r"(\s*store (?:volatile )?)(.+?), ptr( addrspace\((\d+)\))? (.+?), align (\d+)(.*)")
_ATOMIC = re.compile(
    r"\s*(?:%\S+ = )?(?:atomicrmw|cmpxchg) .*?ptr( addrspace\((\d+)\))? (\S+), (i\d+|float) "
)
_FENCE = re.compile(r'\s*fence syncscope\("device"\) acq_rel')
_GLOBAL = re.compile(
    rf"@({_NAME}) = (?:\w+ )*?addrspace\((\d+)\) (?:externally_initialized )?(global|constant) (.*?)"
    r"(?:, align (\d+))?$"
)
_VECTOR = re.compile(r"<(\d+) x ([\w ]+)>")
_ARRAY = re.compile(r"\[(\d+) x (.+)\]$")
_SCALAR_BYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global\.(4|8|16)(\.s)?")
_UNSUPPORTED = re.compile(r"@llvm\.masked\.\w+|asm (?:sideeffect )?\"")


@dataclass(frozen=True, slots=True)
class Site:
    """An access in a kernel's text."""

    kernel: str
    is_store: bool
    space: int
    size_bytes: int
    align_bytes: int
    is_atomic: bool = False
    is_fence: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A module for this processor. Symbols: `table` of its arrays, `slots` of what its accesses found."""

    text: str
    kernels: tuple[str, ...]
    sites: tuple[Site, ...]
    arrays: tuple[tuple[int, int, bool], ...]  # space, bytes (0: as a launch says), writeable
    table: str
    slots: str

    @property
    def exports(self) -> tuple[str, ...]:
        """Symbols that a library must have."""
        return (*(f"{name}.emulated" for name in self.kernels), self.table, self.slots)


def rewritten(text: str) -> Rewritten:
    """The module of a text.

    Raises:
        InternalError: text that LLVM refuses, or that uses what the emulation lacks; names it.
    """
    let_forks_pass()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"Generated IR is invalid: {' '.join(str(error).split())}.") from error
    lines = str(module).split("\n")
    module.close()
    return _Rewriter().module(lines)


class _Rewriter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sites: list[Site] = []
        self.kernels: dict[str, list[str]] = {}
        self.arrays: list[tuple[str, int, int, bool]] = []
        self.used: dict[str, None] = {}
        self.kernel = ""
        self.slots = ""

    def module(self, lines: list[str]) -> Rewritten:
        for line in lines:
            if found := _DEFINE.match(line):
                self.kernels[found[1].strip('"')] = _split(found[2])
        if not self.kernels:
            raise InternalError("Generated module has no kernel: no `define ptx_kernel`.")
        first = next(iter(self.kernels))
        self.slots = f"{first}.slots"
        for line in lines:
            self.line(line)
        for name, parameters in self.kernels.items():
            self.lines.append(_thunk(name, parameters))
        for name in self.used:
            self.lines.append(intrinsic(name))
        rows = [
            f"{{ ptr, i64 }} {{ ptr addrspacecast (ptr addrspace({space}) @{name} to ptr), i64 {size} }}"
            for name, space, size, _ in self.arrays
        ]
        table = f"{first}.arrays"
        self.lines += [
            f'@"{table}" = global [{len(rows)} x {{ ptr, i64 }}] [{", ".join(rows)}]'
            if rows
            else f'@"{table}" = global i64 0',
            f'@"{self.slots}" = global [{max(1, len(self.sites))} x [2 x i64]] zeroinitializer',
            _PRELUDE,
        ]
        return Rewritten(
            "\n".join(self.lines),
            tuple(self.kernels),
            tuple(self.sites),
            tuple((space, size, writes) for _, space, size, writes in self.arrays),
            table,
            self.slots,
        )

    def line(self, line: str) -> None:
        if line.startswith(("target ", "source_filename", "declare ")) and (
            not line.startswith("declare ") or "@llvm.nvvm." in line
        ):
            return
        if found := _UNSUPPORTED.search(line):
            raise InternalError(f"The emulated device has no {found[0].strip()}: kernel {self.kernel!r}.")
        if found := _FUNCTION.match(line):
            self.kernel = found[1].strip('"')
            self.lines.append(line.replace("define ptx_kernel ", "define "))
            return
        if found := _GLOBAL.match(line):
            self.lines.append(self.array(line, found))
            return
        if found := _LOAD.fullmatch(line):
            self.access(found[4], found[3], found[5], _size_bytes(found[2]), int(found[6]), is_store=False)
        elif found := _STORE.fullmatch(line):
            size = _size_bytes(_leading_type(found[2]))
            self.access(found[4], found[3], found[5], size, int(found[6]), is_store=True)
        elif found := _ATOMIC.match(line):
            size = _size_bytes(found[4])
            self.access(found[2], found[1], found[3], size, size, is_store=True, is_atomic=True)
        elif _FENCE.match(line):
            self.sites.append(Site(self.kernel, False, GLOBAL, 0, 1, is_fence=True))
            self.lines.append(f"  call void @emu_fence(i64 {len(self.sites) - 1})")
        self.lines.append(self.intrinsics(line))

    def array(self, line: str, found: re.Match[str]) -> str:
        name, space, is_global, kind = found[1], int(found[2]), found[3] == "global", found[4]
        array = _ARRAY.match(_leading_type(kind))
        size = _size_bytes(_leading_type(kind))
        self.arrays.append((name, space, size, is_global))
        if array and int(array[1]) == 0:
            return (
                f"@{name} = internal addrspace({space}) global [{MAX_DYNAMIC_BYTES} x i8] undef, "
                f"align {found[5] or 16}"
            )
        return line

    def access(
        self,
        space: str | None,
        written: str | None,
        pointer: str,
        size: int,
        align: int,
        *,
        is_store: bool,
        is_atomic: bool = False,
    ) -> None:
        """A check in front of a load or store."""
        number = int(space or 0)
        place = self.site(size, align, number, is_store=is_store, is_atomic=is_atomic)
        flags = (number << SPACE_SHIFT) | (WRITES if is_store else 0)
        flat = self.flat(written, pointer)
        self.lines.append(
            f"  call void @emu.check(ptr {flat}, i64 {size}, i64 {align}, i64 {flags}, i64 {place}, "
            f"ptr {self.slot(place)})"
        )

    def flat(self, written: str | None, pointer: str) -> str:
        """The pointer in the space that functions take: it is the same number on a processor."""
        if not written:
            return pointer
        if not pointer.startswith("%"):
            return f"addrspacecast (ptr{written} {pointer} to ptr)"
        name = f"%emu.{len(self.lines)}"
        self.lines.append(f"  {name} = addrspacecast ptr{written} {pointer} to ptr")
        return name

    def site(self, size: int, align: int, space: int, *, is_store: bool, is_atomic: bool = False) -> int:
        self.sites.append(Site(self.kernel, is_store, space, size, align, is_atomic))
        return len(self.sites) - 1

    def slot(self, place: int) -> str:
        return f'getelementptr ([2 x i64], ptr @"{self.slots}", i64 {place})'

    def intrinsics(self, line: str) -> str:
        found = _INTRINSIC.search(line)
        if found is None:
            return line
        name = found[1]
        line = line.replace(f"@llvm.nvvm.{name}", f"@emu.{name}")
        self.used[name] = None
        if name.startswith("ldmatrix."):
            place = self.site(16, 16, SHARED, is_store=False)
            return _with_arguments(line, f"i64 {place}, ptr {self.slot(place)}")
        if copied := _COPY.fullmatch(name):
            size = int(copied[1])
            to = self.site(size, size, SHARED, is_store=True)
            of = self.site(size, size, GLOBAL, is_store=False)
            return _with_arguments(line, f"i64 {to}, ptr {self.slot(to)}, i64 {of}, ptr {self.slot(of)}")
        return line


def _with_arguments(line: str, more: str) -> str:
    """A call with arguments behind its own."""
    end = line.rindex(")")
    return f"{line[:end]}, {more}{line[end:]}"


def _thunk(name: str, parameters: list[str]) -> str:
    """What calls a kernel with the 64-bit arguments of a launch."""
    lines = [f'define void @"{name}.emulated"(ptr %all) {{']
    values = []
    for number, parameter in enumerate(parameters):
        kind = _leading_type(parameter)
        lines += [
            f"  %at{number} = getelementptr i64, ptr %all, i64 {number}",
            f"  %v{number} = load {kind}, ptr %at{number}",
        ]
        values.append(f"{kind} %v{number}")
    return "\n".join([*lines, f'  call void @"{name}"({", ".join(values)})', "  ret void", "}"])


def _split(text: str) -> list[str]:
    """Parameters, which commas divide outside of brackets."""
    parts: list[str] = []
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign in "<([{") - (sign in ">)]}")
        if sign == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _leading_type(text: str) -> str:
    """The type at the beginning of a text."""
    if text.startswith(("<", "[")):
        depth = 0
        for place, sign in enumerate(text):
            depth += (sign in "<[") - (sign in ">]")
            if depth == 0:
                return text[: place + 1]
    found = re.match(r"ptr addrspace\(\d+\)|[\w]+", text)
    if found is None:
        raise InternalError(f"Generated IR has a type that cannot be read: {text[:60]!r}.")
    return found[0]


def _size_bytes(kind: str) -> int:
    """The size of a type in memory."""
    if found := _VECTOR.fullmatch(kind):
        bits = int(found[1]) * (1 if found[2] == "i1" else 8 * _size_bytes(found[2]))
        return (bits + 7) // 8
    if found := _ARRAY.match(kind):
        return int(found[1]) * _size_bytes(found[2])
    if kind.startswith("i") and kind[1:].isdigit():
        return (int(kind[1:]) + 7) // 8
    if kind.startswith("ptr"):
        return 8
    if kind not in _SCALAR_BYTES:
        raise InternalError(f"The emulated device cannot load or store a value of type {kind!r}.")
    return _SCALAR_BYTES[kind]


_PRELUDE = """
@emu_current = external global ptr
@emu_grid = external global [9 x i32]
declare void @emu_wait(i64, i64)
declare void @emu_check(i64, i64, i64, i64, i64, ptr)
declare void @emu_copy(ptr, ptr, i64, i64)
declare void @emu_commit()
declare void @emu_fence(i64)
declare void @emu_wait_group(i64)

define internal void @emu.check(ptr %at, i64 %size, i64 %align, i64 %flags, i64 %site, ptr %slot) {
  %address = ptrtoint ptr %at to i64
  %end = add i64 %address, %size
  %lo = load i64, ptr %slot
  %hi.at = getelementptr i64, ptr %slot, i64 1
  %hi = load i64, ptr %hi.at
  %above = icmp uge i64 %address, %lo
  %below = icmp ule i64 %end, %hi
  %low.bits = sub i64 %align, 1
  %odd = and i64 %address, %low.bits
  %straight = icmp eq i64 %odd, 0
  %in = and i1 %above, %below
  %fine = and i1 %in, %straight
  br i1 %fine, label %end.here, label %search, !prof !{!"branch_weights", i32 1000, i32 1}
search:
  call void @emu_check(i64 %site, i64 %address, i64 %size, i64 %align, i64 %flags, ptr %slot)
  br label %end.here
end.here:
  ret void
}
"""

_AXES = {"x": 0, "y": 1, "z": 2}
_GRID_FIELDS = {"ctaid": 0, "ntid": 3, "nctaid": 6}
_BARRIERS = ("barrier0", "barrier.cta.sync.aligned.all", "barrier.cta.sync.all")
_NOTHING = (
    "membar.cta",
    "membar.gl",
    "membar.sys",
    "griddepcontrol.wait",
    "griddepcontrol.launch.dependents",
)


def intrinsic(name: str) -> str:
    """The function that stands for `llvm.nvvm.<name>`.

    Raises:
        InternalError: the emulation has none.
    """
    parts = name.split(".")
    head = f"define internal {{}} @emu.{name}({{}}) alwaysinline {{{{\n"
    if name.startswith("read.ptx.sreg."):
        return _special_register(head, name, parts)
    if name in _BARRIERS:
        argument = "" if name == "barrier0" else "i32 %id"
        number = "0" if name == "barrier0" else "%number"
        widen = "" if name == "barrier0" else "  %number = zext i32 %id to i64\n"
        return (
            head.format("void", argument)
            + widen
            + f"  call void @emu_wait(i64 {AT_BARRIER}, i64 {number})\n  ret void\n}}"
        )
    if name in _NOTHING:
        return head.format("void", "") + "  ret void\n}"
    if name == "bar.warp.sync":
        return _collective(head, ("i32",), (), BARRIER_WARP)
    if name.startswith("shfl.sync.") and parts[2] in SHUFFLES and parts[3] in ("i32", "f32"):
        kind = "i32" if parts[3] == "i32" else "float"
        return _collective(head, ("i32", kind, "i32", "i32"), (kind,), SHUFFLE + SHUFFLES.index(parts[2]))
    if name.startswith("mma."):
        for place, product in enumerate(PRODUCTS):
            if product.suffix == name.removeprefix("mma."):
                return _collective(head, product.argument_types, (product.sum_type,) * 4, MMA + place)
    if found := re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16\.p[03]", name):
        return _ldmatrix(head, name, int(found[1]), 8 if found[2] else 0)
    if found := _COPY.fullmatch(name):
        return _copy(head, int(found[1]), has_size=bool(found[2]))
    if name == "cp.async.commit.group":
        return head.format("void", "") + "  call void @emu_commit()\n  ret void\n}"
    if name == "cp.async.wait.group":
        return head.format("void", "i32 %allowed") + (
            "  %number = zext i32 %allowed to i64\n  call void @emu_wait_group(i64 %number)\n  ret void\n}"
        )
    if name == "cp.async.wait.all":
        return head.format("void", "") + "  call void @emu_wait_group(i64 -1)\n  ret void\n}"
    raise InternalError(f"The emulated device has no llvm.nvvm.{name}.")


def _special_register(head: str, name: str, parts: list[str]) -> str:
    register, axis = parts[3], _AXES.get(parts[-1], -1)
    if register == "tid" and axis >= 0:
        place = (
            "  %thread = load ptr, ptr @emu_current\n"
            f"  %at = getelementptr i8, ptr %thread, i64 {TID + 8 * axis}\n"
        )
        return head.format("i32", "") + place + "  %value = load i32, ptr %at\n  ret i32 %value\n}"
    if register in _GRID_FIELDS and axis >= 0:
        place = f"  %at = getelementptr i32, ptr @emu_grid, i64 {_GRID_FIELDS[register] + axis}\n"
        return head.format("i32", "") + place + "  %value = load i32, ptr %at\n  ret i32 %value\n}"
    if register == "laneid":
        return head.format("i32", "") + _LANE + "  %value = and i32 %lane, 31\n  ret i32 %value\n}"
    if register == "warpsize":
        return head.format("i32", "") + "  ret i32 32\n}"
    raise InternalError(f"The emulated device has no llvm.nvvm.{name}.")


_LANE = f"""  %thread = load ptr, ptr @emu_current
  %lane.at = getelementptr i8, ptr %thread, i64 {NUMBER}
  %lane.long = load i64, ptr %lane.at
  %lane = trunc i64 %lane.long to i32
"""


def _collective(head: str, takes: tuple[str, ...], gives: tuple[str, ...], operation: int) -> str:
    """What stores a lane's operands, waits for the warp, and loads its results: 32 bits each."""
    answer = "void" if not gives else gives[0] if len(gives) == 1 else f"{{ {', '.join(gives)} }}"
    lines = [
        head.format(answer, ", ".join(f"{kind} %a{i}" for i, kind in enumerate(takes))).rstrip("\n"),
        "  %thread = load ptr, ptr @emu_current",
    ]
    for i, kind in enumerate(takes):
        lines += [
            f"  %to{i} = getelementptr i8, ptr %thread, i64 {OPERANDS + 4 * i}",
            f"  store {kind} %a{i}, ptr %to{i}, align 4",
        ]
    lines.append(f"  call void @emu_wait(i64 {AT_COLLECTIVE}, i64 {operation})")
    return "\n".join([*lines, *_results(gives, answer)])


def _results(gives: tuple[str, ...], answer: str) -> list[str]:
    if not gives:
        return ["  ret void", "}"]
    lines = []
    for i, kind in enumerate(gives):
        lines += [
            f"  %from{i} = getelementptr i8, ptr %thread, i64 {RESULTS + 4 * i}",
            f"  %r{i} = load {kind}, ptr %from{i}, align 4",
        ]
    if len(gives) == 1:
        return [*lines, f"  ret {answer} %r0", "}"]
    whole = "poison"
    for i, kind in enumerate(gives):
        lines.append(f"  %whole{i} = insertvalue {answer} {whole}, {kind} %r{i}, {i}")
        whole = f"%whole{i}"
    return [*lines, f"  ret {answer} {whole}", "}"]


def _ldmatrix(head: str, name: str, number: int, across: int) -> str:
    gives = ("i32",) * number
    answer = "i32" if number == 1 else f"{{ {', '.join(gives)} }}"
    pointer = "ptr addrspace(3)" if name.endswith("p3") else "ptr"
    lines = [
        head.format(answer, f"{pointer} %at, i64 %site, ptr %slot").rstrip("\n"),
        "  %thread = load ptr, ptr @emu_current",
        f"  %address = ptrtoint {pointer} %at to i64",
        f"  %to0 = getelementptr i8, ptr %thread, i64 {OPERANDS}",
        "  store i64 %address, ptr %to0",
        f"  %to1 = getelementptr i8, ptr %thread, i64 {OPERANDS + 8}",
        "  store i64 %site, ptr %to1",
        f"  %to2 = getelementptr i8, ptr %thread, i64 {OPERANDS + 16}",
        "  store ptr %slot, ptr %to2",
        f"  call void @emu_wait(i64 {AT_COLLECTIVE}, i64 {LDMATRIX + number + across})",
    ]
    return "\n".join([*lines, *_results(gives, answer)])


def _copy(head: str, size: int, *, has_size: bool) -> str:
    """`cp.async`: both ends are checked where it is issued; bytes behind the given number become 0."""
    more = ", i32 %bytes" if has_size else ""
    valid = "  %valid = zext i32 %bytes to i64" if has_size else f"  %valid = add i64 0, {size}"
    sites = "i64 %site, ptr %slot, i64 %site.of, ptr %slot.of"
    to_access = f"i64 {size}, i64 {(SHARED << SPACE_SHIFT) | WRITES}, i64 %site, ptr %slot"
    of_access = f"i64 {size}, i64 {GLOBAL << SPACE_SHIFT}, i64 %site.of, ptr %slot.of"
    return "\n".join(
        [
            head.format("void", f"ptr addrspace(3) %to, ptr addrspace(1) %of{more}, {sites}").rstrip("\n"),
            valid,
            "  %to.flat = addrspacecast ptr addrspace(3) %to to ptr",
            "  %of.flat = addrspacecast ptr addrspace(1) %of to ptr",
            f"  call void @emu.check(ptr %to.flat, i64 {size}, {to_access})",
            "  %any = icmp ne i64 %valid, 0",
            "  br i1 %any, label %check, label %issue",
            "check:",
            f"  call void @emu.check(ptr %of.flat, i64 %valid, {of_access})",
            "  br label %issue",
            "issue:",
            f"  call void @emu_copy(ptr %to.flat, ptr %of.flat, i64 {size}, i64 %valid)",
            "  ret void",
            "}",
        ]
    )
