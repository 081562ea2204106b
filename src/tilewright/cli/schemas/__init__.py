"""The shape of every `--json` document: `tilewright schema KIND` prints it, tests hold the verbs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tilewright.cli.output import SCHEMA_VERSION
from tilewright.cli.schemas.accelerator import (
    MapEvaluateReport,
    MapReport,
    MapSweepReport,
    ReproduceReport,
    SimulateReport,
)
from tilewright.cli.schemas.base import Report
from tilewright.cli.schemas.measurement import BenchReport, CompareReport, DemoReport, ProfileReport
from tilewright.cli.schemas.model import (
    CheckReport,
    CompileReport,
    ExplainReport,
    ExportReport,
    InspectReport,
    RunReport,
    TuneReport,
)
from tilewright.cli.schemas.surroundings import (
    CacheExportReport,
    CacheForgetReport,
    CacheImportReport,
    CachePruneReport,
    CacheReport,
    CacheVerifyReport,
    DoctorReport,
    HostReport,
    MachineDescriptionReport,
    TargetsReport,
    ZooBuildReport,
    ZooReport,
)

_ALL: tuple[type[Report], ...] = (
    DemoReport,
    DoctorReport,
    ZooReport,
    ZooBuildReport,
    TargetsReport,
    MachineDescriptionReport,
    HostReport,
    InspectReport,
    CheckReport,
    ExplainReport,
    CompileReport,
    TuneReport,
    CacheReport,
    CacheVerifyReport,
    CachePruneReport,
    CacheForgetReport,
    CacheExportReport,
    CacheImportReport,
    RunReport,
    BenchReport,
    ProfileReport,
    ExportReport,
    MapReport,
    MapEvaluateReport,
    MapSweepReport,
    ReproduceReport,
    SimulateReport,
    CompareReport,
)
REPORTS: Mapping[str, type[Report]] = {m.model_fields["kind"].annotation.__args__[0]: m for m in _ALL}  # type: ignore[union-attr]  # each kind is a Literal


def report_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document."""
    document = REPORTS[kind].model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["$comment"] = f"schema_version {SCHEMA_VERSION}"
    return document


def parse_report(document: Mapping[str, Any]) -> Report:
    """A document as an object.

    Raises:
        pydantic.ValidationError: it is not what its kind promises.
    """
    return REPORTS[document["kind"]].model_validate(document)


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
