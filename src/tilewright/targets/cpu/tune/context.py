"""What decides measurements on this processor, apart from the work."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, replace

from tilewright.hardware.host import host_machine
from tilewright.hardware.probe import cpu_name
from tilewright.options import Accuracy
from tilewright.targets.cpu.isa import ISA_NAMES, Isa, host_isa, isa_by_name, isa_of
from tilewright.targets.llvm.codegen import toolchain_version
from tilewright.tuning.database import FORMAT_VERSION, TuningDatabase
from tilewright.tuning.observation import PlanContext
from tilewright.version import __version__


def context_on(
    isa: Isa, accuracy: Accuracy, num_threads: int, surroundings: str = "", *, place: str = ""
) -> PlanContext:
    """The context of measurements of code for an instruction set, made on this machine or at a `place`.

    What is measured elsewhere is kept apart: processors of one instruction set differ.
    """
    return PlanContext(
        version=__version__,
        machine=isa.fingerprint,
        caches=_caches(isa),
        toolchain=toolchain_version(),
        accuracy=accuracy,
        num_threads=num_threads,
        surroundings=f"{surroundings}{_ELSEWHERE}{place}" if place else surroundings,
        processor=place or _processor(),
        format_version=FORMAT_VERSION,
    )


_ELSEWHERE = "measured on "


def elsewhere(database: TuningDatabase, here: PlanContext) -> Sequence[PlanContext]:
    """The contexts of measurements at any place that are else like one: processors first, then emulators."""
    found = (
        context
        for context in database.contexts().values()
        if context.surroundings == f"{here.surroundings}{_ELSEWHERE}{context.processor}"
        and replace(context, surroundings=here.surroundings).key == here.key
    )
    return sorted(found, key=lambda context: (context.is_emulated, context.processor))


def _caches(isa: Isa) -> str:
    """Sizes of caches, and rates where these were measured: they decide what a choice leaves open."""
    return f"{asdict(isa.caches)}{isa.rates_digest}"


@functools.cache
def _processor() -> str:
    """The processor's name, which systems with many cores take a while to tell."""
    return cpu_name()


def host_fingerprints() -> frozenset[str]:
    """Fingerprints of this machine's contexts, one for each instruction set that code may be made for."""
    isas = (host_isa(), isa_of(host_machine()), *map(isa_by_name, ISA_NAMES))
    return frozenset(context_on(isa, "default", 1).fingerprint for isa in isas)
