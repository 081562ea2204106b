"""What the zoo knows about a network before it builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tilewright.zoo.builder import Builder, Tensor


class Fill(Enum):
    """Which example values suit an input."""

    IMAGE = "image"
    """smooth shapes under noise, about unit variance"""
    NORMAL = "normal"
    """independent standard normal values"""
    INDEX = "index"
    """rows of an embedding table"""
    MASK = "mask"
    """ones, then zeros: the valid length of each sequence"""
    SEGMENT = "segment"
    """zeros, then ones: first and second sentence"""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One graph input. `limit` is the number of rows of the table that an INDEX input selects from."""

    name: str
    shape: tuple[int, ...]
    fill: Fill = Fill.NORMAL
    limit: int = 0

    @property
    def dtype(self) -> str:
        """Element type, by its numpy name."""
        return "float32" if self.fill in (Fill.IMAGE, Fill.NORMAL) else "int64"


@dataclass(frozen=True, slots=True)
class Size:
    """A size that the caller may choose, and which values the network takes."""

    default: int
    smallest: int
    multiple: int = 1
    largest: int | None = None

    def accepts(self, value: int) -> bool:
        """Whether the network can be built at this size."""
        in_range = self.smallest <= value and (self.largest is None or value <= self.largest)
        return in_range and value % self.multiple == 0

    def __str__(self) -> str:
        top = "" if self.largest is None else f" to {self.largest}"
        step = "" if self.multiple == 1 else f" in multiples of {self.multiple}"
        return f"from {self.smallest}{top}{step}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The sizes to build with; zero where a network has no such size."""

    batch: int
    height: int
    width: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ZooNetwork:
    """A recipe: `inputs` declares the graph inputs, `body` adds nodes and outputs in the same order."""

    name: str
    family: str
    description: str
    paper: str
    inputs: Callable[[Settings], tuple[InputSpec, ...]]
    body: Callable[[Builder, tuple[Tensor, ...]], None]
    image: Size | None = None
    sequence: Size | None = None


def image_input(settings: Settings) -> tuple[InputSpec, ...]:
    """One RGB image tensor."""
    shape = (settings.batch, 3, settings.height, settings.width)
    return (InputSpec("input", shape, Fill.IMAGE),)


def image_network(
    name: str,
    family: str,
    description: str,
    paper: str,
    body: Callable[[Builder, Tensor], None],
    *,
    image: Size,
) -> ZooNetwork:
    """A network of one image input."""
    return ZooNetwork(
        name, family, description, paper, image_input, lambda b, xs: body(b, xs[0]), image=image
    )


def by_name(networks: tuple[ZooNetwork, ...]) -> Mapping[str, ZooNetwork]:
    """Networks under their names, which must differ."""
    index = {network.name: network for network in networks}
    if len(index) != len(networks):
        raise ValueError("two networks of the zoo share a name")
    return index
