"""How long groups of launches take that share threads: a simulation of a stage as it runs (`stage_ir`).

Nothing is measured. Threads claim whole chunks by the rule of the generated code, so that what is lost at the
end, where some threads find no chunk any more, is part of the estimate.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import field

from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch among those of a stage: chunks of equal time on a thread that has main memory to itself.

    `start_ns` passes before the first of them begins, `meeting_ns` where threads that shared it meet at its
    end. `memory_share` is how much of main memory's rate a thread takes meanwhile; `sharing` by which share
    chunks take longer as soon as several threads have some.
    """

    chunk_ns: float
    num_chunks: int = 1
    start_ns: float = 0.0
    meeting_ns: float = 0.0
    memory_share: float = 0.0
    sharing: float = 0.0

    @property
    def work_ns(self) -> float:
        """Of all chunks."""
        return self.chunk_ns * self.num_chunks


@dataclass(slots=True, eq=False)
class _Progress:
    """A group on its way. `behind_ns` is the work of the launches behind the current one."""

    launches: Sequence[Launched]
    limit: int
    position: int = 0
    unclaimed: int = 0
    running: int = 0
    ready_ns: float = 0.0
    behind_ns: float = 0.0
    num_threads: int = 0
    helpers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.behind_ns = sum(launch.work_ns for launch in self.launches)
        self.begin(0.0)

    def begin(self, now_ns: float) -> None:
        """The launch at the position can be claimed."""
        launch = self.launches[self.position]
        self.ready_ns = now_ns + launch.start_ns
        self.unclaimed = launch.num_chunks
        self.behind_ns -= launch.work_ns
        self.helpers.clear()

    def end_chunk(self, now_ns: float) -> bool:
        """A thread reports a chunk; whether that ended the launch."""
        self.running -= 1
        if self.running or self.unclaimed:
            return False
        met_ns = self.launches[self.position].meeting_ns if len(self.helpers) > 1 else 0.0
        self.position += 1
        if self.position < len(self.launches):
            self.begin(now_ns + met_ns)
        return True

    def share_ns(self, near_ns: float) -> tuple[bool, float]:
        """Whether one more thread should help here before all, and the work that it would have."""
        left_ns = self.launches[self.position].chunk_ns * self.unclaimed + self.behind_ns
        if self.num_threads and left_ns < near_ns:
            return True, left_ns
        return False, left_ns / (self.num_threads + 1)


def stage_ns(
    groups: Sequence[Sequence[Launched]], limits: Sequence[int | None], num_threads: int, near_ns: float = 0.0
) -> float:
    """Time from the beginning to the end of the last chunk, on so many threads.

    A thread stays with its group while that has chunks, then helps one that has less than `near_ns` left, or
    goes where each thread has most left to do. A chunk in a crowd that asks for more than main memory gives
    takes longer. O(chunks * groups).
    """
    tracks = [
        _Progress(launches, num_threads if limit is None else limit)
        for launches, limit in zip(groups, limits, strict=True)
        if launches
    ]
    tracks.sort(key=lambda track: -track.share_ns(near_ns)[1])
    home: list[_Progress | None] = [None] * num_threads
    shares = [0.0] * num_threads
    free = [(0.0, thread) for thread in range(num_threads)]  # from when on, those that run a chunk included
    idle: list[int] = []
    now_ns = 0.0
    while free:
        now_ns, thread = heapq.heappop(free)
        track = home[thread]
        if track is not None:
            shares[thread] = 0.0
            if track.end_chunk(now_ns):
                for waiting in idle:
                    heapq.heappush(free, (now_ns, waiting))
                idle.clear()
            if not track.unclaimed:
                track.num_threads -= 1
                home[thread] = track = None
        if track is None:
            open_tracks = [t for t in tracks if t.unclaimed and t.num_threads < t.limit]
            if not open_tracks:
                idle.append(thread)
                continue
            home[thread] = track = max(open_tracks, key=lambda t: t.share_ns(near_ns))
            track.num_threads += 1
        launch = track.launches[track.position]
        track.unclaimed -= 1
        track.running += 1
        track.helpers.add(thread)
        shares[thread] = launch.memory_share
        crowd = max(1.0, sum(shares))
        taken_ns = launch.chunk_ns * (1 + launch.memory_share * (crowd - 1))
        if len(track.helpers) > 1:
            taken_ns *= 1 + launch.sharing
        heapq.heappush(free, (max(now_ns, track.ready_ns) + taken_ns, thread))
    return now_ns
