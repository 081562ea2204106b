"""A process that records batches of observations and says of each batch, once it is kept, its number.

`python -m tests.support.recording DATABASE WRITER NUM_BATCHES [MAX_FILE_BYTES]`
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from tilewright.cost.base import Measurement
from tilewright.tuning import Observation, PlanContext, TuningDatabase

CONTEXT = PlanContext("1.0", "avx512", "32K", "llvm", "fast", 2, processor="a processor")
BATCH = 5


def batch(writer: int, number: int) -> list[Observation]:
    """What a writer records at a time: for one of a few sites, so that writers share rows' neighbourhood."""
    return [
        Observation(
            f"site{number % 3}",
            {"writer": writer, "batch": number, "item": item},
            Measurement(80.0 + item, 79.0, 90.0, 9, "9 runs"),
            100.0,
            1.7e9 + number,
            {"flop": 1e6 * item, "bytes": 1e5},
            "nests-1",
        )
        for item in range(BATCH)
    ]


def kept(database: TuningDatabase) -> dict[tuple[int, int], int]:
    """By writer and batch, how many observations of it are there."""
    counts: dict[tuple[int, int], int] = {}
    for _, seen in database.all_observations():
        key = seen.candidate["writer"], seen.candidate["batch"]
        counts[key] = counts.get(key, 0) + 1
    return counts


def main(path: str, writer: str, num_batches: str, max_file_bytes: str = "") -> None:
    if max_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_file_bytes), int(max_file_bytes)))
    database = TuningDatabase(Path(path))
    os.write(1, b"begun\n")
    for number in range(int(num_batches)):
        if database.record(CONTEXT, batch(int(writer), number), {f"site{number % 3}": "a site"}):
            os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
