"""`tilewright explain`: what the compiler did, and why."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import MODEL, CompileFlags
from tilewright.cli.output import (
    as_argument,
    hint,
    print_model_document,
    print_tables,
    progress,
    say,
    wants_json,
)
from tilewright.errors import UsageError


def explain(
    flags: CompileFlags,
    model: Path = MODEL,
    name: str | None = typer.Argument(None, help="A node, value or kernel; default: everything."),
    kernel: str | None = typer.Option(
        None,
        "--kernel",
        help="Print what this kernel was generated from, and remarks of its generator behind #.",
    ),
    against: Path | None = typer.Option(
        None,
        "--against",
        help="A file with another plan of --kernel: run both, check their values, and time them in turns.",
    ),
    report: Path | None = typer.Option(None, "--report", help="Also write all of it as .html or .json."),
) -> None:
    """Show which nodes became which kernel, and why edges were fused or cut.

    Example: `tilewright explain resnet50.tw conv1`.
    """
    from tilewright.api.artifacts import open_or_compile
    from tilewright.explain import kernel_plan, kernel_remarks
    from tilewright.report.compilation import ChosenAlgorithms

    options = flags.options()
    for other, is_given in (
        ("NAME", name is not None),
        ("--report", report is not None),
        ("--json", wants_json()),
    ):
        if kernel is not None and is_given:
            raise UsageError(f"{other} has no effect beside --kernel; leave one of them out.")
    if against is not None and kernel is None:
        raise UsageError("--against has no effect without --kernel: name the kernel that the plan is of.")
    if report is not None and report.suffix not in (".html", ".json"):
        raise UsageError(f"{report}: give a name that ends in .html or .json.")
    with progress(f"loading {model.name}") as update:
        compiled = open_or_compile(model, options, update, flags.asked)
    if kernel is not None:
        plan = kernel_plan(compiled.kernels, kernel)
        if against is None:
            say(f"{plan}\n{kernel_remarks(compiled.kernels, kernel)}")
            return
        from tilewright.benchmark.kernel_plans import compare_with_file

        for timing in compare_with_file(kernel, plan, against):
            say(str(timing))
        return
    accuracy = compiled.options.accuracy
    explanation = compiled.explain(name)
    chosen = ChosenAlgorithms(compiled.algorithms, compiled.error, accuracy)
    if report is not None:
        compiled.report().save(report)
        hint(f"written to {report}")
    if wants_json():
        print_model_document("explain", compiled, explanation, chosen)
    elif name is not None:
        say(str(explanation))
    else:
        print_tables(explanation.tables())
        say(f"algorithms: {chosen}, at accuracy {accuracy}")
        if compiled.error is not None:
            say(f"largest error: {compiled.error}")
        typed = as_argument(model)
        hint(f"next: tilewright explain {typed} NAME, of a node, a value or a kernel; --json has every edge")
