"""Independent check of the arena of a model whose kernels run at the same time.

Works out anew, from the steps alone, which kernels are over before which begin (reachability in the graph
of steps and groups), and from the kernels' operands what uses which bytes. Shares no code with the memory
problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ir.graph import Value
from tilewright.planning import Violation
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.lower.lowered import HostOperator, KernelLaunch, LoweredModel


def check_places(lowered: LoweredModel, offsets: Mapping[Tensor, int]) -> tuple[Violation, ...]:
    """Everything wrong with places in the arena: `offsets` are those of the tensors that own memory there.

    Checked: tensors that share a byte are used one wholly before the other, in whatever order and on whatever
    number of threads groups progress; or a kernel reads one element by element for the last time while it
    writes the other in its place, which begins there and is no larger.
    """
    work, before = _ordered(lowered)
    users = _users(lowered, work, offsets)
    ready = {tensor: _all_before(bits, before) for tensor, bits in users.items()}
    ranges = sorted(
        ((offsets[t], offsets[t] + _size_bytes(lowered, t), number, t) for number, t in enumerate(users)),
        key=lambda found: found[:3],
    )
    violations: list[Violation] = []
    for position, (start, end, _, a) in enumerate(ranges):
        for other_start, other_end, _, b in ranges[position + 1 :]:
            if other_start >= end:
                break
            if other_end == other_start or end == start:
                continue
            is_ordered = not users[a] & ~ready[b] or not users[b] & ~ready[a]
            if not is_ordered and not any(
                _is_in_place(lowered, old, new, users, before, work) and start == other_start
                for old, new in ((a, b), (b, a))
            ):
                what = f"{_name(a)} and {_name(b)} share bytes, and kernels may use both at the same time"
                violations.append(Violation("overlap", what))
    return tuple(violations)


def _ordered(lowered: LoweredModel) -> tuple[list[KernelLaunch | HostOperator], list[int]]:
    """All that runs, and for each the set of what is over when it begins, as bits."""
    work: list[KernelLaunch | HostOperator] = []
    before: list[int] = []
    earlier = 0  # all of the steps before
    for step in lowered.steps:
        tracks = [(step,)] if isinstance(step, HostOperator) else [group.launches for group in step.groups]
        in_step = 0
        for track in tracks:
            over = earlier
            for item in track:
                before.append(over)
                over |= 1 << len(work)
                work.append(item)
            in_step |= over
        earlier = in_step
    return work, before


def _users(
    lowered: LoweredModel, work: list[KernelLaunch | HostOperator], offsets: Mapping[Tensor, int]
) -> dict[Tensor, int]:
    """For each tensor of the arena the set of kernels that read or write its memory."""
    users: dict[Tensor, int] = {}
    for number, item in enumerate(work):
        for tensor in _operands(item):
            root = lowered.root(tensor)
            if root in offsets:
                users[root] = users.get(root, 0) | 1 << number
    return users


def _operands(item: KernelLaunch | HostOperator) -> Iterator[Tensor]:
    if isinstance(item, HostOperator):
        yield from (*item.node.operands(), *item.node.results())
    else:
        yield from (*item.reads, *item.writes)


def _all_before(bits: int, before: list[int]) -> int:
    """What is over before any of a set begins."""
    common = -1
    for number in _members(bits):
        common &= before[number]
    return common


def _is_in_place(
    lowered: LoweredModel,
    old: Tensor,
    new: Tensor,
    users: Mapping[Tensor, int],
    before: list[int],
    work: list[KernelLaunch | HostOperator],
) -> bool:
    """Whether one kernel uses both, the last to use `old` and the first to use `new`, and may write so."""
    both = users[old] & users[new]
    if not both or both & (both - 1):
        return False
    number = both.bit_length() - 1
    launch = work[number]
    if isinstance(launch, HostOperator) or _size_bytes(lowered, new) > _size_bytes(lowered, old):
        return False
    read = {t for t in launch.reads if lowered.root(t) == old}
    return (
        read <= set(launch.may_overwrite)
        and not users[old] & ~both & ~before[number]
        and all(both & before[later] for later in _members(users[new] & ~both))
    )


def _members(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _size_bytes(lowered: LoweredModel, tensor: Tensor) -> int:
    if isinstance(tensor, Value):
        return tensor.size_bytes
    local = lowered.locals[tensor]
    return local.num_elements * local.dtype.size_bytes


def _name(tensor: Tensor) -> str:
    return repr(tensor.name) if isinstance(tensor, Value) else f"local {tensor[0]}.{tensor[1]}"
