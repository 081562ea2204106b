"""`tilewright doctor`: is everything in place, and what is this machine."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.api.host import Host
from tilewright.arguments import checked
from tilewright.errors import TilewrightError
from tilewright.extras import EXTRAS, extra_of
from tilewright.progress import Progress
from tilewright.results import Result, Table, in_json
from tilewright.text.formatting import counted, format_bytes
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.hardware.instruction_sets import InstructionSet

NEEDED = ("numpy", "ml_dtypes", "onnx", "llvmlite", "cryptography", "pydantic", "PyYAML", "typer", "rich")
_OPTIONAL = tuple(package for extra in EXTRAS for package in extra.packages)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `advice` is what to do about it; a failed check makes the exit code 1."""

    name: str
    ok: bool
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis(Result):
    """The state of this installation and machine."""

    checks: tuple[Check, ...]
    versions: Mapping[str, str | None]

    @in_json
    def host(self) -> Host:
        """The machine on which this was found."""
        return Host.here()

    @in_json
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return all(check.ok for check in self.checks)

    def tables(self) -> Sequence[Table]:
        """A row for each check."""
        rows = tuple(("ok" if c.ok else "!!", c.name, c.found, c.advice) for c in self.checks)
        title = f"tilewright {__version__}: " + ("all is well" if self.ok else "something is broken")
        return (Table(("", "check", "found", "advice"), rows, title),)


@checked
def diagnose(
    *,
    measure: bool = False,
    calibrate: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Look at the installation and the machine; with `measure` also at its speed, for a second or two.

    With `calibrate` rates of this machine are measured, and estimates use them from then on.
    """
    groups: list[Callable[[], list[Check]]] = [_python, _processor, lambda: _rates(calibrate), _cores]
    groups += [lambda: _cache(cache), _code, _gpu]
    if measure:
        groups.append(_measured)
    checks: list[Check] = []
    for number, group in enumerate(groups):
        if progress is not None:
            progress("looking at the machine", number, len(groups))
        checks += _guarded(group)
    versions = {name: _version(name) for name in (*NEEDED, *_OPTIONAL)}
    return Diagnosis((*checks, *_packages(versions)), versions)


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


def _packages(versions: Mapping[str, str | None]) -> list[Check]:
    missing = [name for name in NEEDED if versions[name] is None]
    needed = ", ".join(f"{name} {versions[name] or 'missing'}" for name in NEEDED)
    advice = f"pip install {' '.join(missing)}" if missing else ""
    checks = [Check("packages", not missing, needed, advice)]
    for name in _OPTIONAL:
        found, extra = versions[name], extra_of(name)
        advice = "" if found else f"for {extra.purpose}: {extra.command}"
        checks.append(Check(name, True, found or "not installed (optional)", advice))
    return checks


def _python() -> list[Check]:
    ok = sys.version_info >= (3, 11)
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    return [Check("python", ok, found, "" if ok else "use Python 3.11 or newer")]


def _processor() -> list[Check]:
    from tilewright.hardware.host import host_instructions
    from tilewright.hardware.instruction_sets import INSTRUCTION_SETS, widest_in
    from tilewright.hardware.probe import probe_host

    facts, widest = probe_host(), widest_in(host_instructions())
    caches = ", ".join(
        f"L{c.level} {format_bytes(c.size_bytes)}" for c in facts.caches if c.kind != "Instruction"
    )
    return [
        Check("processor", True, f"{facts.cpu_name} ({facts.architecture})"),
        Check("caches", True, caches or "not listed by the system"),
        Check("instruction set", True, _described(widest))
        if widest is not None
        else Check(
            "instruction set",
            False,
            f"none of {', '.join(known.name for known in INSTRUCTION_SETS)}",
            "use --target interpreter, or compile for another machine",
        ),
    ]


def _rates(calibrate: bool) -> list[Check]:
    """Which rates estimates use, measured now if that is asked for."""
    from tilewright.hardware.calibration import keep_calibration
    from tilewright.hardware.probe import host_calibration, machine_facts
    from tilewright.hardware.rates import MatrixRates

    found, advice = host_calibration(), ""
    if calibrate:
        from tilewright.targets.cpu.isa import host_isa
        from tilewright.targets.cpu.tune.calibrate import calibrated_host

        found = calibrated_host()
        try:
            is_kept = keep_calibration(found, machine_facts())
            advice = "" if is_kept else "not kept, as nothing is: set TILEWRIGHT_CACHE"
        except OSError as error:
            advice = f"not kept: {error}; set TILEWRIGHT_CACHE to a folder that you can write"
        host_calibration.cache_clear()
        host_isa.cache_clear()
    if found is None:
        return [Check("estimates", True, "use the profile of this processor, not measured")]
    rates, tiles = found.rates, found.matrix_rates
    caches = (rates.private_bytes_per_cycle, rates.shared_bytes_per_cycle, rates.memory_bytes_per_cycle)
    text = "measured rates, which are not used: " if advice else "use measured rates: "
    text += f"{'/'.join(f'{rate:.3g}' for rate in caches)} bytes a cycle of L2, L3, memory"
    text += f"; {found.fmas_per_cycle:g} multiply-adds of the widest vectors"
    if tiles != MatrixRates():
        loads = f"{tiles.exposed_load_cycles:.3g} to {tiles.slow_exposed_load_cycles:.3g}"
        text += f"; {loads} cycles a tile load"
    if found.num_cores < found.num_threads:
        text += f"; {found.num_threads} cores compute as {found.num_cores}"
    return [Check("estimates", not advice, text, advice)]


def _described(instruction_set: InstructionSet) -> str:
    """An instruction set's name, its vectors, and what tiles are multiplied."""
    from tilewright.hardware.instruction_sets import AMX_NEEDS

    vectors = f"{instruction_set.name}, {8 * instruction_set.vector_bytes[0]}-bit vectors"
    if not set(AMX_NEEDS) <= set(instruction_set.needs):
        return vectors
    return f"{vectors}, tiles of bfloat16 and int8"


def _cores() -> list[Check]:
    from tilewright.hardware.probe import load_average_1min, physical_cores, probe_host

    facts = probe_host()
    quota = "no quota" if facts.quota_cores is None else f"quota {facts.quota_cores:g}"
    physical = physical_cores()
    allowed = facts.num_affinity_cores
    shared = f" on {physical} physical" if physical < allowed else ""
    load = load_average_1min()
    busy = load is not None and load > facts.num_affinity_cores * 0.7
    return [
        Check("threads", True, f"{facts.num_threads} ({counted(allowed, 'core')} allowed{shared}, {quota})"),
        Check(
            "load",
            True,
            "unknown" if load is None else f"{load:.1f}",
            "other programs are running: measurements will scatter" if busy else "",
        ),
    ]


def _gpu() -> list[Check]:
    """The GPU, where what reaches one is installed. Without one nothing is broken."""
    if _version("cuda-bindings") is None:
        return []
    from tilewright.targets.cuda.driver import CudaDevice, load_driver

    try:
        facts = CudaDevice(load_driver()).facts
    except TilewrightError as error:
        return [Check("GPU", True, "none that --target cuda runs on", str(error).rstrip("."))]
    memory = format_bytes(facts.memory_bytes)
    return [Check("GPU", True, f"{facts.name}, code for {facts.isa}, {memory}")]


def _cache(folder: Path | None) -> list[Check]:
    import os

    from tilewright.private_files import cache_place
    from tilewright.targets.llvm.cache import DEFAULT_MAX_BYTES, ObjectCache

    directory = folder or cache_place()
    if directory is None:
        return [Check("cache", True, "none: no home directory", "set TILEWRIGHT_CACHE to keep kernels")]
    entries = ObjectCache(directory).entries()
    used = sum(e.size_bytes for e in entries)
    parent = next(p for p in (directory, *directory.parents) if p.exists())
    free = shutil.disk_usage(parent).free
    found = (
        f"{directory}: {counted(len(entries), 'kernel')}, {format_bytes(used)} of at most "
        f"{format_bytes(DEFAULT_MAX_BYTES)}; {format_bytes(free)} free on the disk"
    )
    if not parent.is_dir():
        return [Check("cache", False, f"{parent} is not a folder", "move it, or set TILEWRIGHT_CACHE")]
    advice = ""
    if not os.access(parent, os.W_OK):
        advice = "not writable: every compilation starts anew; set TILEWRIGHT_CACHE to a folder of yours"
    elif free < DEFAULT_MAX_BYTES:
        advice = "the disk is nearly full: free some space, or set TILEWRIGHT_CACHE to another one"
    return [Check("cache", True, found, advice), _cache_privacy(directory), _cache_health(directory)]


def _cache_health(directory: Path) -> Check:
    """Entries that are damaged are removed by `verify`; here they are only counted by reading them."""
    from tilewright.api.kept import damaged_kept
    from tilewright.private_files import PrivateFolder, verified_records

    found = verified_records(directory)
    damaged = (*found.damaged, *damaged_kept(PrivateFolder(directory)))
    text = f"{found.num_whole} whole, {len(damaged)} damaged"
    advice = "the damaged ones were removed" if damaged else ""
    return Check("cache health", not damaged, text, advice)


def _cache_privacy(directory: Path) -> Check:
    """Whether all that the cache holds, and its key, can only have been written by this user."""
    from tilewright.private_files import hazards_of

    hazards = hazards_of(directory)
    if not hazards:
        return Check("cache privacy", True, "only you can write it")
    first = hazards[0]
    more = f" (and {len(hazards) - 1} more: `tilewright cache verify`)" if len(hazards) > 1 else ""
    return Check("cache privacy", False, f"not used: {first.path} {first.reason}{more}", first.advice)


def _code() -> list[Check]:
    """Compile and run something small: the whole way works."""
    import numpy as np

    from tilewright.api.compilation import compile_model
    from tilewright.api.models import Model
    from tilewright.ir.dtype import DType
    from tilewright.ir.graph import Graph, Node, Value

    graph = Graph("doctor")
    x = graph.add_input(Value("x", DType.FLOAT32, (64,)))
    node = graph.append(Node("Relu", [x], [graph.value("y", DType.FLOAT32, (64,))]))
    graph.outputs = [node.output]
    array = np.linspace(-1, 1, 64, dtype=np.float32)
    compiled = compile_model(Model(graph, "0" * 64, "doctor"), no_cache=True)
    (result,) = compiled.run(None, {"x": array})
    right = bool(np.array_equal(result, np.maximum(array, 0)))
    return [Check("generated code", right, "compiles and runs" if right else "gives wrong values")]


def _measured() -> list[Check]:
    from tilewright.hardware.probe import num_threads_default
    from tilewright.targets.cpu.tune.probes import probe_bandwidth, probe_fma_peak, probe_latency

    threads = num_threads_default()
    checks = []
    for count in dict.fromkeys((1, threads)):
        peak, bandwidth = probe_fma_peak(count), probe_bandwidth(count)
        speed = f"{peak.peak_flop_per_s / 1e9:.0f} GFLOP/s"
        text = f"{speed}, {bandwidth.read_bytes_per_s / 1e9:.1f} GB/s from memory"
        checks.append(Check(f"measured, {counted(count, 'thread')}", True, text))
    latency = probe_latency()
    if latency is not None:
        checks.append(Check("core to core", True, f"{latency.median_ns:.0f} ns one way"))
    return checks
