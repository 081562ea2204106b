"""CoSA's program written literally: a binary for every prime factor, slot and kind of loop (section III-B).

Slots are the levels inside the global buffer, one permutation slot for each prime at the global buffer, and
DRAM. Slow, and for small layers only: what the compact program is held against. The `published` variant is
what ucb-bar/cosa c4798a7 does, with its products of binaries written as linear rows.
"""

from __future__ import annotations

from math import log2

import highspy

from tilewright.mapping.factors import prime_factors

# Simba as published, from the innermost level: words for each tensor, and what one instance feeds.
CAPACITIES: list[dict[str, int]] = [
    {"W": 1},
    {"O": 64},
    {"W": 16384},
    {"I": 4096},
    {"I": 32768, "O": 32768},
]
FAN_OUTS = [1, 8, 1, 8, 16, 1]
GLOBAL_BUFFER, DRAM = 4, 5
DIMS = {"W": "RSCK", "I": "PQCNRS", "O": "PQKN"}


def literal_optimum(dims: dict[str, int], stride: int, *, published: bool) -> float:
    """The least value of CoSA's objective with the weights 10, 0.1 and 1, in log2 units."""
    factors = [
        (d, p) for d, extent in dims.items() for p, count in prime_factors(extent) for _ in range(count)
    ]
    if not factors:
        return 0.0
    num_slots = len(factors)
    slots = [*range(GLOBAL_BUFFER), *(GLOBAL_BUFFER for _ in range(num_slots)), DRAM]
    first = GLOBAL_BUFFER
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 1e-7)
    solver.setOptionValue("threads", 1)

    def variable(high: float, cost: float, *, is_binary: bool) -> int:
        number = int(solver.getNumCol())
        solver.addVar(0.0, high)
        solver.changeColCost(number, cost)
        if is_binary:
            solver.changeColIntegrality(number, highspy.HighsVarType.kInteger)
        return number

    def row(low: float, high: float, terms: dict[int, float]) -> None:
        if terms:
            solver.addRow(low, high, len(terms), list(terms), list(terms.values()))

    def relevant(tensor: str) -> str:
        # The published code forgets that windows move the inputs.
        return "PQCN" if published and tensor == "I" else DIMS[tensor]

    def size(tensor: str, dim: str, prime: int) -> float:
        if dim not in relevant(tensor):
            return 0.0
        return log2(prime * stride) if published and tensor == "I" and dim in "PQ" else log2(prime)

    x: dict[tuple[int, int, bool], int] = {}
    for n, (dim, prime) in enumerate(factors):
        log = log2(prime)
        for slot, level in enumerate(slots):
            for is_spatial in (False, True):
                if is_spatial and (FAN_OUTS[level] == 1):
                    continue
                if published and dim in "RS" and (level != DRAM or is_spatial):
                    continue
                cost = 0.0 if is_spatial else 10 * log
                for buffer in range(level, GLOBAL_BUFFER if published else DRAM):
                    weight = 1.01 if published and buffer == 2 else 1.0
                    cost -= sum(0.1 * weight * size(tensor, dim, prime) for tensor in CAPACITIES[buffer])
                for tensor in "WIO":
                    depends = dim in relevant(tensor)
                    if level < GLOBAL_BUFFER:
                        cost += (0.99 * (0.8 + 0.04 * level) if published else 1.0) * log * depends
                    elif level == GLOBAL_BUFFER and is_spatial:
                        cost += 0.99 * log if published else log * depends
                    elif level == DRAM and not is_spatial:
                        cost += log * (1.01 if published and tensor == "W" else 1.0)
                x[n, slot, is_spatial] = variable(1.0, cost, is_binary=True)
        row(1.0, 1.0, {v: 1.0 for (m, _, _), v in x.items() if m == n})
    for slot in range(first, first + num_slots):
        row(0.0, 1.0, {v: 1.0 for (_, s, _), v in x.items() if s == slot})
    for level in range(DRAM + 1):
        spatial = {v: log2(factors[n][1]) for (n, s, k), v in x.items() if k and slots[s] == level}
        row(-highspy.kHighsInf, log2(FAN_OUTS[level]) + 1e-6, spatial)
    for level, held in enumerate(CAPACITIES):
        for tensor, words in held.items():
            # In the paper's variant a stride makes the inputs' box that much larger, once for each axis.
            start = 2 * log2(stride) if not published and tensor == "I" else 0.0
            terms = {v: size(tensor, *factors[n]) for (n, s, _), v in x.items() if slots[s] <= level}
            row(-highspy.kHighsInf, log2(words) - start + 1e-6, {v: w for v, w in terms.items() if w})
    # Iterations of the global buffer's loops that move a tensor: from its innermost relevant loop outwards.
    longest = max(log2(prime) for _, prime in factors)
    for tensor in "WIO":
        before = None
        for slot in range(first, first + num_slots):
            y = variable(1.0, 0.0, is_binary=True)
            moved = variable(longest, 1.0, is_binary=False)
            inside = {n: x[n, slot, False] for n in range(len(factors)) if (n, slot, False) in x}
            for n, v in inside.items():
                if factors[n][0] in relevant(tensor):
                    row(0.0, 1.0, {y: 1.0, v: -1.0})
            if before is not None:
                row(0.0, 1.0, {y: 1.0, before: -1.0})
            # moved >= log of the slot's factor - longest * (1 - y)
            terms = {v: -log2(factors[n][1]) for n, v in inside.items()}
            row(-longest, highspy.kHighsInf, {moved: 1.0, y: -longest, **terms})
            before = y
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)
