"""The shape of every `--json` document: `tilewright schema KIND` prints it, tests hold the verbs to it.

A document is a head and the JSON of one or several results (`KINDS`); its schema is made from their fields,
annotations and docstrings, as `results.py` writes them. All keys are there, and no others.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from tilewright.cli.output import SCHEMA_VERSION
from tilewright.results import JsonEntry, WrittenAsList, entries_of

_FACTS = "tilewright.cli.facts:ModelFacts"

KINDS: Mapping[str, tuple[str, ...]] = {
    "demo": (_FACTS, "tilewright.api.demo:Demonstration"),
    "doctor": ("tilewright.api.doctor:Diagnosis",),
    "zoo": ("tilewright.zoo:Networks",),
    "zoo-build": ("tilewright.zoo:BuiltNetwork",),
    "targets": ("tilewright.cli.facts:Targets",),
    "planners": ("tilewright.cli.facts:Planners",),
    "machine-description": ("tilewright.hardware.citation:DescribedMachine",),
    "host": ("tilewright.cli.facts:HostMachine",),
    "inspect": (_FACTS, "tilewright.api.inspection:Inspection"),
    "check": (_FACTS, "tilewright.api.support:CheckReport"),
    "explain": (_FACTS, "tilewright.explain:Explanation", "tilewright.report.compilation:ChosenAlgorithms"),
    "compile": (
        _FACTS,
        "tilewright.report.compilation:CompilationSummary",
        "tilewright.cli.facts:WrittenArtifact",
    ),
    "compile-shapes": (
        _FACTS,
        "tilewright.specialise.facts:Specialisations",
        "tilewright.cli.facts:WrittenArtifact",
    ),
    "tune": (_FACTS, "tilewright.steps:TuningInfo", "tilewright.api.tuning:TuneResult"),
    "learn": ("tilewright.api.learning:LearnResult",),
    "cache": ("tilewright.api.cache:CacheContents",),
    "cache-verify": ("tilewright.api.cache:CacheVerification",),
    "cache-prune": ("tilewright.api.cache:PrunedCache",),
    "cache-forget": ("tilewright.api.cache:ForgottenFindings",),
    "cache-export": ("tilewright.api.cache:ExportedCache",),
    "cache-import": ("tilewright.api.cache:ImportedCache",),
    "trust": ("tilewright.api.trust:TrustedKeys",),
    "trust-key": ("tilewright.api.trust:UserKey",),
    "trust-add": ("tilewright.api.trust:TrustedKey",),
    "trust-rm": ("tilewright.api.trust:TrustedKey",),
    "run": (_FACTS, "tilewright.cli.run_verb:RunOutputs"),
    "bench": (_FACTS, "tilewright.api.benchmark:BenchResult"),
    "profile": (_FACTS, "tilewright.api.profiling:ModelProfile", "tilewright.cli.profile_verb:WrittenTrace"),
    "export": (_FACTS, "tilewright.embed.package:ExportedModel"),
    "export-stages": (_FACTS, "tilewright.api.stages:ExportedStages"),
    "plan": (_FACTS, "tilewright.api.plans:PlanComparison"),
    "map": ("tilewright.mapping.results:MapResult",),
    "map-evaluate": ("tilewright.mapping.results:MapEvaluation",),
    "map-chains": ("tilewright.mapping.chains.results:ChainsResult",),
    "map-sweep": ("tilewright.mapping.sweep.results:MapSweep",),
    "reproduce": ("tilewright.reproduce.base:ReproducedPaper",),
    "schedule": ("tilewright.contest.schedule:ContestSchedule",),
    "simulate": ("tilewright.api.simulation:SimulationResult",),
    "simulate-sweep": ("tilewright.report.plan_sweep:PlanSweep",),
    "compare": (_FACTS, "tilewright.api.comparison:ComparisonResult"),
    "compare-schedules": (_FACTS, "tilewright.api.schedules:ScheduleComparison"),
    "diff": ("tilewright.api.difference:DiffResult",),
    "view": (_FACTS, "tilewright.api.view:ModelView"),
    "bisect": (_FACTS, "tilewright.api.bisection:BisectResult"),
    "generate": ("tilewright.api.generation:GenerateResult",),
    "quantize": ("tilewright.api.quantization:QuantizeResult",),
    "reduce": ("tilewright.api.reduction:ReduceResult",),
}
"""What each kind of document holds after its head, by the types of its parts; a later part's key counts."""

_UNITS = (
    (r"_bytes_per_s", "B/s"),
    (r"gflop_per_s", "Gflop/s"),
    (r"_flop_per_s", "flop/s"),
    (r"_per_s", "1/s"),
    (r"_pJ_cycles", "pJ cycles"),
    (r"_pJ(_.*)?", "pJ"),
    (r"_uJ", "µJ"),
    (r"_j", "J"),
    (r"_ns", "ns"),
    (r"_ms", "ms"),
    (r"_s|seconds", "s"),
    (r"_bytes|bytes", "B"),
    (r"(.*_)?cycles", "cycles"),
)
"""Ends of keys, and the units of their values."""


def report_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document."""
    document = report_model(kind).model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["$comment"] = f"schema_version {SCHEMA_VERSION}"
    return document


def summary_of(kind: str) -> str:
    """What a kind of document is, in a line."""
    return _text(_main_part(kind)).split(". ")[0].rstrip(".") + "."


def parse_report(document: Mapping[str, Any]) -> BaseModel:
    """A document as an object.

    Raises:
        pydantic.ValidationError: it is not what its kind promises.
    """
    return report_model(document["kind"]).model_validate(document)


def violations(document: Mapping[str, Any]) -> list[str]:
    """Where a document departs from its schema; empty when it conforms.

    >>> violations({"kind": "zoo", "schema_version": 1, "tilewright_version": "0", "networks": 3})
    ['networks: Input should be a valid list']
    """
    try:
        parse_report(document)
    except ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return []


def part_types(kind: str) -> tuple[type, ...]:
    """The types of the results that a kind of document holds."""
    types = []
    for path in KINDS[kind]:
        module, _, name = path.partition(":")
        types.append(getattr(importlib.import_module(module), name))
    return tuple(types)


@functools.cache
def report_model(kind: str) -> type[BaseModel]:
    """One kind of document as a model of pydantic's."""
    fields: dict[str, Any] = {
        "kind": (Literal[kind], ...),
        "schema_version": (Literal[1], ...),
        "tilewright_version": (str, ...),
    }
    for part in part_types(kind):
        fields.update(_fields(part))
    name = "".join(word.capitalize() for word in kind.split("-")) + "Report"
    return _model(name, _text(_main_part(kind)), fields)


def _main_part(kind: str) -> type:
    return next(part for part, path in zip(part_types(kind), KINDS[kind], strict=True) if path != _FACTS)


@functools.cache
def _part_model(part: Any) -> type[BaseModel]:
    return _model(part.__name__, _text(part), _fields(part))


def _model(name: str, text: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    made: type[BaseModel] = create_model(name, __config__=config, __doc__=text, **fields)
    return made


def _text(part: type) -> str:
    return " ".join((part.__doc__ or "").split())


def _fields(part: Any) -> dict[str, Any]:
    """What `create_model` makes of each key: its type, whether it must be there, what it is."""
    fields: dict[str, Any] = {}
    for entry in entries_of(part):
        kind = _json_type(_annotation(part, entry))
        if entry.is_optional or entry.is_nullable:
            kind = kind | None
        unit = next((unit for end, unit in _UNITS if re.search(rf"(^|.)({end})$", entry.key)), None)
        fields[entry.key] = (
            kind,
            Field(
                default=None if entry.is_optional else ...,
                description=entry.text or None,
                json_schema_extra=None if unit is None else {"unit": unit},
            ),
        )
    return fields


def _annotation(part: Any, entry: JsonEntry) -> Any:
    """The annotation of an entry, read where it was written."""
    if entry.getter is not None:
        text, scope = entry.getter.__annotations__["return"], entry.getter.__globals__
    else:
        owner = next(k for k in part.__mro__ if entry.attribute in vars(k).get("__annotations__", {}))
        text, scope = owner.__annotations__[entry.attribute], vars(sys.modules[owner.__module__])
    return eval(text, scope) if isinstance(text, str) else text


def _json_type(kind: Any) -> Any:
    """The annotation of what `json_of` writes for a value of an annotation."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, Union):
        return Union[tuple(_json_type(k) for k in inner)]  # noqa: UP007  # of a number that is not known here
    if origin is Literal or kind in (None, types.NoneType, Any, bool, int, float, str):
        return kind
    base: Any = origin or kind
    if isinstance(base, type) and dataclasses.is_dataclass(base):
        if issubclass(base, WrittenAsList):
            items = (_annotation(base, JsonEntry(f.name, f.name)) for f in dataclasses.fields(base))
            return tuple[tuple(_json_type(k) for k in items)]  # type: ignore[misc]  # made at run time
        return _part_model(base)
    if isinstance(base, type) and issubclass(base, StrEnum):
        return Literal[tuple(str(member) for member in base)]
    if isinstance(base, type) and issubclass(base, Path | Enum | str):
        return str
    if isinstance(base, type) and issubclass(base, Mapping | types.MappingProxyType):
        return dict[str, _json_type(inner[1]) if inner else Any]  # type: ignore[misc]  # made at run time
    if base is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return tuple[tuple(_json_type(k) for k in inner)]  # type: ignore[misc]  # made at run time
    if isinstance(base, type) and issubclass(base, Sequence):
        return list[_json_type(inner[0]) if inner else Any]  # type: ignore[misc]  # made at run time
    raise TypeError(f"a result has an attribute of type {kind}, which JSON cannot say")
