"""What NVIDIA's assembler makes of PTX: registers, spills, shared memory, instructions. For development only.

The tools come from the wheels nvidia-cuda-nvcc and nvidia-cuda-nvdisasm, the extra `cuda-check`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tilewright.errors import InternalError, UsageError
from tilewright.records import dataclass

_WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}
_TIMEOUT_S = 120.0
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SECTION = re.compile(r"^\s*\.section\s+(?:\.text\.)?([^,\s]+)")
MULTIPLIES = ("FFMA", "DFMA", "HMMA", "IMMA")
"""Instructions that multiply and add: of cores and of tensor cores."""
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA `\((\.L_x_\d+)\)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What a kernel uses of a multiprocessor, and how often its code has each instruction: `{"HMMA": 16}`.

    `loop` are those of the loop that multiplies most.
    """

    num_registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int]
    loop: Mapping[str, int]


def has_tools() -> bool:
    """Whether the assembler and the disassembler are installed."""
    return all(_tool(name) is not None for name in _WHEELS)


def assembled(ptx: bytes, isa: str) -> bytes:
    """The cubin of a module.

    Raises:
        UsageError: the assembler is not installed.
        InternalError: it refuses the text; says why.
    """
    return _assemble(ptx, isa)[0]


def kernel_uses(ptx: bytes, isa: str) -> dict[str, KernelUse]:
    """What the kernels of a module use.

    Raises:
        UsageError: the tools are not installed.
        InternalError: the assembler refuses the text; says why.
    """
    cubin, told = _assemble(ptx, isa)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "k.cubin"
        file.write_bytes(cubin)
        listings = _instructions(_run("nvdisasm", str(file)).stdout)
    uses = {}
    for part in _ENTRY.split(told)[1:][::2]:
        text = told.split(f"'{part}'", 1)[1].split("Compiling entry", 1)[0]
        spills, used, shared = _SPILLS.search(text), _USED.search(text), _SHARED.search(text)
        if spills is None or used is None:
            raise InternalError(f"ptxas says nothing of kernel {part!r} that can be read.")
        uses[part] = KernelUse(
            num_registers=int(used[1]),
            stack_bytes=int(spills[1]),
            spilled_bytes=int(spills[2]) + int(spills[3]),
            shared_bytes=int(shared[1]) if shared else 0,
            instructions=Counter(name for name, _ in listings.get(part, ()) if name),
            loop=_multiplying_loop(listings.get(part, ())),
        )
    return uses


def _assemble(ptx: bytes, isa: str) -> tuple[bytes, str]:
    """The cubin, and what the assembler tells."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_bytes(ptx)
        done = _run("ptxas", "-v", f"-arch={isa}", str(source), "-o", str(target))
        if done.returncode:
            raise InternalError(f"ptxas refuses generated code: {' '.join(done.stderr.split())}")
        return target.read_bytes(), done.stderr


_Listing = Sequence[tuple[str, str]]
"""Instructions of a kernel, in order, each with the label to which it branches; a label stands alone."""


def _instructions(listing: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    kernel = ""
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            kernel = section[1]
        elif kernel and (label := _LABEL.match(line)):
            found.setdefault(kernel, []).append(("", label[1]))
        elif kernel and (instruction := _INSTRUCTION.match(line)):
            target = _BRANCH.search(line)
            found.setdefault(kernel, []).append((instruction[1], target[1] if target else ""))
    return found


def _multiplying_loop(listing: _Listing) -> Counter[str]:
    """The instructions between a label and a later branch to it, where most of them multiply."""
    labels = {label: place for place, (name, label) in enumerate(listing) if not name}
    loops = [
        Counter(name for name, _ in listing[labels[label] : place] if name)
        for place, (name, label) in enumerate(listing)
        if name and label and labels.get(label, place) < place
    ]
    return max(loops, key=lambda loop: sum(loop[name] for name in MULTIPLIES), default=Counter())


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = _tool(tool)
    if path is None:
        raise UsageError(f"{tool} is not installed: pip install --no-deps {_WHEELS[tool]}.")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _tool(name: str) -> str | None:
    """The path of a tool, in the wheel that brings it."""
    try:
        files = metadata.files(_WHEELS[name]) or []
    except metadata.PackageNotFoundError:
        return None
    found = [str(file.locate()) for file in files if file.name == name]
    return next((path for path in found if os.access(path, os.X_OK)), None)
