"""Random torch programs with views, aliases, writes in place and graph breaks run as in eager mode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [
    # torch's own, of its own modules.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]

Step = Callable[[list[Any]], None]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _views(x: Any, choice: int) -> tuple[Any, ...]:
    """Views of a matrix, matrices themselves."""
    match choice:
        case 0:
            return tuple(x.chunk(2, 0))
        case 1:
            return tuple(x.split(1, 1))
        case 2:
            return tuple(row.unsqueeze(0) for row in x.unbind(0))
        case 3:
            return (x[1:], x[:-1]) if x.shape[0] > 1 else (x,)
        case 4:
            return (x.T,)
        case 5:
            return (x.reshape(1, -1),)
        case 6:
            return (x.detach(),)
        case _:
            return (x, x[:, :1])


def _step(rng: random.Random) -> Step:
    kind, choice = rng.choice("vvvcccwwb"), rng.randrange(8)
    a, b, number = rng.random(), rng.random(), rng.randint(1, 3)

    def run(pool: list[Any]) -> None:
        x, y = pool[int(a * len(pool))], pool[int(b * len(pool))]
        match kind:
            case "v":
                pool.extend(_views(x, choice))
            case "c":
                pool.append(x * number if x.shape != y.shape or choice < 4 else x + torch.tanh(y))
            case "w" if choice < 4:
                x.add_(number)
            case "w":
                x.mul_(y if x.shape == y.shape and choice < 6 else number)
            case _:
                torch._dynamo.graph_break()

    return run


def _program(seed: int) -> Callable[[Any], list[Any]]:
    rng = random.Random(seed)
    steps = [_step(rng) for _ in range(rng.randint(3, 10))]
    kept = [rng.random() for _ in range(rng.randint(1, 4))]

    def program(x: Any) -> list[Any]:
        pool = [x]
        for step in steps:
            step(pool)
        return [pool[int(at * len(pool))] for at in kept]

    return program


def _told(program: Callable[[Any], list[Any]]) -> list[Any]:
    """Results and the input; then again after a write to each result in turn: what shares memory shows."""
    x = torch.arange(1.0, 9.0).reshape(2, 4)
    results = program(x)
    told = [value.clone() for value in (*results, x)]
    for result in results:
        result.add_(1)
        told += [value.clone() for value in (*results, x)]
    return told


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 300))]
)
def test_a_program_with_views_and_writes_runs_as_in_eager_mode(seed: int) -> None:
    program = _program(seed)
    with torch.no_grad():
        expected = _told(program)
        found = _told(torch.compile(program, backend="tilewright", options={"threads": 1}))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
