"""What the host says about itself, shown through faked files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.errors import UsageError
from tilewright.hardware import probe


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "50000 100000\n"}, 0.5),
        # The tightest group around the process counts.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/cpu.max": "200000 100000\n",
                f"{V2}/a/b/cpu.max": "400000 100000\n",
            },
            2.0,
        ),
        # A container sees its own group as the mount's root, while the path still names the host's.
        ({"proc/self/cgroup": "0::/docker/0123\n", f"{V2}/cpu.max": "300000 100000\n"}, 3.0),
        ({"proc/self/cgroup": "0::/../../x\n", f"{V2}/x/cpu.max": "100000 100000\n"}, 1.0),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n",
                f"{V1}/c/cpu.cfs_quota_us": "250000\n",
                f"{V1}/c/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                f"{V1}/cpu.cfs_quota_us": "-1\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "1:cpu:/\n", f"{V1}/cpu.cfs_quota_us": "100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "garbage\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "100000 0\n"}, None),
        ({"proc/self/cgroup": "no colons\n", f"{V2}/cpu.max": "100000 100000\n"}, None),
    ],
)
def test_the_quota_is_read_from_either_version(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    assert probe.cgroup_quota_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("affinity", "quota", "threads"),
    [(8, None, 8), (8, "250000 100000", 3), (2, "800000 100000", 2), (8, "1000 100000", 1), (1, None, 1)],
)
def test_threads_are_the_lesser_of_affinity_and_quota_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, quota: str | None, threads: int
) -> None:
    files = {"proc/self/cgroup": "0::/\n"} | ({f"{V2}/cpu.max": quota} if quota else {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    assert probe.num_threads_default(write(tmp_path, files)) == threads


def test_no_affinity_call_can_be_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", denied, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert probe.affinity_cores() == 6
    monkeypatch.delattr(os, "sched_getaffinity")
    assert probe.affinity_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert probe.affinity_cores() == 1


def test_the_processor_is_named_as_the_system_names_it(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Example CPU @ 3 GHz\n\nmodel name\t: other\n"
    assert probe.cpu_name(write(tmp_path, {"proc/cpuinfo": cpuinfo})) == "Example CPU @ 3 GHz"
    assert probe.cpu_name(tmp_path / "nowhere")


def test_caches_are_listed_from_the_core_outwards(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache"
    caches = [
        ("index0", "1", "Data", "48K", "64", "0-1"),
        ("index1", "1", "Instruction", "32K", "64", "0,1"),
        ("index2", "3", "Unified", "260M", "64", "0-55,112-167"),
        ("index3", "2", "Unified", "2M", "128", "0"),
        ("index4", "4", "Unified", "unknown", "64", "0"),
    ]
    names = ("level", "type", "size", "coherency_line_size", "shared_cpu_list")
    for index, *values in caches:
        write(tmp_path, {f"{folder}/{index}/{n}": v + "\n" for n, v in zip(names, values, strict=True)})
    found = probe.caches(tmp_path)
    assert [(c.level, c.kind, c.size_bytes, c.line_bytes, c.num_sharing_cores) for c in found] == [
        (1, "Data", 48 << 10, 64, 2),
        (1, "Instruction", 32 << 10, 64, 2),
        (2, "Unified", 2 << 20, 128, 1),
        (3, "Unified", 260 << 20, 64, 112),
    ]
    assert probe.caches(tmp_path / "nowhere") == ()


def test_the_memory_limit_is_the_least_of_group_and_machine(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 5 kB\n"})
    assert probe.memory_limit_bytes(tmp_path) == 1000 * 1024
    write(tmp_path, {"proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "max\n"})
    assert probe.memory_limit_bytes(tmp_path) == 1000 * 1024
    write(tmp_path, {f"{V2}/memory.max": "4096\n"})
    assert probe.memory_limit_bytes(tmp_path) == 4096


def test_this_host_can_be_probed() -> None:
    facts = probe.probe_host()
    assert 1 <= facts.num_threads <= facts.num_affinity_cores
    assert facts.num_threads == probe.num_threads_default()
    assert facts.cpu_name


def test_unreadable_files_mean_unknown(tmp_path: Path) -> None:
    facts = probe.probe_host(tmp_path)
    assert (facts.quota_cores, facts.memory_limit_bytes, facts.caches) == (None, None, ())


@pytest.mark.parametrize("number", [0, -1, probe.MAX_THREADS + 1])
def test_impossible_thread_counts_are_refused(number: int) -> None:
    with pytest.raises(UsageError, match="give a number from 1"):
        probe.resolve_threads(number)
