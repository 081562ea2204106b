"""Every network, family by family."""

from __future__ import annotations

from tilewright.zoo import classic, ios, mobile, resnet, tailor, transformers
from tilewright.zoo.network import by_name

NETWORKS = by_name(
    (
        *resnet.NETWORKS,
        *tailor.NETWORKS,
        *classic.NETWORKS,
        *mobile.NETWORKS,
        *ios.NETWORKS,
        *transformers.NETWORKS,
    )
)
