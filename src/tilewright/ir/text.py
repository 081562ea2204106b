"""Graphs as text, for people and for `--dump-after`; `parse_graph` reads back what `print_graph` writes.

    graph "mlp" opset 17 {
      input %x: float32[1, 4]
      const %w: float32[4, 2] = sha256:9f86d081884c7d65...
      const %b: float32[2] = [0.5, -1.0]
      %h: float32[1, 2] = Gemm(%x, %w, %b) {transB = 0}
      %y: float32[1, 2] = Relu(%h) "act"
      return %y
    }

A node shows its name only where it differs from its first result's. Constants of more than
`MAX_INLINE_ELEMENTS` elements, and long bodies, are named by the SHA-256 of their bytes unless `weights`
is set, which writes them as base64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, SubgraphAttribute, Value
from tilewright.records import dataclass
from tilewright.text.printable import json_text

MAX_INLINE_ELEMENTS = 16

_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*\Z")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<blob>(?:sha256|base64):[A-Za-z0-9+/=]*)
      | (?P<name>%[A-Za-z_][A-Za-z0-9_.$]*)
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?))
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>[%{}()\[\]=:,@])
    )""",
    re.VERBOSE,
)


def constant_digest(data: Array) -> str:
    """SHA-256 (hex) of a constant's little-endian bytes; strings count as their JSON list."""
    return hashlib.sha256(_bytes_of(data)).hexdigest()


class ConstantDigests:
    """Digests of constants that do not change meanwhile, each made once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Array, str]] = {}  # the array, so that its number stays its own

    def __call__(self, data: Array) -> str:
        """See `constant_digest`."""
        if id(data) not in self._known:
            self._known[id(data)] = data, constant_digest(data)
        return self._known[id(data)][1]


Digest = Callable[[Array], str]


def constants_of(graph: Graph, digest: Digest = constant_digest) -> dict[str, Array | bytes]:
    """What digests in the graph's text stand for: constants, tensor attributes and bodies."""
    values = (value.data for value in graph.values() if value.data is not None)
    return {**{digest(data): data for data in values}, **attribute_constants(graph)}


def attribute_constants(graph: Graph) -> dict[str, Array | bytes]:
    """Those of them that attributes of nodes hold."""
    found: dict[str, Array | bytes] = {}
    for node in graph.nodes:
        for attribute in node.attributes.values():
            if isinstance(attribute, np.ndarray):
                found[constant_digest(attribute)] = attribute
            elif isinstance(attribute, SubgraphAttribute):
                found[hashlib.sha256(attribute.serialized).hexdigest()] = attribute.serialized
    return found


def print_graph(graph: Graph, *, weights: bool = False, digest: Digest = constant_digest) -> str:
    """The graph as text; with `weights`, text that holds everything.

    >>> graph = Graph("g")
    >>> x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    >>> y = graph.value("y", DType.FLOAT32, (2,))
    >>> node = graph.append(Node("Relu", [x], [y], opset=17))
    >>> graph.outputs.append(y)
    >>> print(print_graph(graph), end="")
    graph "g" opset 17 {
      input %x: float32[2]
      %y: float32[2] = Relu(%x)
      return %y
    }
    """
    opsets = Counter(node.opset for node in graph.nodes)
    opset = max(opsets, key=lambda version: (opsets[version], version), default=21)
    lines = [f"graph {_quoted(graph.name)} opset {opset} {{"]
    for value in graph.inputs:
        data = "" if value.data is None else f" = {_constant_text(value.data, weights, digest)}"
        lines.append(f"  input {_typed(value)}{data}")
    inputs = set(graph.inputs)
    for value in graph.initializers:
        if value not in inputs and value.data is not None:
            lines.append(f"  const {_typed(value)} = {_constant_text(value.data, weights, digest)}")
    lines += [f"  {_node_text(node, opset, weights)}" for node in graph.nodes]
    lines.append(f"  return {', '.join(_name(v) for v in graph.outputs)}".rstrip())
    return "\n".join([*lines, "}", ""])


def _node_text(node: Node, opset: int, weights: bool) -> str:
    results = ", ".join("_" if v is None else _typed(v) for v in node.outputs)
    operands = ", ".join("_" if v is None else _name(v) for v in node.inputs)
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    kind = kind if _BARE_NAME.match(kind) else _quoted(kind)
    text = f"{results} = {kind}({operands})"
    if node.attributes:
        pairs = (
            f"{_word(name)} = {_attribute_text(value, weights)}" for name, value in node.attributes.items()
        )
        text += f" {{{', '.join(pairs)}}}"
    if node.captures:
        text += f" captures({', '.join(_name(v) for v in node.captures)})"
    if node.opset != opset:
        text += f" opset {node.opset}"
    default = next((v.name for v in node.outputs if v is not None), node.op_type)
    return text if node.name == default else f"{text} {_quoted(node.name)}"


def _name(value: Value) -> str:
    return f"%{_word(value.name)}"


def _word(name: str) -> str:
    return name if _BARE_NAME.match(name) else _quoted(name)


def _quoted(text: str) -> str:
    return json_text(json.dumps(text))


def _typed(value: Value) -> str:
    return f"{_name(value)}: {_type_text(value.dtype, value.shape)}"


def _type_text(dtype: DType, shape: Sequence[int]) -> str:
    return f"{dtype}{list(shape)}"


def _attribute_text(value: Attribute | SubgraphAttribute, weights: bool) -> str:
    match value:
        case SubgraphAttribute(serialized):
            return f"body {_blob(serialized, weights or len(serialized) <= 64)}"
        case np.ndarray():
            dtype = _type_text(DType.from_numpy(value.dtype), value.shape)
            return f"tensor {dtype} {_constant_text(value, weights)}"
        case bytes():
            return f"bytes {_blob(value, True)}"
        case tuple():
            return f"[{', '.join(_scalar_text(v) for v in value)}]"
        case _:
            return _scalar_text(value)


def _scalar_text(value: int | float | str) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _constant_text(data: Array, weights: bool, digest: Digest = constant_digest) -> str:
    if data.size <= MAX_INLINE_ELEMENTS and _prints_exactly(data):
        return f"[{', '.join(_element_text(x) for x in data.reshape(-1))}]"
    return _blob(_bytes_of(data), True) if weights else f"sha256:{digest(data)}"


def _prints_exactly(data: Array) -> bool:
    """Whether every element has a literal: not complex, and no NaN, whose bits a literal would lose."""
    if data.dtype.kind in "cOiubUS":
        return bool(data.dtype.kind != "c")
    with np.errstate(invalid="ignore"):  # half types are widened to be looked at, where a NaN may signal
        return not bool(np.isnan(data).any())


def _element_text(element: Any) -> str:
    if isinstance(element, str):
        return _quoted(element)
    if isinstance(element, bool | np.bool_):
        return str(bool(element)).lower()
    if isinstance(element, np.integer):
        return str(int(element))
    # The shortest text for the element's own type, unless it does not survive the way through float64.
    short = str(element)
    return short if type(element)(float(short)) == element else repr(float(element))


def _blob(data: bytes | memoryview, inline: bool) -> str:
    if inline:
        return f"base64:{base64.b64encode(data).decode()}"
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _bytes_of(data: Array) -> bytes | memoryview:
    if data.dtype.kind in "OUS":
        return json.dumps([str(x) for x in data.reshape(-1)]).encode()
    little = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).data


def parse_graph(text: str, *, constants: Mapping[str, Array | bytes] | None = None) -> Graph:
    """The graph that `print_graph` wrote.

    `constants` resolves digests (see `constants_of`); text written with `weights` needs none.

    Raises:
        UsageError: the text is no graph, or a digest is not in `constants`; names the line.
    """
    return _Parser(text, constants or {}).graph()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass(slots=True)
class _Parser:
    text: str
    constants: Mapping[str, Array | bytes]
    tokens: list[_Token] = field(default_factory=list)
    position: int = 0
    values: dict[str, Value] = field(default_factory=dict)

    def graph(self) -> Graph:
        self.tokens = _tokens(self.text)
        self._expect("graph")
        graph = Graph(self._string())
        self._expect("opset")
        opset = int(self._take("number").text)
        self._expect("{")
        while not self._accept("return"):
            if self._accept("input"):
                value = graph.add_input(self._typed_value())
                if self._accept("="):
                    value.data = self._constant(value.dtype, value.shape)
            elif self._accept("const"):
                value = self._typed_value()
                self._expect("=")
                value.data = self._constant(value.dtype, value.shape)
            else:
                graph.append(self._node(opset))
        while not self._accept("}"):
            graph.outputs.append(self._operand())
            self._accept(",")
        if self._peek().kind != "end":
            raise self._error("the end of the text")
        return graph

    def _node(self, opset: int) -> Node:
        results: list[Value | None] = []
        while not self._accept("="):
            results.append(None if self._accept("_") else self._typed_value())
            self._accept(",")
        kind = self._word()
        domain, _, op_type = kind.rpartition("::")
        self._expect("(")
        inputs: list[Value | None] = []
        while not self._accept(")"):
            inputs.append(None if self._accept("_") else self._operand())
            self._accept(",")
        attributes: dict[str, Attribute | SubgraphAttribute] = {}
        if self._accept("{"):
            while not self._accept("}"):
                name = self._word()
                self._expect("=")
                attributes[name] = self._attribute()
                self._accept(",")
        captures: list[Value] = []
        if self._accept("captures"):
            self._expect("(")
            while not self._accept(")"):
                captures.append(self._operand())
                self._accept(",")
        if self._accept("opset"):
            opset = int(self._take("number").text)
        name = self._string() if self._peek().kind == "string" else ""
        return Node(
            op_type, inputs, results, attributes, name=name, domain=domain, opset=opset, captures=captures
        )

    def _typed_value(self) -> Value:
        line, name = self._peek().line, self._value_name()
        if name in self.values:
            raise UsageError(f"line {line}: value {name!r} is defined twice; rename one.")
        self._expect(":")
        dtype, shape = self._type()
        self.values[name] = Value(name, dtype, shape)
        return self.values[name]

    def _operand(self) -> Value:
        line, name = self._peek().line, self._value_name()
        if name not in self.values:
            raise UsageError(f"line {line}: value {name!r} is read before it is defined.")
        return self.values[name]

    def _value_name(self) -> str:
        if self._accept("%"):
            return self._string()
        return self._take("name").text[1:]

    def _type(self) -> tuple[DType, tuple[int, ...]]:
        name = self._take("word")
        if name.text.upper() not in DType.__members__:
            raise UsageError(f"line {name.line}: {name.text!r} is no element type; use float32, int64, ...")
        shape = self._list()
        if not all(isinstance(d, int) for d in shape):
            raise self._error("a shape of whole numbers")
        return DType[name.text.upper()], tuple(int(d) for d in shape)

    def _attribute(self) -> Attribute | SubgraphAttribute:
        if self._accept("body"):
            return SubgraphAttribute(self._resolve_bytes())
        if self._accept("bytes"):
            return self._resolve_bytes()
        if self._accept("tensor"):
            return self._constant(*self._type())
        if self._peek().text == "[":
            return tuple(self._list())
        return self._scalar()

    def _list(self) -> list[Any]:
        self._expect("[")
        items: list[Any] = []
        while not self._accept("]"):
            items.append(self._scalar())
            self._accept(",")
        return items

    def _scalar(self) -> int | float | str:
        token = self._peek()
        if token.kind == "string":
            return self._string()
        if token.text in ("true", "false"):
            self.position += 1
            return token.text == "true"
        text = self._take("number").text
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def _constant(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        token = self._peek()
        if token.text == "[":
            items = self._list()
            if len(items) != math.prod(shape):
                raise UsageError(
                    f"line {token.line}: {_type_text(dtype, shape)} needs {math.prod(shape)} elements, "
                    f"{len(items)} are given."
                )
            return np.array(items, dtype=dtype.numpy).reshape(shape)
        if token.text.startswith("sha256:"):
            found = self._resolve()
            if not isinstance(found, np.ndarray):
                raise self._error("the digest of a constant")
            return self._read_as(found, dtype, shape, token.line)
        data = self._resolve_bytes()
        if dtype is DType.STRING:
            return np.array(json.loads(data), dtype=object).reshape(shape)
        if len(data) != math.prod(shape) * dtype.size_bytes:
            raise UsageError(
                f"line {token.line}: {_type_text(dtype, shape)} needs {math.prod(shape) * dtype.size_bytes} "
                f"bytes, {len(data)} are given."
            )
        return np.frombuffer(data, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(shape)

    def _read_as(self, data: Array, dtype: DType, shape: tuple[int, ...], line: int) -> Array:
        """A constant as its own type and shape; its digest is of bytes alone, so that others may share it."""
        if data.dtype == dtype.numpy and data.shape == shape:
            return data
        is_text = dtype is DType.STRING, data.dtype == object
        if any(is_text):
            fits = all(is_text) and data.size == math.prod(shape)
        else:
            flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            fits = flat.size == math.prod(shape) * dtype.size_bytes
            fits &= dtype is not DType.BOOL or not flat.size or int(flat.max()) <= 1
        if not fits:
            found = f"{data.dtype}{list(data.shape)}"
            raise UsageError(f"line {line}: {_type_text(dtype, shape)} is given the bytes of {found}.")
        return data.reshape(shape) if any(is_text) else flat.view(dtype.numpy).reshape(shape)

    def _resolve_bytes(self) -> bytes:
        if self._peek().text.startswith("sha256:"):
            found = self._resolve()
            if not isinstance(found, bytes):
                raise self._error("the digest of a body")
            return found
        token = self._take("blob")
        try:
            return base64.b64decode(token.text.removeprefix("base64:"), validate=True)
        except ValueError as error:
            raise UsageError(f"line {token.line}: base64 text is damaged ({error}).") from error

    def _resolve(self) -> Array | bytes:
        token = self._take("blob")
        digest = token.text.removeprefix("sha256:")
        if digest not in self.constants:
            raise UsageError(
                f"line {token.line}: the text has only the digest {digest[:16]}..., not the data; print it "
                "with weights, or give `constants`."
            )
        return self.constants[digest]

    def _word(self) -> str:
        return self._string() if self._peek().kind == "string" else self._take("word").text

    def _string(self) -> str:
        text: str = json.loads(self._take("string").text)
        return text

    def _peek(self) -> _Token:
        return self.tokens[self.position]

    def _take(self, kind: str) -> _Token:
        token = self._peek()
        if token.kind != kind:
            raise self._error(f"a {kind}")
        self.position += 1
        return token

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token.text != text or token.kind not in ("word", "mark"):
            return False
        self.position += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(repr(text))

    def _error(self, expected: str) -> UsageError:
        token = self._peek()
        found = "the end" if token.kind == "end" else repr(token.text[:40])
        return UsageError(
            f"line {token.line}: expected {expected}, found {found}; compare with `print_graph`."
        )


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    line, position = 1, 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position, end)
        if match is None:
            rest = text[position:end]
            line += rest.count("\n", 0, len(rest) - len(rest.lstrip()))
            bad = rest.lstrip()[:20]
            raise UsageError(f"line {line}: cannot read {bad!r}; compare with `print_graph`.")
        kind = match.lastgroup or ""
        line += text.count("\n", position, match.start(kind))
        tokens.append(_Token(kind, match.group(kind), line))
        line += text.count("\n", match.start(kind), match.end())
        position = match.end()
    tokens.append(_Token("end", "", line))
    return tokens
