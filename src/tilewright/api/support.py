"""`tw.check`: which operators of a model a target runs, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.api.models import Model, Shapes, survey
from tilewright.arguments import checked
from tilewright.frontend.onnx import Source
from tilewright.options import shapes_text
from tilewright.passes.expand_recurrent import num_steps_of
from tilewright.passes.loop_recurrent import loops_over
from tilewright.results import Result, Table, about, in_json
from tilewright.target_ref import CPU, TargetRef
from tilewright.targets import find_target
from tilewright.targets.base import Support
from tilewright.text.formatting import counted
from tilewright.text.printable import printable

Verdict = Literal["native", "host", "deferred", "unsupported", "refused", "unknown"]
"""In code of the target's, on the host, made when data have decided its shapes, not on this target, on none;
or behind one that is refused."""


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """What a target makes of the operators of one type that it treats alike. `nodes` are their names."""

    op_type: str
    opset: int
    verdict: Verdict
    reason: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        reason = f": {self.reason}" if self.reason else ""
        return printable(f"{self.op_type} {self.nodes[0]!r}{more}: {self.verdict}{reason}")


@dataclass(frozen=True, slots=True)
class CheckReport(Result):
    """What a target makes of each operator. `ok` when it runs all of them, on the host or not."""

    model: str
    target: str
    operators: tuple[OperatorSupport, ...] = field(metadata=about("Those of one type with their nodes."))
    shapes: str = field(default="", metadata=about("Tried for inputs whose shapes the model leaves open."))
    misfit: str = field(
        default="", metadata=about("Why none of the shapes tried fits; only known are operators then.")
    )
    model_sha256: str = field(default="", metadata=about(hidden=True))

    @in_json
    def ok(self) -> bool:
        """Whether compiling would not be refused for an operator."""
        return not self.unsupported

    @property
    def unsupported(self) -> tuple[OperatorSupport, ...]:
        """Operators that do not run, those first that no target would run, and last those behind them."""
        order = {verdict: place for place, verdict in enumerate(("refused", "unsupported", "unknown"))}
        return tuple(
            sorted((o for o in self.operators if o.verdict in order), key=lambda o: order[o.verdict])
        )

    @property
    def on_host(self) -> tuple[OperatorSupport, ...]:
        """Operators that run through the reference implementation in Python."""
        return tuple(o for o in self.operators if o.verdict == "host")

    def tables(self) -> Sequence[Table]:
        """Operators, those of one type that are treated alike in a row, and each node that does not run."""
        rows = tuple((o.op_type, o.opset, len(o.nodes), o.verdict, o.reason) for o in self.operators)
        operators = Table(("operator", "opset", "nodes", "verdict", "why"), rows, right=(1, 2), less=(1,))
        nodes = tuple((name, o.op_type, o.verdict) for o in self.unsupported for name in o.nodes)
        if not nodes:
            return (operators,)
        title = f"nodes that do not run: {len(nodes)}"
        return operators, Table(("node", "operator", "verdict"), nodes, title=title)

    def __str__(self) -> str:
        return "\n".join(map(str, self.operators))


@checked
def check(
    model: Model | Source, target: str | TargetRef = CPU, *, shapes: Shapes | None = None
) -> CheckReport:
    """Ask a target about every operator of a model, without compiling it.

    Operators are those of the model, before any pass; a recurrent layer counts as the loop, or the steps,
    that it becomes.
    An operator that no target runs is no error here, where the model was not loaded yet: what does not depend
    on it is looked at. Where the model leaves shapes open and `shapes` do not give them, likely ones are
    tried.

    Raises:
        ModelRejected: the model itself cannot be loaded. An unsupported operator raises nothing.
    """
    target = TargetRef.parse(target)
    asked = find_target(target)
    model, surveyed = survey(model, shapes, tries=True)
    found: dict[tuple[str, int, Verdict, str], list[str]] = {}
    for node in model.graph.nodes:
        support = asked.supports(node)
        if support.is_on_host:
            loop = loops_over(model.graph, node) if asked.runs_steps else None
            steps = num_steps_of(model.graph, node) if loop is None else None
            if loop is not None:
                support = Support.yes(f"a loop over its {counted(loop, 'step')}")
            elif steps is not None:
                support = Support.yes(f"written as its {counted(steps, 'step')}")
        verdict: Verdict = "unsupported" if not support else "host" if support.is_on_host else "native"
        found.setdefault((node.op_type, node.opset, verdict, support.reason), []).append(node.name)
    for other in surveyed.others:
        found.setdefault((other.op_type, other.opset, other.kind, other.reason), []).append(other.name)
    operators = tuple(OperatorSupport(*key, tuple(names)) for key, names in found.items())
    return CheckReport(
        model.name, str(target), operators, shapes_text(surveyed.shapes), surveyed.misfit, model.sha256
    )
