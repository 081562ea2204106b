"""Where a model came from: what messages call it, and where its weights may lie."""

from __future__ import annotations

from pathlib import Path

from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model came from: a name for messages and the only folder its weights may be read from."""

    label: str
    folder: Path | None
