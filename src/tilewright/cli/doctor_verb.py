"""`tilewright doctor`: is everything in place, and what is this machine."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from tilewright.cli import common
from tilewright.cli.output import JSON_OPTION, format_bytes, print_json, print_table

_PACKAGES = ("numpy", "onnx", "llvmlite", "pydantic", "typer", "rich", "onnxruntime", "openvino", "torch")
_OPTIONAL = {"onnxruntime": "peers", "openvino": "peers", "torch": "torch"}


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("doctor", rich_help_panel=panel)(doctor)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `advice` is what to do about it; a failed check makes the exit code 1."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def doctor(
    measure: bool = typer.Option(False, "--measure", help="Also measure this machine (a second or two)."),
    cache: Path | None = common.CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Check the installation and describe the machine. Example: `tilewright doctor --measure`."""
    checks = [_python(), *_guarded(_processor), *_guarded(_cores), *_guarded(lambda: _cache(cache))]
    checks += _guarded(_generated_code)
    if measure:
        checks += _guarded(_measured)
    versions = {name: _version(name) for name in _PACKAGES}
    ok = all(c.ok for c in checks)
    if as_json:
        document = {"ok": ok, "checks": [asdict(c) for c in checks], "versions": versions}
        print_json("doctor", {**document, "host": common.host_facts()})
    else:
        print_table(
            ("", "check", "found", "advice"),
            [("ok" if c.ok else "!!", c.name, c.found, c.advice) for c in checks],
        )
        shown = ", ".join(f"{n} {v or f'not installed ([{_OPTIONAL[n]}])'}" for n, v in versions.items())
        typer.echo(shown)
    if not ok:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _guarded(look: Callable[[], list[Check]]) -> list[Check]:
    """The checks of one group; one that breaks is itself a finding."""
    try:
        return look()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return [
            Check(look.__name__.strip("_<>"), False, reason, "report this with `tilewright doctor --json`")
        ]


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return Check(
        "python", sys.version_info >= (3, 11), found, "" if sys.version_info >= (3, 11) else "use 3.11+"
    )


def _processor() -> list[Check]:
    from tilewright.hardware.probe import probe_host
    from tilewright.targets.cpu.isa import host_isa

    facts, isa = probe_host(), host_isa()
    caches = ", ".join(
        f"L{c.level} {format_bytes(c.size_bytes)}" for c in facts.caches if c.kind != "Instruction"
    )
    return [
        Check("processor", True, f"{facts.cpu_name} ({facts.architecture})"),
        Check("caches", True, caches or "not listed by the system"),
        Check("instruction set", True, f"{isa.name}, {8 * isa.vector_bytes[0]}-bit vectors"),
    ]


def _cores() -> list[Check]:
    from tilewright.hardware.probe import load_average_1min, probe_host

    facts = probe_host()
    quota = "no quota" if facts.quota_cores is None else f"quota {facts.quota_cores:g}"
    load = load_average_1min()
    busy = load is not None and load > facts.num_affinity_cores * 0.7
    return [
        Check("threads", True, f"{facts.num_threads} ({facts.num_affinity_cores} cores allowed, {quota})"),
        Check(
            "load",
            True,
            "unknown" if load is None else f"{load:.1f}",
            "other programs are running: measurements will scatter" if busy else "",
        ),
    ]


def _cache(folder: Path | None) -> list[Check]:
    import os

    from tilewright.targets.cpu.cache import ObjectCache, default_cache_directory

    directory = folder or default_cache_directory()
    if directory is None:
        return [Check("cache", True, "none: no home directory", "set TILEWRIGHT_CACHE to keep kernels")]
    entries = ObjectCache(directory).entries()
    parent = next(p for p in (directory, *directory.parents) if p.exists())
    writable = os.access(parent, os.W_OK)
    found = f"{directory}: {len(entries)} entries, {format_bytes(sum(e.size_bytes for e in entries))}"
    return [Check("cache", True, found, "" if writable else "not writable: every compilation starts anew")]


def _generated_code() -> list[Check]:
    """Compile and run something small: the whole way works."""
    import numpy as np

    import tilewright as tw
    from tilewright.ir.dtype import DType
    from tilewright.ir.graph import Graph, Node, Value

    graph = Graph("doctor")
    x = graph.add_input(Value("x", DType.FLOAT32, (64,)))
    node = graph.append(Node("Relu", [x], [graph.value("y", DType.FLOAT32, (64,))]))
    graph.outputs = [node.output]
    array = np.linspace(-1, 1, 64, dtype=np.float32)
    from tilewright.api import Model

    compiled = tw.compile(Model(graph, "0" * 64, "doctor"), no_cache=True)
    (result,) = compiled.run(None, {"x": array})
    right = bool(np.array_equal(result, np.maximum(array, 0)))
    return [Check("generated code", right, "compiles and runs" if right else "gives wrong values")]


def _measured() -> list[Check]:
    from tilewright.hardware.probe import num_threads_default
    from tilewright.targets.cpu.topology import probe_bandwidth, probe_fma_peak, probe_latency

    threads = num_threads_default()
    checks = []
    for count in dict.fromkeys((1, threads)):
        peak, bandwidth = probe_fma_peak(count), probe_bandwidth(count)
        speed = f"{peak.peak_flop_per_s / 1e9:.0f} GFLOP/s"
        text = f"{speed}, {bandwidth.read_bytes_per_s / 1e9:.1f} GB/s from memory"
        checks.append(Check(f"measured, {count} thread{'s' if count > 1 else ''}", True, text))
    latency = probe_latency()
    if latency is not None:
        checks.append(Check("core to core", True, f"{latency.median_ns:.0f} ns one way"))
    return checks
