"""Whole models that are valid but for one to three lies: declared shapes, attributes, constants, nodes.

`python -m tests.hostile.models SEED` tells what became of one of them. What is accepted runs as the product
runs it, and once more with every input, output, weight and the arena between pages that nothing may touch;
both must agree with the reference semantics. Anything but that or a typed error of one line is a finding.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper
from tests.fuzz.differential import generate, random_setting, run_hostile
from tests.fuzz.explained_models import EXPLAINED_MODELS
from tests.fuzz.opinions import CPU, ask_ours, model_margins, wrong_elements
from tests.fuzz.opsets import MOST_ELEMENTS, random_sketch
from tests.fuzz.recipes import RECIPES
from tests.fuzz.sketch import Sketch, Step

import tilewright as tw
from tilewright.errors import InternalError, TilewrightError
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph
from tilewright.specialise.model import OpenCompiledModel

Array = np.ndarray[Any, Any]
Lie = Callable[[ModelProto, random.Random], None]
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    1000,
    10**9,
    2**31 - 1,
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -2,
    -(2**40),
    -(2**63),
)
EXTENTS = (0, 1, 2, 3, 5, 17, 1000, 10**9, 2**40, -1)
_WORDS = ("", "x", "linear", "SAME_UPPER", "VALID", "border", "\x1b[31m", "a\nb", "*/", "\u202e")
_MOST_FED = 1 << 18


def honest(seed: int) -> tuple[Sketch, list[Step]]:
    """A model as those of the differential runs, of ordinary numbers."""
    m = random_sketch(seed)
    m.special, steps = 0.0, []
    recipes = [recipe for recipe, weight in RECIPES for _ in range(weight)]
    target = m.number(1, 5)
    for _ in range(4 * target):
        if len(m.nodes) >= target:
            break
        step = m.choice(recipes)(m)
        if step is None or any(a.size > MOST_ELEMENTS for a in step.arrays.values()):
            continue
        answer = ask_ours(step.model(), step.feed())
        if answer.arrays is not None and all(a.size <= MOST_ELEMENTS for a in answer.arrays):
            m.accept(step, answer.arrays)
            steps.append(step)
    return m, steps


# Lies -------------------------------------------------------------------------------------------------


def _reshape(kind: Any, rng: random.Random) -> None:
    dims = kind.tensor_type.shape.dim
    change = rng.randrange(5)
    if change == 0 and dims:
        del dims[rng.randrange(len(dims))]
    elif change == 1:
        dims.add().dim_value = rng.choice(EXTENTS)
    elif change == 2 and dims:
        dims[rng.randrange(len(dims))].dim_param = rng.choice(("n", "batch"))
    elif dims:
        dim = dims[rng.randrange(len(dims))]
        dim.dim_value = rng.choice((*EXTENTS, dim.dim_value + 1, dim.dim_value - 1, 2 * dim.dim_value))


def declared_output(model: ModelProto, rng: random.Random) -> None:
    _reshape(rng.choice(model.graph.output).type, rng)


def declared_input(model: ModelProto, rng: random.Random) -> None:
    if model.graph.input:
        _reshape(rng.choice(model.graph.input).type, rng)


def declared_between(model: ModelProto, rng: random.Random) -> None:
    """A result that no output is, with a shape, or a type, that it does not have."""
    names = [name for node in model.graph.node for name in node.output if name]
    shape = [rng.choice(EXTENTS) for _ in range(rng.randrange(5))]
    info = helper.make_tensor_value_info(rng.choice(names), rng.choice((1, 1, 7, 9, 10, 99)), shape)
    model.graph.value_info.append(info)


def attribute(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    if not node.attribute:
        node.attribute.append(
            helper.make_attribute(rng.choice(("axis", "alpha", "mode")), rng.choice(NUMBERS))
        )
        return
    chosen = rng.choice(node.attribute)
    if chosen.ints:
        numbers = list(chosen.ints)
        change = rng.randrange(4)
        if change == 0:
            numbers = numbers[:-1]
        elif change == 1:
            numbers.append(rng.choice(NUMBERS))
        else:
            numbers[rng.randrange(len(numbers))] = rng.choice(NUMBERS)
        del chosen.ints[:]
        chosen.ints.extend(numbers)
    elif chosen.type == chosen.FLOAT:
        chosen.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-45))
    elif chosen.type == chosen.STRING:
        chosen.s = rng.choice(_WORDS).encode()
    elif chosen.type == chosen.INT:
        chosen.i = rng.choice(NUMBERS)
    else:
        node.attribute.remove(chosen)


def constant(model: ModelProto, rng: random.Random) -> None:
    """Another number in it, another shape, fewer bytes than its shape needs, or a model input instead."""
    if not model.graph.initializer:
        return
    chosen = rng.choice(model.graph.initializer)
    try:
        array = numpy_helper.to_array(chosen).copy()
    except ValueError:  # it holds too few bytes already
        return
    change = rng.randrange(4)
    if change == 0 and array.size and array.dtype == np.int64:
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(NUMBERS)
        chosen.CopyFrom(numpy_helper.from_array(array, chosen.name))
    elif change == 1:
        chosen.CopyFrom(numpy_helper.from_array(array.reshape(-1)[: array.size // 2], chosen.name))
    elif change == 2 and chosen.raw_data:
        chosen.raw_data = chosen.raw_data[:-1]
    else:
        info = helper.make_tensor_value_info(chosen.name, chosen.data_type, array.shape)
        model.graph.input.append(info)
        model.graph.initializer.remove(chosen)


def operands(model: ModelProto, rng: random.Random) -> None:
    """An operand that is another value, twice there, missing or unknown."""
    node = rng.choice(model.graph.node)
    names = [v.name for v in (*model.graph.input, *model.graph.initializer)] + ["", "ghost"]
    if node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif node.input:
        node.input.append(node.input[0])


def nodes(model: ModelProto, rng: random.Random) -> None:
    """A node that is gone, there twice, or of another operator."""
    graph, place = model.graph, rng.randrange(len(model.graph.node))
    change = rng.randrange(3)
    if change == 0:
        del graph.node[place]
    elif change == 1:
        graph.node.insert(place, graph.node[place])
    else:
        graph.node[place].op_type = rng.choice(
            ("Add", "Conv", "MaxPool", "Gather", "Resize", "Concat", "Loop")
        )


def opset(model: ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice((1, 7, 9, 11, 13, 17, 19, 22, 10**6, 0, -1))


LIES: tuple[Lie, ...] = (
    declared_output,
    declared_input,
    declared_between,
    attribute,
    attribute,
    attribute,
    constant,
    constant,
    operands,
    nodes,
    opset,
)


def hostile_model(seed: int) -> tuple[ModelProto, list[Step], str]:
    """A model, the honest steps that it was made of, and what is wrong with it."""
    m, steps = honest(seed)
    model, rng = m.model(), random.Random(seed)
    told = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        if model.graph.node and model.graph.output:
            lie = rng.choice(LIES)
            lie(model, rng)
            told.append(lie.__name__)
    return model, steps, ", ".join(told)


def _feed(graph: Any, seed: int) -> dict[str, Array] | None:
    # No zeros: what a division by them gives in an integer type is open.
    rng = np.random.default_rng(seed)
    if sum(v.num_elements for v in graph.inputs) > _MOST_FED:
        return None
    return {v.name: rng.integers(1, 4, v.shape).astype(v.dtype.numpy) for v in graph.inputs}


# Trying ----------------------------------------------------------------------------------------------


def try_model(model: ModelProto, steps: list[Step], seed: int) -> tuple[str, str]:
    """What became of a model, and what is wrong with that; nothing if it is as it should be."""
    try:
        compiled = tw.compile(model.SerializeToString(), threads=1, no_cache=True)
    except InternalError as error:
        return "InternalError", str(error)
    except TilewrightError as error:
        return "refused", f"of several lines: {error!r}" if "\n" in str(error) else ""
    with compiled:
        shapes = _shapes(compiled, seed)
        try:
            graph = load_onnx(model, shapes=shapes)
        except TilewrightError as error:
            # Of a model whose shapes are open, not all need to fit; where data decide them there is no graph.
            if not isinstance(compiled, OpenCompiledModel):
                return "refused", f"compiles, and does not load: {error}"
            return _run_open(compiled, shapes)
        feed = _feed(graph, seed)
        if feed is None:
            return "too large to run", ""
        try:
            found = compiled.run(None, dict(feed))
        except InternalError as error:
            return "InternalError", str(error)
        except TilewrightError as error:
            return "refused when run", f"of several lines: {error!r}" if "\n" in str(error) else ""
    return "ran", _wrong(graph, steps, feed, found, seed)


def _shapes(compiled: tw.CompiledModel, seed: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that are open: dimensions of one name have one extent."""
    rng, extents = random.Random(seed), dict[Any, int]()
    shapes: dict[str, tuple[Any, ...]] = {i.name: i.shape for i in compiled.get_inputs()}
    return {
        name: tuple(
            d if isinstance(d, int) else extents.setdefault(d or (name, axis), rng.randint(1, 5))
            for axis, d in enumerate(dims)
        )
        for name, dims in shapes.items()
        if any(not isinstance(d, int) for d in dims)
    }


def _run_open(compiled: tw.CompiledModel, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str]:
    """What becomes of a run that no graph of static shapes says anything about: only errors can be wrong."""
    given = {i.name: (shapes.get(i.name, i.shape), i.dtype.numpy) for i in compiled.get_inputs()}
    if sum(math.prod(shape) for shape, _ in given.values()) > _MOST_FED:
        return "too large to run", ""
    try:
        compiled.run(None, {name: np.ones(shape, dtype) for name, (shape, dtype) in given.items()})
    except InternalError as error:
        return "InternalError", str(error)
    except TilewrightError as error:
        return "refused when run", f"of several lines: {error!r}" if "\n" in str(error) else ""
    return "ran open", ""


def _wrong(graph: Any, steps: list[Step], feed: Mapping[str, Array], found: list[Array], seed: int) -> str:
    with np.errstate(all="ignore"):
        try:
            want = run_graph(graph, feed)
        except TilewrightError as error:
            return f"runs where the reference semantics refuse: {error}"
    ours = [want[v.name] for v in graph.outputs]
    allowed = model_margins(graph, feed, ours)
    setting = random_setting(seed)
    guarded = run_hostile(generate(graph, setting, None), feed, at_end=seed % 2 == 0)
    for value, expected, limit, array in zip(graph.outputs, ours, allowed, found, strict=True):
        for how, got in (("", array), (" between guard pages", guarded[value.name])):
            if got.shape != expected.shape or got.dtype != expected.dtype:
                return f"{value} is {got.dtype}{list(got.shape)}{how}"
            wrong = wrong_elements(expected, got, 4 * limit)
            rules = [rule for rule in EXPLAINED_MODELS if rule.other == CPU]
            if wrong.any() and not any(rule.applies(steps, expected, got, wrong) for rule in rules):
                return f"{value} differs in {int(wrong.sum())} of {wrong.size} elements{how}"
    return ""


def try_seed(seed: int) -> tuple[str, str]:
    """What became of a seed's model, and what is wrong with that."""
    model, steps, told = hostile_model(seed)
    if not model.graph.node:
        return "nothing", ""
    outcome, problem = try_model(model, steps, seed)
    return outcome, f"{told}: {problem}" if problem else ""


if __name__ == "__main__":
    print(*try_seed(int(sys.argv[1])))
