"""Graph → Graph. `PIPELINE` is the order in which passes run; each is one file here."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import families
from tilewright.errors import UsageError
from tilewright.ir.graph import Graph
from tilewright.ir.text import print_graph
from tilewright.ir.verify import require_valid
from tilewright.options import Accuracy
from tilewright.passes.base import Pass, PassReport, PassResult, Remark
from tilewright.passes.canonicalise import Canonicalise
from tilewright.progress import checkpoint
from tilewright.registry import Registry

__all__ = ["PASSES", "PIPELINE", "Pass", "PassReport", "PassResult", "Remark", "run_passes"]

PASSES: Registry[Pass] = families.PASSES

# Quantised layers come first: folding would turn their weights into floats.
PIPELINE: tuple[str, ...] = (
    "merge-quantization",
    "recognise-quantized",
    "fold-constants",
    "canonicalise",
    "common-subexpressions",
    "eliminate-identity",
    "expand-recurrent",
    "merge-reshapes",
    "merge-transposes",
    "fold-pad",
    "fold-batch-norm",
    "fold-scale-shift",
    "fold-bias",
    "recognise-gelu",
    "recognise-layer-norm",
    "recognise-rms-norm",
    "recognise-softmax",
    "recognise-silu",
    "recognise-hard-swish",
    "recognise-mish",
    "recognise-attention",
    "dead-code",
)


# These compute something else than the model says, equal but for rounding: strict models go without.
ROUNDING_PASSES = ("fold-batch-norm", "fold-scale-shift", "fold-bias", "recognise-attention")


def run_passes(
    graph: Graph,
    *,
    disabled: Sequence[str] = (),
    dump_after: Sequence[str] = (),
    accuracy: Accuracy = "default",
) -> PassReport:
    """Run the pipeline on a graph it may edit, checking every invariant after each pass that edited it.

    With `accuracy` strict no pass changes how a result is rounded.

    Raises:
        UsageError: `disabled` or `dump_after` names no pass.
    """
    for name in (*disabled, *dump_after):
        if name not in PIPELINE:
            raise UsageError(f"unknown pass {name!r}: the passes are {', '.join(PIPELINE)}.")
    results: list[tuple[str, PassResult]] = []
    dumps: dict[str, str] = {}
    for name in PIPELINE:
        checkpoint()
        if name not in disabled and not (accuracy == "strict" and name in ROUNDING_PASSES):
            result = _pass(name, accuracy).run(graph)
            results.append((name, result))
            if result.num_changes:
                require_valid(graph, after=name)
        if name in dump_after:
            dumps[name] = print_graph(graph)
    require_valid(graph, after="the passes")
    return PassReport(tuple(results), dumps)


def _pass(name: str, accuracy: Accuracy) -> Pass:
    found = PASSES.get(name)
    if accuracy == "strict" and isinstance(found, Canonicalise):
        return Canonicalise(exact_reciprocals=True)
    return found
