"""Machine code of an artifact, loaded again: facts, `objects/*.o`, and constants that are arranged for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tilewright.arrays import Array
from tilewright.content_pool import content_key
from tilewright.fields import FieldError, decoded, inside
from tilewright.ir.dtype import DType
from tilewright.parallel import map_on_cores
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import Arrangement, arrange_into
from tilewright.targets.cpu.image.arrangement_document import decode_arrangement
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.image.origin import CONSTANTS, OPERATORS_OWN, MadeFor
from tilewright.targets.cpu.runtime.executable import HostStep, Piece, TensorSpec
from tilewright.targets.cpu.runtime.executor import CheckedIndex
from tilewright.targets.cpu.runtime.main_code import FIRST_CALLER_BASE, ArgRef, HostCall, MainCode
from tilewright.targets.llvm.layout import REPORT_BYTES
from tilewright.targets.stored import StoredCode, StoredParts

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph, Node
    from tilewright.options import Options
    from tilewright.program import Program
    from tilewright.targets.cpu.image.code import CpuCode


MAX_STEPS = 1 << 24
"""Of a main: more than any model has."""


class CpuStore:
    """See `CodeStore`. The code is trusted; its tables are checked against each other and the model."""

    def pack(self, code: CpuCode) -> tuple[StoredCode, ...]:
        """The code of every instruction set that was asked for."""
        from tilewright.targets.cpu.image.packed_code import packed_image

        graph = code.program.graph
        return tuple(packed_image(image, graph, weights) for image, weights in code.images)

    def refusal(self, made_for: Mapping[str, str]) -> str | None:
        """Why the code cannot run here: another processor or system, or another runtime."""
        if "interface" not in made_for:
            return "its code is of an earlier version"
        return decoded(MadeFor, made_for).refusal()

    def adapted(self, program: Program, made_for: Mapping[str, str]) -> Program:
        """For this host, with all that it has. What other instructions were measured at says nothing here."""
        from tilewright.targets.cpu.isa import host_isa

        program = replace(program, options=replace(program.options, isa=None))
        is_alike = made_for.get("isa") == host_isa().name
        return program if is_alike else program.unmeasured()

    def unpack(self, parts: StoredParts) -> CpuImage:
        """The image; the graph is read only for operators on the host and constant outputs."""
        tables = decoded(_TablesFields, parts.facts)
        constants: StoredConstants | ArrangedConstants = StoredConstants(parts)
        if tables.constants is not None:
            constants = ArrangedConstants(parts, tables.constants, _checked_sources(tables.constants, parts))
        sizes = _base_sizes(tables, constants.size_bytes)
        _require_fitting(tables, parts, sizes)
        made_for = decoded(MadeFor, parts.made_for)
        objects = tuple(_checked_object(parts.read(name), name, made_for.system) for name in tables.objects)
        nodes = parts.graph().nodes if tables.host_steps else ()
        main = tables.main
        return CpuImage(
            isa_name=made_for.isa,
            rates=made_for.rates,
            triple=made_for.system,
            features=made_for.features,
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
            row_axes=tables.row_axes,
            rows_share=tables.rows_share,
            body_options=_body_options(tables, made_for.isa),
            index_checks=tables.index_checks,
            runtime=None if tables.runtime is None else parts.read(tables.runtime),
        )


_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""`e_machine` of object files, by the processor that a system's name begins with."""


def _checked_object(data: bytes, name: str, system: str) -> bytes:
    """An object file, which is for the processor that its label says."""
    machine = _ELF_MACHINES.get(system.split("-")[0])
    if machine is not None and "linux" in system:
        found = int.from_bytes(data[18:20], "little") if data[:4] == b"\x7fELF" else None
        if found != machine:
            stated = "no ELF object" if found is None else f"for ELF machine {found}"
            raise FieldError(f"{name} is {stated}, where {system} has {machine}", ".objects")
    return data


@dataclass(frozen=True, slots=True)
class _SourceFields:
    """Of the arena at `offset`: bytes of an operator's own, or a constant of the graph, arranged."""

    offset: int
    own: tuple[int, int] | None = None
    constant: str = ""
    dtype: DType = DType.UINT8
    shape: tuple[int, ...] = ()
    size_bytes: int = 0
    arrangement: Any = None

    @property
    def num_bytes(self) -> int:
        return self.size_bytes if self.own is None else self.own[1] - self.own[0]


@dataclass(frozen=True, slots=True)
class _ConstantsFields:
    size_bytes: int
    sources: tuple[_SourceFields, ...]

    @property
    def has_own(self) -> bool:
        """Whether operators bring tables along."""
        return any(source.own is not None for source in self.sources)


def _checked_sources(stated: _ConstantsFields, parts: StoredParts) -> tuple[Arrangement | None, ...]:
    """How each source is arranged; every one lies within the arena."""
    own_bytes = parts.size_bytes(OPERATORS_OWN) if stated.has_own else 0
    arrangements: list[Arrangement | None] = []
    for i, source in enumerate(stated.sources):
        where = f".constants.sources[{i}]"
        if source.own is not None and not source.own[0] <= source.own[1] <= own_bytes:
            raise FieldError(f"bytes {list(source.own)} of {own_bytes}", f"{where}.own")
        if source.offset + source.num_bytes > stated.size_bytes:
            raise FieldError(f"reaches beyond {stated.size_bytes} bytes", where)
        with inside(f"constants.sources[{i}].arrangement"):
            arrangements.append(decode_arrangement(source.arrangement))
    return tuple(arrangements)


@dataclass(frozen=True, slots=True, eq=False)
class ArrangedConstants:
    """The arena of constants, made from those of the graph as kernels want them."""

    parts: StoredParts
    stated: _ConstantsFields
    arrangements: Sequence[Arrangement | None]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.stated.size_bytes

    def fill(self, target: Array) -> None:
        """Arrange all of them, on all cores: numpy lets go of the interpreter meanwhile."""
        # The largest first, so that cores end together.
        pieces = sorted(self.pieces(), key=lambda piece: -piece.size_bytes)
        map_on_cores(lambda p: p.write(target[p.offset : p.offset + p.size_bytes]), pieces)

    def pieces(self) -> Sequence[Piece]:
        """Each of them by itself."""
        constants = self.parts.constants()
        own = np.frombuffer(self.parts.read(OPERATORS_OWN) if self.stated.has_own else b"", np.uint8)

        def array_of(number: int) -> Array:
            source = self.stated.sources[number]
            if source.own is not None:
                return own[slice(*source.own)]
            given, size_bytes = constants.get(source.constant), source.dtype.size_bytes
            if not isinstance(given, np.ndarray) or given.nbytes != math.prod(source.shape) * size_bytes:
                where = f".constants.sources[{number}].constant"
                raise FieldError(f"is no {source.dtype}{list(source.shape)} of the graph", where)
            return given.reshape(-1).view(np.uint8).view(source.dtype.numpy).reshape(source.shape)

        def piece(number: int) -> Piece:
            source, arrangement = self.stated.sources[number], self.arrangements[number]

            def write(part: Array) -> None:
                array = array_of(number)
                with inside(f"constants.sources[{number}].arrangement"):
                    arrange_into(arrangement, array, part)

            def key() -> Hashable:
                return content_key(array_of(number)), arrangement

            return Piece(source.offset, source.num_bytes, key, write)

        return [piece(number) for number in range(len(self.stated.sources))]


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
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    passthrough: Mapping[str, str | None]
    objects: tuple[str, ...]
    arena_bytes: int
    scratch_bytes: int
    host_steps: tuple[_HostStepFields, ...]
    main: _MainFields
    index_checks: tuple[CheckedIndex, ...]
    runtime: str | None
    constants: _ConstantsFields | None = None
    row_axes: Mapping[str, int] = field(default_factory=dict)
    rows_share: float = 0.0
    accuracy: str | None = None


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
    shapes = {spec.name: spec.shape for spec in tables.inputs}
    held = [(shapes.get(name, ()), axis) for name, axis in tables.row_axes.items()]
    if any(axis not in range(len(shape)) for shape, axis in held):
        raise FieldError("no axes of inputs", ".row_axes")
    if len({shape[axis] for shape, axis in held}) > 1:
        raise FieldError("axes of several extents", ".row_axes")
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
    rows = [0] if tables.row_axes else []  # a number, no memory
    return [tables.arena_bytes + reports_bytes, constant_bytes, *tensors, *rows]


def _body_options(tables: _TablesFields, isa: str) -> Options | None:
    """Those that bodies of control flow are compiled with, for the instructions that the rest has."""
    from tilewright.options import Accuracy, Options

    if not tables.host_steps:
        return None
    known: tuple[Accuracy, ...] = get_args(Accuracy)
    accuracy = next((name for name in known if name == (tables.accuracy or "default")), None)
    if accuracy is None:
        raise FieldError(f"{tables.accuracy!r}, expected one of {', '.join(known)}", ".accuracy")
    return Options(accuracy=accuracy, isa=isa)


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
    """The arena of constants as it was sent, read straight to where it is used."""

    parts: StoredParts

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.parts.size_bytes(CONSTANTS)

    def pieces(self) -> Sequence[Piece]:
        """All of it as one, which is like no other."""
        return (Piece(0, self.size_bytes, object, self.fill),)

    def fill(self, target: Array) -> None:
        """Read all of it."""
        if self.size_bytes:
            self.parts.read_into(CONSTANTS, target[: self.size_bytes].data)


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


def _read_refs(stored: Sequence[tuple[int, int] | None]) -> tuple[ArgRef | None, ...]:
    return tuple(None if ref is None else ArgRef(*ref) for ref in stored)
