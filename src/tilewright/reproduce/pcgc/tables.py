"""The paper's tables 1 to 6 in its units: each of its numbers, and beside it ours where it can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.pcgc.paper import A310, BOARDS, GOPS_PER_W, NANO, ZCU102, Board, Row, mean
from tilewright.reproduce.pcgc.runs import BEST, GRAPHTURBO, PCGC, RELAY, STATIC, PcgcOutcome, Planned

Found = Mapping[str, PcgcOutcome]
"""By row of a board's tables."""

_OURS: Mapping[str, str] = {"TVM": RELAY, "TVM (VTA)": RELAY, "PCGC": PCGC}
"""Planners of the paper that are run here."""
_MORE = (RELAY, STATIC, GRAPHTURBO, BEST)
"""Plans of ours that the paper has no column for, or under another name."""
_NONE, _NOT_RUN = "-", "not reproduced"
_PAPERS, _SIMULATED = "the paper, measured", "ours, simulated"
_SAID = (
    f"Ours: whole plans simulated on the described machine, one subgraph after another, for energy. "
    f"{PCGC} is the paper's: its static fusion, cut again by Algorithm 2. TVM is {RELAY} of fusion with the "
    "same code generation as all others here, not TVM's. "
    f"{BEST} begins from other partitions, too, GraphTurbo's among them: what it gains over {PCGC} is not "
    "the paper's. "
)
_WHY_NOT: Mapping[str, str] = {
    ZCU102.name: "Not reproduced: the compiler of Xilinx's DPU is closed, and needs its board. The paper "
    "computes in 16 bits of fixed point at 230 MHz on cores that it does not publish, the described machine "
    "in 8 bits on three DPU cores at 281 MHz.",
    NANO.name: "Not reproduced: TASO, TensorRT, XLA and MetaFlow substitute graphs or pick kernels of cuDNN, "
    "which a description of the machine does not have. The paper names a precision for YOLOv4 only; the rest "
    "is in float16, with which alone its time of YOLOv5s is possible at this size.",
    A310.name: "Not reproduced: APOLLO and AKG generate code for the real chip.",
}

_Value = Callable[[Planned, Row, PcgcOutcome], float]


def _time_ms(plan: Planned, row: Row, outcome: PcgcOutcome) -> float:
    return plan.time_ms / row.batch


def _frames_per_s(plan: Planned, row: Row, outcome: PcgcOutcome) -> float:
    return 1e3 * row.batch / plan.time_ms


def _power_w(plan: Planned, row: Row, outcome: PcgcOutcome) -> float:
    return plan.power_w


def _gops_per_w(plan: Planned, row: Row, outcome: PcgcOutcome) -> float:
    return outcome.num_gop / (plan.energy_mj / 1e3)


def tables(found: Mapping[str, Found]) -> tuple[Exhibit, ...]:
    """Tables 1 to 6."""
    by_board = {board.name: board for board in BOARDS}
    made: list[Exhibit] = [_table_1(found[ZCU102.name]), _table_2(found[ZCU102.name])]
    for name, numbers in ((NANO.name, (3, 4)), (A310.name, (5, 6))):
        made.append(_times(by_board[name], found[name], numbers[0]))
        made.append(_powers(by_board[name], found[name], numbers[1]))
    return tuple(made)


def _rows_of(board: Board, found: Found) -> Sequence[Row]:
    return [row for row in board.rows if row.name in found]


def _columns(board: Board) -> tuple[str, ...]:
    """The paper's planners, then those of ours that it has no column for."""
    mapped = {_OURS[planner] for planner in board.planners if planner in _OURS}
    return (*board.planners, *(name for name in _MORE if name not in mapped))


def _pair(
    board: Board, row: Row, outcome: PcgcOutcome, what: str, papers: Sequence[float], value: _Value
) -> Iterator[tuple[str, ...]]:
    """A row of the paper, and ours."""
    columns = _columns(board)
    extra = len(columns) - len(papers)
    yield (what, _PAPERS, *(f"{number:g}" for number in papers), *(_NONE,) * extra)
    plans = [outcome.plans.get(_OURS.get(column, column)) for column in columns]
    ours = (_NOT_RUN if plan is None else f"{value(plan, row, outcome):.4g}" for plan in plans)
    yield ("", _SIMULATED, *ours)


def _figures(
    board: Board, found: Found, unit: str, papers: Callable[[Row], Sequence[float]], value: _Value
) -> Iterator[Figure]:
    """The paper's own column, and that of TVM where it has one."""
    for row in _rows_of(board, found):
        for planner, number in zip(board.planners, papers(row), strict=True):
            if planner in _OURS:
                plan = found[row.name].plans[_OURS[planner]]
                yield Figure(f"{row.name}, {planner}, {unit}", value(plan, row, found[row.name]), number)


def _times(board: Board, found: Found, number: int) -> Exhibit:
    rows: list[tuple[str, ...]] = []
    too_fast: list[str] = []
    for row in _rows_of(board, found):
        outcome = found[row.name]
        least_ms = outcome.least_ms / row.batch
        paper, ours = _pair(board, row, outcome, row.name, row.times_ms, _time_ms)
        rows += [(*paper, _NONE), (*ours, f"{least_ms:.4g}")]
        if min(row.times_ms) < least_ms:
            too_fast.append(f"{row.name} ({min(row.times_ms):g} ms, at least {least_ms:.4g})")
    doubt = (
        "By the rates that the maker of the board publishes, one image of 1024x1024 cannot take as little as "
        f"the paper says for {', '.join(too_fast)}: its images were smaller, or these networks others. "
    )
    return Exhibit(
        f"Table {number}",
        f"time of one image of 1024x1024, {board.name}, ms",
        f"{_SAID}The last column is counted: what the busiest unit takes at the rate of the description. "
        f"{doubt if too_fast else ''}{_WHY_NOT[board.name]}",
        tuple(_figures(board, found, "ms", lambda row: row.times_ms, _time_ms)),
        heads=("network", "of", *_columns(board), "least, counted"),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _powers(board: Board, found: Found, number: int) -> Exhibit:
    rows = [
        cells
        for row in _rows_of(board, found)
        for cells in _pair(board, row, found[row.name], row.name, row.powers_w, _power_w)
    ]
    return Exhibit(
        f"Table {number}",
        f"mean power, images of 1024x1024, {board.name}, W",
        f"{_SAID}Power is energy over time. {_claim(board)} {_WHY_NOT[board.name]}",
        (*_figures(board, found, "W", lambda row: row.powers_w, _power_w), *_gains(board, found)),
        heads=("network", "of", *_columns(board)),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _claim(board: Board) -> str:
    recomputed = 100 * mean(board.power_gains())
    return (
        f"The text claims {100 * board.claimed:.1f} % better power on average; the mean over all planners "
        f"and networks of its own table is {recomputed:.1f} %."
    )


def _gains(board: Board, found: Found) -> Iterator[Figure]:
    """What the text claims in all, and what of that its tables and our plans show."""
    rows = _rows_of(board, found)
    plans = [found[row.name].plans for row in rows]
    yield Figure(
        f"mean gain in power over Relay's rule, {board.nearest}, %",
        100 * (mean([p[RELAY].power_w / p[PCGC].power_w for p in plans]) - 1),
        100 * (mean([1 / board.beside_nearest(row.powers_w) for row in rows]) - 1),
    )
    yield Figure(
        f"mean gain in energy over Relay's rule, {board.nearest}, %",
        100 * (mean([p[RELAY].energy_mj / p[PCGC].energy_mj for p in plans]) - 1),
        100 * (mean([1 / board.beside_nearest(row.energies_mj) for row in rows]) - 1),
    )
    yield Figure("mean gain in power over all planners, by the text, %", None, 100 * board.claimed)
    yield Figure("the same from its tables, %", None, 100 * mean(board.power_gains()))
    yield Figure("the same of energy, %", None, 100 * mean(board.energy_gains()))


def _scale(row: Row) -> str:
    return f"{row.width}x{row.height}"


def _table_1(found: Found) -> Exhibit:
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for number, row in enumerate(_rows_of(ZCU102, found), start=1):
        outcome = found[row.name]
        plan = outcome.plans[PCGC]
        papers = 1e3 / row.times_ms[-1], GOPS_PER_W[-1], row.powers_w[-1]
        ours = [value(plan, row, outcome) for value in (_frames_per_s, _gops_per_w, _power_w)]
        for of, values in ((_PAPERS, papers), (_SIMULATED, ours)):
            rows.append((str(number), of, ZCU102.name, _scale(row), *(f"{v:.4g}" for v in values)))
        figures += [
            Figure(f"{_scale(row)}, {unit}", mine, theirs)
            for unit, mine, theirs in zip(("FPS", "GOPS/W", "W"), ours, papers, strict=True)
        ]
    return Exhibit(
        "Table 1",
        "YOLOv5 by PCGC on a ZCU102",
        f"{_SAID}YOLOv5 is YOLOv5s here; the paper does not say which it ran. Operations count two for each "
        "multiply-add.",
        tuple(figures),
        heads=("No.", "of", "board", "scale (w x h)", "FPS", "GOPS/W", "W"),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _table_2(found: Found) -> Exhibit:
    board, rows_of = ZCU102, _rows_of(ZCU102, found)
    rows: list[tuple[str, ...]] = []
    for number, row in enumerate(rows_of, start=1):
        papers = [1e3 / time_ms for time_ms in row.times_ms]
        rows += _pair(board, row, found[row.name], f"No. {number}, FPS", papers, _frames_per_s)
    for number, row in enumerate(rows_of, start=1):
        rows += _pair(board, row, found[row.name], f"No. {number}, W", row.powers_w, _power_w)
    for number, row in enumerate(rows_of, start=1):
        rows += _pair(board, row, found[row.name], f"No. {number}, GOPS/W", GOPS_PER_W, _gops_per_w)
    for number, row in enumerate(rows_of, start=1):
        implied = [
            gops_per_w * power_w * time_ms / 1e3
            for gops_per_w, power_w, time_ms in zip(GOPS_PER_W, row.powers_w, row.times_ms, strict=True)
        ]
        columns = len(_columns(board)) - len(implied)
        what = f"No. {number}, GOP of an image"
        rows.append((what, "follows from the paper's", *(f"{gop:.3g}" for gop in implied), *("-",) * columns))
        counted = f"{found[row.name].num_gop:.3g}"
        rows.append(("", "counted", *(counted,) * len(_columns(board))))
    return Exhibit(
        "Table 2",
        "accelerators running YOLOv5 on a ZCU102",
        f"{_SAID}The paper gives one GOPS/W for both sizes. What follows from it, its FPS and its watts for "
        "the operations of an image is not the same for its three planners, nor in proportion to the pixels; "
        f"{_gop_of(found)}. {_claim(board)} {_WHY_NOT[board.name]}",
        tuple(_gains(board, found)),
        heads=("what", "of", *_columns(board)),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _gop_of(found: Found) -> str:
    of_rows = (f"{found[row.name].num_gop:.1f} at {_scale(row)}" for row in _rows_of(ZCU102, found))
    return f"YOLOv5s takes {', '.join(of_rows)}"
