"""Artifacts: compiled models as files, `model.tw`.

    manifest.json        what was compiled, from what, into which steps; the SHA-256 of every other member
    graph.txt            the optimised graph
    plan.json            how it is cut and in which order it runs
    weights.safetensors  its constants: the only copy, which code of every kind has arranged when it is loaded
    machine.json         the machine, where it was compiled for a described one
    code/N/facts.json    facts about its code for one kind of machines
    code/N/*             parts of that code: of the processor's, objects/*.o

The last two are there for targets whose code is kept; what they mean, the target knows (`targets/stored.py`).
A model for several sets of shapes has all but the weights for each of them, in folders `shapes/N/`.
A described machine is read from nowhere else: the artifact works where its preset or file is another or gone.
All members are a pure function of the model's bytes, the target, the options and the version; the archive's
comment holds the signature of who made it (`signature.py`), without which no code of it is run.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.artifact.constants import ArchiveConstants, Shared
from tilewright.artifact.container import MANIFEST, Archive
from tilewright.artifact.facts import decode_facts
from tilewright.artifact.members import (
    FORMAT_VERSION,
    MACHINE,
    SHAPES,
    WEIGHTS,
    code_of_member,
    set_of_member,
    shapes_folder,
)
from tilewright.artifact.option_check import require_options_apply
from tilewright.artifact.signature import SHOWN_DIGITS, user_key
from tilewright.artifact.stored import Stored, loader
from tilewright.artifact.stored_rows import StoredRows, decode_rows, most_rows
from tilewright.compiled_facts import Body, CompiledFacts
from tilewright.content_pool import ContentPool
from tilewright.errors import ArtifactCorrupt, UsageError
from tilewright.fields import FieldError, field_of, inside
from tilewright.hardware.instruction_sets import HOST, canonical_isa
from tilewright.hardware.probe import num_threads_default
from tilewright.options import Accuracy, Options, sets_text, shapes_text
from tilewright.progress import PhaseClock
from tilewright.target_ref import CPU, TargetRef
from tilewright.targets import cpu_code_store, find_target
from tilewright.text.printable import printable

if TYPE_CHECKING:
    from tilewright.arrays import Array
    from tilewright.hardware.machine import Machine
    from tilewright.targets.base import CodeStore, Target


__all__ = [
    "FORMAT_VERSION",
    "Archive",
    "Origin",
    "Sizes",
    "StoredModel",
    "StoredShapes",
    "origin_of",
    "read_artifact",
    "read_kept",
    "require_asked",
]

logger = logging.getLogger(__name__)

_SEVERAL_SINCE = 4  # code of several kinds of machines, signed; constants once
_ACCURACY_NAMES_SINCE = 3
_EARLIER_ACCURACY_NAMES: dict[Accuracy, Accuracy] = {"default": "relaxed"}


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """A compiled model that lies in a file: its parts are read when they are first called for."""

    facts: CompiledFacts
    body: Body
    remarks: tuple[str, ...]
    num_threads: int | None


@dataclass(frozen=True, slots=True, eq=False)
class StoredShapes:
    """A model in a file with code for several sets of shapes; `read` gives what one of them has, `rows` say
    what else it runs."""

    facts: CompiledFacts
    sets: tuple[Mapping[str, tuple[int, ...]], ...]
    rows: tuple[StoredRows, ...]
    read: Callable[[int], StoredModel]
    remarks: tuple[str, ...]
    num_threads: int | None


def read_artifact(
    path: Path, options: Options | None = None, asked: Collection[str] | None = None
) -> StoredModel | StoredShapes:
    """Open an artifact as the options say. `asked` are those of them that were asked for; by default those
    that differ from the default.

    Its code is used if it is for this machine and the user, or somebody that the user trusts, signed it;
    otherwise it is generated again here from the program, and a remark says why. Of several sets of shapes,
    those that are asked for name one.

    Raises:
        UsageError: no such file, or options that an artifact cannot honour.
        ArtifactCorrupt: not an artifact, damaged, or made by a newer version.
        BudgetExceeded: it needs more memory than the options allow.
    """
    options = options or Options()
    asked = options.asked if asked is None else asked
    archive = Archive(path)
    if archive.format_version > FORMAT_VERSION:
        raise ArtifactCorrupt(
            f"{path}: made by a newer tilewright (format {archive.format_version}, this one reads up to "
            f"{FORMAT_VERSION}); update tilewright or compile the model again."
        )
    if archive.format_version < 1:
        raise archive.corrupt(f"its format version is {archive.format_version}")
    if SHAPES in archive.manifest:
        return _read_shapes(archive, options, frozenset(asked))
    return _read_program(archive, options, asked)


def _read_program(
    archive: Archive, options: Options, asked: Collection[str], shared: Shared | None = None
) -> StoredModel:
    path = archive.path
    with archive.decoding(MANIFEST):
        facts = decode_facts(archive.manifest)
        codes = _stated_codes(archive)
    archive.verify_signature()
    find, machine = _made_for(archive, facts.target)
    facts = replace(facts, machine=machine, options=_named_as_now(facts.options, archive.format_version))
    require_options_apply(path, facts, options, asked)
    store = _code_store(archive, facts.target, find, has_code=bool(codes))
    stored = Stored(archive, facts, find, options, store, codes)
    if shared is not None:
        stored.given_constants, stored.pool = shared.constants, shared.pool
    num_threads, remarks = _threads(path, options.num_threads, facts)
    if options.isa is not None and not all("isa" in made_for for made_for in codes or ({},)):
        raise UsageError(f"{path}: target {facts.target} has no instruction sets; leave out --isa.")
    if store is None:
        return StoredModel(facts, Body(stored.program, lambda: (), stored.generated), remarks, num_threads)
    with archive.decoding(MANIFEST), inside("native"):
        reasons = [store.refusal(made_for) for made_for in codes]
    chosen = _chosen(path, codes, reasons, options.isa)
    reason = reasons[chosen] or _distrust(archive, options)
    if reason is None:
        stored.chosen, stored.holds_chosen_only = chosen, options.isa not in (None, HOST)
        return StoredModel(facts, Body(stored.program, stored.packed, stored.restored), remarks, num_threads)
    return _generated_again(stored, store, codes[chosen], reason, remarks, num_threads)


def _read_shapes(archive: Archive, options: Options, asked: frozenset[str]) -> StoredModel | StoredShapes:
    path = archive.path
    facts, sets = _stated_shapes(archive)
    num_threads, remarks = _threads(path, options.num_threads, facts)
    of_each = replace(options, threads=num_threads)
    shared = Shared(ArchiveConstants(archive), ContentPool())

    def read(number: int) -> StoredModel:
        section = archive.within(shapes_folder(number))
        model = _read_program(section, of_each, asked - {"shapes"}, shared)
        if {i.name: i.shape for i in model.facts.inputs} != sets[number]:
            raise archive.corrupt(f"{section.folder}{MANIFEST}: it has other inputs than the file says")
        of_set = (held for held in rows if held.of_set == number)
        if not all(held.fits(model.facts.outputs, most_rows(held, sets) or 0) for held in of_set):
            raise archive.corrupt(f"{section.folder}{MANIFEST}: its outputs do not have the rows of the file")
        return model

    with archive.decoding(MANIFEST):
        rows = decode_rows(archive.manifest, facts, sets)
    number = _asked_set(archive, options, asked)
    return StoredShapes(facts, sets, rows, read, remarks, num_threads) if number is None else read(number)


def _stated_shapes(archive: Archive) -> tuple[CompiledFacts, tuple[Mapping[str, tuple[int, ...]], ...]]:
    """What a file for several sets of shapes says of the model, and the sets."""
    with archive.decoding(MANIFEST):
        facts = decode_facts(archive.manifest)
        sets = field_of(archive.manifest, SHAPES, tuple[dict[str, tuple[int, ...]], ...])
        names = [info.name for info in facts.inputs]
        if not sets or any(shapes.keys() != set(names) for shapes in sets):
            raise FieldError("there are none, or of other inputs", f".{SHAPES}")
    return facts, tuple({name: shapes[name] for name in names} for shapes in sets)


def _asked_set(archive: Archive, options: Options, asked: Collection[str]) -> int | None:
    """The number of the set of shapes that is asked for; None if no single one is.

    Raises:
        UsageError: there is none like that, or what else is asked cannot be honoured.
        BudgetExceeded: a set that is asked for needs more memory than the options allow.
    """
    facts, sets = _stated_shapes(archive)
    others = frozenset(asked) - {"shapes"}
    wanted = options.shapes if "shapes" in asked else {}
    fitting = [n for n, shapes in enumerate(sets) if wanted.items() <= shapes.items()]
    is_of_all = not wanted or wanted == facts.options.shapes
    if not is_of_all and len(fitting) != 1:
        raise UsageError(
            f"{archive.path}: holds code for {len(fitting) or 'no'} sets of shapes with "
            f"{shapes_text(wanted)}; name one of {sets_text(sets)}, or compile the model anew."
        )
    # What was compiled in is the same for all sets, but not how much memory they take.
    looked_at = range(1 if options.max_memory_bytes is None else len(sets)) if is_of_all else fitting
    for number in looked_at:
        section = archive.within(shapes_folder(number))
        with section.decoding(MANIFEST):
            of_set = decode_facts(section.manifest)
        require_options_apply(archive.path, of_set, options, others)
    return None if is_of_all else fitting[0]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a file, of the constants in it, of code for each kind of machine in all sets of shapes, and of
    what each set has of its own, where there are several."""

    file_bytes: int
    weight_bytes: int
    code_bytes: tuple[int, ...]
    set_bytes: tuple[int, ...]

    @classmethod
    def of(cls, archive: Archive) -> Sizes:
        """Those of the members of a file."""
        weight_bytes, code, sets = 0, Counter[int](), Counter[int]()
        for name in archive.names:
            size_bytes, member = archive.size_of(name), name
            if (found := set_of_member(name)) is not None:
                number, member = found
                sets[number] += size_bytes
            if (kind := code_of_member(member)) is not None:
                code[kind] += size_bytes
            if member == WEIGHTS:
                weight_bytes = size_bytes
        of_kinds, of_sets = (tuple(counts[n] for n in sorted(counts)) for counts in (code, sets))
        return cls(archive.size_bytes, weight_bytes, of_kinds, of_sets)


@dataclass(frozen=True, slots=True)
class Origin:
    """For which instruction sets an artifact holds code, the public key of its signer, and its sizes."""

    isas: tuple[str, ...]
    signed_by: str | None
    is_trusted: bool
    sizes: Sizes


def origin_of(path: Path) -> Origin:
    """What a file says of its code, of which nothing is run.

    Raises:
        ArtifactCorrupt: not an artifact, or damaged.
    """
    archive = Archive(path)
    archive.verify_signature()
    with archive.decoding(MANIFEST):
        isas = tuple(made_for["isa"] for made_for in _stated_codes(archive) if "isa" in made_for)
    signature, sizes = archive.signature, Sizes.of(archive)
    if signature is None:
        return Origin(isas, None, False, sizes)
    return Origin(isas, signature.public_key, signature.is_trusted, sizes)


def require_asked(path: Path, options: Options, asked: Collection[str]) -> None:
    """That an artifact can honour the options that were asked for, even those that hold their default.

    Raises:
        UsageError, BudgetExceeded: as `read_artifact`.
        ArtifactCorrupt: not an artifact, or damaged.
    """
    archive = Archive(path)
    if archive.format_version > FORMAT_VERSION:  # which is said where it is opened
        return
    if SHAPES in archive.manifest:
        _asked_set(archive, options, asked)
        return
    with archive.decoding(MANIFEST):
        facts = decode_facts(archive.manifest)
    facts = replace(facts, options=_named_as_now(facts.options, archive.format_version))
    require_options_apply(path, facts, options, asked)


def verify_artifact(path: Path, opened: int | None = None) -> None:
    """Read an artifact as a whole.

    Raises:
        ArtifactCorrupt: naming what is damaged.
    """
    Archive(path, opened).verify()


def read_kept(
    path: Path,
    opened: int,
    options: Options,
    constants: Callable[[Mapping[str, str]], Mapping[str, Array | bytes]],
    pool: ContentPool | None = None,
) -> StoredModel:
    """Open what `kept_artifact` gave here, of a compilation with these very options.

    `opened` is the file at the path, open for reading.

    `constants` gives those of the optimised graph by their digests, when they are called for; it is told
    which value of the graph has which. What a pool has of the arranged ones is not made again.

    Raises:
        ArtifactCorrupt: it is damaged, of another version, or not by this user for this machine.
    """
    archive = Archive(path, opened)
    if archive.format_version != FORMAT_VERSION:
        raise archive.corrupt(f"its format version is {archive.format_version}")
    with archive.decoding(MANIFEST):
        facts = replace(decode_facts(archive.manifest), options=options)
        codes = _stated_codes(archive)
        remarks = field_of(archive.manifest, "remarks", tuple[str, ...])
        named = field_of(archive.manifest, "constants", dict[str, str])
    archive.verify_signature()
    find, _ = _made_for(archive, facts.target)
    store = _code_store(archive, facts.target, find, has_code=bool(codes))
    if archive.signature is None or archive.signature.public_key != user_key() or store is None:
        raise archive.corrupt("this user did not sign it")
    given = functools.partial(constants, named)
    stored = Stored(archive, facts, find, Options(), store, codes, given_constants=given, pool=pool)
    stored.chosen = next((n for n, made_for in enumerate(codes) if store.refusal(made_for) is None), -1)
    if stored.chosen < 0:
        raise archive.corrupt("its code is for another machine")
    return StoredModel(
        facts, Body(stored.program, stored.packed, stored.restored), remarks, options.num_threads
    )


def _stated_codes(archive: Archive) -> tuple[Mapping[str, str], ...]:
    """What each kind of code was made for."""
    if archive.format_version >= _SEVERAL_SINCE:
        codes: tuple[Mapping[str, str], ...] = field_of(
            archive.manifest, "native", tuple[dict[str, str], ...]
        )
        return codes
    earlier = field_of(archive.manifest, "native", dict[str, str] | None)
    return () if earlier is None else (earlier,)


def _chosen(
    path: Path, codes: Sequence[Mapping[str, str]], reasons: Sequence[str | None], asked: str | None
) -> int:
    """Which code to use: the first against which there is no reason, else the first; or what was asked for.

    Raises:
        UsageError: there is no code of the instruction set that was asked for, or it does not run here.
    """
    if asked is None or asked == HOST:
        return next((number for number, reason in enumerate(reasons) if reason is None), 0)
    name = canonical_isa(asked)
    held = [made_for.get("isa", "") for made_for in codes]
    if name not in held:
        raise UsageError(
            f"{path}: holds code for {', '.join(held)}, not for {name}; compile the model with "
            f"--isa {','.join((*held, name))}, or leave out --isa."
        )
    chosen = held.index(name)
    if reasons[chosen] is not None:
        raise UsageError(f"{path}: {reasons[chosen]}, so --isa {asked} cannot be had here; leave it out.")
    return chosen


def _distrust(archive: Archive, options: Options) -> str | None:
    """Why code of this archive may not run; None if it may."""
    signature = archive.signature
    if options.trust or (signature is not None and signature.is_trusted):
        return None
    if signature is None:
        return "its code is not signed (--trust uses it as it is)"
    shown = f"{signature.public_key[:SHOWN_DIGITS]}..."
    return (
        f"its code is signed with key {shown}, which you do not trust (`tilewright trust add "
        f"{archive.path}` does once and for all, --trust this time)"
    )


def _named_as_now(options: Options, format_version: int) -> Options:
    """The options of a file in the words of this version."""
    if format_version >= _ACCURACY_NAMES_SINCE:
        return options
    return replace(options, accuracy=_EARLIER_ACCURACY_NAMES.get(options.accuracy, options.accuracy))


def _made_for(archive: Archive, target: TargetRef) -> tuple[Callable[[], Target], Machine | None]:
    """What gives the target, which must be known here or be a machine that the artifact describes, and that
    machine. The processor's loads when it is called for: stored code needs nothing of what generates code.

    A path in the file is never followed.
    """
    from tilewright.artifact.machine import decode_machine

    is_described = target.is_machine
    if MACHINE in archive.names:
        if not is_described:
            raise archive.corrupt(
                f"it has a member {MACHINE!r}, which target {str(target)[:40]!r} does not need"
            )
        document = archive.json(MACHINE)
        with archive.decoding(MACHINE):
            machine = decode_machine(document)
        with archive.decoding(MANIFEST), inside("target"):
            described = find_target(target, machine)
        return lambda: described, machine
    if is_described and target.is_known_machine:
        raise archive.corrupt(f"member {MACHINE!r} is missing")
    if target == CPU:
        return lambda: find_target(target), None
    try:
        known = find_target(target)
        return lambda: known, None
    except UsageError as error:
        raise UsageError(f"{archive.path}: {MANIFEST}: target: {error}") from error


def _code_store(
    archive: Archive, target: TargetRef, find: Callable[[], Target], *, has_code: bool
) -> CodeStore | None:
    """What loads code of the target, which keeps code exactly if the file has any."""
    store = cpu_code_store() if target == CPU else find().code_store
    if (store is not None) != has_code:
        has = "has native parts, which" if has_code else "lacks the native parts that"
        makes = "makes none" if has_code else "makes"
        raise archive.corrupt(f"{MANIFEST}: native: it {has} target {target} {makes}")
    return store


def _threads(path: Path, asked: int | None, facts: CompiledFacts) -> tuple[int | None, tuple[str, ...]]:
    """Threads of a run. What the file asks for is bounded by the machine, what the caller asks for is not."""
    from tilewright.hardware.probe import resolve_threads

    if asked is not None:
        return resolve_threads(asked), ()
    stored, most = facts.options.num_threads, num_threads_default()
    if stored is None or stored <= most:
        return stored, ()
    remark = (
        f"{path}: asks for {stored} threads; this machine gives {most} (threads or --threads asks for more)."
    )
    logger.warning("%s", printable(remark))
    return most, (remark,)


def _generated_again(
    stored: Stored,
    store: CodeStore,
    made_for: Mapping[str, str],
    reason: str,
    remarks: tuple[str, ...],
    num_threads: int | None,
) -> StoredModel:
    """The model with code that is made here, on the terms of the options that it is opened with."""
    path, given = stored.archive.path, stored.options
    terms = {
        name: getattr(given, name)
        for name in ("cache_dir", "no_cache", "frozen", "timeout_s", "max_memory_bytes")
    }
    options = replace(stored.facts.options, **terms)
    program = store.adapted(replace(stored.bounded_program(), options=options), made_for)
    if given.isa is not None:
        program = replace(program, options=replace(program.options, isa=given.isa))
    options = program.options
    clock = PhaseClock(given.timeout_s, None)
    # A kernel that a frozen cache lacks is no fault of the file.
    blame = contextlib.nullcontext() if given.frozen else stored.archive.decoding()
    with blame, clock.phase("generate"):
        code = stored.target.backend(program.graph, options).generate(program, progress=clock.report)
    remark = f"{path}: {reason}; generated again here in {clock.phase_s['generate']:.1f} s."
    logger.warning("%s", printable(remark))
    facts = replace(stored.facts, options=options, steps=code.steps, memory=code.memory_info)
    body = Body(lambda: program, lambda: store.pack(code), loader(code, stored.pool))
    return StoredModel(facts, body, (*remarks, remark), num_threads)
