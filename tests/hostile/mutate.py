"""Loads mutated models in this process and reports every untyped exception and every slow load, as JSON.

`python tests/hostile/mutate.py SEED COUNT`. A process of its own, so that a crash of a parser is a finding
and not the end of the tests. Mutations: flipped bits, cut ends, copied and
deleted stretches; fields changed, removed or repeated in models that stay messages.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from onnx import ModelProto
from onnx.parser import parse_model

from tilewright.errors import InternalError, TilewrightError
from tilewright.frontend.onnx import load_onnx

SEEDS = (
    """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3,8,8] x, float[4,3,3,3] w) => (float[2,4] y) {
        c = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w) r = Relu(c)
        p = GlobalAveragePool(r) s = Shape(p) a = Constant<value_ints = [0, 1]>()
        t = Gather(s, a) y = Reshape(p, t)
    }""",
    """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[4] x, bool c) => (float[4] y) {
        h = local.twice(x)
        y = If(c) <then_branch = t () => (float[4] r) { r = Exp(h) },
                   else_branch = e () => (float[4] q) { q = Softmax<axis = 0>(h) }>
    }
    <domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }""",
    """<ir_version: 8, opset_import: ["": 11]>
    g (float[1,2,4,4] x) => (float[1,8,8] y)
    <float[4] s = {1.0, 1.0, 2.0, 2.0}, float[8] r = {0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0}> {
        u = Resize<mode = "nearest">(x, r, s) y = ReduceMean<axes = [1], keepdims = 0>(u)
    }""",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four small changes."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result))
        match rng.randrange(5):
            case 0:
                result[at] ^= 1 << rng.randrange(8)
            case 1:
                result[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del result[at : at + rng.randint(1, 8)]
            case 3:
                result[at:at] = result[at : at + rng.randint(1, 16)]
            case _:
                del result[max(at, 1) :]
        result = result or bytearray(b"\0")
    return bytes(result)


def restructured(data: bytes, rng: random.Random) -> bytes:
    """One to three fields, anywhere in the message tree, changed, removed or repeated: it stays a message."""
    model = ModelProto.FromString(data)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(model))
        if not places:
            break
        message, field = rng.choice(places)
        name = field.name
        value = getattr(message, name)
        match rng.randrange(3):
            case 0:
                message.ClearField(name)
            case 1 if isinstance(value, int):
                numbers = (0, 1, 2, 3, 7, 10, 16, 99, -1, 2**31 - 1)
                values = field.enum_type.values_by_number if field.type == field.TYPE_ENUM else numbers
                setattr(message, name, rng.choice(list(values)))
            case 1 if isinstance(value, str):
                setattr(message, name, rng.choice(("", "x", "y", "h", "Add", "Loop", "If", "\n", "local")))
            case 1 if isinstance(value, bytes):
                setattr(message, name, rng.randbytes(rng.randint(0, 16)))
            case _ if hasattr(value, "extend") and len(value):
                items = list(value)
                items.insert(rng.randrange(len(items)), rng.choice(items))
                if rng.random() < 0.5:
                    items.pop(rng.randrange(len(items)))
                # Copies first: clearing the field empties the messages it held.
                items = [copy.deepcopy(item) for item in items]
                message.ClearField(name)
                getattr(message, name).extend(items)
    return bytes(model.SerializeToString())


def _places(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every set field of every message below."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for inner in value if hasattr(value, "extend") else (value,):
                yield from _places(inner)


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    originals = []
    for text in SEEDS:
        original = parse_model(text)
        load_onnx(original)  # Only a model that is accepted can tell which change makes it refused.
        originals.append(original.SerializeToString())
    counts: dict[str, int] = {}
    findings = []
    slowest_s = 0.0
    for index in range(int(sys.argv[2])):
        change = mutated if index % 4 == 0 else restructured
        data = change(rng.choice(originals), rng)
        print(json.dumps({"trying": index, "bytes": data.hex()}), flush=True)
        start = time.perf_counter()
        try:
            load_onnx(data)
            outcome = "accepted"
        except InternalError as error:
            outcome = "InternalError"
            findings.append(f"{error}: {data.hex()}")
        except TilewrightError as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = "untyped"
            findings.append(f"{type(error).__name__}: {error}: {data.hex()}")
        slowest_s = max(slowest_s, time.perf_counter() - start)
        counts[outcome] = counts.get(outcome, 0) + 1
    print(json.dumps({"counts": counts, "findings": findings, "slowest_s": slowest_s}))


if __name__ == "__main__":
    main()
