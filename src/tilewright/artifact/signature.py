"""Who made an artifact: a signature with the user's key, and whose signatures the user trusts.

Machine code from a file is as dangerous as a program from it: it is used if its artifact was signed by this
user, on whatever machine, or by somebody that the user trusts. What is signed is the SHA-256 of the manifest,
which holds those of all other members. Ed25519's signatures have no random part: equal artifacts of one user
are equal bytes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tilewright.private_files import is_public_key, keeps_nothing, signing_seed, trusted_keys

logger = logging.getLogger(__name__)

_PURPOSE = b"tilewright artifact, manifest sha256\0"
SHOWN_DIGITS = 16
"""Of a key, in messages."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A public key and what was signed with its secret, both in hex."""

    public_key: str
    signed: str

    def is_of(self, manifest_sha256: str) -> bool:
        """Whether the owner of the key signed this manifest."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if not is_public_key(self.public_key):
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signed), _message(manifest_sha256))
        except (InvalidSignature, ValueError):  # some texts of this length are no key
            return False
        return True

    @property
    def is_trusted(self) -> bool:
        """Whether the user trusts the owner of the key, as the user does himself.

        Raises:
            UsageError: the environment names what is no key.
        """
        return self.public_key in trusted_keys() or self.public_key == user_key()


def sign(manifest_sha256: str, *, create: bool) -> Signature | None:
    """The user's signature, with a new key if there is none and one may be kept.

    None without a key: whoever opens the artifact has its code made again, or trusts it by `--trust`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    may_create = create and not keeps_nothing()
    seed = signing_seed(create=may_create)
    if seed is None:
        reason = (
            "there is no place for a key (set HOME or XDG_STATE_HOME)"
            if may_create
            else "there is no key yet, and nothing is to be kept (`tilewright trust key` makes one)"
        )
        logger.warning("the artifact is not signed: %s", reason)
        return None
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return Signature(key.public_key().public_bytes_raw().hex(), key.sign(_message(manifest_sha256)).hex())


def user_key(*, create: bool = False) -> str | None:
    """The user's public key in hex; None without one."""
    seed = signing_seed(create=create)
    if seed is None:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public: bytes = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return public.hex()


def _message(manifest_sha256: str) -> bytes:
    return _PURPOSE + bytes.fromhex(manifest_sha256)
