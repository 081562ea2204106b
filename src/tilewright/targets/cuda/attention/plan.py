"""How attention is cut: queries of a block, keys of a step, and what of both lies in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import ClassVar

from tilewright.ir.nest import Nest, operands_of
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.device import MOST_BLOCKS
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.products.tiles import (
    JOIN_NS,
    MAX_SHARED_BYTES,
    PITCH_BYTES,
    ROW_BYTES,
    ProductPlan,
    Tile,
)
from tilewright.targets.cuda.rates import Kind, Rates
from tilewright.targets.llvm.attention import CHANNEL, DEPTH, AttentionProblem, Walked, recognise_attention
from tilewright.targets.llvm.layout import Declined, Layout

_ROWS = (64, 32)
_KEYS = (64, 32, 16)
_WARP_ROWS = 16
_MIN_ROWS = 8
"""Queries of a head below this leave most of a tile empty."""
GROUPED_KEYS = 4
"""Keys that a group of lanes takes at once: their loads are under way together, and scale sums once."""
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MAX_HELD = 128
"""Numbers of queries and weighted sums that a thread holds."""
_LOAD_NS = 800.0
"""A step of a block alone: its way to memory and back, and two sums over lanes. Assumed."""
_BLOCKS_AT_ONCE = 8
"""Blocks whose loads a multiprocessor has under way together."""
_MAX_CHANNELS = 128
"""Channels of a result beyond this need more registers than a thread has."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """`rows` queries of a head are a block's, which takes `keys` of them at each step."""

    kind: Kind
    rows: int
    keys: int
    element_bytes: int
    depth: int
    channels: int
    num_blocks: int
    time_ns: float

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.scores.tile.num_threads

    @property
    def per_chunk(self) -> int:
        """Elements along the depth of a row in shared memory."""
        return ROW_BYTES // self.element_bytes

    @property
    def depth_chunks(self) -> int:
        """Chunks of the depth of scores."""
        return ceil(self.depth / self.per_chunk)

    @property
    def key_chunks(self) -> int:
        """Chunks of the keys of a step, the depth of the second product."""
        return self.keys // self.per_chunk

    @property
    def padded_channels(self) -> int:
        """Channels in whole parts of a warp's columns."""
        return ceil(self.channels / 16) * 16

    @property
    def scores(self) -> ProductPlan:
        """The first product of a step."""
        return self._product(self.keys, self.depth)

    @property
    def values(self) -> ProductPlan:
        """The second product of a step."""
        return self._product(self.padded_channels, self.keys)

    def _product(self, columns: int, depth: int) -> ProductPlan:
        tile = Tile(self.rows, columns, (self.rows // _WARP_ROWS, 1))
        return ProductPlan(self.kind, tile, self.element_bytes, 1, 1, depth)

    @property
    def query_bytes(self) -> int:
        """Of queries, which stay."""
        return self.depth_chunks * self.rows * PITCH_BYTES

    @property
    def key_bytes(self) -> int:
        """Of keys, and of powers, which lie there once scores are known."""
        return max(self.depth_chunks * self.keys, self.key_chunks * self.rows) * PITCH_BYTES

    @property
    def value_bytes(self) -> int:
        """Of values, a row a channel."""
        return self.key_chunks * self.padded_channels * PITCH_BYTES

    @property
    def shared_bytes(self) -> int:
        """All of a block's."""
        return self.query_bytes + self.key_bytes + self.value_bytes

    def __str__(self) -> str:
        return f"{self.kind} {self.rows} queries, {self.keys} keys at a time"


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The keys of each head are shared by `num_parts` blocks, in which groups of lanes take one each.

    A lane loads `key_lanes` neighbours of a key, and `value_lanes` of a value, at a time.
    """

    rows: int
    num_keys: int
    channels: int
    group: int
    key_lanes: int
    value_lanes: int
    num_parts: int
    num_blocks: int
    time_ns: float

    num_threads: ClassVar[int] = 128

    @property
    def num_warps(self) -> int:
        """Warps of a block."""
        return self.num_threads // WARP

    @property
    def num_groups(self) -> int:
        """Groups of lanes of a block."""
        return self.num_threads // self.group

    @property
    def part_keys(self) -> int:
        """Keys of a block, of which the last part may have fewer."""
        return ceil(self.num_keys / self.num_parts)

    @property
    def shared_bytes(self) -> int:
        """What warps found."""
        return 4 * self.num_warps * self.rows * (self.channels + 2)

    def __str__(self) -> str:
        split = f" in {self.num_parts} parts" if self.num_parts > 1 else ""
        return f"{self.rows} queries, {self.num_groups * GROUPED_KEYS} keys at a time{split}"


def find_attention(nests: Sequence[Nest]) -> AttentionProblem | Declined:
    """Six nests as one attention of tensors that are row-major, or why they are none."""
    layouts = {o.key: Layout.row_major(len(o.shape)) for o in operands_of(nests)}
    return recognise_attention(nests, layouts)


def plan_attention(
    problem: AttentionProblem, accuracy: Accuracy, rates: Rates
) -> AttentionPlan | DecodePlan | Declined:
    """The cut that is estimated to be fastest, the fewest blocks of equals; or why there is none."""
    if accuracy == "strict":
        return Declined("strict sums are those of whole rows")
    num_rows, depth, channels = (problem.extents[loop] for loop in (problem.row, DEPTH, CHANNEL))
    if problem.num_heads > MOST_BLOCKS[1]:
        return Declined("more heads than a grid has blocks")
    if num_rows < _MIN_ROWS:
        return _plan_decode(problem, rates)
    if channels > _MAX_CHANNELS:
        return Declined(f"more than {_MAX_CHANNELS} channels of values")
    kind: Kind = "bf16" if accuracy == "fast" else "tf32" if accuracy == "relaxed" else "fma"
    element_bytes = 2 if kind == "bf16" else 4
    choices = []
    for rows in _ROWS:
        for keys in _KEYS:
            num_blocks = problem.num_heads * ceil(num_rows / rows)
            time_ns = _time_ns(problem, kind, rows, num_blocks, rates)
            plan = AttentionPlan(kind, rows, keys, element_bytes, depth, channels, num_blocks, time_ns)
            # A loop of one step is none: ptxas loads ahead then what cores multiply, and spills it.
            is_loop = kind != "fma" or keys < problem.extents[problem.column]
            if plan.key_chunks and is_loop and plan.shared_bytes <= MAX_SHARED_BYTES:
                choices.append(plan)
    if not choices:
        return Declined("keys are few, or tiles of queries, keys and values exceed shared memory")
    return min(choices, key=lambda plan: (plan.time_ns, plan.num_blocks, -plan.keys))


def _plan_decode(problem: AttentionProblem, rates: Rates) -> DecodePlan | Declined:
    """Of few queries: as many parts of the keys as are estimated to be fastest, the fewest of equals."""
    num_rows, num_keys, depth, channels = (
        problem.extents[loop] for loop in (problem.row, problem.column, DEPTH, CHANNEL)
    )
    key_lanes, value_lanes = _lanes(problem.query, DEPTH, depth), _lanes(problem.value, CHANNEL, channels)
    key_lanes = min(key_lanes, _lanes(problem.key, DEPTH, depth))
    chunks = max(ceil(depth / key_lanes), ceil(channels / value_lanes))
    group = min(WARP, 1 << (chunks - 1).bit_length())
    held = sum(
        ceil(n / (group * lanes)) * lanes for n, lanes in ((depth, key_lanes), (channels, value_lanes))
    )
    if num_rows * held > _MAX_HELD:
        return Declined("queries and weighted sums exceed the registers of a thread")
    whole = DecodePlan(num_rows, num_keys, channels, group, key_lanes, value_lanes, 1, problem.num_heads, 0.0)
    if whole.shared_bytes > MAX_SHARED_BYTES:
        return Declined("what warps find exceeds shared memory")
    bytes_ = 4 * (depth + channels)
    found: list[DecodePlan] = []
    for parts in _PARTS:
        plan = replace(whole, num_parts=parts, num_blocks=parts * problem.num_heads)
        keys = plan.num_groups * GROUPED_KEYS
        if parts > 1 and plan.part_keys * (parts - 1) >= num_keys:
            continue
        rounds = ceil(plan.num_blocks / rates.num_multiprocessors)
        step_ns = max(
            _LOAD_NS * ceil(rounds / _BLOCKS_AT_ONCE), rounds * keys * bytes_ / rates.loaded_bytes_per_ns
        )
        time_ns = ceil(plan.part_keys / keys) * step_ns
        if parts > 1:
            time_ns += JOIN_NS + parts * num_rows * 4 * channels / rates.loaded_bytes_per_ns
        found.append(replace(plan, time_ns=time_ns))
    return min(found, key=lambda plan: (plan.time_ns, plan.num_blocks))


def _lanes(walked: Walked, along: str, extent: int) -> int:
    """Neighbours along a loop that are loaded at once: sixteen bytes, where all rows allow it."""
    steps = [step for name, step in walked.steps.items() if name != along]
    is_whole = walked.step(along) == 1 and all(n % 4 == 0 for n in (*steps, walked.start, extent))
    return 4 if is_whole else 1


def _time_ns(problem: AttentionProblem, kind: Kind, rows: int, num_blocks: int, rates: Rates) -> float:
    """Rounds of blocks, each of which multiplies all keys; small tiles read more for a product."""
    per_head = problem.num_macs / problem.num_heads / problem.extents[problem.row]
    rounds = ceil(num_blocks / rates.num_multiprocessors)
    return rounds * rows * per_head / (rates.macs_per_ns[kind] * min(1.0, rows / max(_ROWS)))
