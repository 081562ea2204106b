"""How artifacts are written: of one program, or of one for each of several sets of shapes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.arrays import Array
from tilewright.artifact.container import MANIFEST, Member, archive_pieces, is_member_name, write_archive
from tilewright.artifact.facts import encode_facts
from tilewright.artifact.machine import encode_machine
from tilewright.artifact.members import (
    FACTS,
    FORMAT_VERSION,
    GRAPH,
    MACHINE,
    PLAN,
    SHAPES,
    WEIGHTS,
    code_folder,
    shapes_folder,
)
from tilewright.artifact.plan import encode_plan
from tilewright.artifact.signature import Signature, sign
from tilewright.artifact.stored_rows import StoredRows, encode_rows
from tilewright.artifact.tensors import encode_tensors
from tilewright.compiled_facts import CompiledFacts
from tilewright.errors import InternalError
from tilewright.files import Bytes
from tilewright.ir.text import ConstantDigests, print_graph
from tilewright.program import Program
from tilewright.targets.named_constants import named_constants
from tilewright.targets.stored import StoredCode


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What an artifact keeps of one compilation."""

    facts: CompiledFacts
    program: Program
    codes: Sequence[StoredCode]


def save_artifact(path: Path, content: Content) -> Path:
    """Write an artifact, and sign it with the user's key if it holds code.

    Raises:
        UsageError: the file cannot be written.
    """
    digests = ConstantDigests()
    tensors, constants = named_constants(content.program.graph, digests)
    manifest = {**_manifest(content.facts, content.codes), "constants": constants}
    members = [*_members(content, digests), Member(WEIGHTS, encode_tensors(tensors))]
    return _written(path, manifest, members, content)


def kept_artifact(content: Content) -> Iterator[Bytes]:
    """Bytes of a signed artifact without weights, which `read_kept` alone opens: it is given them."""
    digests = ConstantDigests()
    constants = named_constants(content.program.graph, digests)[1]
    manifest = {
        **_manifest(content.facts, content.codes),
        "constants": {digest: entry["tensor"] for digest, entry in constants.items()},
        "remarks": list(content.program.remarks),
    }
    return archive_pieces(manifest, _members(content, digests), _signing(content))


def save_shapes(
    path: Path, facts: CompiledFacts, contents: Sequence[Content], rows: Sequence[StoredRows] = ()
) -> Path:
    """Write an artifact of a model for several sets of shapes, which has the constants of all of them once.

    `facts` are those of the model, whose inputs and outputs are open; `rows` say what else the code runs.

    Raises:
        UsageError: the file cannot be written.
    """
    first = contents[0]
    tensors: dict[str, Array] = {}
    constants: dict[str, dict[str, Any]] = {}
    members = []
    for number, content in enumerate(contents):
        digests = ConstantDigests()
        _add_constants(content, tensors, constants, digests)
        folder = shapes_folder(number)
        members.append(Member(folder + MANIFEST, (_json(_manifest(content.facts, content.codes)),)))
        members += _members(content, digests, folder)
    members.append(Member(WEIGHTS, encode_tensors(tensors)))
    shapes = [{i.name: list(i.shape) for i in content.facts.inputs} for content in contents]
    manifest = {**_manifest(facts, first.codes), "constants": constants, SHAPES: shapes}
    return _written(path, {**manifest, **encode_rows(rows)}, members, first)


def _written(path: Path, manifest: Mapping[str, Any], members: Sequence[Member], content: Content) -> Path:
    write_archive(path, manifest, members, _signing(content))
    return path


def _signing(content: Content) -> Callable[[str], Signature | None] | None:
    return functools.partial(sign, create=not content.facts.options.no_cache) if content.codes else None


def _manifest(facts: CompiledFacts, codes: Sequence[StoredCode]) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "kind": "tilewright artifact",
        **encode_facts(facts),
        "native": [dict(code.made_for) for code in codes],
    }


def _members(content: Content, digests: ConstantDigests, folder: str = "") -> list[Member]:
    """Everything but weights."""
    members = [
        Member(folder + GRAPH, (print_graph(content.program.graph, digest=digests).encode(),)),
        Member(folder + PLAN, (_json(encode_plan(content.program)),)),
    ]
    machine = content.facts.machine
    if machine is not None:
        members.append(Member(folder + MACHINE, (_json(encode_machine(machine)),)))
    for number, code in enumerate(content.codes):
        members += _code_members(folder + code_folder(number), code)
    return members


def _code_members(folder: str, code: StoredCode) -> list[Member]:
    taken = next((name for name in code.parts if name == FACTS or not is_member_name(folder + name)), None)
    if taken is not None:
        raise InternalError(
            f"the target's code has a part {taken!r}, which no artifact can have: "
            f"name it as objects/main.o is, and not {FACTS}."
        )
    parts = [Member(folder + name, chunks) for name, chunks in code.parts.items()]
    return [Member(folder + FACTS, (_json(dict(code.facts)),)), *parts]


def _add_constants(
    content: Content,
    tensors: dict[str, Array],
    constants: dict[str, dict[str, Any]],
    digests: ConstantDigests,
) -> None:
    """The constants of one program beside those that are there: equal ones are there already, and others of
    the same name go by their digest."""
    added, table = named_constants(content.program.graph, digests)
    for digest, entry in table.items():
        if digest not in constants:
            name = entry["tensor"] if entry["tensor"] not in tensors else f"sha256:{digest}"
            tensors[name] = added[entry["tensor"]]
            constants[digest] = {**entry, "tensor": name}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode()
