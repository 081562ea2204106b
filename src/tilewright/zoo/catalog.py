"""Every network, family by family."""

from __future__ import annotations

from importlib import import_module

from tilewright.zoo.network import ZooNetwork, by_name

_FAMILIES = (
    "resnet",
    "regnet",
    "tailor",
    "classic",
    "mobile",
    "excite",
    "mobilevit",
    "convnext",
    "swin",
    "mixer",
    "unet",
    "ios",
    "darknet",
    "yolo",
    "transformers",
    "gpt",
    "recurrent",
    "conformer",
    "dlrm",
)


def _networks(family: str) -> tuple[ZooNetwork, ...]:
    found: tuple[ZooNetwork, ...] = import_module(f"tilewright.zoo.{family}").NETWORKS
    return found


NETWORKS = by_name(tuple(network for family in _FAMILIES for network in _networks(family)))
