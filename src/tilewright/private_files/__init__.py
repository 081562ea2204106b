"""What the project keeps on disk between runs: files that only their user can have written.

Among them is machine code that will run, so a file is used only if no other user can have made or changed it:

* Every folder from `/` down is opened from the one before, and looked at through its descriptor. Above the
  cache's folder it belongs to the user or to root, and no other user may rename what lies in it. The cache's
  folder and all below it belong to the user, and no other user may write there; links are not followed.
* A file is regular, the user's own, writable by no other user, not too large, and read through the descriptor
  that was checked. Opening never waits, as it would for a pipe.
* Each record carries a keyed digest (HMAC-SHA256) of its kind, name and content. The key lies elsewhere, in
  the user's state folder: who can place files in the cache, but cannot read the key, can make no record.

What fails a check is not used: one warning names it and says what to do, and the work is done anew.
"""

from tilewright.private_files.checks import NotPrivate, warn_once
from tilewright.private_files.folder import MAX_LOOKED_AT, MAX_RECORD_BYTES, TEMPORARY_PREFIX, PrivateFolder
from tilewright.private_files.keys import (
    HEADER_BYTES,
    KEY_BYTES,
    BadRecord,
    key_mark,
    keyed_digest,
    record_key,
    signing_seed,
    state_folder,
)
from tilewright.private_files.places import (
    CACHE_ENV,
    CALIBRATIONS,
    DATABASE,
    DATABASE_FILES,
    KEY_NAME,
    KINDS,
    LOOPS,
    MAPPINGS,
    MODELS,
    NO_CACHE_ENV,
    OBJECTS,
    cache_place,
    default_cache_directory,
    keeping_nothing,
    keeps_nothing,
    key_directory,
)
from tilewright.private_files.records import CacheCheck, Records, hazards_of, verified_records
from tilewright.private_files.trusted import TRUST_ENV, distrust, is_public_key, trust, trusted_keys

__all__ = [
    "CACHE_ENV",
    "CALIBRATIONS",
    "DATABASE",
    "DATABASE_FILES",
    "HEADER_BYTES",
    "KEY_BYTES",
    "KEY_NAME",
    "KINDS",
    "LOOPS",
    "MAPPINGS",
    "MAX_LOOKED_AT",
    "MAX_RECORD_BYTES",
    "MODELS",
    "NO_CACHE_ENV",
    "OBJECTS",
    "TEMPORARY_PREFIX",
    "TRUST_ENV",
    "BadRecord",
    "CacheCheck",
    "NotPrivate",
    "PrivateFolder",
    "Records",
    "cache_place",
    "default_cache_directory",
    "distrust",
    "hazards_of",
    "is_public_key",
    "keeping_nothing",
    "keeps_nothing",
    "key_directory",
    "key_mark",
    "keyed_digest",
    "record_key",
    "signing_seed",
    "state_folder",
    "trust",
    "trusted_keys",
    "verified_records",
    "warn_once",
]
