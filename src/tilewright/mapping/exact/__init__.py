"""The mapper that minimises the real cost, and proves how good its answer is."""

from __future__ import annotations

from tilewright.mapping.exact.mapper import Exact

__all__ = ["Exact"]
