"""How artifacts are forged: every field of every document, the container, the tensors, the graph's text.

Every digest is right again after a change, so that what is refused is refused for what it says.

Code is trusted where only its tables were changed; a table that is consistent and wrong is then believed,
as `--trust` says, so addresses in range are left alone there.
"""

# mypy: disable-error-code="assignment, attr-defined"

from __future__ import annotations

import copy
import io
import json
import random
import re
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model
from tests.support.artifacts import Parts
from tests.support.models import host_net, mixed_outputs, small_net

import tilewright as tw

MAKERS = (small_net, host_net, mixed_outputs)
TARGETS = ("cpu", "interpreter", "stcp920")
DOCUMENTS = ("plan.json", "facts.json", "machine.json", "manifest.json")
"""Ends of the names of members that are JSON."""
_RAW = "\0raw:"  # marks a text that goes into the document as it stands

DEEP = "[" * 200_000 + "]" * 200_000
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308),
    *(
        "",
        "x",
        "\0",
        "../../etc/passwd",
        "\x1b[2J",
        "\u202e",
        "a" * 5000,
        "null",
        "float32",
        "%s%n",
        "\ud800",
    ),
    *([], {}, [None], [[]], {"": None}, [0] * 3, {"name": "x"}),
    *(f"{_RAW}{text}" for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "9" * 4000, DEEP)),
)


@dataclass(frozen=True, slots=True)
class Forged:
    """One artifact: what was done to it, and whether its code is trusted."""

    what: str
    trust: bool
    write: Callable[[Path], None]


# Fields of documents.


def places(document: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields, containers first."""
    yield prefix
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*prefix, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*prefix, number))


def shape_of(place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A path with positions forgotten: fields that are treated alike."""
    return tuple("*" if isinstance(step, int) or len(str(step)) > 40 else step for step in place)


def changed(document: Any, place: tuple[Any, ...], rng: random.Random) -> tuple[Any, str]:
    """The document with one field changed, and what was done."""
    document = copy.deepcopy(document)
    if not place:
        value = rng.choice(VALUES)
        return value, f"root becomes {value!r}"
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    last = place[-1]
    match rng.randrange(10):
        case 0:
            del holder[last]
            return document, "removed"
        case 1 if isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
            return document, "repeated"
        case 1:
            holder[f"{last}\0twice"] = copy.deepcopy(holder[last])
            return document, "key twice"
        case 2 if isinstance(holder[last], list):
            rng.shuffle(holder[last])
            return document, "shuffled"
        case 2:
            holder[last] = [holder[last]]
            return document, "in a list"
        case 3:
            holder[last] = {"value": holder[last]}
            return document, "in an object"
        case 4:
            holder[last] = str(holder[last])
            return document, "as text"
        case 5 if isinstance(holder[last], int) and not isinstance(holder[last], bool):
            holder[last] += rng.choice((-1, 1, 64, -64))
            return document, "a little more or less"
    holder[last] = rng.choice(VALUES)
    return document, f"becomes {str(holder[last])[:40]!r}"


def document_text(document: Any) -> bytes:
    """JSON with what Python's writer would not write: raw texts, keys given twice."""
    text = json.dumps(document, sort_keys=True)
    text = re.sub(r'"\\u0000raw:([^"]*)"', lambda found: found.group(1), text)
    return text.replace("\\u0000twice", "").encode()


def field_forgeries(parts: Parts, rng: random.Random) -> Iterator[Forged]:
    """For ever: each kind of field of each document in turn."""
    tables: list[tuple[str, Any]] = [("manifest.json", parts.manifest)]
    for name in sorted(parts.members):
        if name.endswith(DOCUMENTS):
            tables.append((name, json.loads(parts.members[name])))
    weights = parts.members["weights.safetensors"]
    size = int.from_bytes(weights[:8], "little")
    tables.append(("weights.safetensors", json.loads(weights[8 : 8 + size])))
    kinds: dict[tuple[str, tuple[Any, ...]], list[tuple[Any, ...]]] = {}
    for name, document in tables:
        for place in places(document):
            kinds.setdefault((name, shape_of(place)), []).append(place)
    by_name = dict(tables)
    while True:
        order = list(kinds)
        rng.shuffle(order)
        for name, shape in order:
            place = rng.choice(kinds[name, shape])
            document, what = changed(by_name[name], place, rng)
            trust = name.endswith("facts.json")
            if trust and _is_believed(by_name[name], document, place):
                continue
            yield Forged(f"{name} {place}: {what}", trust, _with_document(parts, name, document))


def _is_believed(before: Any, after: Any, place: tuple[Any, ...]) -> bool:
    """Whether a change of trusted tables may say something else that is consistent."""
    words = ("arg_table", "host_steps", "segments", "arena_bytes", "scratch_bytes", "num_bases", "num_steps")
    of_addresses = any(
        step in words or step in ("objects", "passthrough", "profile", "constants", "runtime")
        for step in place
    )
    return of_addresses and _types(before) == _types(after)


def _types(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: _types(v) for k, v in document.items()}
    if isinstance(document, list):
        return sorted({str(_types(v)) for v in document})
    return type(document).__name__


def _with_document(parts: Parts, name: str, document: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        text = document_text(document)
        if name == "manifest.json":
            write_with_manifest(parts, text, path)
            return
        made = parts.copy()
        if name == "weights.safetensors":
            size = int.from_bytes(made.members[name][:8], "little")
            made.members[name] = len(text).to_bytes(8, "little") + text + made.members[name][8 + size :]
        else:
            made.members[name] = text
        made.write(path)

    return write


def write_with_manifest(parts: Parts, text: bytes, path: Path) -> None:
    """An artifact whose manifest is this text, with the true list of members put in where it is an object."""
    from tilewright.artifact import container

    class Text(str):
        def encode(self, *_: Any) -> bytes:  # type: ignore[override]
            return str.encode(self, "utf-8")

    def dumps(document: dict[str, Any], **_: Any) -> str:
        members = json.dumps(document["members"])
        if text[:1] == b"{" and b'"members"' not in text:
            comma = ", " if text != b"{}" else ""
            return Text(f'{text[:-1].decode()}{comma}"members": {members}}}')
        return Text(text.decode())

    class Json:
        def __getattr__(self, name: str) -> Any:
            return dumps if name == "dumps" else getattr(json, name)

    original = container.json
    container.json = Json()  # type: ignore[attr-defined]
    try:
        parts.write(path)
    finally:
        container.json = original  # type: ignore[attr-defined]


# The container.


def container_forgeries(raw: bytes, parts: Parts, rng: random.Random) -> Iterator[Forged]:
    """For ever: bytes of the file, and what other archives can do."""
    while True:
        for name, attack in ATTACKS.items():
            seed = rng.randrange(1 << 30)

            def write(path: Path, attack: Any = attack, seed: int = seed) -> None:
                path.write_bytes(attack(raw, parts, random.Random(seed)))

            yield Forged(f"container: {name} {seed}", False, write)


def _cut(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def _grown(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    return raw + rng.randbytes(rng.randrange(1, 5000))


def _flipped(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]


def _headers(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    """A number of a header becomes another: flags (encrypted), method, sizes, offsets, checksums."""
    data = bytearray(raw)
    starts = [m.start() for m in re.finditer(rb"PK[\1\3\5\6][\2\4\6\7]", raw)]
    at = rng.choice(starts) + rng.randrange(4, 46)
    value = rng.choice((b"\0\0", b"\1\0", b"\x08\0", b"\xff\xff", struct.pack("<H", rng.randrange(1 << 16))))
    data[at : at + 2] = value
    return bytes(data)


def _zipped(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    """The same members as another writer would lay them out, with what such archives are attacked by."""
    buffer = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    members = {"manifest.json": json.dumps(parts.manifest).encode(), **parts.members}
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            match rng.randrange(6):
                case 0:
                    info.filename = rng.choice(("/etc/passwd", "../../up", "a\\b", f"{name}/..", "C:\\x"))
                case 1:
                    info.external_attr = (stat.S_IFLNK | 0o777) << 16
                    data = b"/etc/passwd"
                case 2:
                    data = bytes(rng.choice((1 << 20, 1 << 24)))  # deflated, a thousandth of it
            archive.writestr(info, data, method)
    return buffer.getvalue()


def _spliced(raw: bytes, parts: Parts, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(raw)), rng.randrange(1, 4096)
    source = rng.randrange(len(raw))
    return raw[:at] + raw[source : source + size] + raw[at + rng.choice((0, size)) :]


ATTACKS = {
    "cut": _cut,
    "grown": _grown,
    "flipped": _flipped,
    "headers": _headers,
    "zipped": _zipped,
    "spliced": _spliced,
}


# Members: tensors' bytes, the graph's text, members gone, added and exchanged.

_WORDS = {
    "type": re.compile(r"\b(?:float(?:16|32|64)|bfloat16|u?int(?:8|16|32|64)|bool|string)\b"),
    "number": re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?"),
    "operator": re.compile(r"(?<== )[A-Z]\w+(?=\()"),
    "operand": re.compile(r"%\w+"),
}
_OPERATORS = (
    *(
        "Relu",
        "Neg",
        "Conv",
        "MaxPool",
        "Gemm",
        "MatMul",
        "Reshape",
        "Transpose",
        "Concat",
        "Split",
        "Gather",
    ),
    *(
        "Softmax",
        "ReduceSum",
        "Expand",
        "Tile",
        "Where",
        "Cast",
        "TopK",
        "Loop",
        "If",
        "Pad",
        "Resize",
        "Slice",
    ),
    *("LSTM", "ScatterND", "OneHot", "Identity", "Shape", "ConstantOfShape", "Range", "Nonsense"),
)
_NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "64",
    "9999",
    "100000000",
    str(2**31),
    str(2**62),
    str(2**64),
    "0.5",
)


def member_forgeries(parts: Parts, rng: random.Random) -> Iterator[Forged]:
    """For ever: changes of what members hold."""
    while True:
        made, what = parts.copy(), ""
        match rng.randrange(8):
            case 0:
                name = rng.choice(sorted(made.members))
                del made.members[name]
                what = f"{name} is gone"
            case 1:
                one, other = rng.sample(sorted(made.members), 2)
                made.members[one], made.members[other] = made.members[other], made.members[one]
                what = f"{one} and {other} exchanged"
            case 2:
                data = bytearray(made.members["weights.safetensors"])
                start = 8 + int.from_bytes(data[:8], "little")
                for _ in range(rng.randint(1, 8)):
                    if start < len(data):
                        data[rng.randrange(start, len(data))] = rng.choice((0, 1, 2, 127, 128, 255))
                made.members["weights.safetensors"] = bytes(data)
                what = "other bytes of tensors"
            case _:
                name = rng.choice([name for name in sorted(made.members) if name.endswith("graph.txt")])
                made.members[name], what = changed_graph(made.members[name].decode(), rng)
        yield Forged(f"members: {what}", False, made.write)


def changed_graph(text: str, rng: random.Random) -> tuple[bytes, str]:
    """The text of a graph with one or two words exchanged, or a line gone or repeated."""
    said: list[str] = []
    for _ in range(rng.randint(1, 2)):
        kind = rng.choice((*_WORDS, "number", "number", "line"))
        if kind == "line":
            lines = text.splitlines(keepends=True)
            at = rng.randrange(len(lines))
            said.append(f"line {at}")
            lines[at : at + 1] = rng.choice(([], [lines[at]] * 2))
            text = "".join(lines)
            continue
        found = list(_WORDS[kind].finditer(text))
        if not found:
            continue
        match = rng.choice(found)
        others = {"number": _NUMBERS, "operator": _OPERATORS}.get(kind) or [m.group() for m in found]
        new = rng.choice((*others, "float64")) if kind == "type" else rng.choice(others)
        said.append(f"{match.group()!r} becomes {new!r} at {match.start()}")
        text = text[: match.start()] + new + text[match.end() :]
    return text.encode(), f"graph: {', '.join(said)}"


def forgeries(folder: Path, seed: int) -> Iterator[Forged]:
    """For ever: of all kinds, of several models and all sorts of targets."""
    rng = random.Random(seed)
    paths = [
        tw.compile(maker(), target, threads=1).save(folder / f"{maker.__name__}_{target}.tw")
        for maker in MAKERS
        for target in TARGETS
    ]
    for target in TARGETS:
        of_shapes = tw.compile(open_net(), target, shapes="x:2..3x8", threads=1)
        paths.append(of_shapes.save(folder / f"shapes_{target}.tw"))
    sources: list[Iterator[Forged]] = []
    for path in paths:
        parts = Parts.of(path)
        sources.append(field_forgeries(parts, rng))
        sources.append(field_forgeries(parts, rng))
        sources.append(container_forgeries(path.read_bytes(), parts, rng))
        sources.append(member_forgeries(parts, rng))
    while True:
        rng.shuffle(sources)
        for source in sources:
            yield next(source)


def open_net() -> ModelProto:
    """A model with an open batch."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[batch,8] x) => (float[batch,8] y) {
        h = MatMul(x, w)
        r = Relu(h)
        y = Softmax<axis = 1>(r)
    }"""
    model = parse_model(text)
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model
