"""From each ONNX node to its kernels and back, and why every edge was fused or cut.

Passes merge, replace and remove nodes. What became of each is derived from the graphs before and after
rather than recorded by the passes, so that it holds for any pass: a node that is gone was merged into the
nodes that now make what its results were made for.
"""

from __future__ import annotations

import difflib
import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tilewright.errors import UsageError
from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import EdgeDecision, Partition, Reason
from tilewright.passes import PassReport
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.results import Result, Table
from tilewright.steps import KernelInfo, NodeOrigin, StepInfo
from tilewright.text.formatting import counted
from tilewright.text.printable import printable


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node as the model file lists it; `is_named` says whether the name is the file's."""

    name: str
    op_type: str
    outputs: tuple[str, ...]
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class NodeStory:
    """One node of the model: what it became and which kernels run it."""

    name: str
    op_type: str
    became: tuple[str, ...]
    kernels: tuple[str, ...]
    note: str

    def __str__(self) -> str:
        text = f"{self.op_type} {self.name!r}: {', '.join(self.kernels) or 'no kernel'}"
        if self.became and self.became != (self.name,):
            text += f", as part of {', '.join(map(repr, self.became))}"
        return printable(f"{text} ({self.note})" if self.note else text)


@dataclass(frozen=True, slots=True)
class EdgeStory:
    """One data edge of the optimised graph: fused into one kernel or not, with the reason."""

    producer: str
    consumer: str
    value: str
    is_fused: bool
    code: str
    text: str

    @classmethod
    def of(cls, decision: EdgeDecision, partition: Partition) -> EdgeStory:
        """The decision of a partition in plain values."""
        reason, text = decision.reason, decision.reason.text
        if reason is Reason.BLOCKWISE:
            text += f"; {partition.kernel_of(decision.producer)}"
        record = partition.fusion_of(decision)
        if record is not None:
            text += f"; {record.text(is_kept=reason.is_fused)}"
        return cls(
            decision.producer.name,
            decision.consumer.name,
            decision.value.name,
            reason.is_fused and reason is not Reason.SEPARATE,
            str(reason),
            text,
        )

    def __str__(self) -> str:
        verb = "fused" if self.is_fused else "cut"
        return printable(f"{self.producer} -> {self.consumer}: {verb} ({self.code}: {self.text})")


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """Which nodes became which kernel, and why: all of a model, or the part that was asked for."""

    subject: str
    nodes: tuple[NodeStory, ...]
    kernels: tuple[KernelInfo, ...]
    edges: tuple[EdgeStory, ...]
    schedule: str = ""
    tuned: tuple[str, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Kernels; nodes that no kernel runs under their own name; edges, counted by reason."""
        kernels = tuple(
            (k.id, k.template, ", ".join(k.nodes) or "moves a tensor between layouts", ", ".join(k.notes))
            for k in self.kernels
        )
        title = f"{counted(len(kernels), 'kernel')}, in the order they run"
        tables = [Table(("kernel", "made by", "nodes", "how"), kernels, title, less=(3,))]
        changed = tuple(
            (n.name, n.op_type, ", ".join(n.became) or "-", ", ".join(n.kernels) or "-", n.note)
            for n in self.nodes
            if n.became != (n.name,) or not n.kernels
        )
        if changed:
            title = (
                f"{len(changed)} of {counted(len(self.nodes), 'node')} have no kernel under their own name"
            )
            heads = ("node", "operator", "became", "kernel", "why")
            tables.append(Table(heads, changed, title, less=(2, 1)))
        if self.edges:
            title = f"{len(self.edges)} edges between nodes"
            tables.append(Table(("edges", "", "reason", "why"), self.edge_counts(), title, (0,)))
        if self.schedule:
            tables.append(Table(("schedule",), ((self.schedule,),), "how kernels were put in order"))
        if self.tuned:
            tables.append(
                Table(("tuned",), tuple((line,) for line in self.tuned), "forms that were searched")
            )
        return tuple(tables)

    def edge_counts(self) -> tuple[tuple[int, str, str, str], ...]:
        """How many edges were fused or cut for each reason, the most first: number, verdict, code, why."""
        reasons = Counter((edge.is_fused, Reason(edge.code)) for edge in self.edges)
        return tuple(
            (count, "fused" if is_fused else "cut", str(reason), reason.text)
            for (is_fused, reason), count in sorted(reasons.items(), key=lambda item: -item[1])
        )

    def lines(self) -> tuple[str, ...]:
        """What a person reads: kernels with the nodes in them, nodes, edges."""
        kernels = (
            printable(f"{k.id} {k.template}: {', '.join(k.nodes) or 'moves a tensor between layouts'}")
            + "".join(f"\n    {printable(note)}" for note in k.notes)
            for k in self.kernels
        )
        head = [printable(text) for text in (self.subject, self.schedule) if text]
        return (*head, *kernels, *map(str, self.nodes), *map(str, self.edges))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def explain_program(
    program: Program, steps: Sequence[StepInfo], origins: Sequence[NodeOrigin], name: str | None
) -> Explanation:
    """Explain a whole program (`name` None), or one node, value or kernel of it.

    Raises:
        UsageError: nothing has that name.
    """
    links = _Links(program, steps, origins)
    if name is None:
        return links.explanation("everything", program.graph.nodes)
    kernel = next((k for k in links.kernels if name in (k.id, k.symbol)), None)
    if kernel is not None:
        return links.explanation(f"kernel {kernel.id}", links.nodes_of(kernel), (kernel,))
    nodes = links.find(name)
    if nodes is None:
        longer = [known for known in links.names() if known.startswith(name)]
        close = longer[:3] or difflib.get_close_matches(name, links.names(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else "`explain()` without a name lists all."
        raise UsageError(f"nothing is called {name!r} in this model: {hint}")
    return links.explanation(name, nodes, only=name)


def kernel_plan(kernels: Sequence[KernelInfo], name: str) -> str:
    """What a kernel was generated from, as text.

    Raises:
        UsageError: nothing has that name, or the kernel's template prints no plans.
    """
    kernel = next((k for k in kernels if name in (k.id, k.symbol)), None)
    if kernel is None:
        planned = [k.id for k in kernels if k.plan]
        hint = f"those with a plan are {', '.join(planned[:8])}" if planned else "none of them has a plan"
        raise UsageError(f"no kernel is called {name!r}; of {counted(len(kernels), 'kernel')} {hint}.")
    if not kernel.plan:
        raise UsageError(
            f"kernel {kernel.id} is made by {kernel.template!r}, which prints no plan: "
            f"`tilewright explain` with {kernel.id} as NAME says what it does."
        )
    return "\n".join(map(printable, kernel.plan.rstrip("\n").split("\n")))


def kernel_remarks(kernels: Sequence[KernelInfo], name: str) -> str:
    """What its generator says of a kernel: lines that a plan may hold, and that mean nothing in it."""
    notes = (note for k in kernels if name in (k.id, k.symbol) for note in k.notes)
    return "\n".join(f"# {printable(note)}" for note in notes)


class _Links:
    """What belongs together."""

    def __init__(self, program: Program, steps: Sequence[StepInfo], origins: Sequence[NodeOrigin]) -> None:
        self.program = program
        self.origins = origins
        self.kernels = tuple(k for step in steps for k in step.kernels)
        self.by_name: dict[str, list[Node]] = {}
        for node in program.graph.nodes:
            self.by_name.setdefault(node.name, []).append(node)
        self._by_node: dict[str, list[KernelInfo]] = {}
        for kernel in self.kernels:
            for node_name in kernel.nodes:
                self._by_node.setdefault(node_name, []).append(kernel)

    def find(self, name: str) -> tuple[Node, ...] | None:
        """Nodes of the optimised graph behind a name; None if nothing has it."""
        if name in self.by_name:
            return tuple(self.by_name[name])
        origins = [o for o in self.origins if o.name == name]
        if origins:
            return tuple(n for o in origins for became in o.became for n in self.by_name.get(became, ()))
        for value in self.program.graph.values():
            if value.name == name:
                return value.users if value.producer is None else (value.producer,)
        return None

    def names(self) -> Iterable[str]:
        """Everything that `find` finds, and the kernels."""
        values = (v.name for v in self.program.graph.values())
        return dict.fromkeys((*self.by_name, *(o.name for o in self.origins), *values, *self.kernel_ids()))

    def kernel_ids(self) -> Iterable[str]:
        """Names of kernels."""
        return (k.id for k in self.kernels)

    def nodes_of(self, kernel: KernelInfo) -> tuple[Node, ...]:
        """Nodes of the optimised graph that a kernel serves."""
        return tuple(n for name in kernel.nodes for n in self.by_name.get(name, ()))

    def explanation(
        self,
        subject: str,
        nodes: Sequence[Node],
        kernels: Sequence[KernelInfo] | None = None,
        only: str | None = None,
    ) -> Explanation:
        """The stories of these nodes; `only` leaves out other ONNX nodes that became part of them."""
        chosen = {node.name for node in nodes}
        is_all = only is None and kernels is None
        stories = tuple(
            self._story(o) for o in self.origins if is_all or o.name == only or chosen & set(o.became)
        )
        if kernels is None:
            kernels = [k for k in self.kernels if is_all or chosen & set(k.nodes)]
        members = set(nodes)
        edges = tuple(
            EdgeStory.of(d, self.program.partition)
            for d in self.program.partition.decisions
            if d.producer in members or d.consumer in members
        )
        schedule, tuned = (self._schedule(), self.program.tuned) if is_all else ("", ())
        return Explanation(subject, stories, tuple(kernels), edges, schedule, tuned)

    def _schedule(self) -> str:
        """How the order was found; nothing where it is that of the graph."""
        schedule = self.program.schedule
        planner, note = schedule.provenance.planner, schedule.provenance.note
        if planner == PLAIN_RECIPE.schedule:
            return ""
        return f"schedule {planner}: {counted(len(schedule.stages), 'stage')}" + (f"; {note}" if note else "")

    def _story(self, origin: NodeOrigin) -> NodeStory:
        kernels = dict.fromkeys(k.id for name in origin.became for k in self._by_node.get(name, ()))
        note = origin.note
        if origin.became and not kernels:
            note = note or "no code: its result is another name for the same memory"
        return NodeStory(origin.name, origin.op_type, origin.became, tuple(kernels), note)


def with_loaded_nodes(
    origins: Sequence[NodeOrigin], listed: Sequence[OnnxNode], loaded: Graph
) -> tuple[NodeOrigin, ...]:
    """Origins in the order of the model file, with those of nodes that loading already replaced.

    Loading turns constants, and whatever depends on constants only, into initializers, and functions into
    their bodies; nodes of bodies come last.
    """
    by_name = {o.name: o for o in origins}
    makers = {v.name: node.name for node in loaded.nodes for v in node.results()}
    found: dict[str, NodeOrigin] = {}
    for node in listed:
        if node.name in by_name:
            found[node.name] = by_name[node.name]
            continue
        heirs = dict.fromkeys(b for o in node.outputs if o in makers for b in by_name[makers[o]].became)
        note = "" if heirs else "a constant" if node.op_type == "Constant" else "computed while loading"
        found[node.name] = NodeOrigin(node.name, node.op_type, tuple(heirs), note)
    return (*found.values(), *(o for o in origins if o.name not in found))


def origins_of(before: Graph, after: Graph, passes: PassReport) -> tuple[NodeOrigin, ...]:
    """What became of every node of `before` in `after`, with what the passes remarked about it."""
    remarks: dict[str, list[str]] = {}
    for name, result in passes.results:
        for remark in result.remarks:
            remarks.setdefault(remark.node, []).append(f"{name}: {remark.text}")
    return _Origins(before, after).all(remarks)


class _Origins:
    def __init__(self, before: Graph, after: Graph) -> None:
        self.before = before
        self.by_name = {node.name: node for node in after.nodes}
        self.makers: dict[str, Node] = {v.name: n for n in after.nodes for v in n.results()}
        self.constants = {v.name for v in after.values() if v.is_constant}
        self._heirs: dict[Node, tuple[str, ...]] = {}

    def all(self, remarks: Mapping[str, Sequence[str]]) -> tuple[NodeOrigin, ...]:
        """Origins of all nodes, users before producers so that each can ask its heirs."""
        found: dict[Node, NodeOrigin] = {}
        for node in reversed(self.before.nodes):
            became, note = self._fate(node)
            self._heirs[node] = became
            found[node] = NodeOrigin(
                node.name, node.op_type, became, "; ".join(filter(None, (*remarks.get(node.name, ()), note)))
            )
        return tuple(found[node] for node in self.before.nodes)

    def _fate(self, node: Node) -> tuple[tuple[str, ...], str]:
        if node.name in self.by_name:
            return (node.name,), ""
        makers = dict.fromkeys(self.makers[v.name].name for v in node.results() if v.name in self.makers)
        if makers:
            return tuple(makers), ""
        if any(v.name in self.constants for v in node.results()):
            return (), "computed at compile time: its result is a constant"
        absorbed = self._bypassed(node)
        if absorbed:
            return absorbed, ""
        heirs = dict.fromkeys(h for v in node.results() for user in v.users for h in self._heirs[user])
        if heirs:
            return tuple(heirs), ""
        return (), "removed: no output depends on it, or its result is known at compile time"

    def _bypassed(self, node: Node) -> tuple[str, ...]:
        """Producers whose results a user, itself unchanged, reads in place of the vanished node's."""
        results = set(node.results())
        sources = self._live_sources(node)
        makers: dict[str, None] = {}
        for user in dict.fromkeys(u for v in node.results() for u in v.users):
            now = self.by_name.get(user.name)
            if now is None or now.op_type != user.op_type:
                continue
            for old, new in zip(user.inputs, now.inputs, strict=False):
                if old in results and new is not None and new.name in sources:
                    makers[self.makers[new.name].name] = None
        return tuple(makers)

    def _live_sources(self, node: Node) -> list[str]:
        """Names of values that `node` reads, through vanished nodes, and that still have a producer."""
        names: dict[str, None] = {}
        seen: set[Value] = set()
        waiting = list(node.operands())
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.name in self.makers:
                names[value.name] = None
            elif value.producer is not None and value.producer.name not in self.by_name:
                waiting.extend(value.producer.operands())
        return list(names)
