"""Whose artifacts the user trusts: keys that are named once, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.artifact.container import Archive
from tilewright.artifact.signature import user_key
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.private_files import distrust, is_public_key, trust, trusted_keys
from tilewright.results import Result, Table, about
from tilewright.text.printable import printable

MIN_DIGITS = 8
"""Of a key, where a part of it names one that is trusted."""


@dataclass(frozen=True, slots=True)
class TrustedKey(Result):
    """A public key in hex, and what it is called."""

    key: str
    name: str

    def lines(self) -> Sequence[str]:
        """The key and its name."""
        return [f"{self.key}  {printable(self.name)}"]


@dataclass(frozen=True, slots=True)
class UserKey(Result):
    """The public key of this user, in hex: whoever trusts it runs code of artifacts that are saved here."""

    key: str

    def lines(self) -> Sequence[str]:
        """The key alone, as the environment of another machine takes it."""
        return [self.key]


@dataclass(frozen=True, slots=True)
class TrustedKeys(Result):
    """The keys whose artifacts run here."""

    user_key: str | None = field(metadata=about("This user's; none before the first artifact is saved."))
    keys: tuple[TrustedKey, ...]

    def tables(self) -> tuple[Table, ...]:
        """A row for each key."""
        own = () if self.user_key is None else ((self.user_key, "yours"),)
        rows = (*own, *((k.key, printable(k.name)) for k in self.keys))
        return (Table(("key", "name"), rows),)


def show_user_key() -> UserKey:
    """The user's public key, which is made now if there is none.

    Raises:
        UsageError: there is no place to keep one.
    """
    key = user_key(create=True)
    if key is None:
        raise UsageError("no place to keep a key in: set HOME or XDG_STATE_HOME to a folder of yours.")
    return UserKey(key)


def list_trusted() -> TrustedKeys:
    """All keys whose artifacts run here."""
    return TrustedKeys(user_key(), tuple(TrustedKey(*pair) for pair in trusted_keys().items()))


def trust_key(source: str, name: str = "") -> TrustedKey:
    """Trust a public key, or whoever signed an artifact, from now on.

    Raises:
        UsageError: neither a key nor an artifact that is signed.
        ArtifactCorrupt: the artifact is damaged.
    """
    key, called = source.strip().lower(), name
    if not is_public_key(key):
        path = Path(source)
        if not is_artifact(path):
            raise UsageError(
                f"{source}: is no public key of 64 hexadecimal digits and no artifact; `tilewright trust "
                "key` prints the key of your own."
            )
        archive = Archive(path)
        archive.verify_signature()
        if archive.signature is None:
            raise UsageError(f"{path}: it is not signed; --trust uses its code as it is, once.")
        key, called = archive.signature.public_key, name or f"signer of {path.name}"
    trust(key, called)
    return TrustedKey(key, called)


def distrust_key(text: str) -> TrustedKey:
    """Trust a key no longer, named by its first digits or by its name.

    Raises:
        UsageError: no key, or several, are meant by that.
    """
    wanted = text.strip().lower()
    keys = trusted_keys()
    meant = [
        key
        for key, name in keys.items()
        if name == text.strip() or (len(wanted) >= MIN_DIGITS and key.startswith(wanted))
    ]
    if len(meant) != 1:
        raise UsageError(
            f"{text}: {'no key' if not meant else f'{len(meant)} keys'} of that name or beginning (at least "
            f"{MIN_DIGITS} digits) among those you trust; `tilewright trust ls` lists them."
        )
    if not distrust(meant[0]):
        raise UsageError(f"{text}: is trusted by the environment (TILEWRIGHT_TRUST), which you can change.")
    return TrustedKey(meant[0], keys[meant[0]])
