"""One operator on a described machine: which loop runs at which level of memory, and in what order.

`MAPPERS` names the mappers; each is one file here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.registry import Registry

if TYPE_CHECKING:
    from tilewright.mapping.base import Mapper

MAPPERS: Registry[Mapper] = Registry(
    "mapper", entry_point_group="tilewright.mapping", protocol="tilewright.mapping.base:Mapper"
)
MAPPERS.add_class("cosa", "tilewright.mapping.cosa:Cosa")
MAPPERS.add_class("cosa-paper", "tilewright.mapping.cosa:CosaPaper")
MAPPERS.add_class("exact", "tilewright.mapping.exact:Exact")
MAPPERS.add_class("hybrid", "tilewright.mapping.hybrid:Hybrid")
MAPPERS.add_class("random", "tilewright.mapping.random:Random")
