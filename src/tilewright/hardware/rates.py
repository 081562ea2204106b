"""Rates of a core that estimates of kernels are made with, in cycles of its multiply-adds."""

from __future__ import annotations

from typing import Literal

from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a core moves bytes. The defaults are orders of magnitude, which rank kernels alike on most
    machines.

    Bytes come from the private cache, the shared one, from memory while all cores read, and, `cold`, ahead of
    a kernel's need from whichever of the last two.
    """

    private_bytes_per_cycle: float = 40.0
    shared_bytes_per_cycle: float = 20.0
    memory_bytes_per_cycle: float = 6.0
    cold_bytes_per_cycle: float = 8.0


PROFILE = Rates()
"""What estimates assume of a machine that was not measured, unless its processor is known to be otherwise."""

# Servers whose cores share one last cache over a mesh read it at half the rate of cores that share one in
# small clusters. One core of an Emerald Rapids reads 3 to 48 MiB at 8 to 9 bytes a cycle; between 8 and 14
# convolutional networks run at the same speed there, at 20 ResNet-18 takes 1.2 times as long.
_MESH = Rates(shared_bytes_per_cycle=10.0)
_PROCESSORS = dict.fromkeys(
    (
        "skylake-avx512",
        "cascadelake",
        "cooperlake",
        "icelake-server",
        "sapphirerapids",
        "emeraldrapids",
        "graniterapids",
    ),
    _MESH,
)


def processor_rates(processor: str) -> Rates:
    """The rates that estimates assume of a processor that was not measured, by its name in LLVM.

    >>> processor_rates("znver5") == PROFILE, processor_rates("emeraldrapids") == PROFILE
    (True, False)
    """
    return _PROCESSORS.get(processor, PROFILE)


UnitState = Literal["better", "worse", "mean"]
"""Which of the unit's states is meant; the mean is that of both."""


@dataclass(frozen=True, slots=True)
class MatrixRates:
    """Cycles of the matrix unit, as one core sees it.

    The defaults are those of an Emerald Rapids server that others share (docs/benchmarks_amx.md): among
    products a tile load takes what is exposed of it, in one of two states for seconds at a time.
    """

    product_cycles: float = 16.0
    latency_cycles: float = 52.0
    exposed_load_cycles: float = 4.6
    slow_exposed_load_cycles: float = 77.0
    l2_load_cycles: float = 24.0

    def load_cycles(self, state: UnitState) -> float:
        """What a tile load adds to products, in a state of the unit."""
        of_states = {"better": self.exposed_load_cycles, "worse": self.slow_exposed_load_cycles}
        return sum(of_states.values()) / 2 if state == "mean" else of_states[state]
