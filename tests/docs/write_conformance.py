"""`docs/conformance.md` from runs of ONNX's node suite.

`python -m tests.docs.write_conformance > docs/conformance.md` writes the tables; after it,
`python -m tests.fuzz.explained` writes the last section.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import onnx
from tests.support.node_suite import (
    ATOL,
    EXCEPTIONS,
    RTOL,
    ULPS,
    CaseResult,
    Wider,
    count_status,
    node_cases,
    run_cases,
)

from tilewright.backend import prepare


def conformance_markdown(runs: Mapping[str, Sequence[CaseResult]], versions: Mapping[str, str]) -> str:
    """The published table of the results on each device. Same results, same bytes."""
    cases = max(len(results) for results in runs.values())
    lines = [
        "# Conformance",
        "",
        f"Which cases of ONNX's node suite run (onnx {versions['onnx']} with {cases} cases). Written by "
        "`python -m tests.docs.write_conformance` and checked by `tests/conformance`. For your own model, "
        "`tilewright check model.onnx` says the same.",
        "",
        "A case is *generated* if loop nests describe each of its nodes, so that targets generate code for "
        "it. With a *reference kernel*, at least one node runs on the host, in its reference implementation. "
        "All other cases are refused, before or during the run, with an error that names the node and the "
        "reason.",
        "",
        f"| result | {' | '.join(runs)} |",
        f"|---|{'---:|' * len(runs)}",
    ]
    columns = [_summary(results) for results in runs.values()]
    for row in zip(*columns, strict=True):
        cells = " | ".join(f"{count} ({count / cases:.1%})" for _, count in row)
        lines.append(f"| {row[0][0]} | {cells} |")
    lines += [
        "",
        "Integers, booleans and text must equal the suite's, and infinities and NaN must be in the same "
        "places. A float16 or bfloat16 may differ by one unit in the last place; wider floats by "
        f"{ULPS} units in the last place, of the value itself plus of the output's largest magnitude. Every "
        "float must also lie within the suite's own tolerances "
        f"({RTOL:g} of the expected value plus {ATOL:g}, unless a case has its own).",
        "",
        "## Exceptions",
        "",
        *(
            f"* {_allowance(wider)}, because {wider.reason}: "
            f"{', '.join(f'`{name}`' for name in sorted(EXCEPTIONS) if EXCEPTIONS[name] == wider)}."
            for wider in dict.fromkeys(EXCEPTIONS.values())
        ),
    ]
    for device, results in runs.items():
        operators = len({result.operator for result in results})
        lines += ["", f"## By operator, {device}", ""]
        lines += [f'<details markdown="1"><summary>{operators} operators</summary>', ""]
        lines += [*_operator_table(results), "", "</details>"]
    return "\n".join([*lines, ""])


def _allowance(wider: Wider) -> str:
    return f"An error up to {wider.error:g}" if wider.error else f"{wider.units} units in the last place"


def _summary(results: Sequence[CaseResult]) -> list[tuple[str, int]]:
    counts = count_status(results)
    generated = sum(1 for r in results if r.status == "pass" and r.path == "generated")
    return [
        ("pass, generated", generated),
        ("pass, with a reference kernel", counts["pass"] - generated),
        ("unsupported, with a reason", counts["unsupported"]),
        ("wrong value", counts["wrong"]),
        ("crash", counts["crash"]),
    ]


def _operator_table(results: Sequence[CaseResult]) -> list[str]:
    lines = [
        "| operator | cases | generated | reference | unsupported | why unsupported |",
        "|---|---:|---:|---:|---:|---|",
    ]
    by_operator: dict[str, list[CaseResult]] = {}
    for result in sorted(results, key=lambda r: (r.operator, r.name)):
        by_operator.setdefault(result.operator, []).append(result)
    for operator, group in by_operator.items():
        generated = sum(1 for r in group if r.status == "pass" and r.path == "generated")
        reference = sum(1 for r in group if r.status == "pass" and r.path == "reference")
        refused = [r for r in group if r.status == "unsupported"]
        reasons = "; ".join(dict.fromkeys(_cause(r.reason) for r in refused))
        lines.append(
            f"| {operator} | {len(group)} | {generated} | {reference} | {len(refused)} | {reasons} |"
        )
    return lines


_CAUSES = (
    ("is of domain", "operators of other domains"),
    ("draws random numbers", "random results are not reproducible"),
    ("depends on data", "result shape depends on data"),
    ("sequence", "sequences"),
    ("optional", "optionals"),
    ("sparse", "sparse tensors"),
    ("Pillow", "needs an image decoder"),
    ("training mode", "training mode"),
    ("batch axis", "Scan of opset 8"),
    ("deprecated", "deprecated operator"),
    ("string values", "text on the CPU target"),
)


def _cause(reason: str) -> str:
    if "element type" in reason:
        return reason.partition("element type ")[2].partition(",")[0]
    return next((cause for text, cause in _CAUSES if text in reason), reason.partition(";")[0])


def main() -> None:
    """Run the whole suite on the interpreter and on the CPU, and print the tables."""
    cases = node_cases()
    runs = {
        "interpreter": tuple(run_cases(cases, lambda model: prepare(model, "INTERPRETER"))),
        "cpu": tuple(run_cases(cases, lambda model: prepare(model, "CPU"))),
    }
    print(conformance_markdown(runs, {"onnx": onnx.__version__}), end="")


if __name__ == "__main__":
    # Operators at the edge of their domain warn on purpose.
    warnings.simplefilter("ignore")
    main()
