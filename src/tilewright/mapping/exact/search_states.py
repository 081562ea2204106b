"""The search's inner loops: partial mappings as search states on the points of a lattice, compiled by numba.

A state is a mapping of the levels from the outermost down to some point: what it has cost so far, and what of
it the rest still depends on. Of two states on one point, one that is as good in every respect makes the other
superfluous (dominance); a state whose cost and least possible rest reach the limit is dropped.

A state's numbers are a row of floats. `USED`: compute instances so far, as spatial loops multiply.
`REDUCTIONS`: copies of outputs that are added up further out. `FIRST_SUMS`: outputs that the level which
serves them need not read, as nothing was added to them before. `CYCLES`: busy cycles of levels with a limit
of bandwidth that serve nothing further. Then for each operand: the product of the innermost loops that it
does not depend on, the copies that one access serves (multicast), the used instances of the level that
serves it. Then, for each operand with a window, what `windows` knows of its loops. At last, for each level
with a limit of bandwidth that may still serve: cycles in which one instance of it reads, and writes; where
both take turns, all of them are the first.

What a stage knows of each operand is a row, too: energy per word that enters its next level and words of one
access there, energy per word that is taken from the level that serves it (of outputs: given to it) and words
of one access there, energy per word of an output that is read to be added to, instances that such an access
is charged for at most, least energy of all that comes further in, whether there is a next level, units that
one access may serve, words that are needed at all. Then the place of the serving level's port (-1: none), its
cycles of reading and of writing for each word that it serves, and of reading for each that is read to be
added to; the same of the next level's port for each word that enters, and how many instances of the next
level one of this level feeds. At last whether what comes further in counts at all.

A call works for a while only and then says where it stopped, so that its caller can look at the clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.cost.nest_table import distinct_positions
from tilewright.machine_code import compiled, part_of_loops
from tilewright.mapping.exact import windows as sliding
from tilewright.mapping.exact.windows import add_loop, forget, is_covered, share_that_enters

Array = np.ndarray[Any, Any]

ENERGY, USED, REDUCTIONS, FIRST_SUMS, CYCLES, FIRST = range(6)
(
    FILL_PJ, FILL_BLOCK, SERVE_PJ, SERVE_BLOCK, REDUCE_PJ, SERVE_LIMIT, TAIL_PJ, HAS_NEXT, FED, TOUCHED,
    SERVE_PORT, SERVE_READS, SERVE_WRITES, REDUCE_READS, FILL_PORT, FILL_READS, FILL_WRITES, FILL_SPREAD,
    COUNTS,
) = range(19)  # fmt: skip
NUM_FACTS = 19
LATENCY, ENERGY_WITHIN, EDP = 0, 1, 2
NEITHER, KEEPS, TAKES = 0, 1, 2  # of a state there and a new one, which dominates the other
_SLACK = 1e-12
# Where a call goes on: a point or a search state, a state of the point (of a choice), and the work done.
AT, WITHIN, WORK = range(3)
BEGIN = -2  # the first state of a point
_START = np.int64(0)  # an argument that is written as a number is compiled for that number
_MOST_WORK = 1 << 19  # comparisons, about a hundredth of a second
_EXPANSION = 12  # comparisons' time that a new state takes


def num_columns(num_operands: int, num_windowed: int, num_ports: int) -> int:
    """Width of a search state's row."""
    return FIRST + 3 * num_operands + sliding.NUM_COLUMNS * num_windowed + 2 * num_ports


@part_of_loops
def compared(
    pool: Array, at: int, run_dim_at: int, row: Array, run_dim: int, num_operands: int, first_port: int,
    rounding_pj: float,
) -> int:  # fmt: skip
    """Which of a state of the pool and a new one dominates the other: whatever goes on from that one goes on
    from it at no higher cost.

    Accesses are whole for each instance, so that more instances may cost more: `rounding_pj` at most.
    """
    energy, new_energy = pool[at, ENERGY], row[ENERGY]
    keeps = energy <= new_energy + _SLACK * abs(new_energy)
    takes = new_energy <= energy + _SLACK * abs(energy)
    has_more, new_has_more = pool[at, USED] > row[USED], row[USED] > pool[at, USED]
    keeps &= not new_has_more
    takes &= not has_more
    keeps &= pool[at, REDUCTIONS] >= row[REDUCTIONS] and pool[at, FIRST_SUMS] >= row[FIRST_SUMS]
    takes &= row[REDUCTIONS] >= pool[at, REDUCTIONS] and row[FIRST_SUMS] >= pool[at, FIRST_SUMS]
    keeps &= pool[at, CYCLES] <= row[CYCLES] * (1 + _SLACK)
    takes &= row[CYCLES] <= pool[at, CYCLES] * (1 + _SLACK)
    if not (keeps or takes):
        return NEITHER
    first_window = FIRST + 3 * num_operands
    for column in range(FIRST, first_window, 3):
        left, new_left = pool[at, column], row[column]
        keeps &= left >= new_left * (1 - _SLACK)
        takes &= new_left >= left * (1 - _SLACK)
        together, new_together = pool[at, column + 1], row[column + 1]
        keeps &= together >= new_together * (1 - _SLACK)
        takes &= new_together >= together * (1 - _SLACK)
        serving, new_serving = pool[at, column + 2], row[column + 2]
        keeps &= serving >= new_serving
        takes &= new_serving >= serving
        if not (keeps or takes):
            return NEITHER
        has_more |= serving > new_serving
        new_has_more |= new_serving > serving
    for column in range(first_port, row.size):
        keeps &= pool[at, column] <= row[column] * (1 + _SLACK)
        takes &= row[column] <= pool[at, column] * (1 + _SLACK)
    keeps &= not (has_more and energy + rounding_pj > new_energy)
    takes &= not (new_has_more and new_energy + rounding_pj > energy)
    if not (keeps or takes):
        return NEITHER
    for slot in range(first_window, first_port, sliding.NUM_COLUMNS):
        keeps = keeps and is_covered(pool[at], row, slot, run_dim_at == run_dim)
        takes = takes and is_covered(row, pool[at], slot, run_dim_at == run_dim)
    if keeps:
        return KEEPS
    return TAKES if takes else NEITHER


@part_of_loops
def whole_accesses(words: float, instances: float, block: float) -> float:
    """Words of so many instances together, each one's rounded up to whole accesses."""
    return float(np.ceil(words / (instances * block) * (1 - _SLACK)) * block * instances)


@part_of_loops
def serving_pj(row: Array, facts: Array, t: int, served: float) -> float:
    """Energy of the level that serves an operand, for what all its instances serve."""
    instances, block = row[FIRST + 3 * t + 2], facts[t, SERVE_BLOCK]
    energy = whole_accesses(served, instances, block) * facts[t, SERVE_PJ]
    if facts[t, REDUCE_PJ] > 0:
        reads = max(0.0, served - row[FIRST_SUMS])
        energy += whole_accesses(reads, instances, block) * facts[t, REDUCE_PJ]
    return float(energy * min(1.0, facts[t, SERVE_LIMIT] / instances))


@part_of_loops
def add_serving(busy: Array, first: int, row: Array, facts: Array, t: int, served: float) -> None:
    """Cycles of the port that serves an operand, for what all its instances serve; the ports are in `busy`
    from `first` on."""
    if facts[t, SERVE_PORT] < 0:
        return
    at = first + int(facts[t, SERVE_PORT])
    instances = row[FIRST + 3 * t + 2]
    busy[at] += served / instances * facts[t, SERVE_READS]
    busy[at + 1] += served / instances * facts[t, SERVE_WRITES]
    if facts[t, REDUCE_READS] > 0:
        busy[at] += max(0.0, served - row[FIRST_SUMS]) / instances * facts[t, REDUCE_READS]


@part_of_loops
def add_filling(busy: Array, first: int, facts: Array, t: int, words: float) -> None:
    """Cycles of the next level's port, for what enters one instance."""
    if facts[t, FILL_PORT] >= 0:
        at = first + int(facts[t, FILL_PORT])
        busy[at] += words * facts[t, FILL_READS]
        busy[at + 1] += words * facts[t, FILL_WRITES]


@part_of_loops
def least(
    row: Array, point: int, facts: Array, copies: Array, totals: Array, tail: Array, rest: Array, busy: Array
) -> tuple[float, float]:
    """(Energy, cycles) that no mapping which goes on from a search state can beat.

    `totals`: multiply-accumulates, their energy, units that the rest of the spatial loops can feed. `tail`:
    cycles of each port for what comes further in than the next levels. `rest[point]`: energy, then cycles
    of each port, that the tiles inside a point cost at least (`rest.py`). `busy` is for work.
    """
    macs, energy, left = totals[0], totals[1] + row[ENERGY], totals[2]
    with_tiles = energy + rest[point, 0]
    first = row.size - tail.size
    for port in range(tail.size):
        busy[port] = row[first + port] + tail[port]
    for t in range(facts.shape[0]):
        at = FIRST + 3 * t
        if facts[t, HAS_NEXT] > 0:
            words = facts[t, TOUCHED] * copies[t, point] / row[at]
            served = max(words / row[at + 1], facts[t, TOUCHED])
            energy += max(words, row[USED] * facts[t, FILL_BLOCK]) * facts[t, FILL_PJ] + facts[t, TAIL_PJ]
            energy += serving_pj(row, facts, t, served)
            add_filling(busy, _START, facts, t, words / (row[USED] * facts[t, FILL_SPREAD]))
        else:
            served = macs / (row[at + 1] * facts[t, FED])
            serving = serving_pj(row, facts, t, served)
            energy += serving
            with_tiles += serving
        add_serving(busy, _START, row, facts, t, served)
    cycles = max(macs / (row[USED] * left), row[CYCLES])
    for port in range(tail.size):
        cycles = max(cycles, busy[port], row[first + port] + rest[point, 1 + port])
    return max(energy, with_tiles), cycles


@part_of_loops
def value(objective: int, energy: float, cycles: float, cap_cycles: float) -> float:
    """What is minimised; infinite beyond the cap, and where no tiles fit. Cycles are whole."""
    cycles = np.ceil(cycles * (1 - _SLACK))
    if objective == LATENCY:
        return cycles if energy < np.inf else np.inf
    if cycles > cap_cycles:
        return np.inf
    return energy * cycles if objective == EDP else energy


@part_of_loops
def insert(
    pool: Array, run_dims: Array, points: Array, following: Array, heads: Array, values: Array, count: int,
    row: Array, run_dim: int, point: int, least_value: float,
    num_operands: int, first_port: int, rounding_pj: float, width: int, lost: Array, todo: Array,
) -> bool:  # fmt: skip
    """Put a state on a point unless another dominates it; those that it dominates go. Needs a free row.

    Of more than `width` states of a point the one goes that promises least; `lost` is told of it.
    """
    before = -1
    at = heads[point]
    num_there = 0
    while at >= 0:
        todo[WORK] += 1
        better = compared(pool, at, run_dims[at], row, run_dim, num_operands, first_port, rounding_pj)
        if better == KEEPS:
            if before >= 0:  # what dominates one often dominates the next
                following[before] = following[at]
                following[at] = heads[point]
                heads[point] = at
            return False
        after = following[at]
        if better == TAKES:
            points[at] = -1
            if before < 0:
                heads[point] = after
            else:
                following[before] = after
        else:
            before = at
            num_there += 1
        at = after
    if num_there >= width:
        worst = worst_before = before = -1
        at = heads[point]
        while at >= 0:
            if worst < 0 or values[at] > values[worst]:
                worst, worst_before = at, before
            before = at
            at = following[at]
        lost[0] = min(lost[0], max(least_value, values[worst]))
        if least_value >= values[worst]:
            return False
        points[worst] = -1
        if worst_before < 0:
            heads[point] = following[worst]
        else:
            following[worst_before] = following[worst]
    for column in range(row.size):
        pool[count, column] = row[column]
    run_dims[count] = run_dim
    points[count] = point
    values[count] = least_value
    following[count] = heads[point]
    heads[point] = count
    return True


@compiled
def put_temporal_loops(
    pool: Array, run_dims: Array, points: Array, following: Array, heads: Array, values: Array,
    parents: Array, made_by: Array, entered: int, count: int, exponents: Array, tiles: Array, steps: Array,
    commute: Array, depends: Array, windows: Array, windowed: Array,
    facts: Array, closed: Array, copies: Array, totals: Array, tail: Array, rest: Array, rounding_pj: float,
    objective: int, limit: float, cap_cycles: float, width: int, lost: Array, todo: Array,
) -> int:  # fmt: skip
    """All orders of loops of one level, outermost first; gives how many states there are.

    `steps`: dim, factor, weight of each axis of the lattice. Of two neighbours that `commute`, which give the
    same state in either order, the later axis is inside: other search states than the first `entered` know
    their innermost loop. What dominates a state that would be made in the other order is made, too, or is the
    same in this one, where its innermost loop is of a later axis, and so on.
    `closed[operand, point]`: a loop that moves the operand must still come before its next level, so that it
    does not matter what loops outside of that leave it.
    `depends[operand, dim]`; `windowed`: operands with windows. A search state's run dim is that of its
    innermost loop if that is of this level and slides a window: another such loop inside it is part of it.
    `lost`: the least value of what found no place. `todo[AT]` is below 0 when all is done.
    """
    num_operands = facts.shape[0]
    first_port = pool.shape[1] - tail.size
    row, busy = np.empty(pool.shape[1]), np.empty(tail.size)
    no_run = min(-1, count)  # no number that is written, as `_START` is none
    point, at = todo[AT], todo[WITHIN]
    while point >= 0:
        if at == BEGIN:
            at = heads[point]
        while at >= 0:
            if todo[WORK] > _MOST_WORK:
                todo[AT], todo[WITHIN] = point, at
                return count
            if count == pool.shape[0] and values[at] >= lost[0]:
                at = following[at]
                continue  # what comes of it finds no place, and is worth no less
            for step in range(steps.shape[0]):
                if exponents[point, step] == 0:
                    continue
                if at >= entered and step < made_by[at] and commute[step, made_by[at]]:
                    continue
                dim, factor, weight = steps[step, 0], steps[step, 1], steps[step, 2]
                todo[WORK] += _EXPANSION
                for column in range(row.size):
                    row[column] = pool[at, column]
                for t in range(num_operands):
                    if depends[t, dim] or closed[t, point - weight]:
                        row[FIRST + 3 * t] = 1.0
                    elif facts[t, HAS_NEXT] > 0:
                        row[FIRST + 3 * t] *= factor
                run_dim = no_run
                for u in range(windowed.size):
                    t = windowed[u]
                    if facts[t, HAS_NEXT] == 0:
                        continue
                    slot = FIRST + 3 * num_operands + u * sliding.NUM_COLUMNS
                    tile = tiles[point - weight, dim]
                    if add_loop(row, slot, t, dim, factor, tile, depends, windows, run_dims[at] == dim):
                        run_dim = dim
                energy, cycles = least(row, point - weight, facts, copies, totals, tail, rest, busy)
                least_value = value(objective, energy, cycles, cap_cycles)
                if least_value >= limit:
                    continue
                if count == pool.shape[0]:
                    lost[0] = min(lost[0], least_value)
                    continue
                if insert(
                    pool, run_dims, points, following, heads, values, count, row, run_dim, point - weight,
                    least_value, num_operands, first_port, rounding_pj, width, lost, todo,
                ):  # fmt: skip
                    parents[count] = at
                    made_by[count] = step
                    count += 1
            at = following[at]
        point -= 1
        at = BEGIN
    todo[AT] = -1
    return count


@part_of_loops
def has_factors(exponents: int, choice: int, guards: int) -> bool:
    """Whether a tile has the primes that a choice of spatial loops takes from it.

    Both are packed (`Lattice.packed`): a field for each axis, with a free bit above it that no borrow passes.
    """
    return ((exponents | guards) - choice) & guards == guards


@compiled
def reached_by_spreading(
    reached: Array, packed: Array, guards: int, choice_weights: Array, choice_packed: Array
) -> Array:
    """The points of which one of some choices of spatial loops leaves one that is reached."""
    outside = np.zeros(reached.size, np.bool_)
    for point in range(reached.size):
        for choice in range(choice_packed.size):
            inside = point - choice_weights[choice]
            if inside < 0 or not reached[inside]:
                continue
            if has_factors(packed[point], choice_packed[choice], guards):
                outside[point] = True
                break
    return outside


@part_of_loops
def spread(
    row: Array, choices: Array, choice: int, tiles: Array, point: int, depends: Array, windows: Array,
    output: int,
) -> None:  # fmt: skip
    """Spatial loops with a choice's factors by dim, inside of which every instance has a point's tile."""
    num_operands = depends.shape[0]
    used = 1.0
    for dim in range(choices.shape[1]):
        factor = choices[choice, dim]
        if factor == 1:
            continue
        used *= factor
        for t in range(num_operands):
            if not depends[t, dim]:
                row[FIRST + 3 * t + 1] *= factor
                if t == output:
                    row[REDUCTIONS] *= factor
    row[USED] *= used
    for w in range(windows.shape[0]):
        a, b = windows[w, 1], windows[w, 3]
        of_a, of_b = choices[choice, a], choices[choice, b]
        if of_a > 1 and of_b > 1:
            moves = windows[w, 2] * tiles[point, a], windows[w, 4] * tiles[point, b]
            together = distinct_positions(of_a, moves[0], of_b, moves[1])
            row[FIRST + 3 * windows[w, 0] + 1] *= of_a * of_b / together


@part_of_loops
def enter(
    row: Array, point: int, tiles: Array, entering: Array, facts: Array, closing: Array, volumes: Array,
    num_tiles: Array, windows: Array, windowed: Array, skips_pixels: bool, output: int,
) -> None:  # fmt: skip
    """Count what enters the next level inside, for the operands that it keeps.

    `entering`: for each operand whether the level keeps it, energy per word that enters, instances charged at
    most. `closing`: ports that serve nothing further in.
    """
    num_operands = facts.shape[0]
    first_port = row.size - closing.size
    for t in range(num_operands):
        if entering[t, 0] == 0:
            continue
        at = FIRST + 3 * t
        share = 1 / row[at]
        for u in range(windowed.size):
            if windowed[u] == t:
                slot = FIRST + 3 * num_operands + u * sliding.NUM_COLUMNS
                share = share_that_enters(row, slot, share, tiles, point, windows, skips_pixels)
        words = volumes[t, point] * num_tiles[point] * share
        served = words / row[at + 1]
        charged = min(1.0, entering[t, 2] / row[USED])
        filled = whole_accesses(words, row[USED], facts[t, FILL_BLOCK])
        row[ENERGY] += serving_pj(row, facts, t, served) + filled * entering[t, 1] * charged
        add_serving(row, first_port, row, facts, t, served)
        add_filling(row, first_port, facts, t, words / row[USED])
        if t == output:
            row[FIRST_SUMS] = facts[t, TOUCHED] * row[REDUCTIONS]
        row[at + 1] = 1.0
        row[at + 2] = row[USED]
    for port in range(closing.size):
        if closing[port]:
            row[CYCLES] = max(row[CYCLES], row[first_port + port])
            row[first_port + port] = 0.0


@part_of_loops
def pass_over(row: Array, at: int, is_output: bool) -> None:
    """Of an operand that counts no more, all search states are equal; `at` is the first of its columns."""
    row[at] = row[at + 1] = row[at + 2] = 1.0
    if is_output:
        row[REDUCTIONS], row[FIRST_SUMS] = 1.0, 0.0


@part_of_loops
def least_units(macs: float, units: float, objective: int, limit: float, cap_cycles: float) -> float:
    """Units that must be in use further out, if so many are inside: with fewer it takes too long."""
    most_cycles = min(cap_cycles, limit) if objective == LATENCY else cap_cycles
    return float(macs / (most_cycles * units) * (1 - 1e-9))


@compiled
def put_spatial_loops(
    pool: Array, points: Array, values: Array, count: int,
    inner: Array, inner_run_dims: Array, inner_points: Array, inner_following: Array, inner_heads: Array,
    inner_values: Array, inner_parents: Array, inner_made_by: Array, made: int,
    choices: Array, products: Array, choice_weights: Array, choice_packed: Array,
    packed: Array, guards: int, tiles: Array, fits: Array,
    depends: Array, windows: Array, windowed: Array, skips_pixels: bool, output: int,
    entering: Array, closing: Array, facts: Array, inner_facts: Array, inner_closed: Array,
    volumes: Array, num_tiles: Array, copies: Array, totals: Array, tail: Array, rest: Array, given: Array,
    rounding_pj: float, objective: int, limit: float, cap_cycles: float,
    width: int, lost: Array, todo: Array,
) -> int:  # fmt: skip
    """All spatial loops of one level, and what enters the next; gives how many states there are.

    `choices[choice, dim]` are factors, those with the largest products first; `fits[point]`: whether the next
    level holds the tile. `todo[AT]` is `count` when all is done.
    """
    num_operands = facts.shape[0]
    first_port = pool.shape[1] - tail.size
    row, busy = np.empty(pool.shape[1]), np.empty(tail.size)
    no_run = min(-1, made)  # no number that is written, as `_START` is none
    for at in range(todo[AT], count):
        if todo[WORK] > _MOST_WORK:
            todo[AT] = at
            return made
        point = points[at]
        if point < 0:
            continue
        # Once no place is left, what counts is the least value that finds none.
        below = limit if made < inner.shape[0] else min(limit, lost[0])
        if values[at] >= below:
            continue
        least_used = least_units(totals[0], totals[2], objective, below, cap_cycles)
        for choice in range(choices.shape[0]):
            if pool[at, USED] * products[choice] < least_used:
                break
            todo[WORK] += 1
            inside = point - choice_weights[choice]
            if inside < 0 or not fits[inside]:
                continue
            if not has_factors(packed[point], choice_packed[choice], guards):
                continue
            cycles = totals[0] / (pool[at, USED] * products[choice] * totals[2])
            for port in range(tail.size):
                cycles = max(cycles, pool[at, first_port + port] + given[inside, 1 + port])
            energy = pool[at, ENERGY] + totals[1] + given[inside, 0]
            if value(objective, energy, cycles, cap_cycles) >= below:
                continue
            todo[WORK] += _EXPANSION
            for column in range(row.size):
                row[column] = pool[at, column]
            spread(row, choices, choice, tiles, inside, depends, windows, output)
            enter(
                row, inside, tiles, entering, facts, closing, volumes, num_tiles, windows, windowed,
                skips_pixels, output,
            )  # fmt: skip
            for t in range(num_operands):
                if inner_facts[t, COUNTS] == 0:
                    pass_over(row, FIRST + 3 * t, t == output)
                elif inner_facts[t, HAS_NEXT] == 0 or inner_closed[t, inside]:
                    row[FIRST + 3 * t] = 1.0
            for u in range(windowed.size):
                if inner_facts[windowed[u], HAS_NEXT] == 0:
                    forget(row, FIRST + 3 * num_operands + u * sliding.NUM_COLUMNS)
            energy, cycles = least(row, inside, inner_facts, copies, totals, tail, rest, busy)
            least_value = value(objective, energy, cycles, cap_cycles)
            if least_value >= limit:
                continue
            if made == inner.shape[0]:
                lost[0] = min(lost[0], least_value)
                below = min(limit, lost[0])
                continue
            if insert(
                inner, inner_run_dims, inner_points, inner_following, inner_heads, inner_values, made, row,
                no_run, inside, least_value, num_operands, first_port, rounding_pj, width, lost, todo,
            ):  # fmt: skip
                inner_parents[made] = at
                inner_made_by[made] = choice
                made += 1
    todo[AT] = count
    return made


@compiled
def finish(
    pool: Array, points: Array, values: Array, count: int,
    products: Array, together: Array, first_choices: Array, choice_weights: Array, choice_packed: Array,
    packed: Array, guards: int, left_inside: Array, facts: Array, totals: Array, num_ports: int,
    objective: int, limit: float, cap_cycles: float, best: Array, best_of: Array, num_found: int, todo: Array,
) -> int:  # fmt: skip
    """The innermost level: its spatial loops, then all that is left, as far as it may be, as temporal loops.

    Every unit has the same tile of one iteration, so choices with the same product that let an access serve
    the same number of units, `together[group, operand]`, are alike; a group's are from `first_choices[group]`
    on, those with the largest products first. Puts the least values into `best`, sorted, and (state, choice)
    of each into `best_of`; gives how many. `todo[AT]` is `count` when all is done.
    """
    num_operands = facts.shape[0]
    first_port = pool.shape[1] - num_ports
    row, busy, weighted = np.empty(pool.shape[1]), np.empty(num_ports), np.empty(num_operands)
    shares = 1.0 / together
    counts_energy = objective != LATENCY
    below = limit if num_found < best.size else min(limit, best[num_found - 1])
    least_used = least_units(totals[0], 1.0, objective, below, cap_cycles)
    for at in range(todo[AT], count):
        if todo[WORK] > _MOST_WORK:
            todo[AT] = at
            return num_found
        point = points[at]
        if point < 0 or (num_found == best.size and values[at] >= best[num_found - 1]):
            continue
        for column in range(row.size):
            row[column] = pool[at, column]
        # Without whole accesses, energy is a sum over what accesses share: most groups go by that alone.
        fixed = row[ENERGY] + totals[1]
        for t in range(num_operands):
            charged = min(1.0, facts[t, SERVE_LIMIT] / row[FIRST + 3 * t + 2])
            served = totals[0] / row[FIRST + 3 * t + 1]
            weighted[t] = served * (facts[t, SERVE_PJ] + facts[t, REDUCE_PJ]) * charged
            fixed -= row[FIRST_SUMS] * facts[t, REDUCE_PJ] * charged
        for group in range(products.size):
            if row[USED] * products[group] < least_used:
                break
            todo[WORK] += 1
            energy = fixed
            if counts_energy:
                for t in range(num_operands):
                    energy += weighted[t] * shares[group, t]
                if objective == ENERGY_WITHIN and energy * (1 - _SLACK) >= below:
                    continue
            cycles = max(totals[0] / (row[USED] * products[group]), row[CYCLES])
            if value(objective, energy * (1 - _SLACK), cycles, cap_cycles) >= below:
                continue
            todo[WORK] += _EXPANSION // 2
            energy = row[ENERGY] + totals[1]
            for port in range(num_ports):
                busy[port] = row[first_port + port]
            for t in range(num_operands):
                served = totals[0] / (row[FIRST + 3 * t + 1] * together[group, t])
                if counts_energy:
                    energy += serving_pj(row, facts, t, served)
                add_serving(busy, _START, row, facts, t, served)
            for port in range(num_ports):
                cycles = max(cycles, busy[port])
            least_value = value(objective, energy, cycles, cap_cycles)
            if least_value >= below:
                continue
            for choice in range(first_choices[group], first_choices[group + 1]):
                todo[WORK] += 1
                inside = point - choice_weights[choice]
                if inside < 0 or not left_inside[inside]:
                    continue
                if not has_factors(packed[point], choice_packed[choice], guards):
                    continue
                place = min(num_found, best.size - 1)
                while place > 0 and best[place - 1] > least_value:
                    best[place] = best[place - 1]
                    best_of[place, 0], best_of[place, 1] = best_of[place - 1, 0], best_of[place - 1, 1]
                    place -= 1
                best[place] = least_value
                best_of[place, 0] = at
                best_of[place, 1] = choice
                num_found = min(num_found + 1, best.size)
                if num_found == best.size:
                    below = min(limit, best[num_found - 1])
                    least_used = least_units(totals[0], 1.0, objective, below, cap_cycles)
                break
    todo[AT] = count
    return num_found
