"""DLRM: embeddings of categorical features that interact with a network over dense ones."""

from __future__ import annotations

import numpy as np

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.network import Fill, InputSpec, Settings, ZooNetwork

_DENSE_FEATURES = 13
_TABLES = 26
_ROWS = 1000
_WIDTH = 128
_BOTTOM = (512, 256, _WIDTH)
_TOP = (1024, 1024, 512, 256)


def _inputs(settings: Settings) -> tuple[InputSpec, ...]:
    return (
        InputSpec("dense", (settings.batch, _DENSE_FEATURES)),
        InputSpec("sparse", (settings.batch, _TABLES), Fill.INDEX, _ROWS),
    )


def _mlp(b: Builder, x: Tensor, widths: tuple[int, ...], name: str) -> Tensor:
    for index, width in enumerate(widths):
        x = b.gemm(x, width, name=f"{name}.{2 * index}")
        x = b.relu(x, name=f"{name}.{2 * index + 1}")
    return x


def _interact(b: Builder, dense: Tensor, embedded: list[Tensor]) -> Tensor:
    """Dot products of all pairs of vectors, behind the dense one."""
    batch, vectors = dense.shape[0], len(embedded) + 1
    stacked = b.reshape(b.concat([dense, *embedded]), (batch, vectors, _WIDTH))
    products = b.matmul(stacked, b.transpose(stacked, (0, 2, 1)))
    rows, columns = np.tril_indices(vectors, k=-1)
    pairs = b.constant((rows * vectors + columns).astype(np.int64))
    below = b.gather(b.reshape(products, (batch, vectors * vectors)), pairs, axis=1, name="pairs")
    return b.concat([dense, below])


def _dlrm_s(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    dense, sparse = inputs
    x = _mlp(b, dense, _BOTTOM, "bot_l")
    embedded = []
    for table in range(_TABLES):
        with b.scope(f"emb_l.{table}"):
            rows = b.parameter("weight", (_ROWS, _WIDTH), deviation=_WIDTH**-0.25)
            column = b.gather(sparse, b.constant(table), axis=1, name="index")
            embedded.append(b.gather(rows, column, name="rows"))
    with b.scope("interaction"):
        x = _interact(b, x, embedded)
    x = _mlp(b, x, _TOP, "top_l")
    b.output(b.unary("Sigmoid", b.gemm(x, 1, name="top_l.8"), name="top_l.9"), "probability")


NETWORKS = (
    ZooNetwork(
        "dlrm_s",
        "recommendation",
        "DLRM with the layers of MLPerf's model and 26 tables of 1000 rows, one row per feature and query",
        "Naumov et al., Deep Learning Recommendation Model for Personalization Systems, 2019",
        _inputs,
        _dlrm_s,
    ),
)
