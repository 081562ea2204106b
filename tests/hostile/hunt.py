"""The long hostile run: `python -m tests.hostile.hunt` draws 10,000 models and all else that is hostile.

Models come from four generators: whole models with lies (`models.py`), the node suite with operands and
attributes that do not fit (`operand_mutations.py`), attributes at their extremes (`attributes.py`), and
damaged bytes (`mutate.py`). Artifacts, names, caches, YAML files and lives have hunts of their own, which
this one starts. Each part runs in child processes, with a limit on time and, for the models, on memory; a
crash, a hang, an untyped error or a wrong answer is a finding. With `--keep FOLDER` the models that show one
are saved there.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.children import Silent, lines_of

ROOT = Path(__file__).parents[2]
BATCH = 50
# What one model may take, and all of a child process; ten times what they do take.
MODEL_TIMEOUT_S = 60
MEMORY_BYTES = 16 * 2**30
PARTS = (
    "models",
    "operands",
    "attributes",
    "bytes",
    "artifacts",
    "names",
    "caches",
    "yaml_files",
    "lifecycle",
)


@dataclass
class Report:
    """What a part came to."""

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def run_batch(first: int, last: int) -> None:
    """Try these seeds in this process, which is told apart by its limits."""
    from tests.hostile.models import try_seed

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for seed in range(first, last):
        print(json.dumps({"seed": seed}), flush=True)
        began_s = time.monotonic()
        try:
            outcome, problem = try_seed(seed)
        except Exception as error:  # whatever it is: no caller may meet an untyped one
            outcome, problem = "untyped", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        seconds = time.monotonic() - began_s
        print(
            json.dumps({"seed": seed, "outcome": outcome, "problem": problem, "seconds": seconds}), flush=True
        )


def hunt_models(first: int, count: int, keep: Path | None = None) -> Report:
    """Whole models with lies, in batches; the watchdog ends a batch in which one model takes too long."""
    report, last = Report(), first + count
    while first < last:
        stop = min(first + BATCH, last)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.hostile.hunt",
            "--batch",
            str(first),
            str(stop),
        ]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        seed, ended = first, False
        with child, contextlib.suppress(Silent):
            for line in lines_of(child, MODEL_TIMEOUT_S):
                if not line.startswith("{"):
                    continue
                told = json.loads(line)
                seed, ended = told["seed"], "outcome" in told
                if ended:
                    report.tried += 1
                    report.outcomes[told["outcome"]] += 1
                    report.slowest_s = max(report.slowest_s, told["seconds"])
                    if told["problem"]:
                        _found(report, f"{seed} {told['outcome']}: {told['problem']}", seed, keep)
        if not ended or seed < stop - 1:
            report.tried += 1
            report.outcomes["died"] += 1
            _found(report, f"{seed} died or hung, {child.returncode}", seed, keep)
        first = seed + 1
    return report


def _found(report: Report, text: str, seed: int, keep: Path | None) -> None:
    report.findings.append(text)
    print(f"FINDING models {text}", flush=True)
    if keep is not None:
        from tests.hostile.models import hostile_model

        keep.mkdir(parents=True, exist_ok=True)
        # What cannot even be drawn again is kept as its seed.
        with contextlib.suppress(Exception):
            (keep / f"{seed}.onnx").write_bytes(hostile_model(seed)[0].SerializeToString())


def hunt_operands(seed: int, count: int) -> Report:
    """Nodes of ONNX's suite whose operands, attributes or declared shapes do not fit."""
    from tests.hostile.operand_mutations import run_in_processes

    counts, findings = run_in_processes(seed, count)
    for text in findings:
        print(f"FINDING operands {text}", flush=True)
    return Report(sum(counts.values()), Counter(counts), findings)


def hunt_command(module: str, *arguments: str, timeout_s: float) -> Report:
    """A hunt of its own: its last line says what came out; another return code than 0 is a finding."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.hostile.{module}", *arguments]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        code, output = done.returncode, done.stdout + done.stderr[-2000:] * (done.returncode != 0)
    except subprocess.TimeoutExpired as late:
        code, output = -1, f"took more than {timeout_s:.0f} s\n{(late.stdout or b'').decode()[-2000:]}"
    report = Report(outcomes=Counter({f"{module} in {time.monotonic() - began_s:.0f} s": 1}))
    found = _findings_of(output)
    if code or found:
        report.findings += found or [output[-2000:]]
    print(f"{module}: {output.strip().splitlines()[-1][:300] if output.strip() else 'no output'}", flush=True)
    for text in report.findings:
        print(f"FINDING {module} {text}", flush=True)
    return report


def _findings_of(output: str) -> list[str]:
    """What a hunt that ends in JSON says it found: on its last line, or over the last lines."""
    lines = output.strip().splitlines()
    for start in range(len(lines) - 1, -1, -1):
        if not lines[start].startswith("{"):
            continue
        try:
            told = json.loads("\n".join(lines[start:]))
        except json.JSONDecodeError:
            continue
        return [str(text) for text in told.get("found", told.get("findings", []))]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10_000, help="of all generators of models together")
    parser.add_argument("--artifacts", type=int, default=2000)
    parser.add_argument("--names", type=int, default=500)
    parser.add_argument("--caches", type=int, default=500)
    parser.add_argument("--yaml-files", type=int, default=500)
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument("--batch", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch is not None:
        run_batch(*options.batch)
        return 0
    began_s, seed = time.monotonic(), options.seed
    share = options.models // 10
    counts = {"models": 4 * share, "operands": 3 * share, "attributes": 2 * share, "bytes": share}
    # The last one makes up for what the division left.
    counts["operands"] += options.models - sum(counts.values())
    reports: dict[str, Report] = {}
    for part in options.only:
        if part == "models":
            reports[part] = hunt_models(seed, counts[part], options.keep)
        elif part == "operands":
            reports[part] = hunt_operands(seed, counts[part])
        elif part == "attributes":
            given = (str(counts[part]), "--first", str(seed))
            reports[part] = hunt_command(part, *given, timeout_s=60 + 5 * counts[part])
        elif part == "bytes":
            given = (str(seed), str(counts[part]))
            reports[part] = hunt_command("mutate", *given, timeout_s=60 + 5 * counts[part])
        elif part in ("artifacts", "names"):
            number = options.artifacts if part == "artifacts" else options.names
            reports[part] = hunt_command(part, str(number), str(seed), timeout_s=60 + 10 * number)
        elif part in ("caches", "yaml_files", "lifecycle"):
            number = {"caches": options.caches, "yaml_files": options.yaml_files, "lifecycle": options.lives}[
                part
            ]
            reports[part] = hunt_command(part, str(number), timeout_s=60 + 60 * number)
    for part, report in reports.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.outcomes.most_common())
        print(
            f"{part}: {report.tried or ''} {kinds}; {len(report.findings)} findings, "
            f"slowest {report.slowest_s:.1f} s"
        )
    findings = sum(len(report.findings) for report in reports.values())
    print(f"{findings} findings in {time.monotonic() - began_s:.0f} s")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
