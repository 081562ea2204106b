"""Artifacts: compiled models as files, `model.tw`.

    manifest.json        what was compiled, from what, into which steps; the SHA-256 of every other member
    graph.txt            the optimised graph
    plan.json            how it is cut and in which order it runs
    weights.safetensors  its constants
    machine.json         the machine, where it was compiled for a described one
    native.json          facts about its code
    *                    parts of its code: of the processor's, objects/*.o and constants.bin

The last two are there for targets whose code is kept; what they mean, the target knows (`targets/stored.py`).
A described machine is read from nowhere else: the artifact works where its preset or file is another or gone.
An artifact is a pure function of the model's bytes, the target, the options and the version.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.artifact.container import MANIFEST, TABLES, Archive, Member, is_member_name, write_archive
from tilewright.artifact.facts import decode_facts, encode_facts
from tilewright.artifact.machine import decode_machine, encode_machine
from tilewright.artifact.operands import require_operands
from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.artifact.tensors import decode_tensors, encode_tensors
from tilewright.artifact.trust import is_ours, remember
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo
from tilewright.errors import ArtifactCorrupt, InternalError, UsageError
from tilewright.fields import FieldError, field_of, inside
from tilewright.files import Bytes
from tilewright.forks import ForkSafeLock
from tilewright.hardware.probe import num_threads_default, resolve_threads
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.verify import require_valid
from tilewright.options import Accuracy, Options
from tilewright.printable import printable
from tilewright.program import Program
from tilewright.targets import find_target, is_machine, is_machine_known
from tilewright.targets.base import CodeStore, Executable, LoadableCode, Target
from tilewright.targets.named_constants import named_constants, resolved_constants
from tilewright.targets.stored import StoredCode
from tilewright.targets.validate import require_valid_program

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine

__all__ = ["FORMAT_VERSION", "Archive", "StoredModel", "read_artifact", "save_artifact"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
"""Raise it when an older release could no longer read what this one writes; older ones stay readable."""

_ACCURACY_NAMES_SINCE = 3
_EARLIER_ACCURACY_NAMES: dict[Accuracy, Accuracy] = {"default": "relaxed"}

GRAPH = "graph.txt"
PLAN = "plan.json"
WEIGHTS = "weights.safetensors"
MACHINE = "machine.json"
_RESERVED = (MANIFEST, GRAPH, PLAN, WEIGHTS, TABLES, MACHINE)


def save_artifact(path: Path, facts: CompiledFacts, program: Program, code: StoredCode | None) -> Path:
    """Write an artifact, and record that this machine made it.

    Raises:
        UsageError: the file cannot be written.
    """
    tensors, constants = named_constants(program.graph)
    manifest = {
        "format_version": FORMAT_VERSION,
        "kind": "tilewright artifact",
        **encode_facts(facts),
        "constants": constants,
        "native": None,
    }
    members = [
        Member(GRAPH, (print_graph(program.graph).encode(),)),
        Member(PLAN, (_json(encode_plan(program)),)),
        Member(WEIGHTS, encode_tensors(tensors)),
    ]
    if facts.machine is not None:
        members.append(Member(MACHINE, (_json(encode_machine(facts.machine)),)))
    if code is not None:
        members += _code_members(code)
        manifest["native"] = dict(code.made_for)
    digest = write_archive(path, manifest, members)
    if code is not None and not facts.options.no_cache:
        remember(digest, facts.options.cache_dir)
    return path


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """A compiled model that lies in a file: its parts are read when they are first called for."""

    facts: CompiledFacts
    body: Body
    remarks: tuple[str, ...]
    num_threads: int | None


def _code_members(code: StoredCode) -> list[Member]:
    taken = next((name for name in code.parts if name in _RESERVED or not is_member_name(name)), None)
    if taken is not None:
        raise InternalError(
            f"the target's code has a part {taken!r}, which no artifact can have: "
            f"name it as objects/main.o is, and not {', '.join(_RESERVED)}."
        )
    parts = [Member(name, chunks) for name, chunks in code.parts.items()]
    return [Member(TABLES, (_json(dict(code.facts)),)), *parts]


def read_artifact(
    path: Path, *, num_threads: int | None = None, trust: bool = False, cache_dir: Path | None = None
) -> StoredModel:
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
        made_for = field_of(archive.manifest, "native", dict[str, str] | None)
    target, machine = _made_for(archive, facts.target)
    facts = replace(facts, machine=machine, options=_named_as_now(facts.options, archive.format_version))
    store = _code_store(archive, target, has_code=made_for is not None)
    stored = _Stored(archive, facts, target, store)
    num_threads, remarks = _threads(path, num_threads, facts)
    if store is None or made_for is None:
        body = Body(stored.program, lambda: None, stored.generated)
        return StoredModel(facts, body, remarks, num_threads)
    with archive.decoding(MANIFEST), inside("native"):
        reason = store.refusal(made_for)
    if reason is None and not trust and not is_ours(archive.manifest_sha256, cache_dir):
        reason = "this machine did not make its code, and it is not trusted (trust=True or --trust uses it)"
    if reason is None:
        body = Body(stored.program, lambda: stored.packed(made_for), stored.restored)
        return StoredModel(facts, body, remarks, num_threads)
    return _generated_again(stored, store, made_for, reason, remarks, num_threads, cache_dir)


def _named_as_now(options: Options, format_version: int) -> Options:
    """The options of a file in the words of this version."""
    if format_version >= _ACCURACY_NAMES_SINCE:
        return options
    return replace(options, accuracy=_EARLIER_ACCURACY_NAMES.get(options.accuracy, options.accuracy))


def _made_for(archive: Archive, name: str) -> tuple[Target, Machine | None]:
    """The target, which must be known here or be a machine that the artifact describes, and that machine.

    A path in the file is never followed.
    """
    with archive.decoding(MANIFEST), inside("target"):
        is_described = is_machine(name)
    if MACHINE in archive.names:
        if not is_described:
            raise archive.corrupt(f"it has a member {MACHINE!r}, which target {name[:40]!r} does not need")
        document = archive.json(MACHINE)
        with archive.decoding(MACHINE):
            machine = decode_machine(document)
        with archive.decoding(MANIFEST), inside("target"):
            return find_target(name, machine), machine
    if is_described and is_machine_known(name):
        raise archive.corrupt(f"member {MACHINE!r} is missing")
    try:
        return find_target(name), None
    except UsageError as error:
        raise UsageError(f"{archive.path}: {MANIFEST}: target: {error}") from error


def _code_store(archive: Archive, target: Target, *, has_code: bool) -> CodeStore | None:
    """What loads code of the target, which keeps code exactly if the file has any."""
    store = target.code_store
    if (store is not None) != has_code:
        has = "has native parts, which" if has_code else "lacks the native parts that"
        makes = "makes none" if has_code else "makes"
        raise archive.corrupt(f"{MANIFEST}: native: it {has} target {target.name} {makes}")
    if has_code and TABLES not in archive.names:
        raise archive.corrupt(f"member {TABLES!r} is missing")
    return store


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


def _generated_again(
    stored: _Stored,
    store: CodeStore,
    made_for: Mapping[str, str],
    reason: str,
    remarks: tuple[str, ...],
    num_threads: int | None,
    cache_dir: Path | None,
) -> StoredModel:
    start_s, path = time.monotonic(), stored.archive.path
    options = replace(stored.facts.options, cache_dir=cache_dir, max_memory_bytes=None)
    program = store.adapted(replace(stored.bounded_program(), options=options), made_for)
    options = program.options
    with stored.archive.decoding():
        code = stored.target.backend(program.graph, options).generate(program)
    remark = f"{path}: {reason}; generated again here in {time.monotonic() - start_s:.1f} s."
    logger.warning("%s", printable(remark))
    facts = replace(stored.facts, options=options, steps=code.steps, memory=code.memory_info)
    body = Body(lambda: program, lambda: store.pack(code), code.load)
    return StoredModel(facts, body, (*remarks, remark), num_threads)


@dataclass(slots=True, eq=False)
class _Stored:
    """The parts of an opened artifact, each read once, when it is first needed."""

    archive: Archive
    facts: CompiledFacts
    target: Target
    store: CodeStore | None = None
    _program: Program | None = None
    _code: LoadableCode | None = None
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
                    require_valid_program(program, allows_slices=self.target.runs_slices)
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
            require_operands(program.graph)
        with self.archive.decoding():
            problem = find_out_of_bounds(program.graph)
        if problem is not None:
            raise self.archive.corrupt(f"its program is invalid ({problem})")
        return program

    def packed(self, made_for: Mapping[str, str]) -> StoredCode:
        """The code as it is in the file, every part verified."""
        names = [name for name in self.archive.names if name not in _RESERVED]
        parts = {name: (self.archive.read(name),) for name in names}
        return StoredCode(made_for, self.archive.json(TABLES), parts)

    def restored(self, num_threads: int | None) -> Executable:
        """The stored code, loaded."""
        assert self.store is not None
        with self._lock:
            if self._code is None:
                with self.archive.decoding(TABLES):
                    self._code = self.store.unpack(_Parts(self))
            code = self._code
        return code.load(num_threads)

    def generated(self, num_threads: int | None) -> Executable:
        """Code that is made again from the program, loaded."""
        program = self.bounded_program()
        with self.archive.decoding():
            code = self.target.backend(program.graph, self.facts.options).generate(program)
        return code.load(num_threads)

    def _graph(self, text: str, constants: Mapping[str, Any]) -> Graph:
        graph = parse_graph(text, constants=constants)
        require_valid(graph, after="reading")
        for infos, values in ((self.facts.inputs, graph.inputs), (self.facts.outputs, graph.outputs)):
            if infos != tuple(TensorInfo.of(v) for v in values):
                raise FieldError("it has other inputs or outputs than the manifest says")
        return graph


@dataclass(frozen=True, slots=True)
class _Parts:
    """See `StoredParts`."""

    stored: _Stored

    @property
    def facts(self) -> Any:
        return self.stored.archive.json(TABLES)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.stored.facts.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.stored.facts.outputs

    def graph(self) -> Graph:
        return self.stored.program().graph

    def size_bytes(self, name: str) -> int:
        return self.stored.archive.size_of(name)

    def read(self, name: str) -> bytes:
        return self.stored.archive.read(name)

    def read_into(self, name: str, target: Bytes) -> None:
        self.stored.archive.read_into(name, target)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode()
