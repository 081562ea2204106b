"""How many samples a cluster does at a time: which numbers are worth planning, and runs of any number.

What an instance holds grows with its samples, so that each subgraph has a largest power of two that fits.
Beyond the largest of these nothing is gained: subgraphs only run as more instances. A run of any number of
samples is planned for that number, padded to the next power of two, or put together from plans for powers of
two, each of which keeps its samples for an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.ir.derive import macs
from tilewright.partition.axes import Axis, IndependentAxes
from tilewright.partition.base import Partition

MOST_SAMPLES = 256
"""The largest batch that is considered: throughput of a network that always fits grows without a bound."""

_SHARE_OF_WORK = 0.05  # of the subgraphs that hold more samples, below which they decide nothing


def samples_of_instances(
    partition: Partition, axes: IndependentAxes, batched: Collection[Axis], samples: int
) -> tuple[int | None, ...]:
    """How many of `samples` an instance of each subgraph makes; 1 where not even one fits.

    `batched` are the classes of axes that count samples, wherever these stand in a shape. None where no such
    axis is among a subgraph's outputs.
    """
    found: list[int | None] = []
    for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True):
        outputs = subgraph.outputs or tuple(subgraph.nodes[-1].results())
        axis = next((i for v in outputs for i in range(len(v.shape)) if axes.class_of(v, i) in batched), None)
        if axis is None:
            found.append(None)
        elif partition.weighed is None or partition.weighed.is_feasible(subgraph.id):
            found.append(-(-samples // dict(split.cuts).get(axis, 1)))
        else:
            found.append(1)
    return tuple(found)


def candidates(
    partition: Partition, axes: IndependentAxes, batched: Collection[Axis], most: int
) -> tuple[int, ...]:
    """Batches worth planning, ascending: powers of two up to what subgraphs with a share of the work hold.

    `partition` is one for `most` samples, a power of two: its factors say how many of them fit an instance.
    Subgraphs without the batch decide nothing; `axes` and `batched` as in `samples_of_instances`.
    """
    work: dict[int, int] = {}
    instances = samples_of_instances(partition, axes, batched, most)
    for held, subgraph in zip(instances, partition.subgraphs, strict=True):
        if held is not None:
            work[held] = work.get(held, 0) + sum(macs(node) for node in subgraph.nodes)
    total, largest, above = sum(work.values()), 1, 0
    for held in sorted(work, reverse=True):
        above += work[held]
        if above >= _SHARE_OF_WORK * total:
            largest = held
            break
    return tuple(1 << i for i in range(min(most, largest).bit_length()))


def buckets(samples: int, most: int) -> tuple[int, ...]:
    """A number of samples as powers of two up to `most`, the largest first.

    >>> buckets(27, 8)
    (8, 8, 8, 2, 1)
    """
    full, rest = divmod(samples, most)
    return (most,) * full + tuple(1 << i for i in reversed(range(rest.bit_length())) if rest >> i & 1)


def shown(parts: Sequence[int]) -> str:
    """Parts of a run for people, equal ones together.

    >>> shown((8, 8, 8, 2, 1))
    '3 x 8 + 2 + 1'
    """
    equal = [(part, len(list(same))) for part, same in groupby(parts)]
    return " + ".join(f"{count} x {part}" if count > 1 else str(part) for part, count in equal)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of some samples in three ways, in seconds; None where there is no such plan.

    `direct` is planned for just these, `padded` for the next power of two, `in_buckets` are the runs of
    `parts` one after another.
    """

    samples: int
    parts: tuple[int, ...]
    direct_s: float | None
    padded_s: float | None
    in_buckets_s: float | None

    @property
    def ways(self) -> Mapping[str, float]:
        """Seconds by way, those that there are."""
        listed = {"direct": self.direct_s, "padded": self.padded_s, "buckets": self.in_buckets_s}
        return {way: seconds for way, seconds in listed.items() if seconds is not None}

    @property
    def best(self) -> str:
        """The fastest way, the first of equals."""
        return min(self.ways, key=lambda way: self.ways[way])

    @property
    def best_s(self) -> float:
        """Seconds of the fastest way."""
        return self.ways[self.best]


def runs(
    wanted: Sequence[int], most: int, seconds: Callable[[int], float], max_latency_s: float | None = None
) -> tuple[Run, ...]:
    """Runs of so many samples each. `seconds` plans a batch; `most` is the largest batch of a bucket.

    Raises:
        InfeasibleMapping: a number can be run in no way.
        UsageError: every way takes longer than `max_latency_s`.
    """
    known: dict[int, float | None] = {}

    def timed(samples: int) -> float | None:
        if samples not in known:
            try:
                known[samples] = seconds(samples)
            except InfeasibleMapping:
                known[samples] = None
        return known[samples]

    found: list[Run] = []
    for samples in wanted:
        parts = buckets(samples, most)
        times = [timed(part) for part in parts]
        whole = [t for t in times if t is not None]
        run = Run(
            samples,
            parts,
            timed(samples),
            timed(1 << (samples - 1).bit_length()),
            sum(whole) if len(whole) == len(times) else None,
        )
        if not run.ways:
            raise InfeasibleMapping(f"{samples} samples fit neither at once nor in parts; give fewer.")
        if max_latency_s is not None and run.best_s > max_latency_s:
            raise UsageError(
                f"--max-latency {max_latency_s * 1e3:g}: {samples} samples take at least "
                f"{run.best_s * 1e3:.3g} ms ({run.best}); allow more, or give fewer."
            )
        found.append(run)
    return tuple(found)
