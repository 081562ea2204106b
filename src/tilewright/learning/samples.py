"""Kernels with what they take, and choices between one kernel and two: what costs are learned from.

Samples are kept in a file of JSON lines, one for each pair of programs that was measured or simulated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cost.features import FEATURES_VERSION, MachineFacts, PlanFacts, WorkFacts, features_of
from tilewright.errors import UsageError
from tilewright.fields import FieldError, field_of, parsed_json
from tilewright.files import append_line, appended_lines

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.graph import Node, Value
    from tilewright.partition.base import Partition


@dataclass(frozen=True, slots=True)
class Sample:
    """One kernel: its facts, what the target's own model says, what it takes; energies where known."""

    network: str
    family: str
    facts: WorkFacts
    num_threads: int
    estimate_ns: float
    time_ns: float
    estimate_pj: float | None = None
    energy_pj: float | None = None
    plan: PlanFacts = field(default_factory=PlanFacts)

    def features(self, machine: MachineFacts) -> np.ndarray:
        """What a model sees of it."""
        return features_of(self.facts, machine, self.num_threads, self.estimate_ns, self.plan)


@dataclass(frozen=True, slots=True)
class Choice:
    """To fuse or to cut: the numbers of the samples of the whole and of its parts.

    `low` and `high` are the quartiles, over rounds in which both ran in turns, of the time of the whole over
    that of the parts together; None where times are exact.
    """

    whole: int
    parts: tuple[int, ...]
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Samples:
    """Of one machine, and the choices among them."""

    samples: list[Sample] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    def extend(self, others: Samples) -> None:
        """Append those of another network."""
        start = len(self.samples)
        self.samples += others.samples
        self.choices += [
            Choice(c.whole + start, tuple(part + start for part in c.parts), c.low, c.high)
            for c in others.choices
        ]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Nodes that become one kernel, as `KernelWork`."""

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(cls, nodes: Sequence[Node], wanted: frozenset[Value]) -> SampleGroup:
        """Nodes in order; what others read or `wanted` has of their results leaves the group."""
        inside = set(nodes)
        made = [v for node in nodes for v in node.results()]
        outputs = tuple(v for v in made if v in wanted or any(u not in inside for u in v.users))
        return cls(tuple(nodes), outputs or tuple(nodes[-1].results()))


PARTITIONS = ("layerwise", "random{seed=1}", "random{seed=2}")
"""By which networks come apart into kernels: some as they are usual, many as they are not."""


def split_once(partition: Partition, rng: random.Random) -> list[tuple[Node, ...]]:
    """The nodes of each subgraph, those of several cut in two somewhere."""
    clusters: list[tuple[Node, ...]] = []
    for subgraph in partition.subgraphs:
        nodes = subgraph.nodes
        if len(nodes) > 1:
            cut = rng.randrange(1, len(nodes))
            clusters += [nodes[:cut], nodes[cut:]]
        else:
            clusters.append(nodes)
    return clusters


# Files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file of JSON lines, each with the samples of one part of the work, by the key of that part.

    `machine` is what the samples are of. What was written with other features, or of another machine, is
    refused. A last line that was cut off in the midst counts as not written.
    """

    path: Path
    machine: str

    def known(self) -> Mapping[str, Samples]:
        """What was written, by key; nothing where there is no file.

        Raises:
            UsageError: a line that does not fit.
        """
        return dict(self._lines())

    def append(self, key: str, samples: Samples) -> None:
        """Add a line, at once.

        Raises:
            UsageError: the file cannot be written.
        """
        document = {
            "machine": self.machine,
            "features_version": FEATURES_VERSION,
            "key": key,
            "samples": [_without_defaults(s) for s in samples.samples],
            "choices": [asdict(choice) for choice in samples.choices],
        }
        line = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        try:
            append_line(self.path, line)
        except OSError as error:
            raise UsageError(
                f"samples {self.path}: cannot be written: {error.strerror}; give another file."
            ) from error

    def _lines(self) -> Iterator[tuple[str, Samples]]:
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise UsageError(f"samples {self.path}: {error.strerror}; give another file.") from error
        for number, line in enumerate(appended_lines(data, b'{"machine"'), 1):
            if not line:
                continue
            try:
                document = parsed_json(line)
                self._require_same(document)
                samples = list(field_of(document, "samples", tuple[Sample, ...]))
                choices = list(field_of(document, "choices", tuple[Choice, ...]))
                if any(n >= len(samples) for c in choices for n in (c.whole, *c.parts)):
                    raise FieldError("expected numbers of samples", ".choices")
                yield field_of(document, "key", str), Samples(samples, choices)
            except UsageError:
                raise
            except (ValueError, RecursionError) as error:
                what = str(error).rstrip(".")
                raise UsageError(
                    f"samples {self.path}, line {number}: is damaged: {what}; remove the line."
                ) from error

    def _require_same(self, document: Any) -> None:
        version = field_of(document, "features_version", int)
        if version != FEATURES_VERSION:
            raise UsageError(
                f"samples {self.path}: features have version {version}, this program's {FEATURES_VERSION}; "
                "give another file, to measure anew."
            )
        machine = field_of(document, "machine", str)
        if machine != self.machine:
            raise UsageError(
                f"samples {self.path}: are of machine {machine!r}, not of {self.machine!r}; "
                "give a file for each machine."
            )


def _without_defaults(sample: Sample) -> dict[str, Any]:
    """Most facts of most kernels are 0."""
    document: dict[str, Any] = asdict(sample)
    for name, defaults in (("facts", WorkFacts()), ("plan", PlanFacts())):
        usual = asdict(defaults)
        document[name] = {k: v for k, v in document[name].items() if v != usual[k]}
    return document
