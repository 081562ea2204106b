"""All outcomes of a reproduction, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.benchmark.engines import PEERS
from tilewright.benchmark.statistics import Timing
from tilewright.reproduce.ios.counts import NetworkCounts
from tilewright.reproduce.ios.paper import PublishedNetwork
from tilewright.reproduce.ios.runs import IosOutcome
from tilewright.reproduce.on_device import OnDevice

if TYPE_CHECKING:
    from tilewright.reproduce.ios.example import Example
    from tilewright.reproduce.ios.trends import Convolutions
    from tilewright.reproduce.ios.tuned import Tuned


@dataclass(frozen=True, slots=True)
class Measurements:
    """`schedules` are figure 6's by device and network, `pruned` figure 9's by network and (r, s).

    `by_batch` is the network of table 3 by batch of figure 11, `batches` and `devices` are the times of its
    schedules' stages: executed on, optimised for. `processor` is figure 6 on this processor by threads and
    network, other engines included. `by_node_ns` is by device and network what kernels of single operators
    take, `tuned` figure 12's kernels by network. `trends` are figure 1's networks of the zoo, `example` is
    the block of figure 2. `device` is figure 6 on a device that was asked for, by network.
    """

    networks: Sequence[PublishedNetwork]
    specialised: PublishedNetwork
    counts: Mapping[str, NetworkCounts]
    schedules: Mapping[tuple[str, str], IosOutcome]
    pruned: Mapping[tuple[str, tuple[int, int]], IosOutcome]
    by_batch: Mapping[int, IosOutcome]
    batches: Mapping[tuple[int, int], tuple[float, ...]]
    devices: Mapping[tuple[str, str], tuple[float, ...]]
    processor: Mapping[tuple[int, str], Mapping[str, Timing]]
    by_node_ns: Mapping[tuple[str, str], float]
    tuned: Mapping[str, Tuned]
    trends: Mapping[str, Convolutions]
    example: Example
    device: Mapping[str, Mapping[str, OnDevice]] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[str, ...]:
        """Other engines that ran on this processor."""
        return tuple(
            dict.fromkeys(name for found in self.processor.values() for name in found if name in PEERS)
        )
