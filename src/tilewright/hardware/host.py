"""This host as a machine: what can be known of it without measuring."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.hardware.machine import Instructions, Level, Machine
from tilewright.hardware.probe import CacheInfo, HostFacts, ProcessorFacts, probe_host, processor_facts
from tilewright.hardware.processor import described_units, rate_sources

# Elements of operators mapped onto the host are float32.
_WORD_BITS = 32


@functools.cache
def host_machine() -> Machine:
    """What this host executes, its units, caches and memory, as this process first saw them."""
    return described_host(replace(probe_host(), processor=processor_facts()))


@functools.cache
def host_memory() -> Machine:
    """This host as targets see it that generate no code: its caches and memory alone."""
    return described_host(probe_host())


HOST_NAME = "host"
"""Of whatever machine this process runs on."""


def described_host(facts: HostFacts) -> Machine:
    """A host of which these facts hold, as one cluster of its usable cores.

    Bandwidths and clock depend on the state of the host and are left out; only measuring gives them.
    """
    cores = facts.num_threads
    caches = sorted((c for c in facts.caches if c.kind in ("Data", "Unified")), key=lambda c: c.level)
    counts = _instances(caches, cores)
    levels = [
        _cache_level(cache, inner // outer, per_core=inner == cores)
        for cache, (inner, outer) in zip(caches, pairwise(counts), strict=True)
    ]
    memory = Level(
        name="DRAM",
        capacity_bytes=facts.memory_limit_bytes,
        per="machine",
        managed_by="hardware",
        word_bits=_WORD_BITS,
    )
    instructions = None if facts.processor is None else _instructions(facts.processor)
    units = () if instructions is None else described_units(instructions, cores // counts[0])
    return Machine(
        name=HOST_NAME,
        description=f"{facts.cpu_name} ({facts.architecture})",
        levels=(*levels, memory),
        units=units,
        num_cores_per_cluster=cores,
        instructions=instructions,
        sources={} if instructions is None else rate_sources(instructions, units),
    )


def host_instructions() -> Instructions:
    """What this process may execute."""
    return _instructions(processor_facts())


def _instructions(processor: ProcessorFacts) -> Instructions:
    return Instructions(
        triple=processor.triple,
        processor=processor.name,
        features=processor.features,
        missing_features=processor.missing_features,
    )


def _instances(caches: Sequence[CacheInfo], cores: int) -> list[int]:
    """How many of each cache, and one memory.

    Where the usable cores do not fill the outer caches evenly, fewer of those are assumed than there are.
    """
    counts: list[int] = []
    inner = cores
    for cache in caches:
        wanted = max(1, cores // max(1, cache.num_sharing_cores))
        inner = next(count for count in range(min(wanted, inner), 0, -1) if inner % count == 0)
        counts.append(inner)
    return [*counts, 1]


def _cache_level(cache: CacheInfo, fan_out: int, *, per_core: bool) -> Level:
    return Level(
        name=f"L{cache.level}",
        capacity_bytes=cache.size_bytes,
        num_instances_per_parent=fan_out,
        managed_by="hardware",
        line_bytes=cache.line_bytes or None,
        word_bits=_WORD_BITS,
        per="core" if per_core else None,
    )
