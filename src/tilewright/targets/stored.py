"""Code as an artifact keeps it: what it was made for, plain facts, and parts of bytes by name.

A target with a `CodeStore` (`targets/base.py`) says what of its code is kept and loads it again, for one
instruction set or for several. The artifact knows neither what the facts mean nor what the parts are: it
keeps them, checks that they are whole, and asks whether code that was made for this may be loaded. The
constants of the graph are the artifact's: code says how it wants them arranged, and holds none itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.arrays import Array
from tilewright.files import Bytes
from tilewright.ir.dtype import DType
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph
    from tilewright.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class StoredCode:
    """Code of one program for some machines. `made_for` says for which: it begins with what they are called
    (`isa`). Each part may come in several pieces."""

    made_for: Mapping[str, str]
    facts: Mapping[str, Any]
    parts: Mapping[str, tuple[Bytes, ...]]


class TensorFacts(Protocol):
    """A model input or output."""

    @property
    def name(self) -> str:  # noqa: D102
        ...

    @property
    def dtype(self) -> DType:  # noqa: D102
        ...

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102
        ...


class StoredParts(Protocol):
    """What an artifact gives back: each part is read, and verified, when it is asked for.

    A file can say anything: facts are checked where they are read, against the model's inputs and outputs.
    """

    @property
    def made_for(self) -> Mapping[str, str]:
        """Which machines it was made for."""
        ...

    @property
    def facts(self) -> Any:
        """The facts, as JSON has them."""
        ...

    @property
    def inputs(self) -> Sequence[TensorFacts]:
        """The model's inputs."""
        ...

    @property
    def outputs(self) -> Sequence[TensorFacts]:
        """The model's outputs."""
        ...

    def graph(self) -> Graph:
        """The optimised graph, which takes time to read."""
        ...

    def program(self) -> Program:
        """The optimised graph with its plan, whose loop nests stay within their tensors."""
        ...

    def constants(self) -> Mapping[str, Array | bytes]:
        """The constants of the graph by their digests (`constant_digest`)."""
        ...

    def size_bytes(self, name: str) -> int:
        """Size of a part."""
        ...

    def read(self, name: str) -> bytes:
        """A part."""
        ...

    def read_into(self, name: str, target: Bytes) -> None:
        """Fill `target`, of the part's size."""
        ...
