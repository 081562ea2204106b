"""A stage as the search sees it: which operators it runs, and how."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["alone", "parallel", "merge"]
"""One operator alone, groups at the same time, or all operators as one kernel."""

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Groups of operators by number, each in the order in which it runs; a merged stage has groups of one.

    `num_cores` is how many each group gets, None leaves them to the machine.
    """

    groups: tuple[Group, ...]
    strategy: Strategy
    num_cores: tuple[int, ...] | None = None

    @property
    def mask(self) -> int:
        """Its operators as a set."""
        return sum(1 << i for group in self.groups for i in group)

    def shifted(self, offset: int) -> StageChoice:
        """The same of operators numbered from `offset`."""
        groups = tuple(tuple(i + offset for i in group) for group in self.groups)
        return StageChoice(groups, self.strategy, self.num_cores)


def signature(
    choice: StageChoice, operators: Sequence[Hashable], predecessors: Sequence[int], *, in_order: bool = False
) -> tuple[Hashable, ...]:
    """What the cost of a stage depends on: its groups in any order, their operators and how these connect.

    `operators[i]` says all that matters of operator i; equal signatures may be priced once. `in_order`: which
    group is the first matters, too.
    """
    groups = (_group_signature(group, operators, predecessors) for group in choice.groups)
    if in_order:
        return choice.strategy, choice.num_cores, tuple(groups)
    if choice.num_cores is not None:
        return choice.strategy, tuple(sorted(zip(groups, choice.num_cores, strict=True), key=repr))
    return choice.strategy, tuple(sorted(groups, key=repr))


def _group_signature(
    group: Group, operators: Sequence[Hashable], predecessors: Sequence[int]
) -> tuple[Hashable, ...]:
    return tuple(
        (operators[i], tuple(place for place, other in enumerate(group) if predecessors[i] >> other & 1))
        for i in group
    )
