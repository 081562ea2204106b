"""Machine code and its tables as an artifact keeps them: facts, `objects/*.o` and `constants.bin`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from tilewright.fields import FieldError, decoded
from tilewright.files import Bytes
from tilewright.ir.graph import Graph, Node
from tilewright.program import Program
from tilewright.targets.cpu.codegen import toolchain_version
from tilewright.targets.cpu.executable import HostStep, TensorSpec
from tilewright.targets.cpu.image import CpuImage
from tilewright.targets.cpu.isa import ISA_NAMES, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import REPORT_BYTES
from tilewright.targets.cpu.main_code import ArgRef, HostCall, MainCode
from tilewright.targets.cpu.runtime import CheckedIndex
from tilewright.targets.cpu.storage import FIRST_CALLER_BASE
from tilewright.targets.stored import StoredCode, StoredParts
from tilewright.tuning import NO_CHOICES

Array = np.ndarray[Any, Any]

CONSTANTS = "constants.bin"
_MAIN_OBJECT = "objects/main.o"
MAX_STEPS = 1 << 24
"""Of a main: more than any model has."""


class GeneratedCode(Protocol):
    """What is kept of `CpuCode`."""

    @property
    def program(self) -> Program: ...  # noqa: D102

    @property
    def image(self) -> CpuImage: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _MadeFor:
    isa: str
    isa_fingerprint: str
    toolchain: str


class CpuStore:
    """See `CodeStore`. The code is trusted; its tables are checked against each other and the model."""

    def pack(self, code: GeneratedCode) -> StoredCode:
        """The objects, the constants as kernels read them, and the tables of the main."""
        image = code.image
        constants = np.zeros(image.constants.size_bytes, np.uint8)
        image.constants.fill(constants)
        names = [f"objects/{number:05d}.o" for number in range(len(image.objects) - 1)] + [_MAIN_OBJECT]
        parts: dict[str, tuple[Bytes, ...]] = {CONSTANTS: (constants.data,) if constants.size else ()}
        parts |= {name: (data,) for name, data in zip(names, image.objects, strict=True)}
        made_for = _MadeFor(image.isa_name, image.isa_fingerprint, image.toolchain)
        return StoredCode(asdict(made_for), _encode_tables(image, code.program.graph, names), parts)

    def refusal(self, made_for: Mapping[str, str]) -> str | None:
        """Why the code cannot run here: another processor, or another compiler made it."""
        origin = decoded(_MadeFor, made_for)
        known = {isa.fingerprint: isa for isa in (host_isa(), *map(isa_by_name, ISA_NAMES))}
        isa = known.get(origin.isa_fingerprint)
        if isa is None or not isa.runs_on_host:
            return f"its code is for another processor ({origin.isa}, {origin.isa_fingerprint})"
        if origin.toolchain != toolchain_version():
            return f"its code is by another compiler ({origin.toolchain})"
        return None

    def adapted(self, program: Program, made_for: Mapping[str, str]) -> Program:
        """For this host, with all that it has. What other instructions were measured at says nothing here."""
        program = replace(program, options=replace(program.options, isa=None))
        is_alike = decoded(_MadeFor, made_for).isa == host_isa().name
        return program if is_alike else replace(program, choices=NO_CHOICES)

    def unpack(self, parts: StoredParts) -> CpuImage:
        """The image; the graph is read only for operators on the host and constant outputs."""
        tables = decoded(_TablesFields, parts.facts)
        constants = StoredConstants(parts)
        sizes = _base_sizes(tables, constants.size_bytes)
        _require_fitting(tables, parts, sizes)
        objects = tuple(parts.read(name) for name in tables.objects)
        nodes = parts.graph().nodes if tables.host_steps else ()
        main = tables.main
        return CpuImage(
            isa_name=tables.isa,
            isa_fingerprint=tables.isa_fingerprint,
            toolchain=tables.toolchain,
            inputs=tables.inputs,
            outputs=tables.outputs,
            passthrough=_read_passthrough(tables.passthrough, parts.graph),
            main=MainCode(
                ir_text="",
                segments=tuple(s if isinstance(s, str) else HostCall(s) for s in main.segments),
                kernel_symbols=main.kernel_symbols,
                arg_table=tuple(ArgRef(*ref) for ref in main.arg_table),
                num_bases=main.num_bases,
                num_steps=main.num_steps,
                profile=main.profile,
            ),
            objects=objects,
            constants=constants,
            host_steps=tuple(_host_step(i, step, nodes, sizes) for i, step in enumerate(tables.host_steps)),
            arena_bytes=tables.arena_bytes,
            scratch_bytes=tables.scratch_bytes,
            index_checks=tables.index_checks,
        )


@dataclass(frozen=True, slots=True)
class _HostStepFields:
    node: int
    inputs: tuple[tuple[int, int] | None, ...]
    outputs: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _MainFields:
    segments: tuple[str | int, ...]
    kernel_symbols: tuple[str, ...]
    arg_table: tuple[tuple[int, int], ...]
    num_bases: int
    num_steps: int
    profile: bool


@dataclass(frozen=True, slots=True)
class _TablesFields:
    isa: str
    isa_fingerprint: str
    toolchain: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    passthrough: Mapping[str, str | None]
    objects: tuple[str, ...]
    arena_bytes: int
    scratch_bytes: int
    host_steps: tuple[_HostStepFields, ...]
    main: _MainFields
    index_checks: tuple[CheckedIndex, ...] = ()  # the first artifacts have none


def _require_fitting(tables: _TablesFields, parts: StoredParts, sizes: Sequence[int]) -> None:
    """That every address is within what it is of, and that names mean what the manifest says."""
    for name, infos, specs in (
        ("inputs", parts.inputs, tables.inputs),
        ("outputs", parts.outputs, tables.outputs),
    ):
        if [(i.name, i.dtype, i.shape) for i in infos] != [(s.name, s.dtype, s.shape) for s in specs]:
            raise FieldError("are not those of the manifest", f".{name}")
    main = tables.main
    if main.num_bases > len(sizes):
        raise FieldError(f"{main.num_bases}, more than {len(sizes)}", ".main.num_bases")
    if main.num_steps > MAX_STEPS:
        raise FieldError(f"{main.num_steps}, more than {MAX_STEPS} (MAX_STEPS)", ".main.num_steps")
    for i, (base, offset) in enumerate(main.arg_table):
        if base >= main.num_bases or offset > sizes[base]:
            raise FieldError("lies outside its memory", f".main.arg_table[{i}]")
    for i, segment in enumerate(main.segments):
        if isinstance(segment, int) and segment >= len(tables.host_steps):
            raise FieldError(f"host step {segment} of {len(tables.host_steps)}", f".main.segments[{i}]")
    written = {base for base, _ in main.arg_table}
    written |= {ref[0] for step in tables.host_steps for ref in step.outputs if ref is not None}
    for i, spec in enumerate(tables.outputs):
        base = FIRST_CALLER_BASE + len(tables.inputs) + i
        if spec.name not in tables.passthrough and base not in written and sizes[base]:
            raise FieldError("nothing writes it", f".outputs[{i}]")
    by_name = {spec.name: spec for spec in tables.outputs}
    sources = {spec.name: spec for spec in tables.inputs}
    for name, source in tables.passthrough.items():
        output = by_name.get(name)
        given = None if source is None else sources.get(source)
        if output is None or (source is not None and given is None):
            raise FieldError("is no output with its input", f".passthrough.{name[:40]}")
        if given is not None and (given.dtype, given.shape) != (output.dtype, output.shape):
            raise FieldError("is of another type than its input", f".passthrough.{name[:40]}")


def _base_sizes(tables: _TablesFields, constant_bytes: int) -> list[int]:
    tensors = [math.prod(s.shape) * s.dtype.size_bytes for s in (*tables.inputs, *tables.outputs)]
    reports_bytes = REPORT_BYTES * len(tables.index_checks)
    return [tables.arena_bytes + reports_bytes, constant_bytes, *tensors]


def _host_step(
    position: int, stored: _HostStepFields, nodes: Sequence[Node], sizes: Sequence[int]
) -> HostStep:
    where = f".host_steps[{position}]"
    if stored.node >= len(nodes):
        raise FieldError(f"node {stored.node} of {len(nodes)}", where)
    node = nodes[stored.node]
    operands = (*node.inputs, *node.captures)
    if len(stored.inputs) != len(operands) or len(stored.outputs) != len(node.outputs):
        raise FieldError(f"has other operands than {node.op_type} {node.name!r}", where)
    for value, ref in zip((*operands, *node.outputs), (*stored.inputs, *stored.outputs), strict=True):
        if value is None or ref is None:
            continue
        base, offset = ref
        if base >= len(sizes) or offset + value.size_bytes > sizes[base]:
            raise FieldError(f"{value.name!r} lies outside its memory", where)
    return HostStep(node, _read_refs(stored.inputs), _read_refs(stored.outputs))


@dataclass(frozen=True, slots=True)
class StoredConstants:
    """The arena of constants, read straight to where it is used."""

    parts: StoredParts

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.parts.size_bytes(CONSTANTS)

    def fill(self, target: Array) -> None:
        """Read all of it."""
        if self.size_bytes:
            self.parts.read_into(CONSTANTS, target[: self.size_bytes].data)


def _encode_tables(image: CpuImage, graph: Graph, object_names: list[str]) -> dict[str, Any]:
    position = {node: i for i, node in enumerate(graph.nodes)}
    main = image.main
    return {
        "isa": image.isa_name,
        "isa_fingerprint": image.isa_fingerprint,
        "toolchain": image.toolchain,
        "inputs": [_tensor(t) for t in image.inputs],
        "outputs": [_tensor(t) for t in image.outputs],
        "passthrough": {
            name: source if isinstance(source, str) else None for name, source in image.passthrough.items()
        },
        "objects": object_names,
        "arena_bytes": image.arena_bytes,
        "scratch_bytes": image.scratch_bytes,
        "host_steps": [
            {"node": position[s.node], "inputs": _refs(s.inputs), "outputs": _refs(s.outputs)}
            for s in image.host_steps
        ],
        "index_checks": [asdict(check) for check in image.index_checks],
        "main": {
            "segments": [s if isinstance(s, str) else s.callback_index for s in main.segments],
            "kernel_symbols": list(main.kernel_symbols),
            "arg_table": [[ref.base_index, ref.byte_offset] for ref in main.arg_table],
            "num_bases": main.num_bases,
            "num_steps": main.num_steps,
            "profile": main.profile,
        },
    }


def _read_passthrough(
    document: Mapping[str, str | None], graph: Callable[[], Graph]
) -> dict[str, Array | str]:
    """None stands for the constant that is the output of that name."""
    result: dict[str, Array | str] = {}
    for name, source in document.items():
        if source is not None:
            result[name] = source
            continue
        data = next((v.data for v in graph().outputs if v.name == name), None)
        if data is None:
            raise FieldError("is no constant output", f".passthrough.{name[:40]}")
        result[name] = data
    return result


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}


def _refs(refs: tuple[ArgRef | None, ...]) -> list[list[int] | None]:
    return [None if ref is None else [ref.base_index, ref.byte_offset] for ref in refs]


def _read_refs(stored: Sequence[tuple[int, int] | None]) -> tuple[ArgRef | None, ...]:
    return tuple(None if ref is None else ArgRef(*ref) for ref in stored)
