"""What this machine does at best, measured: arithmetic of each unit, reading from each place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.results import about
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.tune.probes import probe_bandwidth, probe_fma_peak, probe_tile_peak

_LOOKS = 3
_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What this machine does at best with so many threads, measured.

    Reading goes on at the speed of where the data stays from one run to the next: constants at
    `constant_bytes_per_s`, activations of a step that fit the smallest caches at `small_bytes_per_s`, all
    others at `cache_bytes_per_s`.
    """

    num_threads: int
    fma_flop_per_s: float
    tile_flop_per_s: float | None
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    small_bytes_per_s: float = field(metadata=about("Of what fits `small_bytes`: the smallest caches."))
    small_bytes: int
    constant_bytes_per_s: float = field(metadata=about("Where this model's constants stay between runs."))

    @classmethod
    def measure(cls, num_threads: int, isa: Isa | None = None) -> MachineLimits:
        """A few seconds: of several looks the best, since a busy machine only ever shows less than it can.

        Arithmetic is that of an instruction set, by default of this host's.

        Constants are in memory until `with_constants` says how many there are.
        """
        tiles = [probe_tile_peak(num_threads) for _ in range(_LOOKS)]
        rates = [t.peak_flop_per_s for t in tiles if t is not None]
        caches = host_isa().caches
        small_bytes = num_threads * caches.l1_bytes // 2
        memory = _read_speed(num_threads, _MEMORY_BYTES)
        return cls(
            num_threads=num_threads,
            fma_flop_per_s=max(probe_fma_peak(num_threads, isa).peak_flop_per_s for _ in range(_LOOKS)),
            tile_flop_per_s=max(rates, default=None),
            memory_bytes_per_s=memory,
            cache_bytes_per_s=_read_speed(num_threads, num_threads * caches.l2_bytes // 2),
            small_bytes_per_s=_read_speed(num_threads, small_bytes),
            small_bytes=small_bytes,
            constant_bytes_per_s=memory,
        )

    def with_constants(self, total_bytes: int) -> MachineLimits:
        """These limits for a model whose runs read so many bytes of constants, measured with as many."""
        if not 0 < total_bytes < _MEMORY_BYTES:
            return self
        speed = _read_speed(self.num_threads, max(total_bytes, self.small_bytes))
        return replace(self, constant_bytes_per_s=max(speed, self.memory_bytes_per_s))

    def read_ns(self, constant_bytes: int, activation_bytes: int) -> float:
        """The time of a step's bytes."""
        is_small = activation_bytes <= self.small_bytes
        speed = self.small_bytes_per_s if is_small else self.cache_bytes_per_s
        return 1e9 * (constant_bytes / self.constant_bytes_per_s + activation_bytes / speed)

    def compute_ns(self, kernel: Kernel) -> float:
        """The time of a kernel's products at the peak of the units that they run on, padding included.

        A kernel that calls others spends it as their products do.
        """
        if not kernel.macs:
            return 0.0
        parts = [part for part in kernel.parts if part.macs]
        if not parts:
            return 2e9 * kernel.macs / self.peak_flop_per_s(kernel.template)
        of_parts = sum(self.compute_ns(part) for part in parts)
        return of_parts * kernel.macs / sum(part.macs for part in parts)

    def peak_flop_per_s(self, template: str) -> float:
        """Of the unit that a template's products run on, in operations of the plain product.

        Winograd's F(n, 3) makes (n + 2)² products of 9n²; the matrix unit makes as many as the name says, and
        bytes, slices of float32 too, run at twice its rate for bfloat16. Vectors of bytes hold four times as
        many as floats, those of 16 bits, of which F(4, 3) makes a quarter of the products, twice as many.
        """
        name, _, number = template.partition("-")
        if name == "winograd":
            size = int(number)
            return self.fma_flop_per_s * 9 * size**2 / (size + 2) ** 2
        if name in ("matrix", "slices") and self.tile_flop_per_s is not None:
            return self.tile_flop_per_s * (2 if name == "slices" else 1) / int(number)
        if template == "integer-tiles" and self.tile_flop_per_s is not None:
            return 2 * self.tile_flop_per_s
        return self.fma_flop_per_s * _BYTE_RATES.get(template, 1)


# Operations of the plain product of bytes in the time of one of floats.
_BYTE_RATES = {"integer-vnni": 4, "integer-winograd-vnni": 8, "integer-winograd-pairs": 4}


def _read_speed(num_threads: int, footprint_bytes: int) -> float:
    return max(probe_bandwidth(num_threads, footprint_bytes).read_bytes_per_s for _ in range(_LOOKS))
