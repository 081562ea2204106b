"""Random torch modules under `torch.compile` whose shapes change between calls, against eager mode.

    python -m tests.fuzz.torch_shapes 0 300

Each seed is a module of a few layers, with or without a graph break, whose batch, length or both are marked
dynamic or left to torch, and several calls of other sizes, small ones among them.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tilewright import dynamo

WIDTH = 8
MARKS = ("none", "batch", "length", "both", "dynamic=True", "dynamic=False")


class Chain(nn.Module):
    """Layers one after another; each takes and gives `[batch, length, WIDTH]`."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.names = rng.choices(sorted(STEPS), k=rng.randint(1, 4))
        self.breaks_after = rng.choice([None, *range(len(self.names))])
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in self.names])
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.LayerNorm(WIDTH)
        self.table = nn.Embedding(50, WIDTH)
        ends = [lambda x: x, lambda x: x.mean(1), lambda x: (x, x.sum(-1)), lambda x: x[:, -1]]
        self.last: Any = rng.choice(ends)

    def forward(self, x: Any) -> Any:
        """Every step, with a break of the graph behind one of them."""
        for number, (name, layer) in enumerate(zip(self.names, self.layers, strict=True)):
            x = STEPS[name](self, layer, x)
            if number == self.breaks_after:
                torch._dynamo.graph_break()
        return self.last(x)


def _attention(module: Chain, layer: Any, x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(layer(x), x, x)


STEPS: dict[str, Callable[[Chain, Any, Any], Any]] = {
    "linear": lambda m, layer, x: layer(x),
    "relu": lambda m, layer, x: torch.relu(layer(x)),
    "norm": lambda m, layer, x: m.norm(x + layer(x)),
    "attention": _attention,
    "softmax": lambda m, layer, x: torch.softmax(x, 1) * x.shape[1],
    "convolution": lambda m, layer, x: m.convolution(x.transpose(1, 2)).transpose(1, 2),
    "reshape": lambda m, layer, x: layer(x.reshape(-1, WIDTH)).reshape(x.shape),
    "position": lambda m, layer, x: x + m.table(torch.arange(x.shape[1])),
    "concat": lambda m, layer, x: torch.cat([x, layer(x)], 1)[:, : x.shape[1]],
    "flip": lambda m, layer, x: x.flip(1),
    "pad": lambda m, layer, x: nn.functional.pad(x, (0, 0, 1, 1))[:, 1:-1],
    "cumsum": lambda m, layer, x: torch.cumsum(x, 1) / x.shape[1],
    "outer": lambda m, layer, x: (x @ x.transpose(1, 2)) @ x / x.shape[1],
    "branch": lambda m, layer, x: layer(x) if x.shape[0] > 3 else -x,
}


def problem_of(seed: int) -> str | None:
    """What differs from eager mode; None if nothing does."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    module, mark = Chain(rng).eval(), rng.choice(MARKS)
    dynamic = {"dynamic=True": True, "dynamic=False": False}.get(mark)
    compiled = torch.compile(module, backend=dynamo.backend, dynamic=dynamic)
    with rng.choice([torch.inference_mode, torch.no_grad])():
        for _ in range(rng.randint(2, 5)):
            x = torch.randn(rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 4, 7]), WIDTH)
            with contextlib.suppress(RuntimeError):  # an extent of 1 may be marked, but not specialised
                for place, name in enumerate(("batch", "length")):
                    if mark in (name, "both") and x.shape[place] > 1:
                        torch._dynamo.mark_dynamic(x, place)
            got, expected = compiled(x.clone()), module(x)
            try:
                torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
            except AssertionError as error:
                return f"seed {seed}, {module.names}, {mark}, {list(x.shape)}: {' '.join(str(error).split())}"
    return None


def main() -> int:
    """Try seeds; each difference is a line."""
    first, last = map(int, sys.argv[1:3])
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            problem = problem_of(seed)
        except Exception as error:
            problem = f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        counts["alike" if problem is None else "other"] += 1
        if problem is not None:
            print(problem, flush=True)
    print(dict(counts))
    return 1 if counts["other"] else 0


if __name__ == "__main__":
    sys.exit(main())
