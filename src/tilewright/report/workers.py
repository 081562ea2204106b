"""A run as its threads saw it: which chunk of which kernel ran where and when, as lanes and as a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.report.lanes import LaneBlock
from tilewright.text.formatting import format_ms
from tilewright.text.printable import html_text


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """A chunk of a kernel, or a whole operator on the host; thread 0 is the caller's.

    `name` are the kernel's operators.
    """

    kernel_id: str
    name: str
    step: int
    chunk: int
    num_chunks: int
    thread: int
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run as it went: when each step began and ended, and each chunk; times are from its beginning."""

    num_threads: int
    steps: tuple[tuple[float, float], ...]
    chunks: tuple[RecordedChunk, ...]

    @property
    def run_ns(self) -> float:
        """From the beginning of the first step to the end of the last."""
        return self.steps[-1][1] if self.steps else 0.0

    def of_threads(self) -> list[list[RecordedChunk]]:
        """What each thread ran, in order."""
        threads: list[list[RecordedChunk]] = [[] for _ in range(self.num_threads)]
        for chunk in sorted(self.chunks, key=lambda c: c.start_ns):
            threads[chunk.thread].append(chunk)
        return threads


def thread_name(number: int) -> str:
    """The thread's name on pages and in traces."""
    return f"worker {number}" if number else "worker 0 (caller)"


def worker_rows(run: RecordedRun, colours: Sequence[str]) -> list[tuple[str, list[LaneBlock]]]:
    """Rows for `block_lanes`: each thread with the share of the run in which it ran kernels; `colours`
    are those of steps."""
    rows = []
    for number, chunks in enumerate(run.of_threads()):
        busy_ns = sum(c.end_ns - c.start_ns for c in chunks)
        share = f"{100 * busy_ns / run.run_ns:.0f} %" if run.run_ns else "-"
        name = f"<b>{html_text(thread_name(number))}</b> {share}"
        rows.append((name, [_block(c, colours[c.step]) for c in chunks]))
    return rows


def _block(chunk: RecordedChunk, colour: str) -> LaneBlock:
    of_all = f", chunk {chunk.chunk + 1} of {chunk.num_chunks}" if chunk.num_chunks > 1 else ""
    took = format_ms((chunk.end_ns - chunk.start_ns) / 1e6)
    label = f"{chunk.kernel_id} {chunk.name}{of_all}\n{took} from {chunk.start_ns / 1e6:.4g} ms on"
    return LaneBlock(chunk.start_ns / 1e9, chunk.end_ns / 1e9, colour, label)


STEPS_TRACK = 0


def trace_events(
    model: str, run: RecordedRun, labels: Sequence[str], details: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Events of a Chrome trace: a track of steps with `labels` and `details`, and one of each thread."""
    yield _named("process_name", 0, model)
    yield _named("thread_name", STEPS_TRACK, "steps")
    for number in range(run.num_threads):
        yield _named("thread_name", STEPS_TRACK + 1 + number, thread_name(number))
    for (start_ns, end_ns), label, detail in zip(run.steps, labels, details, strict=True):
        yield _lasting(STEPS_TRACK, label, start_ns, end_ns, detail)
    for chunk in run.chunks:
        detail = {"kernel": chunk.kernel_id, "step": chunk.step, "chunk": chunk.chunk, "of": chunk.num_chunks}
        track = STEPS_TRACK + 1 + chunk.thread
        yield _lasting(track, chunk.name, chunk.start_ns, chunk.end_ns, detail)


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}


def _lasting(
    track: int, name: str, start_ns: float, end_ns: float, detail: Mapping[str, Any]
) -> dict[str, Any]:
    """An event with its beginning and length, which the format has in µs: whole ns, so that none overlap."""
    start, end = round(start_ns), round(end_ns)
    return {
        "name": name,
        "ph": "X",
        "pid": 1,
        "tid": track,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": dict(detail),
    }
