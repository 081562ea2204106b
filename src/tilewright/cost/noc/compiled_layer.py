"""One step of a mapped operator, compiled.

The same as `tests/support/noc_layer.py`, which says what happens and why, in the same order within a cycle;
here it is done on arrays. Cycles in which nothing can change before a known time are not looked at.
"""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.noc.compiled import network_cycle
from tilewright.machine_code import compiled

# Columns of a window, one row for each stream, in the order of `traffic.Window`.
LOAD, FETCH, BUFFER_OF, DRAIN, WRITE = 0, 2, 10, 14, 17
# What is known of each stream.
IS_OUTPUT, IS_BUFFERED, NUM_FETCHED, NUM_GROUPS, FIRST_TAG, NUM_FACTS = range(6)
# The state of each stream.
VERSION, PACKET, FLIT, FETCHED, FETCHED_FLITS, ARRIVED, RESERVED, NUM_INCOMING = range(8)
# The state of each element, and what is known of it.
SUMS, OUT_PACKET, OUT_FLIT, NUM_ELEMENT = range(4)
IS_USED, IS_FIRST, IS_LAST, RETURN_TAG, NUM_ELEMENT_FACTS = range(5)
# The other numbers of the state; times are counted from the start of the step.
SENDING, TURN, DRAINED, WRITTEN, WRITTEN_FLITS, READ_FREE, WRITE_FREE, DRAM_TURN = range(8)
MEMORY_GOT, NUM_UNDER_WAY, NUM_SCALARS = range(8, 11)
# Constants.
STEP_CYCLES, HEADER, PAYLOAD, BURST, STAGING, LATENCY, PARTIAL, OUTPUT = range(8)
READ_PARTS, READ_COST, WRITE_PARTS, WRITE_COST, NUM_CONSTANTS = range(8, 13)
# Totals; then those of each stream: flits sent, cycles waited (with two more at the end).
CYCLES, RETURNED, DRAM_READ, DRAM_WRITTEN, FIRST_SENT = range(5)


@compiled
def _packets(flits: int, payload: int) -> int:
    return (flits + payload - 1) // payload


@compiled
def _may_write(window: Array, scalars: Array, output: int) -> bool:
    if scalars[WRITTEN] >= 0:
        return False
    return window[output, BUFFER_OF + 2 + scalars[DRAINED]] > scalars[WRITTEN]  # type: ignore[no-any-return]


@compiled
def _payload(constants: Array, facts: Array, window: Array, incoming: Array, number: int) -> int:
    place = incoming[number, PACKET] // facts[number, NUM_GROUPS]
    left = window[number, LOAD + incoming[number, VERSION]] - place * constants[PAYLOAD]
    return min(constants[PAYLOAD], left)  # type: ignore[no-any-return]


@compiled
def _may_send(
    constants: Array, facts: Array, window: Array, incoming: Array, scalars: Array, number: int
) -> bool:
    version = incoming[number, VERSION]
    if version > 1 or (facts[number, IS_OUTPUT] and scalars[DRAINED] < version - 1):
        return False
    needed = 0
    if facts[number, IS_BUFFERED]:
        for i in range(window[number, BUFFER_OF + 2 + version] + 1):
            needed += window[number, FETCH + i]
    else:
        needed = _payload(constants, facts, window, incoming, number)
    return incoming[number, ARRIVED] >= needed  # type: ignore[no-any-return]


@compiled
def _may_fetch(
    constants: Array, facts: Array, window: Array, incoming: Array, scalars: Array, number: int
) -> bool:
    fetched = incoming[number, FETCHED]
    if fetched >= facts[number, NUM_FETCHED] or window[number, FETCH + fetched] == 0:
        return False
    if facts[number, IS_OUTPUT] and scalars[WRITTEN] < fetched - 1:
        return False
    if not facts[number, IS_BUFFERED]:
        left = window[number, FETCH + fetched] - incoming[number, FETCHED_FLITS]
        wanted = incoming[number, RESERVED] + min(left, constants[BURST])
        return wanted <= constants[STAGING]  # type: ignore[no-any-return]
    ahead = window[number, BUFFER_OF + 2 + min(incoming[number, VERSION], 1)] + 1
    return fetched <= ahead  # type: ignore[no-any-return]


@compiled
def _missing(constants: Array, window: Array, receives: Array, got: Array, scalars: Array) -> int:
    """What the step waits for: a stream, or their number for free capacity; -1 if it can start."""
    for number in range(got.shape[0]):
        load = window[number, LOAD]
        needed = load + _packets(load, constants[PAYLOAD]) * constants[HEADER]
        for element in range(got.shape[1]):
            if receives[number, element] and got[number, element] < needed:
                return number
    return got.shape[0] if scalars[DRAINED] < -1 else -1


@compiled
def run_step(
    is_over: bool,
    constants: Array,
    facts: Array,
    receives: Array,
    element_facts: Array,
    tag_stream: Array,
    trees: Array,
    behind: Array,
    terminal: Array,
    entrance: Array,
    window: Array,
    buffers: Array,
    filled: Array,
    held_by: Array,
    turns: Array,
    on_links: Array,
    incoming: Array,
    got: Array,
    elements: Array,
    scalars: Array,
    under_way: Array,
    totals: Array,
    link_flits: Array,
) -> bool:
    """One step until the elements are through, or all that is left after the last. False: it stands still.

    Changes the state and adds to the totals. All times are counted from the start of the step.
    """
    num_streams, num_elements, depth = got.shape[0], got.shape[1], buffers.shape[2]
    memory, output = num_elements, constants[OUTPUT]
    payload, header = constants[PAYLOAD], constants[HEADER]
    read_parts, write_parts = constants[READ_PARTS], constants[WRITE_PARTS]
    sent = np.full(num_elements + 1, -1, np.int64)
    moved = np.zeros((filled.size, 3), np.int64)
    arrived = np.zeros((num_elements + 1, 2), np.int64)
    final = window[output, DRAIN + 2 + scalars[DRAINED]]
    now, compute_end = 0, -1
    while True:
        if is_over:
            if scalars[DRAINED] >= 0 and scalars[WRITTEN] >= 0:
                break
        elif compute_end >= 0 and now >= compute_end:
            break
        has_changed = False
        # Words from DRAM arrive.
        num_here = 0
        while num_here < scalars[NUM_UNDER_WAY] and under_way[num_here, 0] <= now:
            incoming[under_way[num_here, 1], ARRIVED] += under_way[num_here, 2]
            num_here += 1
        if num_here:
            has_changed = True
            scalars[NUM_UNDER_WAY] -= num_here
            for i in range(scalars[NUM_UNDER_WAY]):
                under_way[i] = under_way[i + num_here]
            for i in range(num_here):
                under_way[scalars[NUM_UNDER_WAY] + i] = 0
        if (
            _may_write(window, scalars, output)
            and scalars[WRITTEN_FLITS] == window[output, WRITE + 4 + scalars[WRITTEN]]
            and scalars[WRITE_FREE] <= now * write_parts
        ):
            scalars[WRITTEN] += 1
            scalars[WRITTEN_FLITS] = 0
            has_changed = True
        # Versions without words are there at once; the elements start.
        for number in range(num_streams):
            while incoming[number, VERSION] < 2 and window[number, LOAD + incoming[number, VERSION]] == 0:
                incoming[number, VERSION] += 1
                has_changed = True
            known = facts[number, NUM_FETCHED]
            while (
                incoming[number, FETCHED] < known and window[number, FETCH + incoming[number, FETCHED]] == 0
            ):
                incoming[number, FETCHED] += 1
                has_changed = True
        waits_for = -1
        if is_over:
            waits_for = num_streams + 1
        elif compute_end < 0:
            waits_for = _missing(constants, window, receives, got, scalars)
            if waits_for < 0:
                compute_end = now + constants[STEP_CYCLES]
                has_changed = True
        # The memory sends.
        sent[memory] = -1
        if scalars[SENDING] < 0:
            for i in range(num_streams):
                number = (scalars[TURN] + i) % num_streams
                if _may_send(constants, facts, window, incoming, scalars, number):
                    scalars[SENDING] = number
                    scalars[TURN] = (number + 1) % num_streams
                    if not facts[number, IS_BUFFERED]:
                        taken = _payload(constants, facts, window, incoming, number)
                        incoming[number, ARRIVED] -= taken
                        incoming[number, RESERVED] -= taken
                    has_changed = True
                    break
        number = scalars[SENDING]
        if number >= 0 and filled[entrance[memory, 0], entrance[memory, 1]] < depth:
            length = _payload(constants, facts, window, incoming, number) + header
            num_groups = facts[number, NUM_GROUPS]
            is_tail = incoming[number, FLIT] == length - 1
            tag = facts[number, FIRST_TAG] + incoming[number, PACKET] % num_groups
            sent[memory] = tag * 4 + (incoming[number, FLIT] == 0) + 2 * is_tail
            totals[FIRST_SENT + number] += 1
            incoming[number, FLIT] += 1
            if is_tail:
                scalars[SENDING] = -1
                incoming[number, FLIT] = 0
                incoming[number, PACKET] += 1
                load = window[number, LOAD + incoming[number, VERSION]]
                if incoming[number, PACKET] == num_groups * _packets(load, payload):
                    incoming[number, PACKET] = 0
                    incoming[number, VERSION] += 1
        # The elements send.
        is_draining = (
            scalars[DRAINED] < 0 and scalars[WRITTEN] >= window[output, BUFFER_OF + 2 + scalars[DRAINED]] - 1
        )
        for element in range(num_elements):
            sent[element] = -1
            if not is_draining or not element_facts[element, IS_USED]:
                continue
            flits = final if element_facts[element, IS_LAST] else constants[PARTIAL]
            done = elements[element, OUT_PACKET] * payload
            if done >= flits or filled[entrance[element, 0], entrance[element, 1]] >= depth:
                continue
            size = min(payload, flits - done)
            if not element_facts[element, IS_FIRST]:
                needed = ((done + size) * constants[PARTIAL] + flits - 1) // flits
                if elements[element, SUMS] < needed + _packets(needed, payload) * header:
                    continue
            is_tail = elements[element, OUT_FLIT] == size + header - 1
            is_head = elements[element, OUT_FLIT] == 0
            sent[element] = element_facts[element, RETURN_TAG] * 4 + is_head + 2 * is_tail
            totals[RETURNED] += 1
            elements[element, OUT_FLIT] = 0 if is_tail else elements[element, OUT_FLIT] + 1
            elements[element, OUT_PACKET] += is_tail
        # The network.
        num_arrived, has_moved = network_cycle(
            trees,
            behind,
            terminal,
            entrance,
            buffers,
            filled,
            held_by,
            turns,
            on_links,
            sent,
            moved,
            arrived,
            link_flits,
        )
        has_changed |= has_moved
        for i in range(num_arrived):
            stream = tag_stream[arrived[i, 1] >> 2]
            if arrived[i, 0] == memory:
                scalars[MEMORY_GOT] += 1
            elif stream < 0:
                elements[arrived[i, 0], SUMS] += 1
            else:
                got[stream, arrived[i, 0]] += 1
        if scalars[DRAINED] < 0:
            whole = facts[output, NUM_GROUPS] * (final + _packets(final, payload) * header)
            if scalars[MEMORY_GOT] == whole:
                scalars[DRAINED] += 1
                scalars[MEMORY_GOT] = 0
                elements[:, SUMS] = 0
                elements[:, OUT_PACKET] = 0
                final = window[output, DRAIN + 2 + scalars[DRAINED]]
                has_changed = True
        # DRAM.
        while scalars[READ_FREE] < (now + 1) * read_parts:
            chosen = -1
            for i in range(num_streams):
                number = (scalars[DRAM_TURN] + i) % num_streams
                if _may_fetch(constants, facts, window, incoming, scalars, number):
                    chosen = number
                    break
            if chosen < 0:
                break
            scalars[DRAM_TURN] = (chosen + 1) % num_streams
            left = window[chosen, FETCH + incoming[chosen, FETCHED]] - incoming[chosen, FETCHED_FLITS]
            flits = min(constants[BURST], left)
            incoming[chosen, FETCHED_FLITS] += flits
            if flits == left:
                incoming[chosen, FETCHED_FLITS] = 0
                incoming[chosen, FETCHED] += 1
            if not facts[chosen, IS_BUFFERED]:
                incoming[chosen, RESERVED] += flits
            totals[DRAM_READ] += flits
            scalars[READ_FREE] = max(scalars[READ_FREE], now * read_parts) + flits * constants[READ_COST]
            place = scalars[NUM_UNDER_WAY]
            under_way[place, 0] = (scalars[READ_FREE] + read_parts - 1) // read_parts + constants[LATENCY]
            under_way[place, 1] = chosen
            under_way[place, 2] = flits
            scalars[NUM_UNDER_WAY] += 1
            has_changed = True
        while scalars[WRITE_FREE] < (now + 1) * write_parts and _may_write(window, scalars, output):
            flits = min(
                constants[BURST], window[output, WRITE + 4 + scalars[WRITTEN]] - scalars[WRITTEN_FLITS]
            )
            if flits == 0:
                break
            scalars[WRITTEN_FLITS] += flits
            totals[DRAM_WRITTEN] += flits
            scalars[WRITE_FREE] = max(scalars[WRITE_FREE], now * write_parts) + flits * constants[WRITE_COST]
            has_changed = True
        # On to the next cycle in which something can change.
        later = now + 1
        if not has_changed:
            later = -1
            if compute_end >= 0:
                later = compute_end
            if scalars[NUM_UNDER_WAY] and (later < 0 or under_way[0, 0] < later):
                later = under_way[0, 0]
            for free in (
                scalars[READ_FREE] // read_parts,
                scalars[WRITE_FREE] // write_parts,
                (scalars[WRITE_FREE] + write_parts - 1) // write_parts,
            ):
                if free > now and (later < 0 or free < later):
                    later = free
            if later < 0:
                return False
        if waits_for >= 0:
            totals[FIRST_SENT + num_streams + waits_for] += later - now
        now = later
    totals[CYCLES] += now
    scalars[READ_FREE] = max(0, scalars[READ_FREE] - now * read_parts)
    scalars[WRITE_FREE] = max(0, scalars[WRITE_FREE] - now * write_parts)
    for i in range(scalars[NUM_UNDER_WAY]):
        under_way[i, 0] -= now
    return True


@compiled
def advance(
    constants: Array,
    facts: Array,
    receives: Array,
    window: Array,
    moves: Array,
    incoming: Array,
    got: Array,
    scalars: Array,
) -> None:
    """The step is over: versions are counted from the next one's; `moves` says by how much, of each stream
    that of the elements and that of the buffer."""
    for number in range(got.shape[0]):
        incoming[number, VERSION] -= moves[number, 0]
        incoming[number, FETCHED] -= moves[number, 1]
        if moves[number, 0]:
            load = window[number, LOAD]
            for element in range(got.shape[1]):
                if receives[number, element]:
                    got[number, element] -= load + _packets(load, constants[PAYLOAD]) * constants[HEADER]
        if moves[number, 1] and facts[number, IS_BUFFERED]:
            incoming[number, ARRIVED] -= window[number, FETCH]
        if facts[number, IS_OUTPUT]:
            scalars[DRAINED] -= moves[number, 0]
            scalars[WRITTEN] -= moves[number, 1]
