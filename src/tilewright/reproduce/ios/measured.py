"""All outcomes of a reproduction, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.reproduce.ios.counts import NetworkCounts
from tilewright.reproduce.ios.paper import Network
from tilewright.reproduce.ios.processor import Measured
from tilewright.reproduce.ios.runs import Outcome


@dataclass(frozen=True, slots=True)
class Measurements:
    """`schedules` are figure 6's by device and network, `pruned` figure 9's by network and (r, s).

    `by_batch` is the network of table 3 by batch, `batches` and `devices` the times of the stages of its
    schedules: executed on, optimised for. `processor` is figure 6 on this processor by threads and network.
    """

    networks: Sequence[Network]
    specialised: Network
    counts: Mapping[str, NetworkCounts]
    schedules: Mapping[tuple[str, str], Outcome]
    pruned: Mapping[tuple[str, tuple[int, int]], Outcome]
    by_batch: Mapping[int, Outcome]
    batches: Mapping[tuple[int, int], tuple[float, ...]]
    devices: Mapping[tuple[str, str], tuple[float, ...]]
    processor: Mapping[tuple[int, str], Mapping[str, Measured]]
