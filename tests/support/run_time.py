"""Models of one operator whose inputs all come at run time, and what every way of running them answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import tilewright as tw
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph
from tilewright.ir.text import constants_of, parse_graph, print_graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A node with what it is fed; `results` have the shapes that the model declares."""

    operator: str
    inputs: Sequence[Array]
    results: Sequence[tuple[type[np.generic], tuple[int, ...]]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 18

    def model(self) -> onnx.ModelProto:
        """The node alone, its name `node`, its inputs `i0`, `i1`, ..., its results `y0`, ..."""
        names = [f"i{i}" for i in range(len(self.inputs))]
        infos = [_info(n, a.dtype, a.shape) for n, a in zip(names, self.inputs, strict=True)]
        outputs = [_info(f"y{i}", np.dtype(dtype), shape) for i, (dtype, shape) in enumerate(self.results)]
        node = helper.make_node(self.operator, names, [o.name for o in outputs], "node", **self.attributes)
        return helper.make_model(
            helper.make_graph([node], self.operator, infos, outputs),
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=9,
        )

    def feed(self, position: int | None = None, value: Array | None = None) -> dict[str, Array]:
        """Its inputs, one of them replaced."""
        arrays = [value if i == position and value is not None else a for i, a in enumerate(self.inputs)]
        return {f"i{i}": np.asarray(a) for i, a in enumerate(arrays)}


class Ways:
    """One model, compiled once for every way of running it."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.graph = load_onnx(model)
        again = parse_graph(print_graph(self.graph), constants=constants_of(self.graph))
        one, two = (tw.compile(model, threads=n) for n in (1, 2))
        interpreted = tw.compile(model, target="interpreter")
        opened = tw.open(one.save(folder / "model.tw"))
        self._ways = {
            "interpreter": lambda feed: list(run_graph(self.graph, feed).values()),
            "text": lambda feed: list(run_graph(again, feed).values()),
            "interpreter target": lambda feed: interpreted.run(None, feed),
            "one thread": lambda feed: one.run(None, feed),
            "two threads": lambda feed: two.run(None, feed),
            "artifact": lambda feed: opened.run(None, feed),
        }

    def answers(self, feed: Mapping[str, Array]) -> Iterator[tuple[str, list[Array] | tw.TilewrightError]]:
        """Results, or the error instead of them, by the name of the way."""
        for name, run in self._ways.items():
            try:
                yield name, run(feed)
            except tw.TilewrightError as error:
                yield name, error


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
