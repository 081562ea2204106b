import dataclasses
from importlib import metadata

import pytest

from tilewright.errors import InternalError, UsageError
from tilewright.mapping import MAPPERS
from tilewright.memory import MEMORY_PLANNERS, MemoryPlanner
from tilewright.partition import PARTITIONERS, Partitioner
from tilewright.registry import Registry
from tilewright.schedule import SCHEDULERS, Scheduler
from tilewright.targets import TARGETS
from tilewright.targets.base import Target


def fruits() -> Registry[str]:
    registry: Registry[str] = Registry("fruit")
    registry.add("apple", lambda: "red")
    registry.add("pear", lambda: "green")
    return registry


def test_members_load_once_and_only_when_asked_for() -> None:
    loaded: list[str] = []
    registry: Registry[str] = Registry("fruit")
    registry.add("apple", lambda: loaded.append("apple") or "red")  # type: ignore[func-returns-value]
    assert registry.names() == ("apple",)
    assert loaded == []
    assert registry.get("apple") == registry.get("apple") == "red"
    assert loaded == ["apple"]


def test_an_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(UsageError, match=r"Unknown fruit 'aplle'. Did you mean apple\?"):
        fruits().get("aplle")


def test_an_unknown_name_without_close_ones_lists_all() -> None:
    with pytest.raises(UsageError, match=r"Unknown fruit 'zzz'. Known: apple, pear\."):
        fruits().get("zzz")


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="'pear' is registered twice"):
        fruits().add("pear", lambda: "brown")


class FakeEntryPoints:
    def __init__(self, *entries: metadata.EntryPoint) -> None:
        self.entries = entries
        self.calls = 0

    def __call__(self, *, group: str) -> list[metadata.EntryPoint]:
        self.calls += 1
        return [e for e in self.entries if e.group == group]


def test_plugins_are_found_late_and_look_like_built_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FakeEntryPoints(
        metadata.EntryPoint("ordered", "collections:OrderedDict", "tilewright.test"),
        metadata.EntryPoint("foreign", "collections:Counter", "something.else"),
    )
    monkeypatch.setattr(metadata, "entry_points", found)
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    registry.add("plain", dict)
    registry.get("plain")
    assert found.calls == 0
    assert registry.names() == ("ordered", "plain")
    assert registry.get("ordered") == {}
    assert found.calls == 1


def test_a_plugin_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("lost", "no_such_package_here:Thing", "tilewright.test")
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(entry))
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    with pytest.raises(UsageError, match=r"'lost' is a plugin .*cannot be imported.*Reinstall or remove"):
        registry.get("lost")


def test_a_plugin_does_not_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("plain", "collections:OrderedDict", "tilewright.test")
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(entry))
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    registry.add("plain", dict)
    assert registry.names() == ("plain",)
    assert type(registry.get("plain")) is dict
    assert registry.plugin_problems() == (
        "map 'plain' of collections:OrderedDict is not used: that name is built in. It needs another one.",
    )


def test_two_plugins_of_one_name_are_an_error_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        metadata.EntryPoint("twice", f"collections:{name}", "tilewright.test")
        for name in ("Counter", "OrderedDict")
    ]
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(*entries))
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    registry.add("plain", dict)
    assert registry.get("plain") == {}
    with pytest.raises(UsageError, match=r"'twice' is a plugin .*Counter and .*OrderedDict.* of two"):
        registry.get("twice")
    assert len(registry.plugin_problems()) == 1


@pytest.mark.parametrize("value", ["json:loads", "math:pi", "sys:exit"])
def test_whatever_a_plugin_does_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = metadata.EntryPoint("bad", value, "tilewright.test")
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(entry))
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    with pytest.raises(UsageError, match=r"^map 'bad' is a plugin .* cannot be loaded: .*") as caught:
        registry.get("bad")
    assert "\n" not in str(caught.value)


def test_a_plugin_that_makes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("counter", "collections:Counter", "tilewright.test")
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(entry))
    registry: Registry[Scheduler] = Registry(
        "scheduler", entry_point_group="tilewright.test", protocol="tilewright.schedule.base:Scheduler"
    )
    with pytest.raises(UsageError, match=r"gives no scheduler: see tilewright\.schedule\.base\.Scheduler"):
        registry.get("counter")


def test_options_make_another_member_and_leave_the_default_as_it_is() -> None:
    member = PARTITIONERS.get("graphturbo{alpha=1.25, dims=any}")
    assert member == dataclasses.replace(PARTITIONERS.get("graphturbo"), alpha=1.25, dims="any")  # type: ignore[type-var]
    assert PARTITIONERS.get("graphturbo") == PARTITIONERS.get("graphturbo{}")


def test_the_canonical_text_says_what_differs_in_the_order_of_fields() -> None:
    text = "graphturbo{dims = any,recompute-limit=1.25, alpha=1.5,capacity_bytes=1048576}"
    assert PARTITIONERS.canonical(text) == "graphturbo{alpha=1.5, capacity_bytes=1MiB, dims=any}"
    assert MAPPERS.canonical("cosa-paper{variant=paper}") == "cosa-paper"
    assert MAPPERS.canonical("cosa{variant=paper}") == "cosa{variant=paper}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graphturbo{alfa=1}", "graphturbo: unknown option 'alfa'; did you mean alpha?"),
        ("layerwise{x=1}", "layerwise: unknown option 'x'; its options are max_nodes."),
        ("none{x=1}", "none: unknown option 'x'; it has no options."),
        ("graphturbo{alpha=abc}", "graphturbo: alpha=abc: expected a number."),
        ("graphturbo{group=1}", "graphturbo: group=1: expected true or false."),
        ("layerwise{max_nodes=2.5}", "layerwise: max_nodes=2.5: expected a whole number."),
        (
            "graphturbo{dims=anny}",
            "graphturbo: dims=anny: expected batch, batch-first or any; did you mean any?",
        ),
        (
            "graphturbo{capacity_bytes=5 apples}",
            "graphturbo: capacity_bytes=5 apples: expected a size such as 512KiB or none.",
        ),
        ("graphturbo{alpha=-1}", "graphturbo: alpha -1 is not a positive share of the local buffers."),
        ("graphturbp{alpha=1}", "Unknown partitioner 'graphturbp'. Did you mean graphturbo?"),
    ],
)
def test_what_is_wrong_with_a_text_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PARTITIONERS.get(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("registry", "protocol", "names"),
    [
        (PARTITIONERS, Partitioner, ("none", "layerwise", "random")),
        (SCHEDULERS, Scheduler, ("sequential", "greedy", "random")),
        (
            MEMORY_PLANNERS,
            MemoryPlanner,
            (
                "arena",
                "first-fitting",
                "greedy-by-size",
                "largest-size",
                "longest-liveness",
                "naive",
                "next-fit",
                "random",
            ),
        ),
        (TARGETS, Target, ("interpreter", "null")),
    ],
)
def test_members_carry_their_own_name(
    registry: Registry[object], protocol: type, names: tuple[str, ...]
) -> None:
    for name in names:
        member = registry.get(name)
        assert isinstance(member, protocol)
        assert member.name == name  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("no"), RecursionError()])
def test_what_a_member_raises_is_its_fault_and_ends_nothing_else(error: BaseException) -> None:
    with (
        pytest.raises(InternalError, match=f"'apple' raised {type(error).__name__}"),
        fruits().using("apple"),
    ):
        raise error
    with pytest.raises(KeyboardInterrupt), fruits().using("apple"):
        raise KeyboardInterrupt
