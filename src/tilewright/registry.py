"""Names to members of a family: planners, passes, targets. Built-ins and plugins look the same.

Members load on first use, and so does what reads their options: asking for names costs no imports. A plugin
is an entry point in the family's group (`tilewright.partition`, ...) that resolves to a callable which makes
the member, such as its class. One that does not work is an error where it is asked for, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tilewright.errors import InternalError, PluginFailed, TilewrightError, UsageError
from tilewright.system.memory_errors import is_out_of_memory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from tilewright.planning.member_options import MemberInfo, MemberOption
    from tilewright.planning.spec import Spec

T = TypeVar("T")
A = TypeVar("A")


class Registry(Generic[T]):
    """The members of one family by name.

    >>> shapes: Registry[str] = Registry("shape")
    >>> shapes.add("square", lambda: "four sides")
    >>> shapes.get("square"), shapes.names()
    ('four sides', ('square',))
    """

    def __init__(
        self,
        kind: str,
        *,
        entry_point_group: str | None = None,
        protocol: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`members` are the `package.module:Class` of each name, made without arguments.

        `protocol`, written so too, is what plugins are held to.
        """
        self.kind = kind
        self._group = entry_point_group
        self._protocol = protocol
        self._loaders: dict[str, Callable[[], T]] = {}
        for name, path in members.items():
            self.add(name, functools.partial(_made, path))
        self._members: dict[str, T] = {}
        self._plugins: dict[str, list[EntryPoint]] | None = None if entry_point_group else {}

    def add(self, name: str, load: Callable[[], T]) -> None:
        """Register a member under a name that is free; `load` runs at its first use.

        Raises:
            UsageError: the name is taken.
        """
        if name in self._loaders:
            raise UsageError(f"{self.kind} {name!r} is registered twice; give one of them another name.")
        self._loaders[name] = load

    def get(self, text: str | Spec) -> T:
        """The member that a text names, with the options it states: `graphturbo{alpha=1.25, dims=any}`.

        Raises:
            UsageError: no such member or option, or a value that does not fit; says which would.
        """
        spec = _spec(text)
        member = self._default(spec.name)
        if not spec.options:
            return member
        from tilewright.planning.member_options import with_options

        return with_options(member, spec)

    def canonical(self, text: str | Spec) -> str:
        """The shortest text for the same member: options in the order of its fields, without defaults.

        Raises:
            UsageError: as `get`.
        """
        spec = _spec(text)
        return str(self.spec_of(spec.name, self.get(spec)))

    def spec_of(self, name: str, member: T) -> Spec:
        """The spec for which `get` gives that member, which is one of that name with some options."""
        from tilewright.planning.member_options import spec_of

        return spec_of(name, self._default(name), member)

    def options(self, name: str) -> tuple[MemberOption, ...]:
        """The options of a member: name, type, default, help.

        Raises:
            UsageError: no such member, or a plugin that does not load.
        """
        from tilewright.planning.member_options import options_of

        return options_of(self._default(name))

    def info(self, name: str) -> MemberInfo:
        """What there is to say of a member.

        Raises:
            UsageError: no such member, or a plugin that does not load.
        """
        member = self._default(name)
        from tilewright.planning.member_options import info_of

        plugin = "" if name in self._loaders else _source(self._found()[name][0])
        return info_of(name, member, plugin)

    def names(self) -> tuple[str, ...]:
        """All names, plugins included, sorted."""
        return tuple(sorted({*self._loaders, *self._found()}))

    def built_in_names(self) -> tuple[str, ...]:
        """Names of members that are no plugins, as registered."""
        return tuple(self._loaders)

    def plugin_names(self) -> tuple[str, ...]:
        """Names of members that are plugins, sorted."""
        return tuple(sorted(self._found()))

    def package_of(self, modules: Collection[str]) -> str | None:
        """The package, with its version, of plugins that lie in one of these top-level modules."""
        for entries in self._found().values():
            for entry in entries:
                if entry.module.partition(".")[0] in modules and entry.dist is not None:
                    return f"{entry.dist.name} {entry.dist.version}"
        return None

    @contextlib.contextmanager
    def using(self, text: str | Spec) -> Iterator[T]:
        """A member while it works: whatever it raises that is no error of ours is told as its fault.

        Raises:
            PluginFailed: the member raised something, and is a plugin.
            InternalError: it did, and is ours.
        """
        member = self.get(text)
        try:
            yield member
        except TilewrightError:
            raise
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                raise
            raise self.fault(text, f"raised {_reason(error)}") from error

    def verified(
        self,
        text: str | Spec,
        answer: object,
        kind: type[A],
        check: Callable[[A], Sequence[object]] | None = None,
    ) -> A:
        """What a member answered, which must be of a type, and without a violation.

        Raises:
            PluginFailed: it is not, and the member is a plugin.
            InternalError: it is not, and the member is ours.
        """
        if not isinstance(answer, kind):
            raise self.fault(text, f"gave a {type(answer).__name__} where a {kind.__name__} is asked for")
        if check is None:
            return answer
        from tilewright.planning.checking import MALFORMED, first_fault

        try:
            violations = check(answer)
        except MALFORMED as error:
            raise self.fault(text, f"gave a {kind.__name__} that makes no sense: {_reason(error)}") from error
        if violations:
            raise self.fault(text, f"gave a {kind.__name__} that is wrong: {first_fault(violations)}")
        return answer

    def fault(self, text: str | Spec, what: str) -> TilewrightError:
        """The error for a member that did what it should not: that of a plugin is its package's."""
        name = _spec(text).name
        if name in self._loaders or name not in self._found():
            from tilewright.planning.checking import HOW_TO_REPORT

            return InternalError(f"{self.kind} {name!r} {what.rstrip('.')}; {HOW_TO_REPORT}.")
        source = _source(self._found()[name][0])
        return PluginFailed(
            f"{self.kind} {name!r}, a plugin ({source}), {what.rstrip('.')}. Report it to its authors."
        )

    def used_plugins(self) -> tuple[str, ...]:
        """The packages, with their versions, of plugins that were used in this process."""
        found = self._plugins or {}
        entries = (found[name][0] for name in self._members if name in found)
        return tuple(f"{entry.dist.name} {entry.dist.version}" for entry in entries if entry.dist is not None)

    def plugin_problems(self) -> tuple[str, ...]:
        """What is wrong with the names of plugins, a line for each; nothing is loaded for it."""
        return tuple(self._problems())

    def _default(self, name: str) -> T:
        """The member of a name, as it is without options."""
        if name not in self._members:
            if name in self._loaders:
                self._members[name] = self._loaders[name]()
            elif name in self._found():
                self._members[name] = self._load_plugin(name)
            else:
                raise self._unknown(name)
        return self._members[name]

    def _unknown(self, name: str) -> UsageError:
        from tilewright.planning.spec import shown
        from tilewright.text.suggestions import likely

        guess = likely(name, self.names())
        hint = f"{guess[0].upper()}{guess[1:]}?" if guess else f"Known: {', '.join(self.names())}."
        return UsageError(f"Unknown {self.kind} {shown(name)}. {hint}")

    def _found(self) -> dict[str, list[EntryPoint]]:
        """Plugins by name. A name of a built-in is not theirs to take."""
        if self._plugins is None:
            self._plugins = {}
            for entry in self._entry_points():
                if entry.name not in self._loaders and _is_name(entry.name):
                    self._plugins.setdefault(entry.name, []).append(entry)
        return self._plugins

    def _entry_points(self) -> list[EntryPoint]:
        if self._group is None:
            return []
        from importlib import metadata  # takes longer than the rest of the command line

        return sorted(set(metadata.entry_points(group=self._group)), key=lambda e: (e.name, e.value))

    def _problems(self) -> Iterator[str]:
        for entry in self._entry_points():
            what = f"{self.kind} {entry.name!r} of {_source(entry)}"
            if entry.name in self._loaders:
                yield f"{what} is not used: that name is built in. It needs another one."
            elif not _is_name(entry.name):
                yield f"{what} is not used: a name has no braces, quotes or control characters."
            elif entry != self._found()[entry.name][0]:
                yield f"{what} takes a name that another plugin has; remove one of the two packages."

    def _load_plugin(self, name: str) -> T:
        entries = self._found()[name]
        sources = " and ".join(map(_source, entries))
        what = f"{self.kind} {name!r} is a plugin ({sources})"
        if len(entries) > 1:
            raise UsageError(f"{what} of two packages; remove one of them.")
        try:
            member = entries[0].load()()
            fits = self._protocol is None or isinstance(member, _imported(self._protocol))
        except (Exception, SystemExit) as error:
            verb = "imported" if isinstance(error, ImportError) else "loaded"
            raise UsageError(
                f"{what} that cannot be {verb}: {_reason(error)}. "
                "Reinstall or remove the package that provides it."
            ) from error
        if not fits:
            assert self._protocol is not None
            raise UsageError(f"{what} that gives no {self.kind}: see {self._protocol.replace(':', '.')}.")
        return cast(T, member)


def _spec(text: str | Spec) -> Spec:
    from tilewright.planning.spec import Spec

    return Spec.parse(text) if isinstance(text, str) else text


def _made(path: str) -> Any:
    return _imported(path)()


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _is_name(name: str) -> bool:
    try:
        spec = _spec(name)
        return spec.name == name and not spec.options
    except UsageError:
        return False


def _reason(error: BaseException) -> str:
    """What an error says, on one line."""
    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, ImportError | TilewrightError):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def _source(entry: EntryPoint) -> str:
    """Which package gives a plugin, and what of it."""
    package = f"{entry.dist.name} {entry.dist.version}: " if entry.dist is not None else ""
    return f"{package}{entry.value}"
