"""Where stored code can be used, and what the parts of it are called that hold constants."""

from __future__ import annotations

from dataclasses import asdict

from tilewright.hardware.instruction_sets import INSTRUCTION_SETS
from tilewright.hardware.probe import processor_facts
from tilewright.records import dataclass
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.runtime.pool_ir import INTERFACE

CONSTANTS = "constants.bin"
"""The whole arena of constants: of code on its way to another process, which has no graph."""
OPERATORS_OWN = "own.bin"
"""Constants that operators brought along."""


@dataclass(frozen=True, slots=True)
class MadeFor:
    """Where code can be used: features of a processor, in LLVM's words, beyond those that the instruction set
    promises, the system whose objects it is in, and the runtime that it expects (`pool_ir.INTERFACE`).

    `rates` are the digest of those that chose the kernels, where they were measured: they decide no value.
    """

    isa: str
    system: str
    features: str
    interface: str
    rates: str = ""

    @classmethod
    def of(cls, image: CpuImage) -> MadeFor:
        """What an image was made for."""
        needed = sorted(f[1:] for f in image.features.split(",") if f.startswith("+"))
        return cls(image.isa_name, _system(image.triple), ",".join(needed), INTERFACE, image.rates)

    def to_json(self) -> dict[str, str]:
        """Plain values, without what is empty and may be left out."""
        return {name: value for name, value in asdict(self).items() if value or name != "rates"}

    def refusal(self) -> str | None:
        """Why this host cannot run it; None if it can."""
        known = next((i for i in INSTRUCTION_SETS if i.name == self.isa), None)
        host = processor_facts()
        missing = sorted({f for f in self.features.split(",") if f} - set(host.features))
        if known is None or not known.is_in(host) or _system(host.triple) != self.system:
            return f"its code is for another processor ({self.isa}, {self.system})"
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            return f"its code is for another processor ({self.isa} with {shown})"
        if self.interface != INTERFACE:
            return f"its code expects another version of the runtime ({self.interface}, not {INTERFACE})"
        return None


def _system(triple: str) -> str:
    """Architecture and operating system, which decide how objects are written."""
    words = triple.split("-")
    return triple if len(words) < 3 else f"{words[0]}-{words[2]}"
