"""The text of one LLVM module: instructions, functions, calls, globals; nothing of lanes or control flow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tilewright.records import dataclass
from tilewright.targets.llvm.values import PTR, Number, Type, Val, literal, vec

SYMBOL_PLACEHOLDER = "@TW_KERNEL_SYMBOL"
"""The name of a kernel in the text that its name is made of."""
_MAX_LISTED = 256
"""Entries of a table that are written as numbers, which people can read."""
_TABLE_TYPES = {"i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}
"""numpy's types of entries; every instruction set here is little-endian."""
_ESCAPES = np.frombuffer("".join(f"\\{byte:02X}" for byte in range(256)).encode(), np.uint8).reshape(256, 3)
"""Each byte as LLVM writes it in a string."""


@dataclass(frozen=True, slots=True)
class Param:
    """A function parameter; `attributes` as LLVM writes them, e.g. `noalias`."""

    name: str
    type: Type
    attributes: str = ""


class ModuleText:
    """One LLVM module under construction, as lines of text."""

    _table_space = ""
    """Address space of constant tables, where it is not that of all pointers."""

    def __init__(self, *, triple: str = "", attributes: str = "nounwind") -> None:
        """`attributes` go on every defined function, e.g. `nounwind "prefer-vector-width"="512"`."""
        self._triple = triple
        self._attributes = attributes
        self._functions: list[str] = []
        self._defined: set[str] = set()
        self._globals: dict[str, str] = {}
        self._declarations: dict[str, None] = {}
        self._intrinsics: dict[tuple[str, str], str] = {}
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._block = ""
        self._terminated = True
        self._next_value = 0
        self._next_label = 0

    def text(self) -> str:
        """The module: the same calls give the same text."""
        head = [f'target triple = "{self._triple}"'] if self._triple else []
        parts = [*head, *sorted(self._declarations), *(f"{k} = {v}" for k, v in self._globals.items())]
        return "\n".join([*parts, *self._functions]) + "\n"

    # Raw text: the base of every method below, and for instructions that have none.

    def line(self, text: str) -> None:
        """Append one instruction that makes no value."""
        self._lines.append("  " + text)

    def op(self, text: str, type: Type) -> Val:
        """Append one instruction and name its result."""
        self._next_value += 1
        name = f"%v{self._next_value}"
        self._lines.append(f"  {name} = {text}")
        return Val(name, type)

    def declare(self, declaration: str) -> None:
        """Add `declare ...` to the module once."""
        self._declarations[declaration] = None

    # Functions, calls, globals.

    @contextmanager
    def function(
        self,
        name: str,
        params: Sequence[Param] = (),
        *,
        result: Type | None = None,
        linkage: str = "",
        attributes: str | None = None,
    ) -> Iterator[tuple[Val, ...]]:
        """Define a function around the emitted body; gives the arguments.

        A body that does not end with `ret` returns void. A function may be defined while another is open: it
        becomes a second function of the module, and the open one continues after it.
        """
        if name in self._defined:
            raise ValueError(f"function {name!r} is already defined in this module")
        self._defined.add(name)
        outer = (self._lines, self._allocas, self._block, self._terminated)
        self._lines, self._allocas, self._block, self._terminated = [], [], "entry", False
        signature = ", ".join(
            " ".join(filter(None, (p.type.text, p.attributes, "%" + p.name))) for p in params
        )
        attributes = self._attributes if attributes is None else attributes
        head = " ".join(filter(None, ("define", linkage, result.text if result else "void")))
        try:
            yield tuple(Val("%" + p.name, p.type) for p in params)
            if not self._terminated:
                if result is not None:
                    raise ValueError(
                        f"function {name!r} must return {result.text}: end its body with ret(value)"
                    )
                self.line("ret void")
            body = [
                f"{head} @{name}({signature}) {attributes} {{",
                "entry:",
                *self._allocas,
                *self._lines,
                "}",
            ]
            self._functions.append("\n".join(body))
        finally:
            self._lines, self._allocas, self._block, self._terminated = outer

    def defines(self, name: str) -> bool:
        """Whether this module already has a function of that name: helpers are emitted on first use."""
        return name in self._defined

    def ret(self, value: Val | None = None) -> None:
        """Return from the open function; nothing may follow in the same block."""
        self.line("ret void" if value is None else f"ret {value.typed}")
        self._terminated = True

    def call(
        self, name: str, args: Sequence[Val], result: Type | None = None, *, declare: bool = True
    ) -> Val | None:
        """Call `@name`; `declare=False` when this module defines it."""
        returned = "void" if result is None else result.text
        if declare:
            self.declare(f"declare {returned} @{name}({', '.join(a.type.text for a in args)})")
        text = f"call {returned} @{name}({', '.join(a.typed for a in args)})"
        if result is None:
            self.line(text)
            return None
        return self.op(text, result)

    def intrinsic(self, name: str, type: Type, args: Sequence[Val], *, flags: str = "") -> Val:
        """`llvm.<name>.<type>` where the result and all arguments have the one `type`."""
        return self.op(self._intrinsic_call(name, type, args, flags), type)

    def _intrinsic_call(self, name: str, type: Type, args: Sequence[Val], flags: str = "") -> str:
        key = (name, type.suffix)  # strings keep their hash, a Type computes it each time
        found = self._intrinsics.get(key)
        if found is None:
            types = ", ".join([type.text] * len(args))
            found = self._intrinsics[key] = f"{type.text} @llvm.{name}.{type.suffix}("
            self.declare(f"declare {found}{types})")
        text = type.text
        listed = ", ".join([f"{text} {a.name}" for a in args])
        return f"call {flags} {found}{listed})" if flags else f"call {found}{listed})"

    def constant_array(self, element: str, values: Sequence[Number], *, align_bytes: int = 64) -> Val:
        """A private constant table; equal tables are stored once."""
        dtype = _TABLE_TYPES.get(element)
        if dtype is not None and len(values) > _MAX_LISTED:
            # A long table as the bytes of a string: written and parsed a hundred times as fast.
            table = np.array(values, dtype).view(np.uint8)
            body = f'[{table.size} x i8] c"{_ESCAPES[table].tobytes().decode("ascii")}"'
        else:
            scalar = vec(element)
            listed = ", ".join(f"{element} {literal(scalar, value)}" for value in values)
            body = f"[{len(values)} x {element}] [{listed}]"
        body = f"private unnamed_addr {self._table_space}constant {body}, align {align_bytes}"
        for name, present in self._globals.items():
            if present == body:
                return self._table(name)
        name = f"@table{len(self._globals)}"
        self._globals[name] = body
        return self._table(name)

    def _table(self, name: str) -> Val:
        space = self._table_space
        return Val(f"addrspacecast (ptr {space}{name} to ptr)" if space else name, PTR)

    def alloca(self, type: Type, count: int = 1, *, align_bytes: int = 64) -> Val:
        """Stack space of the open function, reserved once on entry wherever this is called."""
        self._next_value += 1
        name = f"%s{self._next_value}"
        self._allocas.append(f"  {name} = alloca {type.text}, i64 {count}, align {align_bytes}")
        return Val(name, PTR)


def name_by_content(text: str, stem: str) -> tuple[str, str]:
    """The symbol of a function, derived from its own text, and the text with it: equal kernels, equal names.

    `text` defines `@TW_KERNEL_SYMBOL`.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    symbol = f"tw_{stem}_{digest}"
    return symbol, text.replace(SYMBOL_PLACEHOLDER, f"@{symbol}")
