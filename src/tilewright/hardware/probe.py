"""Facts about this host that need no measurement: usable cores, quotas, names, instructions, caches, load.

Every function takes the paths it reads, so that tests and containers can show it other machines. A file that
does not exist or cannot be parsed means "not known here" (None), never an error: no probe may stop a compile.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import UsageError
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.hardware.calibration import Calibration

_ROOT = Path("/")
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One cache of the first core: level, what it holds, its size, and how many cores share it."""

    level: int
    kind: str  # Data, Instruction or Unified
    size_bytes: int
    line_bytes: int
    num_sharing_cores: int


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """What this process may execute, in the words of LLVM: features by name, sorted."""

    triple: str
    name: str
    features: tuple[str, ...]
    missing_features: tuple[str, ...]

    @property
    def processor(self) -> str:
        """The name, as machines' descriptions call it."""
        return self.name


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What this process may use of this host, and the state the host is in."""

    cpu_name: str
    architecture: str
    num_affinity_cores: int
    num_online_cores: int
    quota_cores: float | None
    num_threads: int
    memory_limit_bytes: int | None
    caches: tuple[CacheInfo, ...]
    load_average_1min: float | None
    processor: ProcessorFacts | None = None


def probe_host(root: Path = _ROOT) -> HostFacts:
    """What follows, read once, but what the processor executes: to ask LLVM takes longer than all of it."""
    return HostFacts(
        cpu_name=cpu_name(root),
        architecture=platform.machine(),
        num_affinity_cores=affinity_cores(),
        num_online_cores=os.cpu_count() or 1,
        quota_cores=cgroup_quota_cores(root),
        num_threads=num_threads_default(root),
        memory_limit_bytes=memory_limit_bytes(root),
        caches=caches(root),
        load_average_1min=load_average_1min(),
    )


def num_threads_default(root: Path = _ROOT) -> int:
    """Threads worth running: physical cores of the affinity mask, but no more than the quota pays for."""
    cores = physical_cores(root)
    measured = host_calibration() if root is _ROOT else None
    if measured is not None and measured.num_threads == affinity_cores():
        cores = measured.num_cores
    quota = cgroup_quota_cores(root)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


@functools.cache
def host_calibration() -> Calibration | None:
    """Rates that were measured on this machine, as this process first saw them."""
    from tilewright.hardware.calibration import kept_calibration

    return kept_calibration(machine_facts())


def machine_facts() -> str:
    """What tells this machine from others that share a home folder."""
    return repr((cpu_name(), affinity_cores(), caches()))


def resolve_threads(num_threads: int | None) -> int:
    """The number of threads to use: as asked, else what affinity and quota allow."""
    if num_threads is None:
        return min(num_threads_default(), MAX_THREADS)
    if not 1 <= num_threads <= MAX_THREADS:
        raise UsageError(f"--threads {num_threads}: give a number from 1 to {MAX_THREADS}.")
    return num_threads


def physical_cores(root: Path = _ROOT) -> int:
    """Cores of the affinity mask, two virtual ones of one physical core counted once: they share its units.

    All of the mask where the system does not tell which are siblings.
    """
    try:
        numbers = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return affinity_cores()
    folder = root / "sys/devices/system/cpu"
    siblings = {_read(folder / f"cpu{n}/topology/thread_siblings_list") or f"cpu{n}" for n in numbers}
    return max(1, len(siblings))


def affinity_cores() -> int:
    """Number of cores this process may run on; all online cores where the system has no such mask."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def cgroup_quota_cores(root: Path = _ROOT) -> float | None:
    """Processor time per wall time that this process's control groups allow, or None without a limit.

    Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`), in the group of this process and every
    group around it: the tightest one counts. Inside a container the group's own path is often not mounted, so
    the mount's root is looked at as well.
    """
    limits = [
        limit
        for folder in _group_folders(root, controller="cpu")
        if (limit := _quota_of(folder)) is not None and limit > 0
    ]
    return min(limits, default=None)


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Bytes of memory the control groups allow, or the machine's memory, whichever is less."""
    limits = []
    for folder in _group_folders(root, controller="memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _int_or_none(_read(folder / name))
            if value is not None and value > 0:
                limits.append(value)
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            kibibytes = _int_or_none(line.split()[1])
            if kibibytes:
                limits.append(kibibytes * 1024)
    return min(limits, default=None)


def cpu_name(root: Path = _ROOT) -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


@functools.cache
def processor_facts() -> ProcessorFacts:
    """The processor as LLVM knows it, less the tile registers where the system does not give them."""
    import llvmlite.binding as llvm

    known: dict[str, bool] = dict(llvm.get_host_cpu_features())
    has_tiles = allow_tile_registers()
    present = {name for name, has in known.items() if has and (has_tiles or not name.startswith("amx"))}
    return ProcessorFacts(
        triple=llvm.get_process_triple(),
        name=llvm.get_host_cpu_name(),
        features=tuple(sorted(present)),
        missing_features=tuple(sorted(known.keys() - present)),
    )


@functools.cache
def allow_tile_registers() -> bool:
    """Ask Linux for AMX's tile registers, which every process must before it uses them. Cheap."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        asked = ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
        return int(asked) == 0
    except (AttributeError, OSError):
        return False


# Linux's numbers on x86-64 (asm/unistd_64.h, asm/prctl.h) and the processor's for tile data.
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def caches(root: Path = _ROOT) -> tuple[CacheInfo, ...]:
    """Caches of the first core, nearest first; empty where the system does not list them."""
    caches = []
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    for index in sorted(folder.glob("index*")):
        level = _int_or_none(_read(index / "level"))
        size = _size_or_none(_read(index / "size"))
        if level is None or size is None:
            continue
        caches.append(
            CacheInfo(
                level=level,
                kind=_read(index / "type") or "Unified",
                size_bytes=size,
                line_bytes=_int_or_none(_read(index / "coherency_line_size")) or 64,
                num_sharing_cores=_count_cores(_read(index / "shared_cpu_list") or "0"),
            )
        )
    return tuple(sorted(caches, key=lambda cache: (cache.level, cache.kind)))


def nominal_clock_hz(root: Path = _ROOT) -> float | None:
    """The processor's base frequency, else its highest; None where the system tells neither."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    for name in ("base_frequency", "cpuinfo_max_freq"):
        kilohertz = _int_or_none(_read(folder / name))
        if kilohertz is not None and kilohertz > 0:
            return kilohertz * 1e3
    return None


def may_run_generated_code() -> bool:
    """Whether memory of this process that was written may become executable.

    Not so under prctl's PR_SET_MDWE, systemd's MemoryDenyWriteExecute= and some policies of SELinux. Asks
    Linux by doing it to a page; elsewhere no system is known to refuse.
    """
    if not sys.platform.startswith("linux"):
        return True
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = (ctypes.c_char * mmap.PAGESIZE).from_buffer(page)
        libc = ctypes.CDLL(None)
        address = ctypes.c_void_p(ctypes.addressof(view))
        return int(libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)) == 0
    except (OSError, AttributeError):
        return True


def load_average_1min() -> float | None:
    """Runnable threads over the last minute; None where the system does not count them."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control groups, from the mount's root inwards, version 2 and then 1."""
    mounts = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    mounts["cpu,cpuacct"] = root / "sys/fs/cgroup/cpu,cpuacct"
    folders: list[Path] = []
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, group = fields
        if controllers and controller not in controllers.split(","):
            continue
        names = (controllers, controller) if controllers else ("",)
        for name in names:
            mount = mounts.get(name)
            if mount is None:
                continue
            parts = [part for part in group.split("/") if part and part != ".."]
            folders += [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return list(dict.fromkeys(folders))


def _quota_of(folder: Path) -> float | None:
    """Cores that one group allows, by either version's files."""
    words = (_read(folder / "cpu.max") or "").split()
    if words:
        quota, period = _int_or_none(words[0]), _int_or_none(words[1]) if len(words) > 1 else 100_000
    else:
        quota = _int_or_none(_read(folder / "cpu.cfs_quota_us"))
        period = _int_or_none(_read(folder / "cpu.cfs_period_us"))
    if quota is None or quota <= 0 or not period or period <= 0:
        return None
    return quota / period


def _count_cores(cpu_list: str) -> int:
    """Number of cores in a list as Linux prints it.

    >>> _count_cores("0-3,8")
    5
    """
    count = 0
    for part in cpu_list.split(","):
        first, _, last = part.partition("-")
        low, high = _int_or_none(first), _int_or_none(last or first)
        if low is not None and high is not None and high >= low:
            count += high - low + 1
    return max(1, count)


def _size_or_none(text: str | None) -> int | None:
    """`48K` in bytes; None for anything else.

    >>> _size_or_none("48K"), _size_or_none("2M"), _size_or_none("")
    (49152, 2097152, None)
    """
    if not text:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 0)
    number = _int_or_none(text[:-1] if scale else text)
    return None if number is None else number * (scale or 1)


def _int_or_none(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
