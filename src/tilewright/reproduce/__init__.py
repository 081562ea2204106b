"""The papers' tables and figures made again by our code, beside the papers' own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.registry import Registry

if TYPE_CHECKING:
    from tilewright.reproduce.base import Reproduction

REPRODUCTIONS: Registry[Reproduction] = Registry(
    "paper",
    members={
        "ago": "tilewright.reproduce.ago.reproduction:Ago",
        "cosa": "tilewright.reproduce.cosa.reproduction:Cosa",
        "graphturbo": "tilewright.reproduce.graphturbo.reproduction:GraphTurbo",
        "ios": "tilewright.reproduce.ios.reproduction:Ios",
        "pcgc": "tilewright.reproduce.pcgc.reproduction:Pcgc",
    },
)
