"""What NVIDIA's assembler makes of PTX: registers, spills, shared memory, instructions."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import InternalError
from tilewright.targets.cuda.assembler import WHEELS, assembled, run_tool, tool_path

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
    return all(tool_path(name) is not None for name in WHEELS)


def kernel_uses(ptx: bytes, isa: str) -> dict[str, KernelUse]:
    """What the kernels of a module use.

    Raises:
        UsageError: the tools are not installed.
        InternalError: the assembler refuses the text; says why.
    """
    cubin, told = assembled(ptx, isa)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "k.cubin"
        file.write_bytes(cubin)
        listings = _instructions(run_tool("nvdisasm", str(file)).stdout)
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
