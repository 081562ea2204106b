"""The file format of artifacts: a zip archive with exactly one possible form for given members.

Members are stored, aligned to 64 bytes, without times; `manifest.json` comes first and lists the others
with their SHA-256 (of a large member: that of its pieces' digests, so that all cores verify it), and the
archive's comment ends with the SHA-256 of the manifest, before which a signature of it may stand. A reader
computes the whole form from the manifest and compares: a flipped bit anywhere, a path-like, repeated or
overlapping member, a truncated file and bytes added at the end are all the same finding. Any zip tool can
read it.

These hold for every format version: the place of the manifest, the end of the comment, and the manifest's
`format_version`.
"""

from __future__ import annotations

import bisect
import copy
import hashlib
import itertools
import json
import os
import re
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.artifact.signature import Signature
from tilewright.errors import ArtifactCorrupt, BudgetExceeded, UnsupportedOp, UsageError
from tilewright.fields import MAX_DOCUMENT_BYTES, FieldError, field_of, parsed_json
from tilewright.files import Bytes, NotRegularFile, open_regular, write_output
from tilewright.parallel import map_on_cores

MANIFEST = "manifest.json"
MAX_MEMBERS = 1 << 17
PIECE_BYTES = 1 << 20

_ALIGNMENT_BYTES = 64
_COMMENT = b"tilewright artifact, manifest sha256 "
_COMMENT_BYTES = len(_COMMENT) + 64
_SIGNATURE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128}), ")
_SIGNATURE_BYTES = len(b"ed25519 ") + 64 + 1 + 128 + len(b", ")
_NAME = re.compile(r"[a-z0-9_]+(?:[./][A-Za-z0-9_]+)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = 45  # the zip version that knows 64-bit sizes, which are used throughout
_DATE = 0x0021  # 1980-01-01: the first day of zip's calendar
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_U32 = 0xFFFFFFFF
_NO_FAULT_OF_THE_FILE = (ArtifactCorrupt, BudgetExceeded, UnsupportedOp, OSError)
_MAX_REASON_CHARS = 300
_PADDING_ID = 0xD935  # the extra field with which Android aligns data


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive: its name, and its content in pieces."""

    name: str
    chunks: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifest says of a member."""

    name: str
    size_bytes: int
    crc32: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "size_bytes": self.size_bytes, "crc32": self.crc32, "sha256": self.sha256}

    def __post_init__(self) -> None:
        if not is_member_name(self.name):
            raise FieldError(f"{self.name[:40]!r} is no name of a member", ".name")
        if self.crc32 > _U32:
            raise FieldError(f"{self.crc32} has more than 32 bits", ".crc32")
        if not _DIGEST.fullmatch(self.sha256):
            raise FieldError(f"{self.sha256[:40]!r} is no SHA-256 in hex", ".sha256")


@dataclass(frozen=True, slots=True)
class _Place:
    entry: Entry
    header_offset: int
    header: bytes

    @property
    def data_offset(self) -> int:
        return self.header_offset + len(self.header)


def is_member_name(name: str) -> bool:
    """Whether a member may be called so.

    >>> is_member_name("objects/main.o"), is_member_name("../main.o")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def write_archive(
    path: Path,
    manifest: Mapping[str, Any],
    members: Sequence[Member],
    sign: Callable[[str], Signature | None] | None = None,
) -> None:
    """Write the archive that `archive_pieces` describes, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_output(path, archive_pieces(manifest, members, sign))


def archive_pieces(
    manifest: Mapping[str, Any],
    members: Sequence[Member],
    sign: Callable[[str], Signature | None] | None = None,
) -> Iterator[Bytes]:
    """Bytes of an archive, in order.

    `manifest` is completed with the list of members, which are written sorted by name; `sign` gives a
    signature of its SHA-256.
    """
    ordered = sorted(members, key=lambda m: m.name)
    entries = [_entry(m) for m in ordered]
    text = json.dumps(
        {**manifest, "members": [e.to_json() for e in entries]}, sort_keys=True, indent=1, allow_nan=False
    ).encode()
    first = Member(MANIFEST, (text,))
    digest = hashlib.sha256(text).hexdigest()
    signature = None if sign is None else sign(digest)
    places, tail = _layout((_entry(first), *entries), digest, signature)
    return _pieces(places, (first, *ordered), tail)


class Archive:
    """An archive opened for reading. Members are read, and verified, when they are asked for.

    The file stays open until `close` or collection: replacing it on disk does not change what is read. Names
    are of members below `folder`.
    """

    folder = ""

    def __init__(self, path: Path, opened: int | None = None) -> None:
        """Check everything but the content of the members. `opened` is the file where it is open already.

        Raises:
            UsageError: no such file, or it cannot be opened.
            ArtifactCorrupt: it is no artifact, or not in the one form it can have.
        """
        self.path = path
        self._whole: Archive | None = None  # which holds the file of a part open
        self._descriptor = _open_regular(path) if opened is None else os.dup(opened)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self._read_form()
        except BaseException:
            self.close()
            raise

    def _read_form(self) -> None:
        self.size_bytes = os.fstat(self._descriptor).st_size
        text, digest = self._manifest_text()
        self.manifest_sha256 = digest
        self.signature = self._stated_signature()
        self.manifest = self._parsed(MANIFEST, text)
        self.format_version = self._version()
        with self.decoding(MANIFEST):
            entries = field_of(self.manifest, "members", tuple[Entry, ...])
            if len(entries) > MAX_MEMBERS or any(a.name >= b.name for a, b in itertools.pairwise(entries)):
                raise FieldError(f"more than {MAX_MEMBERS} (MAX_MEMBERS), or out of order", ".members")
            if sum(e.size_bytes for e in entries) > self.size_bytes:
                raise FieldError("are larger than the file", ".members")
        first = Entry(MANIFEST, len(text), zlib.crc32(text), digest)
        places, tail = _layout((first, *entries), digest, self.signature)
        self._places = {p.entry.name: p for p in places}
        end = places[-1].data_offset + places[-1].entry.size_bytes
        whole = end + len(tail) == self.size_bytes and self._read(end, len(tail)) == tail
        if not whole or any(self._read(p.header_offset, len(p.header)) != p.header for p in places):
            raise self.corrupt("it is not laid out as its manifest says")

    def within(self, folder: str) -> Archive:
        """A folder as an archive: an artifact itself, but for its constants, which all folders share."""
        part = copy.copy(self)
        part.folder, part._whole = self.folder + folder, self
        part.manifest = part.json(MANIFEST)
        return part

    @property
    def names(self) -> tuple[str, ...]:
        """Members in order."""
        return tuple(n.removeprefix(self.folder) for n in self._places if n.startswith(self.folder))

    def size_of(self, name: str) -> int:
        """Bytes of a member."""
        return self._place(name).entry.size_bytes

    def read(self, name: str) -> bytes:
        """The verified content of a member."""
        place = self._place(name)
        data = self._read(place.data_offset, place.entry.size_bytes)
        self._verify(place, data)
        return data

    def read_into(self, name: str, target: Bytes) -> None:
        """Fill `target`, of the member's size, and verify it there."""
        place = self._place(name)
        view = memoryview(target).cast("B")
        entry = place.entry
        if len(view) != entry.size_bytes:
            raise self.corrupt(f"member {entry.name!r} has {entry.size_bytes} bytes instead of {len(view)}")

        size = self._piece_bytes

        def read(start: int) -> bytes:
            piece = view[start : start + size]
            done = 0
            while done < len(piece):
                count = os.preadv(self._descriptor, [piece[done:]], place.data_offset + start + done)
                if count == 0:
                    raise self.corrupt("it was cut off while it was read")
                done += count
            return hashlib.sha256(piece).digest()

        self._compare(place, _digest_of_pieces(len(view), size, read))

    def verify_signature(self) -> None:
        """That a signature, if there is one, is of this archive, whoever made it.

        Raises:
            ArtifactCorrupt: it is of another.
        """
        if self.signature is not None and not self.signature.is_of(self.manifest_sha256):
            raise self.corrupt("its signature is not of its content")

    def verify(self) -> None:
        """Read and verify every member, and the signature.

        Raises:
            ArtifactCorrupt: naming the first damaged one.
        """
        self.verify_signature()
        for name in self.names:
            self.read(name)

    def json(self, name: str) -> Any:
        """A member that is JSON."""
        if self.size_of(name) > MAX_DOCUMENT_BYTES:
            raise self.corrupt(
                f"{self.folder}{name}: {self.size_of(name)} bytes, more than {MAX_DOCUMENT_BYTES} "
                "(MAX_DOCUMENT_BYTES)"
            )
        return self._parsed(self.folder + name, self.read(name))

    def close(self) -> None:
        """Close the file."""
        self._close()

    def corrupt(self, reason: str) -> ArtifactCorrupt:
        """The error for this file."""
        return ArtifactCorrupt(f"{self.path}: damaged artifact: {reason}; compile the model again.")

    def decoding(self, member: str = "") -> Decoding:
        """A context that turns surprises in the decoded content of a member into `ArtifactCorrupt`."""
        return Decoding(self, self.folder + member)

    def _place(self, name: str) -> _Place:
        if self.folder + name not in self._places:
            raise self.corrupt(f"member {self.folder + name!r} is missing")
        return self._places[self.folder + name]

    def _manifest_text(self) -> tuple[bytes, str]:
        head = self._read(0, _LOCAL.size + len(MANIFEST) + 20)
        expected = len(_LOCAL.pack(*([b""] + [0] * 10))) + len(MANIFEST) + 20
        if (
            len(head) < expected
            or head[:4] != b"PK\3\4"
            or head[30 : 30 + len(MANIFEST)] != MANIFEST.encode()
        ):
            raise ArtifactCorrupt(
                f"{self.path}: not a tilewright artifact; `tilewright compile MODEL` makes one."
            )
        (size,) = struct.unpack_from("<Q", head, 30 + len(MANIFEST) + 4)
        if size > min(MAX_DOCUMENT_BYTES, self.size_bytes):
            raise self.corrupt(f"its manifest claims {size} bytes")
        comment = self._read(max(0, self.size_bytes - _COMMENT_BYTES), _COMMENT_BYTES)
        text = self._read(_header_bytes(0, MANIFEST), size)
        digest = hashlib.sha256(text).hexdigest()
        if comment != _COMMENT + digest.encode():
            raise self.corrupt("the SHA-256 of its manifest is another, or it is cut off")
        return text, digest

    def _stated_signature(self) -> Signature | None:
        """What stands before the digest in the comment. It is not checked yet."""
        start = self.size_bytes - _COMMENT_BYTES - _SIGNATURE_BYTES
        match = _SIGNATURE.fullmatch(self._read(max(0, start), _SIGNATURE_BYTES))
        return None if match is None else Signature(match[1].decode(), match[2].decode())

    def _version(self) -> int:
        version = self.manifest.get("format_version") if isinstance(self.manifest, dict) else None
        if type(version) is not int:
            raise self.corrupt("its manifest has no format version")
        return version

    def _parsed(self, name: str, data: bytes) -> Any:
        try:
            return parsed_json(data)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:_MAX_REASON_CHARS]
            raise self.corrupt(f"{name} is not JSON ({type(error).__name__}: {reason})") from error

    def _read(self, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self._descriptor, min(size, 1 << 30), offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _verify(self, place: _Place, data: Bytes) -> None:
        view, size = memoryview(data).cast("B"), self._piece_bytes
        digest = _digest_of_pieces(
            len(view), size, lambda start: hashlib.sha256(view[start : start + size]).digest()
        )
        self._compare(place, digest)

    @property
    def _piece_bytes(self) -> int:
        """Format 1 hashed every member whole."""
        return PIECE_BYTES if self.format_version > 1 else max(1, self.size_bytes)

    def _compare(self, place: _Place, digest: str) -> None:
        if digest != place.entry.sha256:
            raise self.corrupt(f"the SHA-256 of member {place.entry.name!r} is another")


class Decoding:
    """Turns what wrong content makes Python raise into the one error for it.

    A file can say anything, so anything can go wrong on the way; what is no fault of the file passes.
    """

    def __init__(self, archive: Archive, member: str = "") -> None:
        self._archive = archive
        self._member = member

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, _NO_FAULT_OF_THE_FILE):
            return
        if isinstance(error, MemoryError):
            raise BudgetExceeded(f"{self._archive.path}: needs more memory than there is.") from error
        where = f"{self._member}: " if self._member else ""
        reason = " ".join(str(error).split())[:_MAX_REASON_CHARS]
        if not isinstance(error, FieldError):
            reason = f"its content makes no sense ({type(error).__name__}: {reason})"
        raise self._archive.corrupt(f"{where}{reason}") from error


def _entry(member: Member) -> Entry:
    views = [memoryview(chunk).cast("B") for chunk in member.chunks]
    starts = [0, *itertools.accumulate(map(len, views))]

    def digest(start: int) -> bytes:
        found, end = hashlib.sha256(), min(start + PIECE_BYTES, starts[-1])
        number = bisect.bisect_right(starts, start) - 1
        while start < end:
            part = views[number][start - starts[number] : end - starts[number]]
            found.update(part)
            start, number = start + len(part), number + 1
        return found.digest()

    crc = 0
    for view in views:
        crc = zlib.crc32(view, crc)
    return Entry(member.name, starts[-1], crc, _digest_of_pieces(starts[-1], PIECE_BYTES, digest))


def _digest_of_pieces(size_bytes: int, piece_bytes: int, digest: Callable[[int], bytes]) -> str:
    """SHA-256 in hex; of more than one piece, that of the pieces' digests, computed on all cores.

    `digest` gives that of the piece which starts at an offset.
    """
    if size_bytes <= piece_bytes:
        return digest(0).hex()
    pieces = b"".join(map_on_cores(digest, range(0, size_bytes, piece_bytes)))
    return hashlib.sha256(pieces).hexdigest()


def _layout(
    entries: Sequence[Entry], manifest_sha256: str, signature: Signature | None
) -> tuple[list[_Place], bytes]:
    """Where everything lies: the headers before the members, and what follows the last member."""
    places: list[_Place] = []
    offset = 0
    for entry in entries:
        header = _local_header(entry, offset)
        places.append(_Place(entry, offset, header))
        offset += len(header) + entry.size_bytes
    directory = b"".join(_central_header(p) for p in places)
    count, small = len(places), min(len(places), 0xFFFF)
    comment = _COMMENT + manifest_sha256.encode()
    if signature is not None:
        comment = f"ed25519 {signature.public_key} {signature.signed}, ".encode() + comment
    return places, b"".join(
        (
            directory,
            _END64.pack(b"PK\6\6", 44, _VERSION, _VERSION, 0, 0, count, count, len(directory), offset),
            _LOCATOR.pack(b"PK\6\7", 0, offset + len(directory), 1),
            _END.pack(b"PK\5\6", 0, 0, small, small, _U32, _U32, len(comment)),
            comment,
        )
    )


def _header_bytes(offset: int, name: str) -> int:
    """Size of a local header at `offset`: padded so that the data behind it are aligned."""
    least = _LOCAL.size + len(name) + 20 + 6
    return least + (-(offset + least)) % _ALIGNMENT_BYTES


def _local_header(entry: Entry, offset: int) -> bytes:
    name = entry.name.encode("ascii")
    padding = _header_bytes(offset, entry.name) - _LOCAL.size - len(name) - 20 - 4
    extra = struct.pack("<HHQQ", 1, 16, entry.size_bytes, entry.size_bytes)
    extra += struct.pack("<HHH", _PADDING_ID, padding, _ALIGNMENT_BYTES) + bytes(padding - 2)
    fixed = (b"PK\3\4", _VERSION, 0, 0, 0, _DATE, entry.crc32, _U32, _U32, len(name), len(extra))
    return _LOCAL.pack(*fixed) + name + extra


def _central_header(place: _Place) -> bytes:
    entry, name = place.entry, place.entry.name.encode("ascii")
    extra = struct.pack("<HHQQQ", 1, 24, entry.size_bytes, entry.size_bytes, place.header_offset)
    sizes = (entry.crc32, _U32, _U32, len(name), len(extra), 0, 0, 0, 0, _U32)
    return _CENTRAL.pack(b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, _DATE, *sizes) + name + extra


def _pieces(places: Sequence[_Place], members: Sequence[Member], tail: bytes) -> Iterator[Bytes]:
    for place, member in zip(places, members, strict=True):
        yield place.header
        yield from member.chunks
    yield tail


def _open_regular(path: Path) -> int:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; check the path.") from None
    except NotRegularFile:
        raise ArtifactCorrupt(f"{path}: not a regular file; give the path of an artifact.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be opened ({reason}).") from error
