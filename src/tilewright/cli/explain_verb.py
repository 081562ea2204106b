"""`tilewright explain`: what the compiler did, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.flags import MODEL, CompileFlags, add_verb
from tilewright.cli.output import JSON_OPTION, hint, print_json, print_table, progress, say
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.explain import Explanation


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "explain", explain, panel)


def explain(
    flags: CompileFlags,
    model: Path = MODEL,
    name: str | None = typer.Argument(None, help="A node, value or kernel; default: everything."),
    report: Path | None = typer.Option(None, "--report", help="Also write all of it as .html or .json."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Show which nodes became which kernel, and why edges were fused or cut.

    Example: `tilewright explain resnet50.tw conv1`.
    """
    options = flags.options()
    if report is not None and report.suffix not in (".html", ".json"):
        raise UsageError(f"{report}: give a name that ends in .html or .json.")
    with progress(f"loading {model.name}") as update:
        compiled = common.open_or_compile(model, options, update)
    explanation = compiled.explain(name)
    if report is not None:
        compiled.report().save(report)
        hint(f"written to {report}")
    if as_json:
        facts = common.model_facts(compiled.model_sha256, compiled.target)
        error = None if compiled.error is None else dataclasses.asdict(compiled.error)
        chosen = {"algorithms": compiled.algorithms, "error": error}
        print_json("explain", {**facts, **explanation.to_json(), **chosen})
    elif name is not None:
        say(str(explanation))
    else:
        _print_everything(explanation)
        say(f"algorithms: {common.algorithms_text(compiled)}")
        if compiled.error is not None:
            say(f"largest error: {compiled.error}")
        hint(f"next: tilewright explain {model} NAME, of a node, a value or a kernel; --json has every edge")


def _print_everything(explanation: Explanation) -> None:
    """Kernels first; then nodes that no kernel runs under their own name; then edges, counted by reason."""
    from tilewright.partition.base import Reason

    kernels = [
        (k.id, k.template, ", ".join(k.nodes) or "moves a tensor between layouts", ", ".join(k.notes))
        for k in explanation.kernels
    ]
    print_table(
        ("kernel", "made by", "nodes", "how"), kernels, title=f"{len(kernels)} kernels, in the order they run"
    )
    changed = [n for n in explanation.nodes if n.became != (n.name,) or not n.kernels]
    if changed:
        rows = [
            (n.name, n.op_type, ", ".join(n.became) or "-", ", ".join(n.kernels) or "-", n.note)
            for n in changed
        ]
        print_table(
            ("node", "operator", "became", "kernel", "why"),
            rows,
            title=f"{len(rows)} of {len(explanation.nodes)} nodes have no kernel under their own name",
        )
    reasons = Counter((edge.is_fused, Reason(edge.code)) for edge in explanation.edges)
    if reasons:
        print_table(
            ("edges", "", "reason", "why"),
            [
                (count, "fused" if is_fused else "cut", str(reason), reason.text)
                for (is_fused, reason), count in sorted(reasons.items(), key=lambda item: -item[1])
            ],
            title=f"{len(explanation.edges)} edges between nodes",
            right=(0,),
        )
