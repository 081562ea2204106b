"""Artifacts: compiled models as files, `model.tw`.

    manifest.json        what was compiled, from what, into which steps; the SHA-256 of every other member
    graph.txt            the optimised graph
    plan.json            how it is cut and in which order it runs
    weights.safetensors  its constants
    native.json          which processor the code is for; the tables of the main
    constants.bin        the constants as the kernels read them
    objects/*.o          machine code

The last three are there for targets that generate code. An artifact is a pure function of the model's
bytes, the target, the options and the version.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.artifact.constants import named_constants, resolved_constants
from tilewright.artifact.container import MANIFEST, TABLES, Archive, Member, write_archive
from tilewright.artifact.facts import decode_facts, encode_facts
from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.artifact.tensors import decode_tensors, encode_tensors
from tilewright.artifact.trust import is_ours, remember
from tilewright.compiled import Body, CompiledFacts, CompiledModel, TensorInfo
from tilewright.errors import ArtifactCorrupt, UsageError
from tilewright.fields import FieldError, field_of
from tilewright.forks import ForkSafeLock
from tilewright.hardware.probe import num_threads_default
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.verify import require_valid
from tilewright.printable import printable
from tilewright.program import Program
from tilewright.targets import find_target
from tilewright.targets.base import Executable
from tilewright.targets.cpu.image import CpuImage
from tilewright.targets.cpu.pool import resolve_threads
from tilewright.targets.validate import require_valid_program
from tilewright.tuning import NO_CHOICES

__all__ = ["FORMAT_VERSION", "Archive", "read_artifact", "save_artifact"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Raise it when an older release could no longer read what this one writes; older ones stay readable."""

GRAPH = "graph.txt"
PLAN = "plan.json"
WEIGHTS = "weights.safetensors"


def save_artifact(path: Path, compiled: CompiledModel) -> Path:
    """Write an artifact, and record that this machine made it.

    Raises:
        UsageError: the file cannot be written.
    """
    from tilewright.artifact.native import native_members

    program, image = compiled.program, compiled.image
    tensors, constants = named_constants(program.graph)
    manifest = {
        "format_version": FORMAT_VERSION,
        "kind": "tilewright artifact",
        **encode_facts(compiled.facts),
        "constants": constants,
        "native": None,
    }
    members = [
        Member(GRAPH, (print_graph(program.graph).encode(),)),
        Member(PLAN, (_json(encode_plan(program)),)),
        Member(WEIGHTS, encode_tensors(tensors)),
    ]
    if image is not None:
        tables, native = native_members(image, program.graph)
        members += [Member(TABLES, (_json(tables),)), *native]
        manifest["native"] = {
            "isa": image.isa_name,
            "isa_fingerprint": image.isa_fingerprint,
            "toolchain": image.toolchain,
        }
    digest = write_archive(path, manifest, members)
    if image is not None:
        remember(digest, compiled.options.cache_dir)
    return path


def read_artifact(
    path: Path, *, num_threads: int | None = None, trust: bool = False, cache_dir: Path | None = None
) -> CompiledModel:
    """Open an artifact. See `tilewright.open`.

    Raises:
        UsageError: no such file.
        ArtifactCorrupt: not an artifact, damaged, or made by a newer version.
    """
    archive = Archive(path)
    if archive.format_version > FORMAT_VERSION:
        raise ArtifactCorrupt(
            f"{path}: made by a newer tilewright (format {archive.format_version}, this one reads up to "
            f"{FORMAT_VERSION}); update tilewright or compile the model again."
        )
    if archive.format_version < 1:
        raise archive.corrupt(f"its format version is {archive.format_version}")
    with archive.decoding(MANIFEST):
        facts = decode_facts(archive.manifest)
        native = field_of(archive.manifest, "native", _NativeFields | None)
    _require_target(archive, facts.target, has_code=native is not None)
    stored = _Stored(archive, facts)
    num_threads, remarks = _threads(path, num_threads, facts)
    if native is None:
        body = Body(stored.program, lambda: None, stored.compile)
        return CompiledModel(facts, body, remarks=remarks, num_threads=num_threads)
    reason = _refusal(archive, native, trust, cache_dir)
    if reason is None:
        body = Body(stored.program, stored.image, stored.load_image)
        return CompiledModel(facts, body, remarks=remarks, num_threads=num_threads)
    return _generated_again(stored, native, reason, remarks, num_threads, cache_dir)


@dataclass(frozen=True, slots=True)
class _NativeFields:
    isa: str
    isa_fingerprint: str
    toolchain: str


def _require_target(archive: Archive, name: str, *, has_code: bool) -> None:
    """That the target is known here, and that there is code exactly if the target makes any."""
    try:
        target = find_target(name)
    except UsageError as error:
        raise UsageError(f"{archive.path}: {MANIFEST}: target: {error}") from error
    if target.has_native_code != has_code:
        has = "has native parts, which" if has_code else "lacks the native parts that"
        makes = "makes none" if has_code else "makes"
        raise archive.corrupt(f"{MANIFEST}: native: it {has} target {name} {makes}")
    if has_code and TABLES not in archive.names:
        raise archive.corrupt(f"member {TABLES!r} is missing")


def _threads(path: Path, asked: int | None, facts: CompiledFacts) -> tuple[int | None, tuple[str, ...]]:
    """Threads of a run. What the file asks for is bounded by the machine, what the caller asks for is not."""
    if asked is not None:
        return resolve_threads(asked), ()
    stored, most = facts.options.num_threads, num_threads_default()
    if stored is None or stored <= most:
        return stored, ()
    remark = (
        f"{path}: asks for {stored} threads; this machine gives {most} (threads or --threads asks for more)."
    )
    return most, (remark,)


def _refusal(archive: Archive, native: _NativeFields, trust: bool, cache_dir: Path | None) -> str | None:
    """Why the machine code in the file is not to be used; None if it is."""
    from tilewright.targets.cpu.codegen import toolchain_version
    from tilewright.targets.cpu.isa import host_isa, isa_by_name

    known = {host_isa().fingerprint: host_isa()}
    for name in ("avx512", "avx2", "neon"):
        known.setdefault(isa_by_name(name).fingerprint, isa_by_name(name))
    isa = known.get(native.isa_fingerprint)
    if isa is None or not isa.runs_on_host:
        return f"its code is for another processor ({native.isa}, {native.isa_fingerprint})"
    if native.toolchain != toolchain_version():
        return f"its code is by another compiler ({native.toolchain})"
    if not trust and not is_ours(archive.manifest_sha256, cache_dir):
        return "this machine did not make its code, and it is not trusted (trust=True or --trust uses it)"
    return None


def _generated_again(
    stored: _Stored,
    native: _NativeFields,
    reason: str,
    remarks: tuple[str, ...],
    num_threads: int | None,
    cache_dir: Path | None,
) -> CompiledModel:
    from tilewright.targets.cpu.isa import host_isa

    start_s, path = time.monotonic(), stored.archive.path
    options = replace(stored.facts.options, isa=None, cache_dir=cache_dir, max_memory_bytes=None)
    target = find_target(stored.facts.target)
    program = replace(stored.bounded_program(), options=options)
    if native.isa != host_isa().name:  # what was measured there says nothing here
        program = replace(program, choices=NO_CHOICES)
    with stored.archive.decoding():
        code = target.backend(program.graph, options).generate(program)
    remark = f"{path}: {reason}; generated again here in {time.monotonic() - start_s:.1f} s."
    logger.warning("%s", printable(remark))
    facts = replace(stored.facts, options=options, steps=code.steps, memory=code.memory_info)
    body = Body(lambda: program, lambda: getattr(code, "image", None), code.load)
    return CompiledModel(facts, body, remarks=(*remarks, remark), num_threads=num_threads)


@dataclass(slots=True, eq=False)
class _Stored:
    """The parts of an opened artifact, each read once, when it is first needed."""

    archive: Archive
    facts: CompiledFacts
    _program: Program | None = None
    _image: CpuImage | None = None
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    def program(self) -> Program:
        """The program. Its invariants are checked: a file can say anything."""
        with self._lock:
            if self._program is None:
                with self.archive.decoding(WEIGHTS):
                    tensors = decode_tensors(self.archive.read(WEIGHTS))
                with self.archive.decoding(MANIFEST):
                    table = field_of(self.archive.manifest, "constants", dict[str, Any])
                    constants = resolved_constants(tensors, table)
                with self.archive.decoding(GRAPH):
                    graph = self._graph(self.archive.read(GRAPH).decode(), constants)
                document = self.archive.json(PLAN)
                with self.archive.decoding(PLAN):
                    program = decode_plan(document, graph, self.facts.options)
                    require_valid_program(program)
                self._program = program
            return self._program

    def bounded_program(self) -> Program:
        """The program, if no code generated from it can leave its tensors.

        Raises:
            ArtifactCorrupt: the graph states shapes that its operators do not have.
        """
        from tilewright.ir.bounds import find_out_of_bounds

        program = self.program()
        with self.archive.decoding(GRAPH):
            _require_operands(program.graph)
        with self.archive.decoding():
            problem = find_out_of_bounds(program.graph)
        if problem is not None:
            raise self.archive.corrupt(f"its program is invalid ({problem})")
        return program

    def graph(self) -> Graph:
        """The optimised graph."""
        return self.program().graph

    def image(self) -> CpuImage:
        """The generated code."""
        from tilewright.artifact.native import read_image

        with self._lock:
            if self._image is None:
                self._image = read_image(self.archive, self.graph, self.facts)
            return self._image

    def load_image(self, num_threads: int | None) -> Executable:
        """Load the generated code."""
        return self.image().load(num_threads)

    def compile(self, num_threads: int | None) -> Executable:
        """For targets whose code is not stored."""
        program, target = self.bounded_program(), find_target(self.facts.target)
        return target.backend(program.graph, self.facts.options).generate(program).load(num_threads)

    def _graph(self, text: str, constants: Mapping[str, Any]) -> Graph:
        graph = parse_graph(text, constants=constants)
        require_valid(graph, after="reading")
        for infos, values in ((self.facts.inputs, graph.inputs), (self.facts.outputs, graph.outputs)):
            if infos != tuple(TensorInfo.of(v) for v in values):
                raise FieldError("it has other inputs or outputs than the manifest says")
        return graph


def _require_operands(graph: Graph) -> None:
    """That nodes of ONNX's operators have as many operands as these take."""
    from onnx import defs

    for node in graph.nodes:
        try:
            schema = defs.get_schema(node.op_type, node.opset, node.domain)
        except defs.SchemaError:
            continue  # an operator of ours
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            raise FieldError(f"{node.op_type} {node.name!r} has {len(node.inputs)} operands")


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode()
