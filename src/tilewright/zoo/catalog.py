"""Every network, family by family."""

from __future__ import annotations

from tilewright.zoo import (
    classic,
    conformer,
    convnext,
    darknet,
    dlrm,
    excite,
    gpt,
    ios,
    mobile,
    mobilevit,
    resnet,
    tailor,
    transformers,
    yolo,
)
from tilewright.zoo.network import by_name

NETWORKS = by_name(
    (
        *resnet.NETWORKS,
        *tailor.NETWORKS,
        *classic.NETWORKS,
        *mobile.NETWORKS,
        *excite.NETWORKS,
        *mobilevit.NETWORKS,
        *convnext.NETWORKS,
        *ios.NETWORKS,
        *darknet.NETWORKS,
        *yolo.NETWORKS,
        *transformers.NETWORKS,
        *gpt.NETWORKS,
        *conformer.NETWORKS,
        *dlrm.NETWORKS,
    )
)
