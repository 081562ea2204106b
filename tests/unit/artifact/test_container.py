"""The file format alone: one possible form, every byte counts."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tilewright.artifact.container import PIECE_BYTES, Archive, Entry, Member, write_archive
from tilewright.errors import ArtifactCorrupt, UsageError
from tilewright.fields import FieldError, decoded

MEMBERS = [
    Member("b/two.bin", (bytes(range(200)), b"tail")),
    Member("a.txt", (b"hello",)),
    Member("b/none.bin", ()),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_archive(tmp_path / "m.tw", {"format_version": 1, "key": "value"}, MEMBERS)
    return tmp_path / "m.tw"


def refusal(path: Path) -> str:
    with pytest.raises(ArtifactCorrupt) as caught:
        Archive(path).verify()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_any_zip_tool_reads_it(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "a.txt", "b/none.bin", "b/two.bin"]
        assert archive.read("b/two.bin") == bytes(range(200)) + b"tail"
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_what_was_written_is_read(path: Path) -> None:
    archive = Archive(path)
    archive.verify()
    assert archive.manifest["key"] == "value"
    assert archive.read("a.txt") == b"hello"
    assert archive.read("b/none.bin") == b""
    target = np.zeros(204, np.uint8)
    archive.read_into("b/two.bin", target.data)
    assert target.tobytes() == bytes(range(200)) + b"tail"


def test_data_are_aligned(path: Path) -> None:
    raw = path.read_bytes()
    assert raw.index(b"hello") % 64 == 0
    assert raw.index(bytes(range(200))) % 64 == 0


def test_the_same_members_in_any_order_give_the_same_bytes(tmp_path: Path, path: Path) -> None:
    write_archive(tmp_path / "n.tw", {"key": "value", "format_version": 1}, MEMBERS[::-1])
    assert (tmp_path / "n.tw").read_bytes() == path.read_bytes()


def test_every_flipped_byte_is_found(path: Path) -> None:
    raw = path.read_bytes()
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x10]) + raw[position + 1 :])
        with pytest.raises(ArtifactCorrupt):
            Archive(path).verify()


def test_every_truncation_and_addition_is_found(path: Path) -> None:
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(ArtifactCorrupt):
            Archive(path)
    path.write_bytes(raw + b"\0")
    refusal(path)
    path.write_bytes(b"\0" + raw)
    assert "not a tilewright artifact" in refusal(path)


def test_members_that_are_not_read_need_not_be_whole(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"hello", b"jello"))
    archive = Archive(path)
    assert archive.read("b/two.bin")[:3] == bytes(range(3))
    with pytest.raises(ArtifactCorrupt, match=r"a\.txt"):
        archive.read("a.txt")


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../b", "a//b", "", "A\\b", "a/", "a\0b", "é"])
def test_path_like_names_are_refused(name: str) -> None:
    with pytest.raises(FieldError, match="no name of a member"):
        decoded(Entry, {"name": name, "size_bytes": 1, "crc32": 0, "sha256": "0" * 64})


@pytest.mark.parametrize("size", [-1, 1.5, "1", None, True, 2**64])
def test_sizes_that_are_none_are_refused(size: object) -> None:
    with pytest.raises(FieldError, match="size_bytes: expected a whole number"):
        decoded(Entry, {"name": "a", "size_bytes": size, "crc32": 0, "sha256": "0" * 64})


def forged(path: Path, members: list[dict[str, object]]) -> Path:
    """An archive whose manifest lists what it does not hold, with all digests right."""
    write_archive(path, {"format_version": 1}, [])
    from tilewright.artifact import container

    original = container._entry
    entries = iter([Entry(**m) for m in members])  # type: ignore[arg-type]
    fake = [Member(str(m["name"]), ()) for m in members]
    try:
        container._entry = lambda member: (
            original(member) if member.name == "manifest.json" else next(entries)
        )
        write_archive(path, {"format_version": 1}, fake)
    finally:
        container._entry = original
    return path


def test_repeated_members_are_refused(tmp_path: Path) -> None:
    entry = {"name": "a", "size_bytes": 0, "crc32": 0, "sha256": "0" * 64}
    assert "out of order" in refusal(forged(tmp_path / "m.tw", [entry, entry]))


def test_members_larger_than_the_file_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    entry = {"name": "a", "size_bytes": 1 << 60, "crc32": 0, "sha256": "0" * 64}
    assert "larger than the file" in refusal(forged(tmp_path / "m.tw", [entry]))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"PK\3\4" + bytes(500), b"\x08\x07" * 300])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.tw").write_bytes(content)
    assert "not a tilewright artifact" in refusal(tmp_path / "m.tw")


def test_a_foreign_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.tw", "w") as archive:
        archive.writestr("manifest.json", "{}" * 100)
    refusal(tmp_path / "m.tw")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactCorrupt, match="not a regular file"):
        Archive(tmp_path / "pipe")
    with pytest.raises(ArtifactCorrupt, match="not a regular file"):
        Archive(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        Archive(tmp_path / "absent.tw")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write_archive(path, {"format_version": 1}, MEMBERS)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.tw"]


def test_reading_goes_on_when_the_file_is_replaced(path: Path) -> None:
    archive = Archive(path)
    write_archive(path, {"format_version": 1}, [Member("other.txt", (b"x",))])
    assert archive.read("a.txt") == b"hello"


def test_a_member_of_several_pieces_is_verified_in_each_of_them(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2 * PIECE_BYTES + 777, np.uint8)
    path = tmp_path / "large.tw"
    chunks = (content[:5].data, content[5 : PIECE_BYTES + 3].data, content[PIECE_BYTES + 3 :].data)
    write_archive(path, {"format_version": 2}, [Member("large.bin", chunks)])
    whole = path.read_bytes()
    target = bytearray(len(content))
    Archive(path).read_into("large.bin", target)
    assert bytes(target) == content.tobytes() == Archive(path).read("large.bin")
    start = whole.index(content[:64].tobytes())
    for at in (0, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES, len(content) - 1):
        damaged = bytearray(whole)
        damaged[start + at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ArtifactCorrupt, match=r"large\.bin"):
            Archive(path).read_into("large.bin", bytearray(len(content)))
        with pytest.raises(ArtifactCorrupt, match=r"large\.bin"):
            Archive(path).read("large.bin")
