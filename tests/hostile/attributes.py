"""Models of one node whose attributes, operands and constants stand at their extremes, for every operator.

`python -m tests.hostile.attributes 5000` tries as many models: each is loaded, and compiled and run if it is
accepted, in a process with limits. Every crash, hang and untyped error is printed. A seed is a model.
"""

# mypy: disable-error-code="var-annotated"

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper
from tests.support.children import Silent, lines_of

import tilewright as tw
from tilewright.errors import InternalError, TilewrightError

OLDEST_OPSET = 13
# Of one model, loaded, compiled and run: CPU time, time on the wall, and memory of the process.
MAX_CPU_S, MAX_WALL_S, MAX_BYTES = 15.0, 300.0, 8 << 30
# Models that one process tries: generated code stays mapped, and address space is limited.
MAX_BATCH = 1000
INTS = (
    *(-(2**63), -(2**31), -7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 9, 17, 1024, 2**16, 10**6),
    *(2**30, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    1e-9,
    1e9,
    1e30,
    3.4e38,
    float("inf"),
    -float("inf"),
    float("nan"),
)
LENGTHS = (0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 9)
LONG = 20_000
EXTENTS = (0, 1, 1, 2, 2, 3, 4, 5, 7)
WORDS = (
    *("", "x", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "constant", "reflect", "edge", "wrap", "none"),
    *("sum", "mean", "max", "min", "mul", "add", "avg", "linear", "cubic", "nearest", "bilinear", "bicubic"),
    *(
        "forward",
        "reverse",
        "bidirectional",
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
    ),
    *(
        "tf_crop_and_resize",
        "tf_half_pixel_for_nn",
        "round_prefer_floor",
        "ceil",
        "floor",
        "not_larger",
        "DCR",
    ),
    *("CRD", "tanh", "none", "output_half_pixel", "stretch", "\0", "\x1b[31m", "a" * 5000),
)
EQUATIONS = (
    *(
        "",
        "->",
        ",",
        "...",
        "i",
        "i->",
        "->i",
        "ij,jk->ik",
        "ii->i",
        "ii",
        "...i->i...",
        "i...i->",
        "i,i,i->i",
    ),
    *(
        "ij->ji",
        "ij->ijk",
        "i j , j k -> i k",
        "...,...->...",
        "a->b",
        "ij,jk",
        "I,i->Ii",
        "1->1",
        "ij->->ji",
    ),
    *("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ->a", "a," * 60 + "a->a", "....i", "..i", "é->é"),
    *("ab,cd,ef,gh,ij,kl,mn,op,qr,st,uv,wx,yz->a", "a,b,c,d,e,f,g,h->abcdefgh", "i" * 10_000, "...ij,...jk"),
)
# What lists the supported element types, cheapest first.
TYPES = (
    *(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8),
    *(TensorProto.INT8, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.STRING),
)
# A prime: neighbouring seeds are different operators, and all are met in turn.
_STRIDE = 7919
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Seed:
    """A node of the suite with the arrays that it is tested on, the origin of mutations."""

    node: NodeProto
    opset: int
    inputs: tuple[tuple[str, int, Array | None], ...]  # name, element type, data where they are a tensor


@functools.cache
def schemas() -> tuple[tuple[str, int], ...]:
    """Name and opset of every version of every operator of ai.onnx that opsets 13 and up use."""
    found: set[tuple[str, int]] = set()
    for opset in range(OLDEST_OPSET, defs.onnx_opset_version() + 1):
        for name in sorted({s.name for s in defs.get_all_schemas() if s.domain == ""}):
            try:
                schema = defs.get_schema(name, opset, "")
            except defs.SchemaError:
                continue
            if not schema.deprecated:
                found.add((name, max(schema.since_version, OLDEST_OPSET)))
    return tuple(sorted(found))


@functools.cache
def suite() -> tuple[Seed, ...]:
    """The nodes of ONNX's own suite: valid, so that one change reaches deep. Takes seconds to collect."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    seeds = []
    for case in sorted(cases, key=lambda case: case.name):
        graph = case.model.graph
        if len(graph.node) != 1 or not case.data_sets:
            continue
        arrays = [np.asarray(a) if isinstance(a, np.ndarray) else None for a in case.data_sets[0][0]]
        inputs = tuple(
            (value.name, value.type.tensor_type.elem_type, array)
            for value, array in zip(graph.input, arrays, strict=True)
        )
        if any(array is None or not kind or array.size > 10_000 for _, kind, array in inputs):
            continue
        versions = [e.version for e in case.model.opset_import if e.domain in ("", "ai.onnx")]
        if versions and graph.node[0].domain in ("", "ai.onnx"):
            seeds.append(Seed(graph.node[0], max(versions[0], OLDEST_OPSET), inputs))
    return tuple(seeds)


def model_of(seed: int, *, use_suite: bool = True) -> ModelProto:
    """The model of a seed; `use_suite` lets two of three start from a node of ONNX's suite."""
    rng = random.Random(seed)
    if use_suite and seed % 3:
        nodes = suite()
        return _from_suite(nodes[(seed // 3 * 2 + seed % 3 - 1) * _STRIDE % len(nodes)], rng)
    known = schemas()
    name, opset = known[(seed // 3 if use_suite else seed) * _STRIDE % len(known)]
    return _from_schema(name, opset, rng)


def feed_of(model: ModelProto) -> dict[str, Array]:
    """Small numbers for every input of a model whose shapes are all known."""
    rng = np.random.default_rng(0)
    feed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.elem_type == TensorProto.STRING:
            feed[value.name] = np.full(shape, "text", dtype=object)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feed[value.name] = rng.integers(0, 3, shape).astype(dtype)
    return feed


def _from_schema(name: str, opset: int, rng: random.Random) -> ModelProto:
    schema = defs.get_schema(name, opset, "")
    rank, chosen = rng.randrange(7), {}
    inputs: list[tuple[str, int, Array | None]] = []
    shape = [rng.choice(EXTENTS) for _ in range(rank)]
    for index, formal in enumerate(schema.inputs):
        repeats = rng.randint(0, 4) if formal.option == defs.OpSchema.FormalParameterOption.Variadic else 1
        optional = formal.option == defs.OpSchema.FormalParameterOption.Optional
        for number in range(repeats):
            if optional and rng.random() < 0.5:
                inputs.append(("", 0, None))
                continue
            allowed = [t for t in TYPES if f"tensor({TensorProto.DataType.Name(t).lower()})" in formal.types]
            default = rng.choice(allowed or [TensorProto.FLOAT])
            kind = chosen.setdefault(formal.type_str, default) if formal.is_homogeneous else default
            if rng.random() < 0.3:
                dims = [rng.choice(EXTENTS) for _ in range(rng.randrange(7))]
            elif kind == TensorProto.INT64 and index and rng.random() < 0.7:
                dims = [rng.choice((0, 1, rank, rank, 2 * rank))]
            else:
                dims = shape
            inputs.append((f"x{index}_{number}", kind, _array(kind, dims, rng)))
    node = helper.make_node(name, [n for n, _, _ in inputs], [], name="probe")
    outputs = max(schema.min_output, 1) if rng.random() < 0.8 else min(schema.max_output, 5)
    node.output.extend(f"y{i}" for i in range(outputs))
    for attribute in schema.attributes.values():
        if attribute.required or rng.random() < 0.4:
            value = _extreme(name, attribute.name, attribute.type, rng, None)
            if value is not None:
                node.attribute.append(value)
    return _model(node, opset, [i for i in inputs if i[0]], rng, constants=0.4)


def _from_suite(seed: Seed, rng: random.Random) -> ModelProto:
    node = NodeProto()
    node.CopyFrom(seed.node)
    inputs = list(seed.inputs)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match rng.randrange(6):
            case 0 | 1 | 2:
                _change_attribute(node, seed.opset, rng)
            case 3 if inputs:
                at = rng.randrange(len(inputs))
                name, kind, array = inputs[at]
                shape = list(array.shape) if array is not None else []
                if shape and rng.random() < 0.6:
                    shape[rng.randrange(len(shape))] = rng.choice(EXTENTS)
                else:
                    shape = [rng.choice(EXTENTS) for _ in range(rng.randrange(7))]
                inputs[at] = (name, kind, _array(kind, shape, rng))
            case 4 if inputs:
                at = rng.randrange(len(inputs))
                name, kind, array = inputs[at]
                if array is not None and array.size and array.dtype.kind in "iuf":
                    array = array.copy()
                    value = rng.choice(FLOATS if array.dtype.kind == "f" else INTS)
                    with np.errstate(all="ignore"):
                        array.reshape(-1)[rng.randrange(array.size)] = np.asarray(value).astype(array.dtype)
                    inputs[at] = (name, kind, array)
            case _ if len(node.input) > 1:
                at = rng.randrange(1, len(node.input))
                inputs = [i for i in inputs if i[0] != node.input[at]]
                node.input[at] = ""
    opset = rng.randint(seed.opset, defs.onnx_opset_version()) if rng.random() < 0.2 else seed.opset
    return _model(node, opset, inputs, rng, constants=0.5)


def _change_attribute(node: NodeProto, opset: int, rng: random.Random) -> None:
    try:
        known = defs.get_schema(node.op_type, opset, "").attributes
    except defs.SchemaError:
        return
    if not known:
        return
    name = rng.choice(sorted(known))
    given = {a.name: a for a in node.attribute}
    changed = _extreme(node.op_type, name, known[name].type, rng, given.get(name))
    if name in given:
        node.attribute.remove(given[name])
    if changed is not None and rng.random() < 0.95:
        node.attribute.append(changed)


def _extreme(
    op_type: str, name: str, kind: Any, rng: random.Random, given: AttributeProto | None
) -> AttributeProto | None:
    kinds = defs.OpSchema.AttrType
    match kind:
        case kinds.INT:
            return helper.make_attribute(name, rng.choice(INTS))
        case kinds.FLOAT:
            return helper.make_attribute(name, rng.choice(FLOATS))
        case kinds.STRING:
            return helper.make_attribute(name, rng.choice(EQUATIONS if name == "equation" else WORDS))
        case kinds.INTS:
            return _ints(name, list(given.ints) if given is not None else [], rng)
        case kinds.FLOATS:
            floats = [rng.choice(FLOATS) for _ in range(_length(rng))]
            return helper.make_attribute(name, floats, attr_type=AttributeProto.FLOATS)
        case kinds.STRINGS:
            words = [rng.choice(WORDS) for _ in range(_length(rng))]
            return helper.make_attribute(name, words, attr_type=AttributeProto.STRINGS)
        case kinds.TENSOR:
            kind_of_tensor = rng.choice(TYPES[:-1])
            shape = [rng.choice(EXTENTS) for _ in range(rng.randrange(4))]
            return helper.make_attribute(name, numpy_helper.from_array(_array(kind_of_tensor, shape, rng)))
        case kinds.GRAPH:
            return helper.make_attribute(name, _body(rng))
    return None


def _length(rng: random.Random) -> int:
    return LONG if rng.random() < 0.02 else rng.choice(LENGTHS)


def _ints(name: str, given: list[int], rng: random.Random) -> AttributeProto:
    """One element changed, one more, one fewer, or all anew."""
    values = list(given)
    match rng.randrange(4):
        case 0 if values:
            values[rng.randrange(len(values))] = rng.choice(INTS)
        case 1:
            values.append(rng.choice(INTS))
        case 2 if values:
            values.pop()
        case _:
            small = rng.random() < 0.5
            values = [rng.choice((0, 1, 2, 3)) if small else rng.choice(INTS) for _ in range(_length(rng))]
    return helper.make_attribute(name, values, attr_type=AttributeProto.INTS)


def _array(kind: int, shape: Sequence[int], rng: random.Random) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    if kind == TensorProto.STRING:
        return np.full(shape, "text", dtype=object)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    choices: Sequence[float] = (0, 1, 2, 3)
    if rng.random() < 0.4:
        choices = FLOATS if dtype.kind == "f" else INTS
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype.kind in "iu":
            values = [rng.choice(choices) % 2**64 for _ in range(count)]
            return np.array(values, dtype=np.uint64).astype(dtype).reshape(shape)
        return (
            np.array([rng.choice(choices) for _ in range(count)], dtype=np.float64)
            .astype(dtype)
            .reshape(shape)
        )


def _body(rng: random.Random) -> GraphProto:
    """A small body: right for some loops, wrong for most."""
    count, results = rng.randrange(4), rng.randrange(4)
    info = helper.make_tensor_value_info
    kinds = [rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL)) for _ in range(count)]
    shapes = [[rng.choice(EXTENTS) for _ in range(rng.randrange(3))] for _ in range(count)]
    inputs = [info(f"b{i}", kinds[i], shapes[i]) for i in range(count)]
    nodes, outputs = [], []
    for i in range(results):
        if count and rng.random() < 0.7:
            source = rng.randrange(count)
            nodes.append(helper.make_node("Identity", [f"b{source}"], [f"r{i}"]))
            outputs.append(info(f"r{i}", kinds[source], None))
        else:
            value = numpy_helper.from_array(np.array(rng.choice((True, False, 1.0, 2))))
            nodes.append(helper.make_node("Constant", [], [f"r{i}"], value=value))
            outputs.append(info(f"r{i}", value.data_type, None))
    return helper.make_graph(nodes, "body", inputs, outputs)


def _model(
    node: NodeProto,
    opset: int,
    inputs: Sequence[tuple[str, int, Array | None]],
    rng: random.Random,
    constants: float,
) -> ModelProto:
    """A model around a node; each operand is a constant with the given probability."""
    infos, tensors = [], []
    everything = rng.random() < constants / 2
    for name, kind, array in inputs:
        if array is None:
            continue
        small_ints = array.dtype.kind in "iu" and array.size < 64
        if everything or rng.random() < (0.8 if small_ints else constants / 3):
            if array.dtype == object or array.dtype.kind in "SU":
                strings = [str(item) for item in array.reshape(-1)]
                tensors.append(helper.make_tensor(name, TensorProto.STRING, array.shape, strings))
            else:
                tensor = numpy_helper.from_array(array, name)
                tensors.append(tensor)
        else:
            infos.append(helper.make_tensor_value_info(name, kind, array.shape))
    graph = GraphProto(name="probe")
    graph.node.append(node)
    graph.input.extend(infos)
    graph.initializer.extend(tensors)
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in node.output if name)
    model = ModelProto(ir_version=10)
    model.graph.CopyFrom(graph)
    model.opset_import.append(helper.make_opsetid("", opset))
    return model


def try_model(seed: int, *, use_suite: bool = True) -> tuple[str, str]:
    """How a model ended: `ran`, the name of a typed error, or `untyped`, and the message."""
    model = model_of(seed, use_suite=use_suite)
    try:
        loaded = tw.load(model)
        done = tw.compile(loaded, no_cache=True, threads=1, max_memory_bytes=256 << 20, effort=0)
        with done:
            done.run(None, feed_of(model))
    except InternalError as error:
        return "InternalError", str(error)
    except TilewrightError as error:
        message = str(error)
        return (
            ("untyped", f"not one line: {message!r}") if "\n" in message else (type(error).__name__, message)
        )
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "untyped", f"{type(error).__name__} {Path(where.filename).name}:{where.lineno} {error}"
    return "ran", ""


def try_batch(seeds: Iterable[int], *, use_suite: bool = True) -> None:
    """Try models here, telling each on standard output before and after."""
    limit = (MAX_BYTES, MAX_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, limit)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    if use_suite:
        suite()
    for seed in seeds:
        print(json.dumps({"trying": seed}), flush=True)
        before_s = time.process_time()
        outcome, message = try_model(seed, use_suite=use_suite)
        spent_s = time.process_time() - before_s
        if spent_s > MAX_CPU_S:
            outcome, message = "slow", f"{spent_s:.0f} s {outcome} {message}"
        print(json.dumps({"seed": seed, "outcome": outcome, "message": message[:400]}), flush=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the model of a seed ended."""

    seed: int
    outcome: str  # that of `try_model`, or crash, hang or slow
    message: str

    @property
    def is_finding(self) -> bool:
        """Whether it ended as no model may."""
        return self.outcome in ("crash", "hang", "slow", "untyped", "InternalError")


def outcomes(seeds: range, *, use_suite: bool = True) -> Iterator[Outcome]:
    """Try models in a process of their own; a crash or hang takes one model, not the rest."""
    rest = list(seeds)
    while rest:
        batch = rest[:MAX_BATCH]
        given = [str(batch[0]), str(batch[-1] + 1), *([] if use_suite else ["--no-suite"])]
        command = [sys.executable, "-W", "ignore", "-m", "tests.hostile.attributes", "--child", *given]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            trying, ended = rest[0], False
            try:
                for line in lines_of(child, MAX_WALL_S):
                    told = json.loads(line)
                    if "trying" in told:
                        trying = told["trying"]
                    else:
                        yield Outcome(told["seed"], told["outcome"], told["message"])
                ended = child.wait() == 0
                if not ended:
                    yield Outcome(trying, "crash", f"status {child.returncode}")
            except Silent:
                yield Outcome(trying, "hang", f"no answer for {MAX_WALL_S:g} s")
        rest = [seed for seed in rest if seed > (batch[-1] if ended else trying)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--first", type=int, default=0, help="seed to start with")
    parser.add_argument("--no-suite", action="store_true", help="no nodes of ONNX's suite: starts sooner")
    parser.add_argument("--child", type=int, nargs=2, default=None, help="try these seeds here")
    options = parser.parse_args()
    if options.child is not None:
        try_batch(range(*options.child), use_suite=not options.no_suite)
        return 0
    counts: Counter[str] = Counter()
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.count)
    for found in outcomes(seeds, use_suite=not options.no_suite):
        counts[found.outcome] += 1
        if found.is_finding:
            node = model_of(found.seed, use_suite=not options.no_suite).graph.node[0]
            print(f"{found.seed} {node.op_type}: {found.outcome}: {found.message}", flush=True)
    print(
        f"{sum(counts.values())} models in {time.monotonic() - began_s:.0f} s: {dict(counts.most_common())}"
    )
    return int(any(Outcome(0, outcome, "").is_finding for outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
