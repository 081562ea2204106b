"""What documents of the command line have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """A part of a document: all keys are there, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(Part):
    """What every document begins with."""

    schema_version: Literal[1]
    tilewright_version: str


class Host(Part):
    """The machine on which a report was made."""

    cpu: str
    architecture: str
    cores: int = Field(description="Cores that the process may use.")
    threads: int = Field(description="Worker threads by default: cores, or the quota if that is less.")
    quota_cores: float | None
    memory_limit_bytes: int | None


class ModelReport(Report):
    """What every document on a model begins with."""

    model_sha256: str
    target: str
    host: Host


class Tensor(Part):
    """An input or output."""

    name: str
    dtype: str
    shape: list[int]
