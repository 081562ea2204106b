"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.planning import Budget
from tilewright.reproduce.ago import exhibits, measured
from tilewright.reproduce.ago.ablation import PAIRS, ablated
from tilewright.reproduce.ago.latency import Job, raced, seconds
from tilewright.reproduce.ago.paper import NETWORK, SIZE, SIZES
from tilewright.reproduce.ago.partitions import VARIANTS, Weighed, partitioned
from tilewright.reproduce.base import Effort, Exhibit, Update

_BUDGET = seconds(60.0)
_PAIR_BUDGET = Budget(300)
# Small ones first, so that a share of the effort has several.
_CLASSICAL = ("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v2", "mnasnet1_0")
_SIZED = (
    *((name, {"image": size}) for size in SIZES for name in _CLASSICAL),
    ("bert_tiny", {"sequence": 128}),
    (NETWORK, SIZE),
)
JOBS = tuple(Job(name, size, threads, _BUDGET) for threads in (2, 1) for name, size in _SIZED)
"""What is tuned and raced for figures 10 to 12."""


@dataclass(frozen=True, slots=True)
class Ago:
    """The reproduction. A share of the effort is one of what is tuned and raced."""

    resumes: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The paper, for people."""
        return (
            "Boosting Mobile AI Inference by Removing Constraints on Graph Optimization (AGO, INFOCOM 2023)"
        )

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        jobs = JOBS[: round(effort.share * len(JOBS))]
        pairs = PAIRS[: round(effort.share * len(PAIRS))]
        total = len(jobs) + len(pairs) + 2 * len(VARIANTS)
        races = []
        for number, job in enumerate(jobs):
            update(f"{job.network} {job.size} tuned and raced on {job.num_threads} threads", number, total)
            races.append(raced(job))
        by_pair = {}
        for number, pair in enumerate(pairs, len(jobs)):
            update(f"{pair.name} tuned and raced", number, total)
            by_pair[pair] = ablated(pair, Job(pair.name, {}, 2, _PAIR_BUDGET, seconds=3.0))
        found: dict[tuple[str, str], Weighed] = {}
        num_operators: dict[str, int] = {}
        for graph, name, count, weighed in partitioned(NETWORK, SIZE, tuple(VARIANTS)):
            found[graph, name] = weighed
            num_operators[graph] = count
            update(f"{NETWORK} by {name}", len(jobs) + len(pairs) + len(found), total)
        return (
            exhibits.readings(),
            *measured.latency_exhibits(races),
            *([measured.ablation_exhibit(by_pair)] if by_pair else []),
            exhibits.figure_14(found, num_operators),
        )
