"""Everything needed to run a compiled model, and nothing of how it came about: what an artifact keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from tilewright.arrays import Array
from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.executable import (
    ConstantPlaces,
    Constants,
    CpuExecutable,
    HostStep,
    TensorSpec,
    bytes_at,
)
from tilewright.targets.cpu.runtime.executor import CheckedIndex
from tilewright.targets.cpu.runtime.main_code import WEIGHTS_BASE, MainCode, load_main
from tilewright.targets.cpu.runtime.pool import AlignedBuffer

if TYPE_CHECKING:
    from tilewright.content_pool import ContentPool
    from tilewright.options import Options
    from tilewright.targets.cpu.image.shared_constants import SharedConstants
    from tilewright.targets.cpu.runtime.executor import HostCallback


@dataclass(frozen=True, slots=True, eq=False)
class CpuImage:
    """Code, constants and tables of one model.

    `triple` and `features` say for which system and processor, in LLVM's words; `objects` are the kernels'
    and, last, the main's, `runtime` is the runtime's, where it is known. `passthrough` gives outputs that no
    kernel computes: a constant, or the name of an input. A run may have fewer rows, along `row_axes` of
    inputs, where there are any: that much of the work, `rows_share`, is less then. `rates` are those of
    `Isa.rates_digest` that chose the kernels.
    """

    isa_name: str
    triple: str
    features: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    passthrough: Mapping[str, Array | str]
    main: MainCode
    objects: tuple[bytes, ...]
    constants: Constants
    host_steps: tuple[HostStep, ...]
    arena_bytes: int
    scratch_bytes: int
    index_checks: tuple[CheckedIndex, ...] = ()
    runtime: bytes | None = None
    row_axes: Mapping[str, int] = field(default_factory=dict)
    rows_share: float = 0.0
    body_options: Options | None = None
    rates: str = ""

    def load(self, num_threads: int | None, pool: ContentPool | None = None) -> CpuExecutable:
        """Make it runnable in this process; what a pool has of its constants is not held a second time."""
        if pool is not None:
            from tilewright.targets.cpu.image.shared_constants import SharedConstants

            return self.placed(SharedConstants(self.constants, pool, WEIGHTS_BASE), num_threads)
        constants = arena_of_constants(self.constants.size_bytes)
        self.constants.fill(bytes_at(constants.address, constants.size_bytes))
        return self.executable(ConstantPlaces(constants.address, (constants,)), num_threads)

    def load_sharing(self, num_threads: int | None, pool: ContentPool) -> CpuExecutable:
        """The same, with the constants that a pool has already."""
        return self.load(num_threads, pool)

    def placed(self, shared: SharedConstants, num_threads: int | None) -> CpuExecutable:
        """What runs with constants that others may share."""
        image = replace(self, main=shared.main(self.main), host_steps=shared.host_steps(self.host_steps))
        return image.executable(shared.places, num_threads)

    def executable(self, constants: ConstantPlaces, num_threads: int | None) -> CpuExecutable:
        """What runs with the constants in these places."""
        return CpuExecutable(
            inputs=self.inputs,
            outputs=self.outputs,
            passthrough=self.passthrough,
            main=self.main,
            library=load_main(self.main, self.objects, runtime_object=self.runtime),
            weights=constants,
            arena_bytes=self.arena_bytes,
            scratch_bytes=self.scratch_bytes,
            index_checks=self.index_checks,
            callbacks=_callbacks(self.host_steps, self.body_options),
            num_threads=num_threads,
            row_axes=self.row_axes,
            rows_share=self.rows_share,
        )


def arena_of_constants(size_bytes: int) -> AlignedBuffer:
    """Zeros for so many bytes of constants."""
    return AlignedBuffer(max(64, size_bytes), "the model's constants")


def _callbacks(steps: Sequence[HostStep], options: Options | None) -> list[HostCallback]:
    """The functions of operators on the host; without any, nothing that describes operators is loaded."""
    if not steps:
        return []
    from tilewright.targets.cpu.runtime.control_flow_step import host_callback

    return [host_callback(step, options) for step in steps]
