"""Where the paths behind each node meet again: post-dominators of a graph without cycles.

As for dominators (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001), each node hangs
below its own exit in a tree, and the exit of a node is the lowest common ancestor of its readers. Ancestors
are found by jump pointers (Myers, "An Applicative Random-Access Stack", 1983).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.graph import Node, Value


class Exits:
    """Exits of all nodes, by position in a topological order. O((nodes + edges) log nodes)."""

    def __init__(
        self, nodes: Sequence[Node], position: Mapping[Node, int], results: Collection[Value]
    ) -> None:
        end = len(nodes)  # what all results lead to
        self._end = end
        self._parent = [end] * (end + 1)
        self._jump = [end] * (end + 1)
        self._depth = [0] * (end + 1)
        self._height = [0] * (end + 1)
        for here in reversed(range(end)):
            behind: dict[int, None] = {}
            for value in nodes[here].results():
                behind.update((position[user], None) for user in value.users)
                if value in results:
                    behind[end] = None
            self._hang(here, tuple(behind) or (end,))

    def of(self, position: int) -> int | None:
        """The first node behind this one that every path from it to a result passes, if there is one."""
        exit = self._parent[position]
        return None if exit == self._end else exit

    def distance(self, position: int, exit: int) -> int:
        """Nodes on the longest path from a node to its exit, the exit included."""
        return self._height[position] - self._height[exit]

    def _hang(self, here: int, behind: Sequence[int]) -> None:
        parent = behind[0]
        for other in behind[1:]:
            parent = self._common(parent, other)
        depth, jump = self._depth, self._jump
        above = jump[parent]
        is_even = depth[parent] - depth[above] == depth[above] - depth[jump[above]]
        self._parent[here] = parent
        depth[here] = depth[parent] + 1
        jump[here] = jump[above] if is_even else parent
        self._height[here] = 1 + max(self._height[b] for b in behind)

    def _common(self, a: int, b: int) -> int:
        depth, jump, parent = self._depth, self._jump, self._parent
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:
            a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
        return a
