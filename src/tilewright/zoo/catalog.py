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
    mixer,
    mobile,
    mobilevit,
    recurrent,
    regnet,
    resnet,
    swin,
    tailor,
    transformers,
    unet,
    yolo,
)
from tilewright.zoo.network import by_name

NETWORKS = by_name(
    (
        *resnet.NETWORKS,
        *regnet.NETWORKS,
        *tailor.NETWORKS,
        *classic.NETWORKS,
        *mobile.NETWORKS,
        *excite.NETWORKS,
        *mobilevit.NETWORKS,
        *convnext.NETWORKS,
        *swin.NETWORKS,
        *mixer.NETWORKS,
        *unet.NETWORKS,
        *ios.NETWORKS,
        *darknet.NETWORKS,
        *yolo.NETWORKS,
        *transformers.NETWORKS,
        *gpt.NETWORKS,
        *recurrent.NETWORKS,
        *conformer.NETWORKS,
        *dlrm.NETWORKS,
    )
)
