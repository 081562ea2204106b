"""PyTorch modules and exported programs, through torch's own ONNX export; torch is imported when called."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tilewright.dlpack import is_torch_tensor
from tilewright.errors import UnsupportedOp, UsageError
from tilewright.extras import extra_of
from tilewright.frontend.onnx.protos import one_line
from tilewright.records import dataclass

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """What a module is called with."""

    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, examples: Any) -> Arguments:
        """Example inputs as they may be written: one tensor, a sequence in the order of `forward`'s
        arguments, a mapping by their names, or a sequence that ends in such a mapping.

        Raises:
            UsageError: something else.
        """
        if isinstance(examples, Mapping):
            return cls((), _checked_names(examples))
        if is_torch_tensor(examples):
            return cls((examples,))
        if not isinstance(examples, Sequence) or isinstance(examples, str | bytes):
            raise UsageError(
                f"example inputs are a {type(examples).__name__}: give a tensor, a sequence of tensors, or a "
                "mapping from the names of forward's arguments to tensors."
            )
        if examples and isinstance(examples[-1], Mapping):
            return cls(tuple(examples[:-1]), _checked_names(examples[-1]))
        return cls(tuple(examples))


def _checked_names(named: Mapping[Any, Any]) -> dict[str, Any]:
    for name in named:
        if not isinstance(name, str):
            raise UsageError(f"example inputs: {name!r} is no name of an argument of forward.")
    return dict(named)


def is_torch_source(source: object) -> bool:
    """Whether it is a module or an exported program of torch."""
    return _is_module(source) or is_exported_program(source)


def is_exported_program(source: object) -> bool:
    """Whether it is what `torch.export.export` gives."""
    kind = getattr(sys.modules.get("torch.export"), "ExportedProgram", None)
    return kind is not None and isinstance(source, kind)


def _is_module(source: object) -> bool:
    kind = getattr(sys.modules.get("torch.nn"), "Module", None)
    return kind is not None and isinstance(source, kind)


def onnx_of_torch(source: Any, examples: Any = None) -> ModelProto:
    """The ONNX model of a module as it computes in evaluation mode, or of an exported program.

    Shapes are those of `examples`; see `Arguments.of` for how they may be written. An exported program has
    its shapes, open ones included, and takes no examples. A module's training flags are left as they were.

    Raises:
        UsageError: torch or onnxscript is not installed, or what was given is neither, or lacks examples.
        UnsupportedOp: torch cannot export the module.
    """
    torch = _imported("torch")
    _imported("onnxscript")
    name = type(source).__name__
    if is_exported_program(source):
        if examples is not None:
            raise UsageError("an ExportedProgram has its shapes: leave out example_inputs.")
        return _onnx(torch, name, (source,), {})
    if not isinstance(source, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {name}; pass the module itself.")
    if examples is None:
        raise UsageError(f"{name}: a module is loaded with example inputs, tw.load(module, tensor).")
    given = Arguments.of(examples)
    with _in_evaluation_mode(source):
        return _onnx(torch, name, (source, given.positional), dict(given.named))


@contextlib.contextmanager
def _in_evaluation_mode(module: Any) -> Iterator[None]:
    """Submodules may differ in their flags, so each gets its own back."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag


def _onnx(torch: Any, name: str, what: tuple[Any, ...], named: dict[str, Any]) -> ModelProto:
    """What torch exports, weights included; the exporter's own chatter is kept off the terminal."""
    try:
        with _silence():
            model: ModelProto = torch.onnx.export(
                *what, kwargs=named or None, dynamo=True, verbose=False
            ).model_proto
    except Exception as error:
        # Whatever the exporter raises, the reader needs the module and the reason in one line.
        raise UnsupportedOp(
            f"torch cannot export {name}: {one_line(error)}; try torch.onnx.export on it to see all of it."
        ) from error
    _forget_places(model)
    return model


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _forget_places(model: ModelProto) -> None:
    """Take away the exporter's notes on the sources that nodes are from: they name files of this machine."""
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            del node.metadata_props[:]


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"{name} is not installed, which importing a PyTorch module needs; {extra_of('torch').command}"
        ) from None
