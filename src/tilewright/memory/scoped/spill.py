"""Which pieces leave a level of memory that is too small for all that is live.

At the first step where too much is live one piece goes to the next outer level, for its whole life, until the
rest fits. A policy says which; a piece that the step reads or writes goes only if there is no other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from tilewright.memory.scoped.base import SCOPES
from tilewright.memory.scoped.expand import Draft, Timeline
from tilewright.schedule.binding import Scope

Policy = Callable[[Draft], tuple[int, int]]

DEFAULT_POLICY = "longest-liveness"
POLICIES: Mapping[str, Policy] = {
    # What is needed last would have to leave again and again: on a tie the larger one makes more room.
    "longest-liveness": lambda d: (d.last_step - d.first_step, d.size_bytes),
    "largest-size": lambda d: (d.size_bytes, d.last_step - d.first_step),
}


def spill(timeline: Timeline, scope: Scope, capacity_bytes: int | None, policy: Policy) -> None:
    """Move pieces out of a level until no step has more than its capacity live in it.

    One pass over the steps: moving a piece never makes another step need more.
    O((pieces + reads) log pieces).
    """
    if capacity_bytes is not None and scope is not Scope.MAIN:
        _Sweep(timeline, scope, capacity_bytes, policy).run()


def move_out(draft: Draft) -> None:
    """Send a piece to the next outer level."""
    draft.scope = SCOPES[SCOPES.index(draft.scope) + 1]
    draft.is_spilled = True


def victim_at(timeline: Timeline, step: int, live: Sequence[Draft], policy: Policy) -> Draft:
    """Which of the pieces that are live at a step has to go; the first of equals."""
    close = _closeness(timeline, step)
    return min(live, key=lambda d: (close(d), *(-x for x in policy(d)), d.id))


def shared_bytes(timeline: Timeline, step: int, scope: Scope) -> int:
    """Bytes that pieces made at a step take of places that others leave."""
    drafts = timeline.drafts
    return sum(
        drafts[number].reserved_bytes
        for number in timeline.steps[step].writes
        if drafts[number].scope is scope
        and any(drafts[o].scope is scope for o in drafts[number].may_take_over)
    )


def _closeness(timeline: Timeline, step: int) -> Callable[[Draft], int]:
    """0 for what a step does not touch, 1 for what it reads, 2 for what it writes."""
    read = {r.piece for r in timeline.steps[step].reads}
    return lambda d: 2 if d.first_step == step else int(d.id in read)


class _Sweep:
    def __init__(self, timeline: Timeline, scope: Scope, capacity_bytes: int, policy: Policy) -> None:
        self.timeline = timeline
        self.scope = scope
        self.capacity_bytes = capacity_bytes
        self.policy = policy
        self.live_bytes = 0
        self.live: list[tuple[int, int, int]] = []
        self.ending: list[list[Draft]] = [[] for _ in timeline.steps]

    def run(self) -> None:
        drafts = self.timeline.drafts
        for number, step in enumerate(self.timeline.steps):
            for piece in step.writes:
                if drafts[piece].scope is self.scope:
                    self._enter(drafts[piece])
            while self.live_bytes - shared_bytes(self.timeline, number, self.scope) > self.capacity_bytes:
                victim = self._pop_victim(number)
                self.live_bytes -= victim.reserved_bytes
                move_out(victim)
            for draft in self.ending[number]:
                if draft.scope is self.scope:
                    self.live_bytes -= draft.reserved_bytes

    def _enter(self, draft: Draft) -> None:
        self.live_bytes += draft.reserved_bytes
        first, second = self.policy(draft)
        heapq.heappush(self.live, (-first, -second, draft.id))
        self.ending[draft.last_step].append(draft)

    def _pop_victim(self, number: int) -> Draft:
        """The worst piece that the step does not touch, else one that it reads, else one that it writes."""
        close = _closeness(self.timeline, number)
        kept: list[tuple[int, int, int]] = []
        found: list[tuple[int, tuple[int, int, int]]] = []
        while self.live:
            entry = heapq.heappop(self.live)
            draft = self.timeline.drafts[entry[2]]
            if draft.last_step < number or draft.scope is not self.scope:
                continue
            kept.append(entry)
            found.append((close(draft), entry))
            if found[-1][0] == 0:
                break
        _, chosen = min(found)
        for entry in kept:
            if entry is not chosen:
                heapq.heappush(self.live, entry)
        return self.timeline.drafts[chosen[2]]
