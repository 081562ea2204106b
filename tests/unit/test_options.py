import json
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from tilewright.errors import UsageError
from tilewright.options import EFFORT_EVALUATIONS, Options, parse_shapes
from tilewright.planning import Budget
from tilewright.sizes import parse_bytes


def test_defaults_are_valid_and_frozen() -> None:
    options = Options()
    assert (str(options.target), options.partition, options.hint) == ("cpu", "auto", "latency")
    with pytest.raises(FrozenInstanceError):
        options.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hint": "speed"}, "hint 'speed': expected one of latency, throughput, energy"),
        ({"accuracy": "none"}, "accuracy 'none': expected one of strict"),
        ({"effort": 4}, "effort 4: expected one of 0, 1, 2, 3"),
        ({"threads": 0}, "threads 0: give a positive number"),
        ({"threads": -1}, "threads -1"),
        ({"max_memory_bytes": 0}, "max-memory 0"),
        ({"timeout_s": float("inf")}, "timeout inf"),
        ({"seed": -1}, "seed -1"),
        ({"target": ""}, "target: the name is empty"),
        ({"no_cache": True, "frozen": True}, "frozen needs the cache"),
        ({"shapes": {"x": (1, -1)}}, "input 'x' has a negative extent"),
    ],
)
def test_bad_values_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**changes)  # type: ignore[arg-type]


def test_runs_for_throughput_take_one_thread_unless_told() -> None:
    assert Options().num_threads is None
    assert Options(threads=3).num_threads == 3
    assert Options(hint="throughput").num_threads == 1
    assert Options(hint="throughput", threads=2).num_threads == 2


def test_every_field_explains_itself() -> None:
    for field in fields(Options):
        assert Options.help(field.name).endswith(".")


def test_json_is_canonical() -> None:
    one = Options(shapes={"a": (1, 2), "b": (3,)}, threads=2)
    other = Options(threads=2, shapes={"b": (3,), "a": (1, 2)})
    assert one.to_json() == other.to_json()
    assert json.loads(one.to_json())["shapes"] == {"a": [1, 2], "b": [3]}


def test_json_tells_apart_what_changes_the_artifact() -> None:
    changes: list[dict[str, object]] = [
        {"target": "null"},
        {"shapes": {"x": (1,)}},
        {"hint": "energy"},
        {"effort": 1},
        {"budget": Budget.parse("9trials")},
        {"budget": Budget.parse("9s")},
        {"threads": 1},
        {"partition": "none"},
        {"schedule": "greedy"},
        {"memory": "naive"},
        {"plan": "grid"},
        {"plan": "joint", "only": ("stages",)},
        {"disabled_passes": ("fold-constants",)},
        {"passes": ("fold-constants",)},
        {"accuracy": "strict"},
        {"seed": 1},
        {"isa": "avx2"},
        {"max_memory_bytes": 1},
        {"split_sums": True},
    ]
    texts = {Options().to_json(), *(replace(Options(), **c).to_json() for c in changes)}  # type: ignore[arg-type]
    assert len(texts) == len(changes) + 1
    named = {name for change in changes for name in change}
    assert named == {f.name for f in fields(Options) if f.metadata["key"]}


def test_json_ignores_what_cannot_change_the_artifact() -> None:
    quiet = Options(dump_after=("fold-constants",), cache_dir=Path("/tmp/x"), no_cache=True, timeout_s=3.0)
    assert quiet.to_json() == Options().to_json()


def test_planners_spend_what_the_effort_says_whatever_the_budget_of_measuring() -> None:
    assert Options(effort=3).search_budget == Budget(EFFORT_EVALUATIONS[3])
    assert Options(effort=1, budget=Budget.parse("9h")).search_budget == Budget(EFFORT_EVALUATIONS[1])


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1", "x:1x", "x:axb", "x:1,", "x:-1", "x:1,x:2", "x:1.5", f"x:{10**20}"]
)
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="shapes"):
        parse_shapes(text)


def test_shapes_may_have_colons_in_names() -> None:
    assert parse_shapes("a:0:1x2, b:3") == {"a:0": (1, 2), "b": (3,)}


@pytest.mark.parametrize(("text", "size"), [("10", 10), ("10B", 10), ("2 GiB", 2 << 30), ("1.5MB", 1500000)])
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "-1", "0", "nan", "inf", "1e999", "1 2", "1iB"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_bytes(text)


def test_values_may_be_given_as_on_the_command_line() -> None:
    options = Options(budget="60s", max_memory_bytes="1GiB", shapes="x:1x3")  # type: ignore[arg-type]
    assert options == Options(budget=Budget.parse("60s"), max_memory_bytes=1 << 30, shapes={"x": (1, 3)})


def test_equal_requests_are_equal_once_resolved() -> None:
    written = Options(partition="graphturbo{ dims=any,alpha = 1.50 }", passes=("canonicalise{}",))
    assert written.partition == "graphturbo{dims=any, alpha=1.50}"
    resolved = written.resolved()
    assert resolved.partition == "graphturbo{alpha=1.5, dims=any}"
    assert resolved.passes == ("canonicalise",)
    assert resolved.resolved() == resolved
    assert Options().resolved() == Options()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "graphturbo{alfa=1}"}, "graphturbo: unknown option 'alfa'; did you mean alpha?"),
        ({"schedule": "gredy"}, "Unknown scheduler 'gredy'. Did you mean greedy?"),
        ({"memory": "areena"}, "Unknown memory planner 'areena'. Did you mean arena?"),
        ({"passes": ("dead-coed",)}, "Unknown pass 'dead-coed'. Did you mean dead-code?"),
        ({"disabled_passes": ("canonicalise{}",)}, "give the name of the pass alone, without options."),
    ],
)
def test_unknown_names_are_refused_when_resolved(changes: dict[str, object], message: str) -> None:
    options = Options(**changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=re.escape(message)):
        options.resolved()


def test_the_syntax_of_names_is_checked_at_once() -> None:
    with pytest.raises(UsageError, match="the brace of its options is not closed"):
        Options(partition="graphturbo{alpha=1")
