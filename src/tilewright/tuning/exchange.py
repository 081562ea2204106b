"""Findings in a plain file, for another machine or user: lines of JSON, with a checksum at the end.

The checksum says that a file is whole, not who made it. So what is read is checked field by field, and
counts for no more than its worth: observations become hints, which are measured here before they are chosen.
Whoever trusts a file may say so: then what was measured on a machine like this one, with the same versions,
counts as if it was measured here, plans and failures included. No finding holds code: it names choices that
the compiler knows, and those that it does not know it passes over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright.errors import UsageError
from tilewright.files import read_at_most, replacing
from tilewright.records import dataclass
from tilewright.tuning.database import FAILURES, OBSERVATIONS, PLANS, TunedPlan, TuningDatabase
from tilewright.tuning.observation import (
    Failure,
    Observation,
    PlanContext,
    Provenance,
    Source,
    is_name,
    is_text,
    parsed,
)
from tilewright.tuning.store import Row
from tilewright.version import __version__

KIND = "tilewright-tuning"
FORMAT = 1
MAX_FILE_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_REFUSED = 1000
_MAX_NAME_CHARACTERS = 256


@dataclass(slots=True)
class ImportedFindings:
    """What became of the findings of a file; `refused` says of lines why they were not taken."""

    num_hints: int = 0
    num_trusted: int = 0
    num_known: int = 0
    num_left_out: int = 0
    refused: list[str] = field(default_factory=list)


def export_findings(database: TuningDatabase, path: Path) -> int:
    """Write all findings that can be read to a file; returns how many. Equal databases give equal files.

    Raises:
        UsageError: the file cannot be written.
    """
    count = 0
    digest = hashlib.sha256()
    try:
        with replacing(path) as file:
            for document in _documents(database):
                count += any(name in document for name in _READERS)
                line = _line(document)
                digest.update(line)
                file.write(line)
            file.write(_line({"end": count, "sha256": digest.hexdigest()}))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error
    return count


def import_findings(
    database: TuningDatabase, path: Path, *, trusted: frozenset[str] = frozenset()
) -> ImportedFindings:
    """Take the findings of a file. Those of contexts whose fingerprints are in `trusted` count at once.

    Raises:
        UsageError: the file is none of `export_findings`, or not whole; nothing of it was taken.
    """
    return _Import(database, trusted).run(_documents_of(path))


def is_findings(path: Path) -> bool:
    """Whether a file begins as `export_findings` writes it."""
    try:
        return read_at_most(path, 64).startswith(f'{{"kind":"{KIND}"'.encode())
    except (OSError, ValueError):
        return False


def _documents(database: TuningDatabase) -> Iterator[dict[str, Any]]:
    yield {"kind": KIND, "format": FORMAT, "tilewright_version": __version__}
    contexts, names = database.contexts(), database.subjects("site")
    for key, context in sorted(contexts.items()):
        yield {"context": key, "facts": context.to_json()}
    for site, name in sorted(names.items()):
        yield {"site": site, "name": name}
    for row, seen in database.found(OBSERVATIONS):
        if row[0] in contexts:
            yield {"context": str(row[0]), "site": seen.site, "observation": seen.to_json()}
    for row, failure in database.found(FAILURES):
        if row[0] in contexts:
            yield {"context": str(row[0]), "site": failure.site, "failure": failure.to_json()}
    for row, plan in database.found(PLANS):
        if row[0] in contexts:
            yield {"context": str(row[0]), "model": str(row[1]), "plan": plan.to_json()}


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _documents_of(path: Path) -> Iterator[tuple[int, object]]:
    """The lines between head and end, with their numbers, once the file was found whole."""
    try:
        data = read_at_most(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: more than MAX_FILE_BYTES = {MAX_FILE_BYTES} bytes; export less.")
    *lines, last = data.splitlines(keepends=True) or [b""]
    end, head = _parsed_line(last), _parsed_line(lines[0] if lines else b"")
    if not isinstance(head, Mapping) or head.get("kind") != KIND:
        raise UsageError(
            f"{path}: holds no findings of tuning; expected what 'cache export --tuning' writes."
        )
    if head.get("format") != FORMAT:
        raise UsageError(
            f"{path}: format {str(head.get('format'))[:20]}, this version reads {FORMAT}; export it anew."
        )
    whole = hashlib.sha256(b"".join(lines)).hexdigest()
    if not isinstance(end, Mapping) or end.get("sha256") != whole:
        raise UsageError(f"{path}: is damaged or cut off (its checksum is wrong); export or copy it anew.")
    return ((number, _parsed_line(line)) for number, line in enumerate(lines[1:], start=2))


def _parsed_line(line: bytes) -> object:
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        return parsed(line.decode())
    except UnicodeDecodeError:
        return None


Taken = TypeVar("Taken", Observation, Failure)


@dataclass(slots=True)
class _Import:
    database: TuningDatabase
    trusted: frozenset[str]
    result: ImportedFindings = field(default_factory=ImportedFindings)
    contexts: dict[str, PlanContext] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    observations: dict[str, list[Observation]] = field(default_factory=dict)
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    plans: dict[tuple[str, str], TunedPlan] = field(default_factory=dict)

    def run(self, documents: Iterator[tuple[int, object]]) -> ImportedFindings:
        """Read all, then write all."""
        for number, document in documents:
            problem = self._read(document)
            if problem:
                self.result.refused.append(f"line {number}: {problem}")
            if len(self.result.refused) > MAX_REFUSED:
                raise UsageError(
                    f"more than MAX_REFUSED = {MAX_REFUSED} lines are no findings; nothing was taken."
                )
        for key, context in self.contexts.items():
            self._store(key, context)
        return self.result

    def _read(self, document: object) -> str:
        """Keep what a line says; or what is wrong with it."""
        if not isinstance(document, Mapping):
            return "no JSON object"
        if "facts" in document:
            return self._read_context(document)
        if "name" in document:
            return self._read_name(document)
        key = document.get("context")
        if not isinstance(key, str) or key not in self.contexts:
            return "of a context that was not described before"
        kind = next((kind for kind in _READERS if kind in document), None)
        return "nothing that is known" if kind is None else _READERS[kind](self, key, document)

    def _read_context(self, document: Mapping[str, Any]) -> str:
        context = PlanContext.from_json(document["facts"])
        if context is None or context.key != document.get("context"):
            return "no description of a context"
        self.contexts[context.key] = context
        return ""

    def _read_name(self, document: Mapping[str, Any]) -> str:
        site, name = document.get("site"), document["name"]
        if not is_name(site) or not is_text(name) or len(name) > _MAX_NAME_CHARACTERS:
            return "no name of a site"
        self.names[site] = name
        return ""

    def _read_observation(self, key: str, document: Mapping[str, Any]) -> str:
        site = document.get("site")
        seen = Observation.from_json(site, document["observation"]) if is_name(site) else None
        if seen is None:
            return "no observation"
        self.observations.setdefault(key, []).append(seen)
        return ""

    def _read_failure(self, key: str, document: Mapping[str, Any]) -> str:
        site = document.get("site")
        failure = Failure.from_json(site, document["failure"]) if is_name(site) else None
        if failure is None:
            return "no failure"
        self.failures.setdefault(key, []).append(failure)
        return ""

    def _read_plan(self, key: str, document: Mapping[str, Any]) -> str:
        model, plan = document.get("model"), TunedPlan.from_json(document["plan"])
        if not is_name(model) or plan is None:
            return "no plan"
        self.plans[key, model] = plan
        return ""

    def _store(self, key: str, context: PlanContext) -> None:
        """What is known of a context. Measurements made here are never replaced."""
        counts = context.fingerprint in self.trusted
        source = Source.TRUSTED if counts else Source.IMPORTED
        hints: dict[tuple[str, str], Row] = {}
        measured: set[tuple[str, str]] = set()
        for row, seen in self.database.found(OBSERVATIONS, "context = ?", (key,)):
            if seen.is_hint:
                hints[seen.site, seen.candidate_key] = row
            else:
                measured.add((seen.site, seen.candidate_key))
        known = measured if counts else measured | hints.keys()
        taken: list[Observation] = []
        for seen in self._unknown(self.observations.get(key, ()), known):
            host = seen.provenance.host or context.processor
            taken.append(replace(seen, provenance=Provenance(source, host, seen.provenance.calibrated_at_s)))
        names = {seen.site: self.names[seen.site] for seen in taken if seen.site in self.names}
        failures = self.failures.get(key, [])
        plans = {model: plan for (context_key, model), plan in self.plans.items() if context_key == key}
        if not counts:
            self.result.num_left_out += len(failures) + len(plans)
            self.result.num_hints += self._num_kept(self.database.add(context, taken, names), taken)
            return
        outcomes: list[Observation | Failure] = [*taken, *self._unknown(failures, known)]
        outdated = [hint for seen in taken if (hint := hints.get((seen.site, seen.candidate_key)))]
        is_kept = self.database.add(context, outcomes, names, outdated)
        self.result.num_trusted += self._num_kept(is_kept, outcomes)
        for model, plan in plans.items():
            if self.database.plan(context, model) is not None:
                self.result.num_known += 1
            else:
                is_kept = self.database.store_plan(context, model, plan)
                self.result.num_trusted += self._num_kept(is_kept, [plan])

    def _unknown(self, outcomes: Sequence[Taken], known: Set[tuple[str, str]]) -> list[Taken]:
        """The outcomes of other sites or candidates than are known here."""
        new = [outcome for outcome in outcomes if (outcome.site, outcome.candidate_key) not in known]
        self.result.num_known += len(outcomes) - len(new)
        return new

    def _num_kept(self, is_kept: bool, findings: Sequence[object]) -> int:
        """How many findings are on disk now; those that are not were left out."""
        if is_kept:
            return len(findings)
        self.result.num_left_out += len(findings)
        return 0


_READERS: Mapping[str, Callable[[_Import, str, Mapping[str, Any]], str]] = {
    "observation": _Import._read_observation,
    "failure": _Import._read_failure,
    "plan": _Import._read_plan,
}
