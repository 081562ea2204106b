"""Packages that only some verbs need: which extra installs them, and what for."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from tilewright.errors import UsageError
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package, and what it is for. Packages are named as an index has them."""

    name: str
    packages: tuple[str, ...]
    purpose: str

    @property
    def command(self) -> str:
        """What installs it."""
        return f"pip install 'tilewright[{self.name}]'"


EXTRAS = (
    Extra("simulate", ("numba", "highspy"), "map, simulate, reproduce and the scheduler ios"),
    Extra("learn", ("scikit-learn",), "learn"),
    Extra("peers", ("onnxruntime", "openvino"), "comparisons"),
    Extra("torch", ("torch", "onnxscript"), "PyTorch modules"),
    Extra("cuda", ("cuda-bindings",), "--target cuda on a GPU"),
    Extra("text", ("tokenizers",), "generate --prompt"),
    Extra("cluster", ("ray",), "--workers"),
)


def extra_of(package: str) -> Extra:
    """The extra that installs a package."""
    return next(extra for extra in EXTRAS if package in extra.packages)


def is_importable(module: str) -> bool:
    """Whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def imported(package: str, needed_by: str) -> ModuleType:
    """A package of an extra, whose module has its name.

    Raises:
        MissingPackage: it is not installed.
    """
    if not is_importable(package):
        raise MissingPackage(package, needed_by)
    return importlib.import_module(package)


class MissingPackage(UsageError):
    """What was asked for needs a package that an extra installs."""

    def __init__(self, package: str, needed_by: str) -> None:
        super().__init__(f"{needed_by} need {package}, which is not installed: {extra_of(package).command}.")
