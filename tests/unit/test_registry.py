from importlib import metadata

import pytest

from tilewright.errors import UsageError
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


def test_a_plugin_may_not_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("plain", "collections:OrderedDict", "tilewright.test")
    monkeypatch.setattr(metadata, "entry_points", FakeEntryPoints(entry))
    registry: Registry[object] = Registry("map", entry_point_group="tilewright.test")
    registry.add("plain", dict)
    with pytest.raises(UsageError, match="registered twice"):
        registry.names()


@pytest.mark.parametrize(
    ("registry", "protocol", "names"),
    [
        (PARTITIONERS, Partitioner, ("none", "layerwise", "random")),
        (SCHEDULERS, Scheduler, ("sequential", "greedy", "random")),
        (MEMORY_PLANNERS, MemoryPlanner, ("arena", "greedy-by-size", "naive", "random")),
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
