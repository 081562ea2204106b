"""Every network, family by family."""

from __future__ import annotations

from tilewright.zoo import classic, mobile, resnet, tailor
from tilewright.zoo.network import by_name

NETWORKS = by_name((*resnet.NETWORKS, *tailor.NETWORKS, *classic.NETWORKS, *mobile.NETWORKS))
