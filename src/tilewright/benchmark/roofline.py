"""How far a measured time is from what this machine could do: arithmetic at its peak, memory at its speed."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.derive import flops
from tilewright.ir.graph import Graph
from tilewright.options import Accuracy
from tilewright.targets.cpu.select import MATRIX_PRODUCTS
from tilewright.targets.cpu.topology import probe_bandwidth, probe_fma_peak, probe_tile_peak

OVERHEAD_PERCENT = 3.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Work of one inference beside the speed of this machine, measured with the same number of threads.

    `traffic_bytes` counts parameters, inputs and outputs once: less cannot be moved when nothing of them is
    left in a cache from the run before.
    """

    flop: int
    traffic_bytes: int
    peak_flop_per_s: float
    read_bytes_per_s: float
    num_threads: int

    @classmethod
    def of(cls, graph: Graph, num_threads: int, accuracy: Accuracy = "default") -> Roofline:
        """Measure the machine (about a second) for the work of a graph.

        The peak is that of the fastest unit on which a product of this accuracy may run.
        """
        peak = probe_fma_peak(num_threads).peak_flop_per_s
        num_products = MATRIX_PRODUCTS[accuracy]
        tiles = None if num_products is None else probe_tile_peak(num_threads)
        if tiles is not None and num_products is not None:
            peak = max(peak, tiles.peak_flop_per_s / num_products)
        values = (*graph.initializers, *graph.inputs, *graph.outputs)
        return cls(
            flop=sum(flops(node) for node in graph.nodes),
            traffic_bytes=sum(v.size_bytes for v in dict.fromkeys(values)),
            peak_flop_per_s=peak,
            read_bytes_per_s=probe_bandwidth(num_threads).read_bytes_per_s,
            num_threads=num_threads,
        )

    @property
    def compute_ms(self) -> float:
        """Time of the arithmetic at the machine's peak."""
        return 1e3 * self.flop / self.peak_flop_per_s

    @property
    def memory_ms(self) -> float:
        """Time of the traffic at the memory's speed."""
        return 1e3 * self.traffic_bytes / self.read_bytes_per_s

    @property
    def is_memory_bound(self) -> bool:
        """Whether moving the data takes longer than computing with it."""
        return self.memory_ms > self.compute_ms

    def advice(self, measured_ms: float) -> str:
        """One line: what bounds this network here, and how near the measurement is to that bound."""
        bound_ms = max(self.compute_ms, self.memory_ms)
        share = 100 * bound_ms / measured_ms
        threads = f"{self.num_threads} thread{'s' if self.num_threads > 1 else ''}"
        if share < OVERHEAD_PERCENT:
            return (
                f"bound by overheads: arithmetic and memory need {1e3 * bound_ms:.3g} µs on {threads}, "
                f"{share:.1f} % of the time measured; a larger batch spreads the cost of a call."
            )
        if self.is_memory_bound:
            what = (
                f"memory-bound: {self.traffic_bytes / 1e6:.1f} MB of parameters and data take "
                f"{self.memory_ms:.2f} ms to read at {self.read_bytes_per_s / 1e9:.0f} GB/s"
            )
            lever = "a larger batch uses the parameters more often"
        else:
            what = (
                f"compute-bound: {self.flop / 1e9:.2f} GFLOP take {self.compute_ms:.2f} ms at "
                f"{self.peak_flop_per_s / 1e9:.0f} GFLOP/s"
            )
            lever = "more --threads help if the machine has them"
        if share > 100:
            why = (
                "caches keep part of it between runs"
                if self.is_memory_bound
                else "some products need less arithmetic than counted"
            )
            return f"{what} on {threads}; measured is faster, because {why}."
        return f"{what} on {threads}; measured is {share:.0f} % of that speed ({lever})."
