"""Ensembles of decision trees beside onnxruntime: `python -m benchmarks trees`.

100 trees of depths 6 to 12 on 1, 200 and 10,000 rows, with one thread and with two where the machine has
them. Both engines run in turns; a figure is the median of the rounds with the first and the third quartile,
in microseconds of processor time (of all threads) and of wall time. The results of both are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tilewright as tw
from benchmarks.command import Namespace, Parser

Array = np.ndarray[Any, Any]
NUM_FEATURES = 20
LEAF_SHARE = 0.05  # of inner places that end early


def grown(rng: np.random.Generator, num_trees: int, depth: int) -> dict[str, list[Any]]:
    """Random trees as the attributes of a TreeEnsembleRegressor."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    made: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    made |= {f"target_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(num_trees):
        first = len(made["nodes_nodeids"])

        def grow(levels: int, tree: int = tree, first: int = first) -> int:
            place = len(made["nodes_nodeids"])
            number = place - first
            is_leaf = levels == 0 or (levels < depth and rng.random() < LEAF_SHARE)
            feature, split = (0, 0.0) if is_leaf else (int(rng.integers(NUM_FEATURES)), rng.normal(0, 0.7))
            for name, value in zip(
                names, (tree, number, feature, split, "LEAF" if is_leaf else "BRANCH_LEQ", 0, 0), strict=True
            ):
                made[f"nodes_{name}"].append(value)
            if is_leaf:
                for name, value in (
                    ("treeids", tree),
                    ("nodeids", number),
                    ("ids", 0),
                    ("weights", rng.normal()),
                ):
                    made[f"target_{name}"].append(value)
            else:
                made["nodes_truenodeids"][place] = grow(levels - 1)
                made["nodes_falsenodeids"][place] = grow(levels - 1)
            return number

        grow(depth)
    return made


def ensemble_model(num_trees: int, depth: int) -> onnx.ModelProto:
    attributes = grown(np.random.default_rng(depth), num_trees, depth)
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attributes
    )
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", NUM_FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def samples(runs: Mapping[str, Callable[[], object]], rounds: int, round_s: float) -> dict[str, Array]:
    """Processor and wall time of a run of each in microseconds, round by round, in turns."""
    repeats = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(int(round_s / (time.perf_counter() - start)), 1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(repeats[name]):
                run()
            times = (time.process_time() - cpu, time.perf_counter() - wall)
            found[name].append((times[0] * 1e6 / repeats[name], times[1] * 1e6 / repeats[name]))
    return {name: np.array(times) for name, times in found.items()}


def shown(values: Array) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def compared(depth: int, rows: int, threads: int, asked: Namespace) -> Sequence[str]:
    model = ensemble_model(asked.trees, depth)
    x = np.random.default_rng(rows).standard_normal((rows, NUM_FEATURES)).astype(np.float32)
    feed = {"x": x}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    with tw.compile(model, shapes={"x": x.shape}, threads=threads) as compiled:
        error = np.abs(compiled.run(None, feed)[0] - session.run(None, feed)[0]).max()
        runs = {"ours": lambda: compiled.run(None, feed), "theirs": lambda: session.run(None, feed)}
        times = samples(runs, asked.rounds, asked.seconds)
    ratio = [np.median(times["theirs"][:, i]) / np.median(times["ours"][:, i]) for i in (0, 1)]
    cells = [shown(times[name][:, 0]) for name in runs]
    walls = [f"{np.median(times[name][:, 1]):,.1f}" for name in runs]
    return [
        str(depth),
        f"{rows:,}",
        str(threads),
        *cells,
        f"{ratio[0]:.2f}",
        *walls,
        f"{ratio[1]:.2f}",
        f"{error:.1g}",
    ]


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 8, 10, 12])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 200, 10_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each engine in a round")


def main(asked: Namespace) -> None:
    """Measure what is missing, and print."""
    head = [
        "depth",
        "rows",
        "threads",
        "CPU, us",
        "onnxruntime",
        "ratio",
        "wall, us",
        "onnxruntime",
        "ratio",
        "error",
    ]
    print("|" + "|".join(f" {cell} " for cell in head) + "|")
    print("|" + "---:|" * len(head))
    for threads in [n for n in (1, 2) if n <= (os.cpu_count() or 1)]:
        for depth in asked.depths:
            for rows in asked.rows:
                cells = compared(depth, rows, threads, asked)
                print("|" + "|".join(f" {cell} " for cell in cells) + "|", flush=True)
