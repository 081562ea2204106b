"""Random models of any opset and type, judged node by node by three opinions, and then as a whole."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.fuzz.differential import Setting, generate, random_setting, run_hostile, run_ordinary
from tests.fuzz.explained import Explained, explanation
from tests.fuzz.explained_models import EXPLAINED_MODELS
from tests.fuzz.opinions import (
    CPU,
    REFERENCE,
    RUNTIME,
    Answer,
    Array,
    Difference,
    ask_ours,
    ask_reference,
    ask_runtime,
    compare,
    in_float32,
    margins,
    model_margins,
    wrong_elements,
)
from tests.fuzz.recipes import LOCAL, RECIPES
from tests.fuzz.sketch import NEWEST, OLDEST, Sketch, Step

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph

MOST_ELEMENTS = 4096


@dataclass
class Judged:
    """What came of one seed."""

    sketch: Sketch
    without_runtime: frozenset[int] = frozenset()
    steps: list[tuple[Step, Sequence[Array]]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    explained: Counter[Explained] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)


def random_sketch(seed: int) -> Sketch:
    """An empty model: what opset it is of, and how much of its data lies at the edges."""
    rng = np.random.default_rng(seed)
    opset = int(rng.integers(OLDEST, NEWEST + 1))
    special = float(rng.choice((0.0, 0.05, 0.2, 0.6)))
    return Sketch(rng, opset, special, bool(rng.random() < 0.2))


def judge(seed: int, cache_dir: Path | None = None, *, without_runtime: Collection[int] = ()) -> Judged:
    """Grow a model node by node, each judged when it joins; then run the whole.

    `without_runtime` are nodes, by number, on which ONNX Runtime is not asked: it crashes there.
    """
    m = random_sketch(seed)
    result = Judged(m, frozenset(without_runtime))
    recipes = [recipe for recipe, weight in RECIPES for _ in range(weight)]
    target = m.number(2, 10)
    for _ in range(4 * target):
        if len(m.nodes) >= target:
            break
        step = m.choice(recipes)(m)
        if step is not None and all(a.size <= MOST_ELEMENTS for a in step.arrays.values()):
            judge_step(result, step)
    if m.nodes:
        judge_model(result, random_setting(seed), cache_dir)
    return result


def judge_model(result: Judged, setting: Setting, cache_dir: Path | None) -> None:
    """The generated code between guard pages, and ONNX Runtime with all its optimisations."""
    m = result.sketch
    model, feed = m.model(), m.feed()
    names = [output.name for output in model.graph.output]
    graph = load_onnx(model)
    with np.errstate(all="ignore"):
        found = run_graph(graph, feed)
    ours = [found[name] for name in names]
    for name, array in zip(names, ours, strict=True):
        want = m.arrays[name]
        if array.shape != want.shape or wrong_elements(array, want, np.zeros(array.shape)).any():
            result.findings.append(f"{name}: the model gives another value than its nodes one by one")
    allowed = model_margins(graph, feed, ours)
    try:
        code = generate(graph, setting, cache_dir)
    except UnsupportedOp:
        result.counts["models refused by the CPU"] += 1
    else:
        result.counts["models on the CPU"] += 1
        got = run_ordinary(code, feed, setting.threads)
        guarded = run_hostile(code, feed, at_end=setting.seed % 3 > 0)
        differ = [name for name in names if got[name].tobytes() != guarded[name].tobytes()]
        result.findings += [f"{name}: differs between guard pages {setting}" for name in differ]
        whole = compare_models(result, CPU, ours, [got[name] for name in names], allowed)
        if whole is not None:
            blame_nodes(result, whole, setting)
    if any(rule.other == RUNTIME for rule in result.explained) or result.without_runtime:
        result.counts["models with nodes on which onnxruntime differs"] += 1
        return
    note(f"{len(m.nodes)} model")
    for optimised in (False, True):
        answer = ask_runtime(model, feed, optimised=optimised)
        if answer.arrays is None:
            continue
        result.counts[f"models judged by onnxruntime{' optimised' * optimised}"] += 1
        found = compare_models(result, RUNTIME, ours, answer.arrays, allowed)
        if found is not None:
            result.findings.append(f"{found}{' optimised' * optimised}")


def compare_models(
    result: Judged, other: str, ours: Sequence[Array], theirs: Sequence[Array], allowed: Sequence[Array]
) -> str | None:
    """How the results of the whole differ, where no rule for models explains it."""
    for i, (a, b, limit) in enumerate(zip(ours, theirs, allowed, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{other} gives output {i} as {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        wrong = wrong_elements(a, b, limit)
        if not wrong.any():
            continue
        steps = [step for step, _ in result.steps]
        for number, rule in enumerate(EXPLAINED_MODELS):
            if rule.other == other and rule.applies(steps, a, b, wrong):
                result.counts[f"whole models, rule {number}"] += 1
                break
        else:
            return (
                f"{other} differs in {int(wrong.sum())} of {wrong.size} elements of output {i} of the whole"
            )
    return None


def blame_nodes(result: Judged, whole: str, setting: Setting) -> None:
    """Which nodes alone already give another value in generated code; explained ones excuse the whole."""
    blamed = False
    for step, want in result.steps:
        try:
            code = generate(load_onnx(step.model()), setting, None)
        except UnsupportedOp:
            continue
        got = run_ordinary(code, step.feed(), setting.threads)
        found = [got[name] for name in step.proto.output if name]
        allowed = margins(step, want, is_local=step.op_type in LOCAL)
        difference = compare(step, CPU, want, found, allowed)
        if difference is None:
            continue
        blamed = True
        rule = explanation(difference)
        if rule is None:
            result.findings.append(f"{difference} {setting}")
        else:
            result.explained[rule] += 1
    if not blamed:
        result.findings.append(f"{whole}, but no node alone does {setting}")


def note(text: str) -> None:
    """What is run now, for the parent to read should this process die."""
    print(f"now {text}", flush=True)


def judge_step(result: Judged, step: Step) -> None:
    model, feed = step.model(), step.feed()
    ours = ask_ours(model, feed)
    number = result.sketch.count
    note(f"{number} {step.op_type}")
    skipped = number in result.without_runtime
    others = {
        RUNTIME: Answer(None, "it crashes") if skipped else ask_runtime(model, feed),
        REFERENCE: ask_reference(model, feed),
    }
    if ours.arrays is None:
        result.counts["refused by ours"] += 1
        if not ours.valid and all(a.arrays is not None for a in others.values()):
            result.findings.append(f"{step.op_type}@{step.opset} refused: {ours.reason}")
        return
    if any(a.size > MOST_ELEMENTS for a in ours.arrays):
        return
    if all(a.arrays is None for a in others.values()):
        result.counts["without a second opinion"] += 1
    allowed = margins(step, ours.arrays, is_local=step.op_type in LOCAL)
    for name, answer in others.items():
        if answer.arrays is None:
            continue
        result.counts[f"judged by {name}"] += 1
        found = compare(step, name, ours.arrays, answer.arrays, allowed)
        if found is None:
            continue
        parts = _split(found, ours, others[RUNTIME]) if name == REFERENCE else [found]
        rules = [explanation(part) for part in parts]
        if None in rules:
            result.findings.append(str(found))
        result.explained.update(rule for rule in rules if rule is not None)
    result.sketch.accept(step, ours.arrays)
    result.steps.append((step, ours.arrays))


def _split(found: Difference, ours: Answer, runtime: Answer) -> list[Difference]:
    """The elements in which ONNX Runtime gives what ours does, and the others.

    Where it lacks the type, it is asked on the same numbers in float32.
    """
    step = found.step
    if runtime.arrays is None and runtime.reason != "it crashes":
        step = in_float32(step)
        model, feed = step.model(), step.feed()
        ours, runtime = ask_ours(model, feed), ask_runtime(model, feed)
    if ours.arrays is None or runtime.arrays is None:
        return [found]
    a, b = ours.arrays[found.output], runtime.arrays[found.output]
    if a.shape != b.shape or a.dtype != b.dtype or a.shape != found.wrong.shape:
        return [found]
    allowed = margins(step, ours.arrays, is_local=step.op_type in LOCAL)[found.output]
    same = ~wrong_elements(a, b, allowed)
    if not found.wrong.any() or found.wrong.all():  # of shapes that differ, or all alike
        return [replace(found, confirmed=bool(same.all()))]
    parts = [
        replace(found, wrong=found.wrong & same, confirmed=True),
        replace(found, wrong=found.wrong & ~same),
    ]
    return [part for part in parts if part.wrong.any()]
