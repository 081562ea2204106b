"""Lower bound of all plans of a network on a machine, however it is cut, ordered, bound and placed.

The plans are those of one policy: one that keeps weights on the chip from batch to batch is not bound by what
others fetch.

Each unit has work that no other unit takes, and where steps overlap the busiest one decides; where nothing
overlaps, they follow each other. Before any of that there is a launch. Counted is what every plan has:

* of units that compute, all nodes' work on all cores, products rounded up to whole tiles of the matrix unit;
* of main memory's port, each input, result and weight once, but for as many bytes of weights as may stay on
  the chip, and the setup of a transfer for each of them;
* of the cores' port, the same bytes, since whatever is used comes to the cores, or stays there.

Not counted is what some plan avoids, though most do not: second launches, halos, values that leave the chip.
A bound on what must leave it (live bytes of a cut beyond the capacity, there and back) would not hold: slices
of the batch need not all be live, and what was dropped can be computed again.

Where a window leaves elements out between those that it reads, whole layers read and compute these,
and slices of them need not: the bound is that of plans that do as this one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from tilewright.hardware.machine import Machine
from tilewright.ir.region import Region, union_volume, volume
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.ports import CORE_DMA, DMA, Ports, ports_of
from tilewright.targets.npu.residents import most_resident_bytes
from tilewright.targets.npu.simulated_step import SimulatedStep


def lower_bound(
    steps: Sequence[SimulatedStep],
    machine: Machine,
    policy: Policy,
    least_seconds: Mapping[str, float],
    *,
    in_groups: bool = True,
) -> tuple[float, str]:
    """Seconds that a cluster needs for the network of some steps at least, and the unit that decides.

    `least_seconds` is what each unit takes at least, however the network is cut. Without `in_groups` the
    bound is of plans that run every step on all cores. O(steps).
    """
    ports = ports_of(machine)
    seconds: dict[str, float] = {}
    for step in steps:
        for work in step.works:
            cores = step.lane or step.group
            share = 1.0 if cores is None else cores.share
            seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds * share
    for unit, work_s in seconds.items():
        # Slices may leave out rows between those that they read.
        seconds[unit] = min(work_s, least_seconds.get(unit, work_s if unit not in (DMA, CORE_DMA) else 0.0))
    input_bytes = least_seconds.get(DMA, inf) * ports.main_bytes_per_s
    for unit, moving_s in _moving_seconds(
        steps, machine, ports, policy, input_bytes, in_groups=in_groups
    ).items():
        seconds[unit] = moving_s + (seconds.get(unit, 0.0) if unit != DMA else 0.0)
    unit = max(seconds, key=lambda name: seconds[name])
    is_serial = policy.overlap == "none" and not any(step.kernel for step in steps)
    busy_s = sum(seconds.values()) if is_serial else seconds[unit]
    is_launched = bool(steps) or policy.launches != "each step"
    return is_launched * machine.overheads.kernel_launch_ns * 1e-9 + busy_s, unit


def _moving_seconds(
    steps: Sequence[SimulatedStep],
    machine: Machine,
    ports: Ports,
    policy: Policy,
    most_input_bytes: float,
    *,
    in_groups: bool,
) -> dict[str, float]:
    """Seconds of the two ports for what each plan of the network moves, of inputs only what results need."""
    weights = _bytes_once(
        (w.name, w.region, w.size_bytes) for s in steps for w in s.weights if w.name is not None
    )
    inputs = _bytes_once(
        (x.value, x.region, x.size_bytes) for s in steps for x in s.loads if x.producer is None
    )
    results = {x.value: x.size_bytes for s in steps for x in s.stores if x.is_result}
    rows_bytes = sum(w.size_bytes for s in steps for w in s.weights if w.name is None)
    input_bytes = min(most_input_bytes, sum(inputs.values()))
    border_bytes = input_bytes + sum(x.size_bytes for s in steps for x in s.stores if x.is_result)
    weight_bytes = sum(weights.values())
    stay_bytes = most_resident_bytes(machine, in_groups=in_groups) if policy.resident_weights else 0.0
    passing_bytes = border_bytes + rows_bytes + max(0.0, weight_bytes - stay_bytes)
    num_transfers = len(inputs) + sum(1 for x in results.values() if x)
    if not policy.resident_weights:
        num_transfers += len(weights)
    seconds = {DMA: num_transfers * ports.setup_s + passing_bytes / ports.main_bytes_per_s}
    if ports.shared is not None:
        seconds[CORE_DMA] = passing_bytes / ports.local_bytes_per_s
    return seconds


def _bytes_once(parts: Iterable[tuple[str, Region, int]]) -> dict[str, float]:
    """Bytes of all parts of values, by name, region and size, that are read, however often; by value."""
    regions: dict[str, set[Region]] = {}
    element_bytes: dict[str, float] = {}
    for name, region, size in parts:
        if size:
            regions.setdefault(name, set()).add(region)
            element_bytes[name] = size / volume(region)
    return {value: union_volume(parts) * element_bytes[value] for value, parts in regions.items()}
