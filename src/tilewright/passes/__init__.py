"""Graph → Graph. `PIPELINE` is the order in which passes run; each is one file here."""

from __future__ import annotations

from collections.abc import Sequence

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

PASSES: Registry[Pass] = Registry(
    "pass", entry_point_group="tilewright.passes", protocol="tilewright.passes.base:Pass"
)
PASSES.add_class("merge-quantization", "tilewright.passes.merge_quantization:MergeQuantization")
PASSES.add_class("recognise-quantized", "tilewright.passes.recognise_quantized:RecogniseQuantized")
PASSES.add_class("fold-constants", "tilewright.passes.fold_constants:FoldConstants")
PASSES.add_class("canonicalise", "tilewright.passes.canonicalise:Canonicalise")
PASSES.add_class("common-subexpressions", "tilewright.passes.common_subexpressions:CommonSubexpressions")
PASSES.add_class("eliminate-identity", "tilewright.passes.eliminate_identity:EliminateIdentity")
PASSES.add_class("expand-recurrent", "tilewright.passes.expand_recurrent:ExpandRecurrent")
PASSES.add_class("merge-reshapes", "tilewright.passes.merge_reshapes:MergeReshapes")
PASSES.add_class("merge-transposes", "tilewright.passes.merge_transposes:MergeTransposes")
PASSES.add_class("fold-pad", "tilewright.passes.fold_pad:FoldPad")
PASSES.add_class("fold-batch-norm", "tilewright.passes.fold_batch_norm:FoldBatchNorm")
PASSES.add_class("fold-scale-shift", "tilewright.passes.fold_scale_shift:FoldScaleShift")
PASSES.add_class("fold-bias", "tilewright.passes.fold_bias:FoldBias")
PASSES.add_class("recognise-gelu", "tilewright.passes.recognise_gelu:RecogniseGelu")
PASSES.add_class("recognise-layer-norm", "tilewright.passes.recognise_layer_norm:RecogniseLayerNorm")
PASSES.add_class("recognise-rms-norm", "tilewright.passes.recognise_rms_norm:RecogniseRmsNorm")
PASSES.add_class("recognise-softmax", "tilewright.passes.recognise_softmax:RecogniseSoftmax")
PASSES.add_class("recognise-silu", "tilewright.passes.recognise_silu:RecogniseSilu")
PASSES.add_class("recognise-hard-swish", "tilewright.passes.recognise_hard_swish:RecogniseHardSwish")
PASSES.add_class("recognise-mish", "tilewright.passes.recognise_mish:RecogniseMish")
PASSES.add_class("recognise-attention", "tilewright.passes.recognise_attention:RecogniseAttention")
PASSES.add_class("dead-code", "tilewright.passes.dead_code:DeadCode")

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
