"""Features of processors that this one is taken for; light to import."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.hardware.instruction_sets import AMX_NEEDS

PROCESSORS = {"avx2": ("amx", "avx512", "avx10"), "avx512": ("amx",), "amx": ()}
"""By name, how the features begin that such a processor lacks."""

MATRIX_FEATURES = AMX_NEEDS
"""Features of the matrix unit that is emulated, as LLVM calls them."""


def features_as(name: str, known: Mapping[str, bool]) -> dict[str, bool]:
    """Whether a processor of that name has each of the features that this one has or lacks."""
    features = {feature: has and not feature.startswith(PROCESSORS[name]) for feature, has in known.items()}
    return features | dict.fromkeys(MATRIX_FEATURES, True) if name == "amx" else features
