"""`tilewright compare`: do two ways to run a model agree?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli import common
from tilewright.cli.output import JSON_OPTION, QUIET_OPTION, print_json, print_table, progress
from tilewright.errors import NumericMismatch, UsageError

if TYPE_CHECKING:
    import numpy as np


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("compare", rich_help_panel=panel)(compare)


def compare(
    model: Path = common.MODEL,
    a: str = typer.Option("cpu", "--a", help="cpu, interpreter, onnxruntime, openvino, or an artifact."),
    b: str = typer.Option("interpreter", "--b", help="The other side."),
    inputs: Path | None = typer.Option(None, "--input", "-i", help="Inputs: an .npz file; default random."),
    layers: bool = typer.Option(
        False, "--layers", help="Also compare every value between kernels (targets and peers that can tell)."
    ),
    rtol: float = typer.Option(
        1e-4, "--rtol", help="Allowed difference relative to the tensor's largest value."
    ),
    atol: float = typer.Option(1e-6, "--atol", help="Allowed absolute difference."),
    shapes: str | None = common.SHAPES,
    threads: int | None = common.THREADS,
    seed: int = common.SEED,
    as_json: bool = JSON_OPTION,
    quiet: bool = QUIET_OPTION,
) -> None:
    """Compare the outputs of two engines or targets. Example: `tilewright compare m.onnx --b onnxruntime`."""
    import numpy as np

    import tilewright as tw
    from tilewright.options import parse_shapes

    if rtol < 0 or atol < 0:
        raise UsageError("rtol and atol must not be negative.")
    fixed = parse_shapes(shapes) if shapes else {}
    with progress("comparing", quiet=quiet):
        loaded = tw.load(model, shapes=fixed)
        feed = (
            common.random_feed(loaded.summary().inputs, seed)
            if inputs is None
            else common.read_arrays(inputs)
        )
        names = [o.name for o in loaded.graph.outputs]
        left, right = (_outputs(side, model, fixed, threads, feed) for side in (a, b))
        pairs = list(zip(names, left, right, strict=True))
        if layers:
            pairs = [*_boundaries(loaded.graph, feed), *pairs]
    rows: list[dict[str, Any]] = []
    for name, x, y in pairs:
        wide = np.float64 if x.dtype.kind in "fiub" else x.dtype
        gap = np.abs(x.astype(wide) - y.astype(wide)) if x.shape == y.shape else np.array([np.inf])
        worst = float(np.nanmax(gap)) if gap.size else 0.0
        scale = float(np.abs(y.astype(wide)).max()) if y.size else 0.0
        agree = x.shape == y.shape and bool(
            np.array_equal(np.isnan(x.astype(wide)), np.isnan(y.astype(wide)))
        )
        rows.append(
            {
                "name": name,
                "max_difference": worst,
                "scale": scale,
                "ok": agree and worst <= atol + rtol * scale,
            }
        )
    bad = [r for r in rows if not r["ok"]]
    if as_json:
        document = {"a": a, "b": b, "ok": not bad, "rtol": rtol, "atol": atol, "tensors": rows}
        print_json("compare", {**document, "model_sha256": loaded.sha256})
    else:
        print_table(
            ("tensor", "largest difference", "scale", ""),
            [
                (r["name"], f"{r['max_difference']:.3g}", f"{r['scale']:.3g}", "ok" if r["ok"] else "DIFFERS")
                for r in rows
            ],
            right=(1, 2),
        )
    if bad:
        raise NumericMismatch(
            f"{bad[0]['name']}: {a} and {b} differ by {bad[0]['max_difference']:.3g} "
            f"(allowed {atol + rtol * bad[0]['scale']:.3g}); {len(bad)} of {len(rows)} tensors differ."
        )


def _outputs(
    side: str, model: Path, shapes: dict[str, tuple[int, ...]], threads: int | None, feed: dict[str, Any]
) -> list[np.ndarray[Any, Any]]:
    import tilewright as tw

    if side in ("onnxruntime", "openvino"):
        from tilewright.bench.engines import make_engine

        return make_engine(side, str(model), threads or 1, shapes).run(feed)
    if side.endswith(".tw"):
        return tw.open(side, threads=threads).run(None, feed)
    return tw.compile(model, side, shapes=shapes, threads=threads).run(None, feed)


def _boundaries(graph: Any, feed: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Values that pass between kernels, each kernel run alone on the reference's inputs to it.

    A kernel is compiled as it is in the whole model, but sees exact inputs, so that the first one that
    differs is the one that is wrong.
    """
    import tilewright as tw
    from tilewright.api import Model
    from tilewright.compiler import plan
    from tilewright.ir.graph import Value
    from tilewright.ir.interpret import run_graph
    from tilewright.options import Options

    program = plan(graph, Options()).program
    whole = program.graph.clone()
    produced = {v.name: v for n in whole.nodes for v in n.results()}
    cut = [v.name for s in program.partition.subgraphs for v in s.outputs]
    whole.outputs = [produced[name] for name in dict.fromkeys(cut)]
    exact = run_graph(whole, feed)
    results: list[tuple[str, Any, Any]] = []
    for subgraph in program.partition.subgraphs:
        part = program.graph.extract(set(subgraph.nodes).__contains__)
        outer = {v.name for v in subgraph.inputs}
        part.inputs = []
        seen: dict[str, Value] = {}
        for node in part.nodes:
            for value in node.operands():
                if value.name in outer:
                    seen[value.name] = value
        for value in seen.values():
            part.add_input(value)
        wanted = {v.name for v in subgraph.outputs}
        part.outputs = [v for n in part.nodes for v in n.results() if v.name in wanted]
        arrays = {name: feed[name] if name in feed else exact[name] for name in seen}
        compiled = tw.compile(Model(part, "0" * 64, subgraph.name), disabled_passes=_all_passes())
        got = compiled.run(None, arrays)
        results += [(v.name, x, exact[v.name]) for v, x in zip(part.outputs, got, strict=True)]
        compiled.close()
    return results


def _all_passes() -> tuple[str, ...]:
    from tilewright.passes import PIPELINE

    return PIPELINE
