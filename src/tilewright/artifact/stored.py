"""The parts of an opened artifact, each read once, when it is first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.arrays import Array
from tilewright.artifact.constants import ArchiveConstants
from tilewright.artifact.container import Archive
from tilewright.artifact.members import FACTS, GRAPH, PLAN, code_folder
from tilewright.artifact.option_check import require_memory
from tilewright.compiled_facts import CompiledFacts, TensorInfo
from tilewright.content_pool import ContentPool
from tilewright.errors import TilewrightError
from tilewright.fields import FieldError
from tilewright.files import Bytes
from tilewright.options import Options
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.stored import StoredCode

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph
    from tilewright.program import Program
    from tilewright.targets.base import Code, CodeStore, Executable, LoadableCode, Target


@dataclass(slots=True, eq=False)
class Stored:
    """An opened artifact: `options` are those that it was opened with, `codes` say for which machines it
    holds code, and `chosen` is the number of that which is used."""

    archive: Archive
    facts: CompiledFacts
    find_target: Callable[[], Target]
    options: Options
    store: CodeStore | None = None
    codes: Sequence[Mapping[str, str]] = ()
    chosen: int = 0
    holds_chosen_only: bool = False  # when it is saved
    given_constants: Callable[[], Mapping[str, Array | bytes]] | None = None  # where others have them
    pool: ContentPool | None = None  # which holds the arranged ones
    _program: Program | None = None
    _code: LoadableCode | None = None
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return self.find_target()

    def program(self) -> Program:
        """The program. Its invariants are checked: a file can say anything."""
        from tilewright.artifact.plan import decode_plan
        from tilewright.planning.checking import first_fault
        from tilewright.targets.validate import program_violations

        with self._lock:
            if self._program is None:
                constants = self.constants()
                with self.archive.decoding(GRAPH):
                    graph = self._graph(self.archive.read(GRAPH).decode(), constants)
                document = self.archive.json(PLAN)
                with self.archive.decoding(PLAN):
                    program = decode_plan(document, graph, self.facts.options)
                    violations = program_violations(program, allows_slices=self.target.runs_slices)
                if violations:
                    raise self.archive.corrupt(f"its plan is wrong ({first_fault(violations)})")
                self._program = program
            return self._program

    def bounded_program(self) -> Program:
        """The program, if no code generated from it can leave its tensors.

        Raises:
            ArtifactCorrupt: the graph states shapes that its operators do not have.
        """
        from tilewright.artifact.operands import require_operands
        from tilewright.ir.bounds import find_out_of_bounds

        program = self.program()
        with self.archive.decoding(GRAPH):
            require_operands(program.graph)
        with self.archive.decoding():
            problem = find_out_of_bounds(program.graph)
        if problem is not None:
            raise self.archive.corrupt(f"its program is invalid ({problem})")
        return program

    def constants(self) -> Mapping[str, Array | bytes]:
        """The constants of the graph by their digests: views of one buffer, which was verified."""
        if self.given_constants is not None:
            return self.given_constants()
        return ArchiveConstants(self.archive)()

    def packed(self) -> tuple[StoredCode, ...]:
        """The code of every kind, or that which was asked for, as it is in the file, every part verified."""
        kept = (self.chosen,) if self.holds_chosen_only else range(len(self.codes))
        return tuple(self._packed(number, self.codes[number]) for number in kept)

    def _packed(self, number: int, made_for: Mapping[str, str]) -> StoredCode:
        folder = code_folder(number)
        names = [n.removeprefix(folder) for n in self.archive.names if n.startswith(folder)]
        parts = {name: (self.archive.read(folder + name),) for name in names if name != FACTS}
        return StoredCode(made_for, self.archive.json(folder + FACTS), parts)

    def restored(self, num_threads: int | None) -> Executable:
        """The stored code, loaded."""
        assert self.store is not None
        with self._lock:
            if self._code is None:
                with self.archive.decoding(code_folder(self.chosen) + FACTS):
                    self._code = self.store.unpack(_Parts(self))
            code = self._code
        require_memory(self.archive.path, code.arena_bytes, self.options.max_memory_bytes)
        # What constants of the file cannot be arranged so is its fault, what this process may not run is not.
        with self.archive.decoding(code_folder(self.chosen) + FACTS):
            try:
                return loader(code, self.pool)(num_threads)
            except TilewrightError as error:
                refused = error
        raise refused

    def generated(self, num_threads: int | None) -> Executable:
        """Code that is made again from the program, loaded."""
        program = self.bounded_program()
        with self.archive.decoding():
            code = self.target.backend(program.graph, self.facts.options).generate(program)
        return loader(code, self.pool)(num_threads)

    def _graph(self, text: str, constants: Mapping[str, Any]) -> Graph:
        from tilewright.ir.text import parse_graph
        from tilewright.ir.verify import require_valid

        graph = parse_graph(text, constants=constants)
        require_valid(graph, after="reading")
        for infos, values in ((self.facts.inputs, graph.inputs), (self.facts.outputs, graph.outputs)):
            if infos != tuple(TensorInfo.of(v) for v in values):
                raise FieldError("it has other inputs or outputs than the manifest says")
        return graph


def loader(code: LoadableCode | Code, pool: ContentPool | None) -> Callable[[int | None], Executable]:
    """What loads code, with the constants that a pool has."""
    if pool is not None:
        from tilewright.targets.base import SharingCode

        if isinstance(code, SharingCode):
            return functools.partial(code.load_sharing, pool=pool)
    return code.load


@dataclass(frozen=True, slots=True)
class _Parts:
    """See `StoredParts`: the code that was chosen."""

    stored: Stored

    @property
    def made_for(self) -> Mapping[str, str]:
        return self.stored.codes[self.stored.chosen]

    @property
    def facts(self) -> Any:
        return self.stored.archive.json(self._name(FACTS))

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.stored.facts.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.stored.facts.outputs

    def graph(self) -> Graph:
        return self.stored.program().graph

    def program(self) -> Program:
        return self.stored.bounded_program()

    def constants(self) -> Mapping[str, Array | bytes]:
        return self.stored.constants()

    def size_bytes(self, name: str) -> int:
        return self.stored.archive.size_of(self._name(name))

    def read(self, name: str) -> bytes:
        return self.stored.archive.read(self._name(name))

    def read_into(self, name: str, target: Bytes) -> None:
        self.stored.archive.read_into(self._name(name), target)

    def _name(self, name: str) -> str:
        return code_folder(self.stored.chosen) + name
