"""A Ray cluster: where it is, and the connection to it.

Ray runs what it is sent: a cluster is as trusted as the user's own account.
"""

from __future__ import annotations

import importlib.util
import re
import warnings

from tilewright.errors import UsageError
from tilewright.extras import extra_of

EXAMPLE = "ray, or ray://HOST:10001"
_ADDRESS = re.compile(r"ray(://[^\s/]+)?")


class NoCluster(UsageError):
    """No cluster, or none with machines that can work, is at the address that was given."""


def check_address(workers: str) -> str:
    """What `--workers` says, if it is an address of a cluster.

    `ray` is the cluster that runs on this machine (RAY_ADDRESS names another), one that is started here if
    there is none; or `ray://host:port`.

    Raises:
        NoCluster: it is none, or Ray is not installed.
    """
    if not _ADDRESS.fullmatch(workers):
        raise NoCluster(f"workers {workers!r}: expected {EXAMPLE}.")
    if importlib.util.find_spec("ray") is None:
        raise NoCluster(
            f"workers {workers}: Ray is not installed; {extra_of('ray').command}, or work here, "
            "without --workers."
        )
    return workers


def connect(address: str) -> None:
    """Connect this process.

    Raises:
        NoCluster: there is no such cluster.
    """
    import ray

    where = {"address": address} if "://" in address else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what goes wrong is told below, in a line
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR", **where)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise NoCluster(f"workers {address}: no cluster can be reached there ({text}).") from error


def last_line(error: Exception) -> str:
    """The last line of an error that Ray passes on, which says what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else type(error).__name__
