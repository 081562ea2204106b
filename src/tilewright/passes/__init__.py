"""Graph → Graph. `PIPELINE` is the order in which passes run; each is one file here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import families
from tilewright.errors import InternalError, UsageError
from tilewright.ir.graph import Graph
from tilewright.ir.text import print_graph
from tilewright.ir.verify import require_valid
from tilewright.options import Accuracy
from tilewright.passes.base import Pass, PassReport, PassResult, Remark
from tilewright.passes.canonicalise import Canonicalise
from tilewright.planning import Spec
from tilewright.progress import checkpoint
from tilewright.registry import Registry

__all__ = ["PASSES", "PIPELINE", "Pass", "PassReport", "PassResult", "Remark", "run_passes"]

PASSES: Registry[Pass] = families.PASSES

PIPELINE: tuple[str, ...] = PASSES.built_in_names()


# These compute something else than the model says, equal but for rounding: strict models go without.
ROUNDING_PASSES = ("fold-batch-norm", "fold-scale-shift", "fold-bias", "recognise-attention")

# These make operators that only targets which run loops over steps have kernels for.
STEPS_PASSES = ("loop-recurrent",)


# What an extra pass may leave behind: constants to fold, copies, reshapes of reshapes, nodes without readers.
CLEANUPS = (
    "fold-constants",
    "common-subexpressions",
    "eliminate-identity",
    "merge-reshapes",
    "merge-transposes",
    "dead-code",
)


def run_passes(
    graph: Graph,
    *,
    disabled: Sequence[str] = (),
    extra: Sequence[str] = (),
    dump_after: Sequence[str] = (),
    accuracy: Accuracy = "default",
    runs_steps: bool = False,
) -> PassReport:
    """Run the pipeline on a graph it may edit, checking every invariant after each pass that edited it.

    `extra` passes, which may have options (`name{option=value}`), run after it, and `CLEANUPS` after them.
    With `accuracy` strict those that change how a result is rounded are left out, and unless the target
    `runs_steps` those that make loops over them.

    Raises:
        UsageError: a name of no pass; in `disabled` and `dump_after`, of none that would run.
    """
    order = [Spec(name) for name in PIPELINE]
    if extra:
        order += [*map(Spec.parse, extra), *map(Spec, CLEANUPS)]
    _check_names(disabled, PIPELINE)
    _check_names(dump_after, [spec.name for spec in order])
    passes = [(spec.name, _pass(spec, accuracy)) for spec in order]
    left_out = {*disabled, *(ROUNDING_PASSES if accuracy == "strict" else ())}
    left_out.update(() if runs_steps else STEPS_PASSES)
    results: list[tuple[str, PassResult]] = []
    dumps: dict[str, str] = {}
    for name, member in passes:
        checkpoint()
        if name not in left_out:
            result = PASSES.verified(name, member.run(graph), PassResult)
            results.append((name, result))
            if result.num_changes:
                _require_valid(graph, name)
        if name in dump_after:
            dumps[name] = print_graph(graph)
    require_valid(graph, after="the passes")
    return PassReport(tuple(results), dumps)


def _require_valid(graph: Graph, name: str) -> None:
    """The graph after a pass.

    Raises:
        PluginFailed: a pass of someone else's broke an invariant.
        InternalError: one of ours did.
    """
    try:
        require_valid(graph, after=name)
    except InternalError as error:
        if name in PASSES.built_in_names():
            raise
        raise PASSES.fault(name, f"left a graph that is not valid: {error}") from error


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"unknown pass {name!r}: the passes are {', '.join(dict.fromkeys(known))}.")


def _pass(spec: Spec, accuracy: Accuracy) -> Pass:
    member = PASSES.get(spec)
    if accuracy == "strict" and isinstance(member, Canonicalise):
        return replace(member, exact_reciprocals=True)
    return member
