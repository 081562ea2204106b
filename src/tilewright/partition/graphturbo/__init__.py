"""GraphTurbo (Zhao et al., OSDI 2023): subgraphs as large as local buffers allow, split into instances.

`planner.py` is the partitioner; `split.py` decides how a subgraph is split (Algorithm 1, Eq. 1), `merge.py`
what is joined (Algorithm 2). `check.py` recomputes all of it.
"""

from __future__ import annotations

from tilewright.partition.graphturbo.planner import GraphTurbo

__all__ = ["GraphTurbo"]
