"""Convolutions on a GPU, counted without one: bytes by level, issue slots, waves, conflicts, an estimate.

Run: `python -m benchmarks cuda_static [--output FILE.jsonl] [--page docs/cuda.md]`, with the wheels of the
extra cuda-check. 35 shapes of ResNet-50 and Inception V3, at batch 1 and 32, in float32 and bfloat16, are
compiled and assembled for sm_90. Counted are the instructions of the loop that multiplies, registers and
shared memory, which say how many blocks a multiprocessor holds, and the bytes that blocks bring in. Bank
conflicts are those of a block on the emulated GPU.

The estimate is the longest of what the busiest multiprocessor issues, multiplies and loads, and of the
memory's time; where it has one block only, it is taken to take as long as for two. The limit is the longer of
all multiply-adds at the data sheet's rate and of all operands at the memory's.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks import ptx_uses
from benchmarks.command import Namespace, Parser
from benchmarks.cuda import CONVOLUTIONS, code_of, convolution, feed_of
from benchmarks.results import append_row, provenance, rows_of, with_table
from tilewright.api.compilation import compile_model
from tilewright.hardware.presets import find_machine
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.nest import Opaque
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.products.match import Product, match_product
from tilewright.targets.cuda.products.tiles import (
    PITCH_BYTES,
    ROW_BYTES,
    ProductPlan,
    loaded_bytes,
    num_registers,
    num_slots,
    plan_product,
)
from tilewright.targets.cuda.ptx import gpu_isa, ptx_of
from tilewright.targets.cuda.rates import LOADED_BYTES_PER_CYCLE, SCHEDULERS, rates_of, resident_blocks
from tilewright.targets.llvm.layout import Declined

GPU, ISA = "h200", "sm_90"
BATCHES, ACCURACIES = (1, 32), ("default", "fast")
ROUNDS_AT_ONCE = 2
"""Blocks that hide each other's waiting; a multiprocessor with one takes as long as for so many."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One shape, batch and accuracy. `slots` are warp instructions of a step of a block, of which some
    multiply; `bound` is what takes longest."""

    shape: tuple[int, ...]
    batch: int
    accuracy: str
    plan: str
    num_tiles: int
    num_blocks: int
    num_registers: int
    stated_registers: int
    is_whole: bool
    spilled_bytes: int
    shared_bytes: int
    stated_shared_bytes: int
    resident_blocks: int
    waves: float
    busy: int
    memory_bytes: int
    loaded_bytes: int
    shared_traffic_bytes: int
    slots: float
    stated_slots: float
    multiplying_slots: float
    estimate_us: float
    limit_us: float
    bound: str
    conflicts: str

    @property
    def share(self) -> float:
        """The limit over the estimate."""
        return self.limit_us / self.estimate_us


def counts_of(shape: Sequence[int], batch: int, accuracy: str, known: dict[str, str]) -> Counts:
    """Everything that is counted of a convolution; `known` are conflicts of a tile, window and stride."""
    machine = find_machine(GPU)
    rates = rates_of(machine)
    code = code_of(convolution(shape, batch), accuracy=accuracy)
    kernel = code.placed.launches[0].kernel
    product, plan = _product(code, accuracy)
    tile, steps = plan.tile, plan.steps_per_split
    use = ptx_uses.kernel_uses(ptx_of([kernel.text], gpu_isa(ISA))[0], ISA)[kernel.symbol]
    warps = tile.num_threads // WARP
    resident = resident_blocks(use.num_registers, use.shared_bytes, tile.num_threads)
    num_blocks, is_whole = kernel.num_blocks, product.depth[-1].extent % plan.depth == 0
    # The loop of the code may hold several steps.
    multiplying = _multiplying_slots(plan)
    in_loop = warps * sum(use.loop.get(name, 0) for name in ptx_uses.MULTIPLIES)
    loop, steps_in_loop = use.loop, in_loop / multiplying
    if not in_loop:  # few steps: all of them written out
        loop, steps_in_loop = use.instructions, steps
    slots = warps * sum(loop.values()) / steps_in_loop
    around = warps * (sum(use.instructions.values()) - sum(loop.values()))
    loads = sum(loop.get(name, 0) for name in ("LDS", "LDSM"))
    step_bytes = loaded_bytes(product, plan)
    stored_bytes = (tile.rows + tile.columns) * PITCH_BYTES
    read_bytes = warps * loads / steps_in_loop * WARP * 16
    cycles_per_us = (machine.clock_hz or 1e9) / 1e6
    busiest = max(ceil(num_blocks / rates.num_multiprocessors), ROUNDS_AT_ONCE)
    planes_bytes = 0
    if plan.num_splits > 1:
        planes_bytes = 4 * num_blocks * tile.rows * tile.columns  # one of the kernel's arguments
    memory_us = (kernel.argument_bytes + planes_bytes) / rates.bytes_per_ns / 1e3
    macs = steps * tile.rows * tile.columns * plan.depth
    parts = {
        "issue": busiest * (around + steps * slots) / SCHEDULERS / cycles_per_us,
        "multiply": busiest * macs / rates.macs_per_ns[plan.kind] / 1e3,
        "load": busiest * steps * step_bytes / LOADED_BYTES_PER_CYCLE / cycles_per_us,
        "memory": memory_us,
    }
    bound = max(parts, key=lambda name: parts[name])
    peak = rates.macs_per_ns[plan.kind] * rates.num_multiprocessors
    form = f"{plan.kind} {tile.rows} x {tile.columns} {shape[3:]}"
    if form not in known and batch == 1:
        known[form] = _conflicts(shape, accuracy)
    conflicts = known.get(form, "")
    return Counts(
        tuple(shape),
        batch,
        accuracy,
        str(plan),
        num_blocks // plan.num_splits,
        num_blocks,
        use.num_registers,
        num_registers(plan, is_whole=is_whole),
        is_whole,
        use.spilled_bytes,
        use.shared_bytes,
        kernel.shared_bytes,
        resident,
        num_blocks / (rates.num_multiprocessors * resident),
        min(num_blocks, rates.num_multiprocessors),
        kernel.argument_bytes + planes_bytes,
        int(num_blocks * steps * step_bytes),
        int(num_blocks * steps * (stored_bytes + read_bytes)),
        slots,
        num_slots(product, plan),
        multiplying,
        parts[bound],
        max(product.macs / peak, (kernel.argument_bytes - planes_bytes) / rates.bytes_per_ns) / 1e3,
        bound,
        conflicts,
    )


def _product(code: CudaCode, accuracy: Any) -> tuple[Product, ProductPlan]:
    """The convolution as it was lowered."""
    (subgraph,) = code.program.partition.subgraphs
    group = FusedNodes()(subgraph.nodes, subgraph.outputs)
    assert not isinstance(group, Opaque)
    constants = {("input", i): v.data for i, v in enumerate(group.inputs) if v.data is not None}
    product = match_product(group.nests[0], constants)
    assert not isinstance(product, Declined), product.reason
    return product, plan_product(product, product.kind(accuracy), rates_of(find_machine(GPU))).plan


def _multiplying_slots(plan: ProductPlan) -> float:
    """Warp instructions that multiply a step of a tile."""
    tile = plan.tile
    if plan.kind == "fma":
        return tile.rows * tile.columns * plan.depth / WARP
    return tile.rows // 16 * (tile.columns // 8) * (ROW_BYTES // 32)


def _conflicts(shape: Sequence[int], accuracy: str) -> str:
    """What the emulated GPU tells of bank conflicts and sectors."""
    model = convolution(shape)
    compiled = compile_model(model, target="cuda{device=emulated}", accuracy=accuracy)
    compiled.run(None, feed_of(model))
    explained = str(compiled.explain())
    compiled.close()
    line = next((line for line in explained.splitlines() if "sectors" in line), "")
    return line.strip()


def table(rows: Sequence[Counts]) -> str:
    """All rows, and what they amount to."""
    lines = [
        "| convolution | batch | kind and tile | blocks (tiles) | waves | busy | memory, loaded, shared MB "
        "| slots a step, of them multiplying | registers | estimate, limit us | limit / estimate |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        channels, filters, size, window, stride = row.shape
        step = f"{row.slots:.0f}, {100 * row.multiplying_slots / row.slots:.0f} %"
        bytes_ = ", ".join(
            f"{size_bytes / 1e6:.1f}"
            for size_bytes in (row.memory_bytes, row.loaded_bytes, row.shared_traffic_bytes)
        )
        lines.append(
            f"| {channels} to {filters}, {size}, {window} x {window} / {stride} | {row.batch} | {row.plan} "
            f"| {row.num_blocks} ({row.num_tiles}) | {row.waves:.2f} | {row.busy} | {bytes_} | {step} "
            f"| {row.num_registers} | {row.estimate_us:.1f}, {row.limit_us:.1f} ({row.bound}) "
            f"| {100 * row.share:.0f} % |"
        )
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Counts]) -> str:
    """For each batch and accuracy: shares of the limit, and multiprocessors that are busy."""
    lines = [
        "| batch | accuracy | limit / estimate: geometric mean | of 35 at 70 % or more | fewest busy of 132 "
        "| of 35 with 60 busy | spilled bytes | shared memory as the formula says "
        "| registers within a tenth of it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for batch, accuracy in dict.fromkeys((row.batch, row.accuracy) for row in rows):
        own = [row for row in rows if (row.batch, row.accuracy) == (batch, accuracy)]
        mean = statistics.geometric_mean(row.share for row in own)
        near = sum(abs(row.stated_registers / row.num_registers - 1) <= 0.1 for row in own)
        equal = sum(row.shared_bytes == row.stated_shared_bytes for row in own)
        lines.append(
            f"| {batch} | {accuracy} | {100 * mean:.0f} % | {sum(row.share >= 0.7 for row in own)} "
            f"| {min(row.busy for row in own)} | {sum(row.busy >= 60 for row in own)} "
            f"| {max(row.spilled_bytes for row in own)} | {equal} of {len(own)} "
            f"| {near} of {len(own)} |"
        )
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--output", default=Path("cuda_static.jsonl"))
    parser.add_argument("--only", default="", help="shapes with this in their text")
    parser.add_argument("--page")
    parser.add_argument(
        "--registers", type=Path, help="where plans and the registers that they take are written"
    )


def main(asked: Namespace) -> None:
    """Count what is not in the file yet, and print the tables."""
    if not any(asked.only in str(shape) for shape in CONVOLUTIONS):
        raise SystemExit(f"cuda_static: no shape has {asked.only!r} in its text, such as {CONVOLUTIONS[0]}")
    if asked.only and (asked.page or asked.registers):
        raise SystemExit("cuda_static: a page and registers take all shapes; leave out --only")
    known = {(tuple(row["shape"]), row["batch"], row["accuracy"]): row for row in rows_of(asked.output)}
    rows: list[Counts] = []
    conflicts: dict[str, str] = {}
    for shape in CONVOLUTIONS:
        for batch in BATCHES if asked.only in str(shape) else ():
            for accuracy in ACCURACIES:
                key = (tuple(shape), batch, accuracy)
                if key not in known:
                    known[key] = asdict(counts_of(shape, batch, accuracy, conflicts))
                    append_row(asked.output, {**provenance(), **known[key]})
                found = {name: known[key][name] for name in Counts.__dataclass_fields__}
                rows.append(Counts(**{**found, "shape": tuple(shape)}))
    if asked.registers:
        taken = {(row.plan, row.is_whole, row.num_registers) for row in rows}
        asked.registers.write_text("[\n" + ",\n".join(json.dumps(row) for row in sorted(taken)) + "\n]\n")
    text = summary(rows)
    print(table(rows) + "\n" + text)
    if asked.page:
        asked.page.write_text(with_table(asked.page.read_text(), text, "static counts"))
