"""LLVM IR of kernels to PTX, which a driver assembles for its GPU: by llvmlite, cached by content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.errors import InternalError, UsageError
from tilewright.hardware.instruction_sets import COMPUTE_CAPABILITIES
from tilewright.records import dataclass
from tilewright.targets.llvm.codegen import CompileJob, compile_objects

if TYPE_CHECKING:
    from tilewright.targets.llvm.cache import ObjectCache

PTX_TRIPLE = "nvptx64-nvidia-cuda"
OLDEST = "sm_80"
"""Compute capability of the oldest GPU with asynchronous copies and `mma` of 16 x 8 x 16."""

_VERSION = 80
"""The version of PTX; 8.0 came with driver 525."""
_NEWER_VERSIONS = {"sm_100": 86, "sm_120": 87}
_UNKNOWN = re.compile(r"\.extern \.func\s+(?:\([^)]*\)\s*)?([\w.$]+)")


@dataclass(frozen=True, slots=True)
class GpuIsa:
    """A compute capability as the code generator names one."""

    name: str

    @property
    def triple(self) -> str:
        """LLVM's name of the machine."""
        return PTX_TRIPLE

    @property
    def cpu(self) -> str:
        """LLVM's name of the processor."""
        return self.name

    @property
    def features(self) -> str:
        """The version of PTX."""
        return f"+ptx{_NEWER_VERSIONS.get(self.name, _VERSION)}"

    @property
    def fingerprint(self) -> str:
        """What decides the text."""
        return f"{self.triple}/{self.name}/{self.features}"

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor number.

        >>> gpu_isa("sm_120").capability
        (12, 0)
        """
        number = int(self.name.removeprefix("sm_"))
        return number // 10, number % 10


def gpu_isa(name: str) -> GpuIsa:
    """A compute capability that code is generated for.

    Raises:
        UsageError: an unknown name.
    """
    if name not in COMPUTE_CAPABILITIES:
        raise UsageError(f"unknown compute capability {name!r}: give {', '.join(COMPUTE_CAPABILITIES)}.")
    return GpuIsa(name)


def newest_for(capability: tuple[int, int]) -> GpuIsa | None:
    """What a GPU of a capability runs that is newest; None for one that is too old.

    >>> newest_for((8, 9)).name, newest_for((10, 3)).name, newest_for((7, 5))
    ('sm_89', 'sm_100', None)
    """
    fitting = [isa for name in COMPUTE_CAPABILITIES if (isa := GpuIsa(name)).capability <= capability]
    return max(fitting, key=lambda isa: isa.capability, default=None)


def ptx_of(
    texts: Sequence[str], isa: GpuIsa, *, cache: ObjectCache | None = None, num_processes: int = 1
) -> list[bytes]:
    """The PTX of each module, in order.

    Raises:
        InternalError: text that LLVM refuses, or a function that no GPU has; names it.
    """
    jobs = [CompileJob(text, optimize=True) for text in texts]
    found = compile_objects(jobs, isa, cache=cache, num_processes=num_processes)
    for ptx in found:
        if unknown := _UNKNOWN.search(ptx.decode()):
            raise InternalError(f"Generated kernels call {unknown[1]}, which {isa.name} has not.")
    return found
