"""Errors against float64: of networks at each accuracy beside onnxruntime and OpenVINO; of operators alone.

    python -m benchmarks errors networks --isa avx512 --limit 1200 --page docs/accuracy.md
    python -m benchmarks errors networks --isa avx2 --networks resnet50,bert_base@128
    python -m benchmarks errors networks --isa emulated-amx --networks resnet18@64
    python -m benchmarks errors networks --isa emulated-steady-amx --accuracies default --networks resnet18@64
    python -m benchmarks errors networks --isa avx512 --folder FOLDER   # of models as `wild --fetch` gets
    python -m benchmarks errors operators --networks resnet18,mobilevit_s@64

Each error is the largest difference of an output, over the largest value expected there. Every result is a
line of JSON in `--output`: a run that was interrupted, or that `--limit` ended, goes on where it stopped. The
table of networks is printed in the end; with `--page` it goes there, between its markers. Networks that are
not in `--output` for an instruction set have the errors of the tables that `zoo.py` wrote (`--pages`).

Operators run alone, each on the values that it reads in the network (from float64, rounded to float32), so
that the table says which kernels err. `emulated-amx` runs what is made for AMX where there is none, bit for
bit (`tests/support/matrix_unit.py`): errors are AMX's, times are not. `emulated-steady-amx` is made
as for a unit that is never slow: at `default`, of products of int8 digits.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.support.matrix_unit import steady_matrix_unit
from tests.support.other_processor import on_processor

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from benchmarks.wild import models_of
from benchmarks.wild_inputs import cases_of
from benchmarks.zoo import built
from tilewright import zoo
from tilewright.accuracy import relative_error
from tilewright.benchmark.engines import make_engine
from tilewright.compiler import plan
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Accuracy, Options
from tilewright.targets.cpu.target import CpuTarget

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

EMULATED, STEADY = "emulated-amx", "emulated-steady-amx"
PEERS = ("onnxruntime float32", "openvino float32", "openvino bfloat16")
_LARGEST_OPERATORS = 12
_PAGES = "docs/benchmarks.md,docs/benchmarks_avx2.md,docs/benchmarks_amx.md"


class Ours:
    """tilewright on one instruction set; every model compiled anew."""

    def __init__(self, isa: str, threads: int) -> None:
        self.isa, self.threads = isa, threads

    def run(self, graph: Graph, feed: Arrays, accuracy: Accuracy) -> tuple[dict[str, Array], list[str]]:
        """(Outputs by name, the templates of the kernels with a product)."""
        name = None if self.isa in ("host", EMULATED, STEADY) else self.isa
        with contextlib.ExitStack() as stack:
            if self.isa in (EMULATED, STEADY):
                stack.enter_context(on_processor("amx"))
            if self.isa == STEADY:
                stack.enter_context(steady_matrix_unit())
            options = Options(no_cache=True, threads=self.threads, accuracy=accuracy, isa=name)
            code = CpuTarget().generate(plan(graph, options).program)
            executable = code.load(self.threads)
            got = executable.run(feed)
            executable.close()
        kernels = [k for step in code.steps for k in step.kernels]
        return got, sorted({k.template for k in kernels if k.macs} or {k.template for k in kernels})


def worst(got: Arrays, expected: Arrays) -> float:
    """The error of the output that errs most."""
    return max((relative_error(got[name], want) for name, want in expected.items()), default=0.0)


def theirs(peer: str, model: onnx.ModelProto, feed: Arrays, names: Sequence[str], threads: int) -> Arrays:
    """What a peer computes."""
    engine, precision = peer.split()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        made = make_engine(engine, str(path), threads, {}, precision)  # type: ignore[arg-type]  # one of two
        return dict(zip(names, made.run(feed), strict=True))


def subject(name: str, arguments: Namespace) -> tuple[onnx.ModelProto, Arrays]:
    """A network of the zoo, or a trained one of a folder, and its inputs."""
    if arguments.folder is None:
        model = built(name, arguments.seed)
        return model, zoo.example_inputs(model, arguments.seed + 1)
    model = onnx.load(dict(models_of(arguments.folder))[name])
    return model, cases_of(name, model, arguments.seed)[0]


def of_networks(arguments: Namespace) -> None:
    """Rows that are missing, then the table."""
    ours = Ours(arguments.isa, arguments.threads)
    accuracies = arguments.accuracies.split(",")
    wanted = [*PEERS, *(f"tilewright {accuracy}" for accuracy in accuracies)]
    names = arguments.networks.split(",")
    if arguments.folder is not None:
        names = [key for key, _ in models_of(arguments.folder)]
    for asked in names:
        # Peers run alike whatever instruction set ours may use.
        done = {r["engine"] for r in rows_of(arguments.output) if _is_of(r, asked, arguments.isa)}
        missing = [engine for engine in wanted if engine not in done]
        if not missing or is_over(arguments.limit):
            continue
        model, feed = subject(asked, arguments)
        shapes = {name: array.shape for name, array in feed.items()}
        try:
            graph = load_onnx(model, shapes=shapes)
            expected = run_graph(graph, feed, dtype=DType.FLOAT64)
        except TilewrightError as error:
            print(f"{asked}: left out: {error}")
            continue
        outputs = [o.name for o in graph.outputs]
        for engine in missing:
            row: dict[str, Any] = {"network": asked, "engine": engine, "isa": arguments.isa}
            begin = time.process_time()
            try:
                if engine in PEERS:
                    got, row["isa"] = theirs(engine, model, feed, outputs, arguments.threads), "host"
                else:
                    again = load_onnx(model, shapes=shapes)
                    got, row["templates"] = ours.run(again, feed, engine.split()[1])  # type: ignore[arg-type]
                row["error"] = worst(got, expected)
            except (TilewrightError, RuntimeError) as error:
                row["failure"] = str(error).splitlines()[0][:200]
            append(arguments.output, {**row, "cpu_s": round(time.process_time() - begin, 2)})
    pages = [Path(page) for page in arguments.pages.split(",") if page]
    text = table(with_pages(rows_of(arguments.output), pages))
    print(text)
    if arguments.page is not None:
        arguments.page.write_text(with_table(arguments.page.read_text(), text))


def _is_of(row: Mapping[str, Any], network: str, isa: str) -> bool:
    return row["network"] == network and (row["isa"] == isa or row["engine"] in PEERS)


def with_pages(found: Sequence[Mapping[str, Any]], pages: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Measured rows, then those of pages for networks on instruction sets that were not measured."""
    rows = list(found)
    known = {(r["network"], r["isa"], r["engine"] in PEERS) for r in rows}
    for page in pages:
        more = [r for r in rows_of_page(page) if (r["network"], r["isa"], r["engine"] in PEERS) not in known]
        rows += more
        known |= {(r["network"], r["isa"], r["engine"] in PEERS) for r in more}
    return rows


def rows_of_page(page: Path) -> Iterator[dict[str, Any]]:
    """Errors with one thread in the tables that `zoo.py` wrote; ours with the `base` that they belong to.

    Its inputs have other seeds than those here.
    """
    engines: dict[str, tuple[str, str]] = {}
    heads: list[str] = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        told = _ABOUT_TABLES.match(line)
        if told is not None:
            accuracy, isa, *peers = told.groups()
            engines = {"tilewright": (f"tilewright {accuracy}", isa)}
            engines |= {
                peer: (f"{peer} {dtype}", "host") for peer, dtype in zip(*[iter(peers)] * 2, strict=True)
            }
        elif "quantised file" in line:
            engines = {}  # errors of steps, not of float32
        elif cells[:2] == ["network", "threads"]:
            heads = cells if "error" in cells else []
        elif heads and engines and len(cells) == len(heads) and cells[1] == "1":
            errors = {
                engines[heads[place - 1].removesuffix(" ms")]: float(cells[place])
                for place, head in enumerate(heads)
                if head == "error" and _NUMBER.fullmatch(cells[place])
            }
            base = errors.get((PEERS[0], "host"))
            for (engine, isa), error in errors.items():
                row = {"network": cells[0].removesuffix(" *"), "engine": engine, "isa": isa, "error": error}
                yield row if engine in PEERS else {**row, "base": base}


_ABOUT_TABLES = re.compile(
    r"tilewright at accuracy `(\w+)`, code for ([\w+]+); beside (\w+) in (\w+), (\w+) in (\w+)\."
)
_NUMBER = re.compile(r"\d\.\de-\d\d")


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Errors of each accuracy beside onnxruntime's, by instruction set; those of each network are folded."""
    by_key = {(r["network"], r["isa"], r["engine"]): r for r in found}
    of_pages = {(r["network"], r["isa"]): r["base"] for r in found if "base" in r}

    def base_of(network: str, isa: str) -> float | None:
        measured = by_key.get((network, "host", PEERS[0]), {}).get("error")
        return of_pages.get((network, isa), measured)

    ours = [f"tilewright {accuracy}" for accuracy in get_args(Accuracy)]
    isas = list(dict.fromkeys(r["isa"] for r in found if r["engine"] in ours))
    networks = list(dict.fromkeys(r["network"] for r in found))
    heads = ("code for", "accuracy", "networks", "error / onnxruntime's: median, largest", "largest error")
    lines = [_markdown_row(heads), "|---|---|---:|---|---|"]
    lines += [
        _markdown_row(cells) for isa in isas for cells in _summary(by_key, isa, networks, ours, base_of)
    ]
    for isa in isas:
        rows = []
        for network in networks:
            cells = [_cell(by_key.get((network, isa, engine)), base_of(network, isa)) for engine in ours]
            if set(cells) != {"-"}:
                base = base_of(network, isa)
                rows.append((network, "-" if base is None else f"{base:.1e}", *cells))
        lines += _folded(f"code for {isa}", ("network", "onnxruntime", *get_args(Accuracy)), rows)
    peers = [(n, *(_cell(by_key.get((n, "host", peer)), None) for peer in PEERS)) for n in networks]
    return "\n".join([*lines, *_folded("other engines", ("network", *PEERS), peers)]) + "\n"


def _summary(
    by_key: Mapping[tuple[str, str, str], Mapping[str, Any]],
    isa: str,
    networks: Sequence[str],
    ours: Sequence[str],
    base_of: Callable[[str, str], float | None],
) -> Iterator[tuple[str, ...]]:
    """A row for each accuracy, or for several whose errors are equal on every network that both ran."""
    groups: list[tuple[list[str], dict[str, float]]] = []
    for engine in ours:
        rows = ((network, by_key.get((network, isa, engine), {}).get("error")) for network in networks)
        errors = {network: error for network, error in rows if error is not None}
        if not errors:
            continue
        equal = (names for names, others in groups if errors.items() <= others.items())
        names = next(equal, [])
        if not names:
            groups.append((names, errors))
        names.append(engine.split()[1])
    for names, errors in groups:
        known = tuple(errors.items())
        bases = {network: base_of(network, isa) for network, _ in known}
        ratios = sorted((error / base, n) for n, error in known if (base := bases[n]))
        times = "-"
        if ratios:
            most, at = ratios[-1]
            times = f"{_times(median(ratio for ratio, _ in ratios))}, {_times(most)} ({at})"
        largest, network = max((error, network) for network, error in known)
        yield isa, ", ".join(names), str(len(known)), times, f"{largest:.1e} ({network})"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _folded(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table that readers open."""
    shown = (_markdown_row(heads), "|" + "---|" * len(heads), *map(_markdown_row, rows))
    return ["", f'<details markdown="1"><summary>{title}</summary>', "", *shown, "", "</details>"]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: Mapping[str, Any] | None, base: float | None) -> str:
    if row is None or "error" not in row:
        return "-" if row is None else "failed"
    if not base:
        return f"{row['error']:.1e}"
    times = row["error"] / base
    return f"{row['error']:.1e} ({times:.1f} x)" if times < 100 else f"{row['error']:.1e}"


def of_operators(arguments: Namespace) -> None:
    """A table for each network: its operators alone, those first that err most beside onnxruntime."""
    ours = Ours(arguments.isa, arguments.threads)
    for asked in arguments.networks.split(","):
        model = built(asked, arguments.seed)
        feed = zoo.example_inputs(model, arguments.seed + 1)
        found = []
        for label, alone, operands in operators(model, feed):
            if is_over(arguments.limit):
                break
            try:
                expected = run_graph(load_onnx(alone), operands, dtype=DType.FLOAT64)
            except TilewrightError:  # a shape that only the rest of the network tells
                continue
            base = worst(theirs(PEERS[0], alone, operands, list(expected), arguments.threads), expected)
            row: dict[str, Any] = {"network": asked, "operator": label, "isa": arguments.isa, PEERS[0]: base}
            for accuracy in arguments.accuracies.split(","):
                got, row[f"{accuracy} by"] = ours.run(load_onnx(alone), operands, accuracy)
                row[accuracy] = worst(got, expected)
            append(arguments.output, row)
            found.append(row)
        print(operator_table(asked, found, arguments.accuracies.split(",")))


def operator_table(network: str, found: Sequence[Mapping[str, Any]], accuracies: Sequence[str]) -> str:
    """Errors over onnxruntime's, the largest of the last accuracy first."""

    def times(row: Mapping[str, Any], accuracy: str) -> float:
        return float(row[accuracy]) / max(row[PEERS[0]], float(np.finfo(np.float32).eps) / 2)

    ordered = sorted(found, key=lambda row: -times(row, accuracies[-1]))[:_LARGEST_OPERATORS]
    lines = [f"{network}: error of operators alone, over onnxruntime's (or over half an epsilon)"]
    for row in ordered:
        cells = [f"{a} {times(row, a):5.1f} x by {'+'.join(row[f'{a} by'])}" for a in accuracies]
        lines.append(f"{row['operator']:55s} {row[PEERS[0]]:.1e} | " + " | ".join(cells))
    return "\n".join(lines)


def operators(
    model: onnx.ModelProto, feed: Arrays
) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """(Label, a model of it alone, its inputs) of every operator of floats that differs from those before."""
    graph = load_onnx(model)
    known = {value.name for value in graph.values()}
    constants = {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
    read = {name for node in model.graph.node for name in node.input if name and name not in constants}
    values = run_graph(graph, feed, dtype=DType.FLOAT64, taps=read & known)
    held = {**feed, **{name: values[name] for name in read & known}}
    seen: set[object] = set()
    for node in model.graph.node:
        inputs = [name for name in node.input if name and name not in constants]
        if not inputs or not all(n in held for n in inputs) or not _is_of_floats(node, held, inputs):
            continue
        operands = {n: _narrow(held[n]) for n in inputs}
        shapes = [tuple(constants[n].shape if n in constants else held[n].shape) for n in node.input if n]
        key = (node.op_type, str(shapes), str(node.attribute))
        if key in seen:
            continue
        seen.add(key)
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in operands.items()
        ]
        results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in node.output if n]
        kept = [x for x in model.graph.initializer if x.name in node.input]
        body = helper.make_graph([node], "alone", infos, results[:1], kept)
        alone = helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)
        yield f"{node.op_type} {' '.join('x'.join(map(str, s)) for s in shapes if s)}", alone, operands


def _narrow(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _is_of_floats(node: onnx.NodeProto, held: Arrays, inputs: Sequence[str]) -> bool:
    return held[inputs[0]].dtype.kind == "f" and not any(a.HasField("g") for a in node.attribute)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more line, also where the run is watched."""
    append_row(path, row)
    print(json.dumps(row), file=sys.stderr, flush=True)


@cache
def _started_s() -> float:
    return time.monotonic()


def is_over(limit_s: float | None) -> bool:
    """Whether the time given is spent."""
    return limit_s is not None and time.monotonic() - _started_s() > limit_s


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("what", choices=("networks", "operators"))
    parser.add_argument(
        "--networks", default=",".join(zoo.names()), help="names, by commas, as in resnet18@112"
    )
    parser.add_argument("--folder", type=Path, help="of packages with trained models, in place of the zoo")
    parser.add_argument("--accuracies", default=",".join(get_args(Accuracy)), help="by commas")
    parser.add_argument("--isa", default="host", help=f"host, avx512, avx2, {EMULATED} or {STEADY}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of weights; inputs have the next one")
    parser.add_argument("--limit", type=float, help="begin no network, or operator, after so many seconds")
    parser.add_argument("--output", default=Path("benchmarks/results/errors.jsonl"))
    parser.add_argument(
        "--pages", default=_PAGES, help="pages of zoo.py, by commas, for what is not measured"
    )
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    _started_s()
    (of_networks if arguments.what == "networks" else of_operators)(arguments)
