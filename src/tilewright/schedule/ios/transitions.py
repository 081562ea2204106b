"""All transitions of a block as arrays, where they are not too many, and shortest paths over them.

A transition takes an ending away from a state. With a value for each stage, which is what it costs or at
least, the shortest path from all operators to none is a schedule, and what it takes a bound on every one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.arrays import Array
from tilewright.machine_code import compiled
from tilewright.progress import checkpoint

_TRANSITIONS_OF_STATE = 32  # of blocks with fewer, mostly wide ones, states take more than their transitions
_AT_ONCE = 1 << 18  # transitions between two looks at the clock: a quarter of a second, about
_HASH_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio, as a signed word


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """What may be groups of stages: their operators, those and all that read them, and what they take.

    `chain_ns` is for each group the least time of it alone, `areas_ns` for each group and shared resource how
    long it occupies that.
    """

    masks: Sequence[int]
    reaches: Sequence[int]
    chain_ns: Sequence[float]
    areas_ns: Sequence[Sequence[float]]
    max_groups: int


@dataclass(slots=True)
class Transitions:
    """Those of state i are `firsts[i]` to `firsts[i + 1]`: each leads to state `targets[t]` by `stages[t]`.

    State 0 has all operators, state `last` none; `order` has the larger states behind those that they lead
    to. Stage k runs the operators `masks[k]` and costs `values[k]` at least.
    """

    order: Array
    firsts: Array
    targets: Array
    stages: Array
    masks: Array
    values: Array
    last: int

    @property
    def num_transitions(self) -> int:
        """How many there are."""
        return len(self.targets)

    @property
    def num_states(self) -> int:
        """States with any operators."""
        return len(self.order) - 1

    def shortest(self) -> tuple[float, list[int]]:
        """The length of a shortest path, infinite where none is left, and its stages as they run."""
        to_end, via = _to_end(self.order, self.firsts, self.targets, self.stages, self.values, self.last)
        path: list[int] = []
        state = 0
        while state != self.last and via[state] >= 0:
            path.append(int(self.stages[via[state]]))
            state = int(self.targets[via[state]])
        return float(to_end[0]), path[::-1]

    def prune(self, limit_ns: float) -> None:
        """Leave out what lies on no path below a limit. Values that rise later bring none back."""
        pruned = _pruned(self.order, self.firsts, self.targets, self.stages, self.values, self.last, limit_ns)
        self.firsts, self.targets, self.stages = pruned


def transitions(
    everything: int,
    groups: ListedGroups,
    stage_ns: float,
    join_ns: float,
    merges: Sequence[tuple[int, int, float]],
    max_transitions: int,
) -> Transitions | None:
    """All transitions of a block; None where there are too many.

    Stages take `stage_ns`, several groups `join_ns` beside that. `merges` are sets of operators that may
    merge, with their readers and what they take at least. O(transitions).
    """
    number = np.int64
    asked = _Asked(
        np.array(groups.masks, number),
        np.array(groups.reaches, number),
        np.array(groups.chain_ns, float),
        np.array(groups.areas_ns, float).reshape(len(groups.masks), -1),
        groups.max_groups,
        stage_ns,
        join_ns,
        np.array([mask for mask, _, _ in merges], number),
        np.array([reach for _, reach, _ in merges], number),
        np.array([least_ns for _, _, least_ns in merges], float),
        max_transitions,
    )
    walk, listed = _begun(asked, everything)
    is_over = False
    while not is_over:
        checkpoint()
        is_over, listed = _list(asked, walk, listed, int(walk.counts[_FOUND]) + _AT_ONCE)
    num_states, num_stages, num_found = (walk.counts[i] for i in (_STATES, _STAGES, _FOUND))
    if walk.counts[_SOURCE] != num_states or num_found > max_transitions:
        return None
    states, firsts = listed.states[:num_states], listed.firsts[: num_states + 1]
    masks, values = listed.masks[:num_stages], listed.values[:num_stages]
    targets, stages = listed.targets[:num_found], listed.stages[:num_found]
    order = np.argsort(np.bitwise_count(states), kind="stable")
    return Transitions(order, firsts, targets, stages, masks, values, int(order[0]))


@compiled
def _place_of(key: int, table: Array, keys: Array) -> int:
    """Where a key stands, or belongs, in a hash table of numbers of keys."""
    place = (key * _HASH_FACTOR >> 20) & (len(table) - 1)
    while table[place] >= 0 and keys[table[place]] != key:
        place = (place + 1) & (len(table) - 1)
    return place


@compiled
def _table(keys: Array, num_keys: int, size: int) -> Array:
    """A hash table of keys with so many places, a power of two."""
    table = np.full(size, -1, np.int64)
    for known in range(num_keys):
        table[_place_of(keys[known], table, keys)] = known
    return table


@compiled
def _grown(array: Array, size: int) -> Array:
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger


class _Asked(NamedTuple):
    """What of a block its transitions follow from: `ListedGroups`, then what is asked beside that."""

    groups: Array
    reaches: Array
    chain_ns: Array
    areas_ns: Array
    max_groups: int
    stage_ns: float
    join_ns: float
    merged: Array
    merged_reaches: Array
    merged_ns: Array
    max_transitions: int


_SOURCE, _STATES, _STAGES, _FOUND, _IS_BEGUN, _CANDIDATES, _DEPTH, _MERGE = range(8)
"""Counts of a list so far: states whose transitions it has, states, stages and transitions; whether the next
state is begun, with how many groups, how many of them are chosen, and how many merges were looked at."""


class _Walk(NamedTuple):
    """Where a list stands: its counts, the groups of the state that is begun, and by the number of chosen
    groups which these are, the longest of them, how long they occupy each resource, and the next to try."""

    counts: Array
    candidates: Array
    chosen: Array
    longest: Array
    occupied: Array
    position: Array


class _Listed(NamedTuple):
    """Arrays of a list, which have free places: states, in a table, stages' operators and what they take, in
    a table; where the transitions of each state begin, and the state that each leads to, and its stage."""

    states: Array
    state_table: Array
    masks: Array
    values: Array
    stage_table: Array
    firsts: Array
    targets: Array
    stages: Array


def _begun(asked: _Asked, everything: int) -> tuple[_Walk, _Listed]:
    """A list that has one state, of all operators."""
    number, depths, size = np.int64, asked.max_groups + 1, 1 << 12
    walk = _Walk(
        np.array([0, 1, 0, 0, 0, 0, 0, 0]),
        np.empty(len(asked.groups), number),
        np.zeros(depths, number),
        np.zeros(depths),
        np.zeros((depths, asked.areas_ns.shape[1])),
        np.zeros(depths, number),
    )
    states = np.empty(size, number)
    states[0] = everything
    listed = _Listed(
        states,
        _table(states, 1, 4 * size),
        np.empty(size, number),
        np.empty(size, float),
        np.full(4 * size, -1, number),
        np.zeros(size + 1, number),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
    )
    return walk, listed


@compiled
def _list(asked: _Asked, walk: _Walk, listed: _Listed, enough: int) -> tuple[bool, _Listed]:
    """Whether a list ends, as it has all transitions or more than are allowed, and its arrays; states come as
    they are reached. With `enough` transitions it stops, to be gone on with."""
    groups, reaches, chain_ns, areas_ns, max_groups, stage_ns, join_ns = asked[:7]
    merged, merged_reaches, merged_ns, max_transitions = asked[7:]
    counts, candidates, chosen, longest, occupied, position = walk
    states, state_table, masks, values, stage_table, firsts, targets, stages = listed
    num_areas = areas_ns.shape[1]
    source, num_states = counts[_SOURCE], counts[_STATES]
    num_stages, num_found = counts[_STAGES], counts[_FOUND]
    is_begun, num_candidates = counts[_IS_BEGUN], counts[_CANDIDATES]
    depth, merge = counts[_DEPTH], counts[_MERGE]
    is_over = False
    while num_found < enough:
        if not is_begun:
            is_over = (
                source == num_states
                or num_found > max_transitions
                or num_states > max_transitions // _TRANSITIONS_OF_STATE
            )
            if is_over:
                break
            num_candidates = 0
            for group in range(len(groups)):
                if reaches[group] & states[source] == groups[group]:
                    candidates[num_candidates] = group
                    num_candidates += 1
            is_begun = 1
            depth = 0
            position[0] = 0
            merge = 0
        state = states[source]
        while num_found <= max_transitions and num_found < enough:
            if depth >= 0:
                place = position[depth]
                if place == num_candidates or depth == max_groups:
                    depth -= 1
                    continue
                position[depth] = place + 1
                group = candidates[place]
                if groups[group] & chosen[depth]:
                    continue
                mask = chosen[depth] | groups[group]
                depth += 1
                position[depth] = place + 1
                chosen[depth] = mask
                longest[depth] = max(longest[depth - 1], chain_ns[group])
                least = longest[depth]
                for area in range(num_areas):
                    occupied[depth, area] = occupied[depth - 1, area] + areas_ns[group, area]
                    least = max(least, occupied[depth, area])
                least += stage_ns + (join_ns if depth > 1 else 0.0)
            elif merge < len(merged):
                merge += 1
                if merged_reaches[merge - 1] & state != merged[merge - 1]:
                    continue
                mask, least = merged[merge - 1], merged_ns[merge - 1]
            else:
                is_begun = 0
                break
            rest = state ^ mask
            place = _place_of(rest, state_table, states)
            target = state_table[place]
            if target < 0:
                if num_states == len(states):
                    states = _grown(states, 2 * num_states)
                    firsts = _grown(firsts, 2 * num_states + 1)
                    state_table = _table(states, num_states, 4 * num_states)
                    place = _place_of(rest, state_table, states)
                target = num_states
                state_table[place] = target
                states[target] = rest
                num_states += 1
            place = _place_of(mask, stage_table, masks)
            stage = stage_table[place]
            if stage < 0:
                if num_stages == len(masks):
                    masks = _grown(masks, 2 * num_stages)
                    values = _grown(values, 2 * num_stages)
                    stage_table = _table(masks, num_stages, 4 * num_stages)
                    place = _place_of(mask, stage_table, masks)
                stage = num_stages
                stage_table[place] = stage
                masks[stage] = mask
                values[stage] = least
                num_stages += 1
            values[stage] = min(values[stage], least)
            if num_found == len(targets):
                targets = _grown(targets, 2 * num_found)
                stages = _grown(stages, 2 * num_found)
            targets[num_found] = target
            stages[num_found] = stage
            num_found += 1
        if num_found > max_transitions:
            is_over = True
            break
        if not is_begun:
            source += 1
            firsts[source] = num_found
    counts[_IS_BEGUN], counts[_CANDIDATES] = is_begun, num_candidates
    counts[_DEPTH], counts[_MERGE] = depth, merge
    counts[_SOURCE], counts[_STATES] = source, num_states
    counts[_STAGES], counts[_FOUND] = num_stages, num_found
    return is_over, _Listed(states, state_table, masks, values, stage_table, firsts, targets, stages)


@compiled
def _to_end(
    order: Array, firsts: Array, targets: Array, stages: Array, values: Array, last: int
) -> tuple[Array, Array]:
    """Of each state how far it is to the empty one, and the transition with which a shortest path begins."""
    to_end = np.full(len(order), np.inf)
    to_end[last] = 0.0
    via = np.full(len(order), -1, np.int64)
    for state in order:
        for number in range(firsts[state], firsts[state + 1]):
            length = values[stages[number]] + to_end[targets[number]]
            if length < to_end[state]:
                to_end[state] = length
                via[state] = number
    return to_end, via


@compiled
def _pruned(
    order: Array, firsts: Array, targets: Array, stages: Array, values: Array, last: int, limit_ns: float
) -> tuple[Array, Array, Array]:
    """The transitions on paths below a limit."""
    to_end, _ = _to_end(order, firsts, targets, stages, values, last)
    from_start = np.full(len(order), np.inf)
    from_start[0] = 0.0
    is_kept = np.zeros(len(targets), np.bool_)
    num_kept = 0
    for state in order[::-1]:
        for number in range(firsts[state], firsts[state + 1]):
            length = from_start[state] + values[stages[number]]
            target = targets[number]
            if length + to_end[target] < limit_ns:
                is_kept[number] = True
                num_kept += 1
                from_start[target] = min(from_start[target], length)
    new_firsts = np.zeros(len(firsts), np.int64)
    new_targets = np.empty(num_kept, np.int32)
    new_stages = np.empty(num_kept, np.int32)
    num_kept = 0
    for state in range(len(order)):
        for number in range(firsts[state], firsts[state + 1]):
            if is_kept[number]:
                new_targets[num_kept] = targets[number]
                new_stages[num_kept] = stages[number]
                num_kept += 1
        new_firsts[state + 1] = num_kept
    return new_firsts, new_targets, new_stages
