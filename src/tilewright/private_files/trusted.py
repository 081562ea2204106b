"""Whose signatures the user trusts: public keys, files of the user's state, or in the environment."""

from __future__ import annotations

import os
import re

from tilewright.errors import UsageError
from tilewright.private_files.checks import NotPrivate, warn_once
from tilewright.private_files.folder import PrivateFolder
from tilewright.private_files.keys import state_folder
from tilewright.private_files.places import TRUSTED_KEYS

TRUST_ENV = "TILEWRIGHT_TRUST"
"""Public keys in hex with commas between them: for containers, whose homes hold nothing."""

MAX_NAME_BYTES = 200
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


_FIELD_PRIME = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_YS = frozenset({0, 1, _FIELD_PRIME - 1, _ORDER_8, _FIELD_PRIME - _ORDER_8})
"""y of the points of edwards25519 whose order divides its cofactor 8 (RFC 8032): a signature by such a key
verifies for any message, without the secret."""


def is_public_key(text: str) -> bool:
    """Whether a text is a public key in hex, of which there can be one owner.

    >>> is_public_key("0f" * 32), is_public_key("../evil"), is_public_key("00" * 32)
    (True, False, False)
    """
    if _PUBLIC_KEY.fullmatch(text) is None:
        return False
    y = int.from_bytes(bytes.fromhex(text), "little") % 2**255 % _FIELD_PRIME
    return y not in _SMALL_ORDER_YS


def trusted_keys() -> dict[str, str]:
    """Trusted public keys in hex, and what they are called.

    Raises:
        UsageError: the environment names what is no public key.
    """
    keys: dict[str, str] = {}
    folder = state_folder()
    if folder is not None:
        for key, _ in folder.files(TRUSTED_KEYS):
            name = _name_of(folder, key) if is_public_key(key) else None
            if name is not None:
                keys[key] = name
    for part in os.environ.get(TRUST_ENV, "").split(","):
        key = part.strip().lower()
        if key and not is_public_key(key):
            raise UsageError(
                f"{TRUST_ENV}: {part.strip()[:80]!r} is no public key: give 64 hexadecimal digits, as "
                "`tilewright trust key` prints them."
            )
        if key:
            keys.setdefault(key, TRUST_ENV)
    return keys


def trust(key: str, name: str) -> None:
    """Trust what a key signs from now on.

    Raises:
        UsageError: there is no home to keep it in.
        OSError: it cannot be kept.
    """
    _folder().write(name.encode()[:MAX_NAME_BYTES], TRUSTED_KEYS, key)


def distrust(key: str) -> bool:
    """Trust a key no longer; whether it was trusted.

    Raises:
        UsageError: there is no home that could hold it.
    """
    return _folder().remove(TRUSTED_KEYS, key)


def _folder() -> PrivateFolder:
    folder = state_folder()
    if folder is None:
        raise UsageError(f"no home directory to keep trusted keys in: set HOME, or name keys in {TRUST_ENV}.")
    return folder


def _name_of(folder: PrivateFolder, key: str) -> str | None:
    """What a trusted key is called; None for a file that others may have written."""
    try:
        return folder.read(TRUSTED_KEYS, key, max_bytes=MAX_NAME_BYTES).decode(errors="replace")
    except NotPrivate as problem:
        warn_once(problem)
        return None
    except OSError:
        return None
