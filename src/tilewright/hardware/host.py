"""This host as a machine: what can be known of it without measuring."""

from __future__ import annotations

from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.probe import CacheInfo, HostFacts, probe_host


def host_machine(facts: HostFacts | None = None) -> Machine:
    """Caches and memory of this host, one cluster of its usable cores.

    Bandwidths, clock and rates depend on the state of the host and are left out; only measuring gives them.
    """
    facts = probe_host() if facts is None else facts
    cores = facts.num_threads
    caches = sorted((c for c in facts.caches if c.kind in ("Data", "Unified")), key=lambda c: c.level)
    counts = [max(1, cores // max(1, min(c.num_sharing_cores, cores))) for c in caches]
    counts = [*counts, 1]
    levels = [
        _cache_level(cache, _fan_out(counts[i], counts[i + 1]), per_core=counts[i] == cores)
        for i, cache in enumerate(caches)
    ]
    if not caches:
        cores = 1
    memory = Level(name="DRAM", capacity_bytes=facts.memory_limit_bytes, per="machine", managed_by="hardware")
    return Machine(
        name="host",
        description=f"{facts.cpu_name} ({facts.architecture})",
        levels=(*levels, memory),
        units=(),
        num_cores_per_cluster=cores,
    )


def _fan_out(count: int, outer_count: int) -> int:
    return max(1, count // outer_count)


def _cache_level(cache: CacheInfo, fan_out: int, *, per_core: bool) -> Level:
    return Level(
        name=f"L{cache.level}",
        capacity_bytes=cache.size_bytes,
        num_instances_per_parent=fan_out,
        managed_by="hardware",
        line_bytes=cache.line_bytes or None,
        per="core" if per_core else None,
    )
