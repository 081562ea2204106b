"""One operator on a described machine: which loop runs at which level of memory, and in what order.

`MAPPERS` names the mappers; each is one file here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright import families
from tilewright.registry import Registry

if TYPE_CHECKING:
    from tilewright.mapping.base import Mapper

MAPPERS: Registry[Mapper] = families.MAPPERS
