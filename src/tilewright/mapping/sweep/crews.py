"""The workers that people ask for: a number of processes, or the address of a Ray cluster."""

from __future__ import annotations

import re

from tilewright.errors import UsageError
from tilewright.mapping.sweep.workers import LAYERS, Crew, Processes
from tilewright.system.ray_cluster import EXAMPLE, check_address

_MAX_PROCESSES = 1024


def check_workers(workers: str) -> None:
    """Refuse what is neither a number of processes nor an address of a cluster.

    Raises:
        UsageError: it is none, or Ray is not installed.
    """
    if workers.startswith("ray"):
        check_address(workers)
    elif not re.fullmatch(r"[0-9]{1,4}", workers) or not 0 < int(workers) <= _MAX_PROCESSES:
        raise UsageError(
            f"workers {workers!r}: expected a number of processes from 1 to {_MAX_PROCESSES}, or {EXAMPLE}."
        )


def crew_of(workers: str, limit_s: float, module: str = LAYERS) -> Crew:
    """The workers that a number of processes or an address of a cluster asks for.

    Raises:
        UsageError: as of `check_workers`.
        NoCluster: no such cluster can be reached.
    """
    check_workers(workers)
    if workers.isdecimal():
        return Processes(int(workers), limit_s, module)
    from tilewright.mapping.sweep.ray_workers import RayCrew

    return RayCrew(workers, limit_s, module)
