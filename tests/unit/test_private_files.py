"""State on disk that only its user can have written: what is used, what is not, and what nothing touches."""

# mypy: disable-error-code="arg-type, str-bytes-safe"

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilewright import private_files
from tilewright.private_files import (
    KEY_NAME,
    OBJECTS,
    BadRecord,
    NotPrivate,
    PrivateFolder,
    Records,
    hazards_of,
    key_directory,
    keys,
    record_key,
)

SOURCE = Path(__file__).parents[2] / "src"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tilewright"


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(PrivateFolder(tmp_path / "cache"), OBJECTS)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277, 0o777])
def test_folders_are_0700_and_files_0600_whatever_the_umask(records: Records, state: Path, mask: int) -> None:
    with umask(mask):
        records.put("name", b"content", "ab")
        assert records.get("name", "ab") == b"content"
    root = records.folder.root
    for folder in (root, root / OBJECTS, root / OBJECTS / "ab", state, state.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (root / OBJECTS / "ab" / "name", state / KEY_NAME):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nothing_changes_the_umask_of_other_threads(records: Records) -> None:
    """A mask of zero for a moment would open files that others write just then."""
    code = (
        "import os, sys\n"
        "sys.addaudithook(lambda event, _: None)\n"
        "def forbidden(_): raise AssertionError('umask')\n"
        "os.umask = forbidden\n"
        "from tilewright.files import write_atomically\n"
        "from tilewright.private_files import PrivateFolder, Records\n"
        "write_atomically(sys.argv[1] + '/file', b'x')\n"
        "Records(PrivateFolder(sys.argv[1] + '/cache'), 'objects').put('name', b'x')\n"
    )
    folder = records.folder.root.parent
    subprocess.run([sys.executable, "-c", code, folder], check=True, env={**os.environ, "PYTHONPATH": SOURCE})


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _huge(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


def _mode(mode: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(b"x")
        path.chmod(mode)

    return change


INSTEAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (_pipe, "is a pipe"),
    "socket": (_socket, "is a socket"),
    "folder": (Path.mkdir, "is a folder"),
    "link": (lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link"),
    "dangling link": (lambda path: path.symlink_to("nothing"), "is a symbolic link"),
    "huge": (_huge, "is too large"),
    "group": (_mode(0o620), "may be written by others"),
    "world": (_mode(0o602), "may be written by others"),
}


@pytest.mark.parametrize("kind", INSTEAD)
def test_what_is_no_file_of_the_user_alone_is_not_used_and_told(
    records: Records, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    records.put("name", b"content", "ab")
    path = records.folder.path(OBJECTS, "ab", "name")
    path.unlink()
    make, said = INSTEAD[kind]
    make(path)
    assert records.get("name", "ab") is None
    assert records.get("name", "ab") is None
    assert [said in r.getMessage() for r in caplog.records] == [True], "one warning"
    assert str(path) in caplog.text
    assert [problem.path for problem in hazards_of(records.folder.root)] == [path]
    if kind != "folder":  # the next writer takes its place
        records.put("name", b"anew", "ab")
        assert records.get("name", "ab") == b"anew"
        assert hazards_of(records.folder.root) == ()


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(records: Records, depth: int, mode: int) -> None:
    records.put("name", b"content", "ab")
    parts = (OBJECTS, "ab")[:depth]
    folder = records.folder.path(*parts)
    folder.chmod(mode)
    for reader in (records, Records(PrivateFolder(records.folder.root), OBJECTS)):
        assert reader.get("name", "ab") is None
        with pytest.raises(NotPrivate, match="may be written by others"):
            reader.put("other", b"x", "ab")
    assert [problem.path for problem in hazards_of(records.folder.root)] == [folder]
    folder.chmod(0o700)
    assert records.get("name", "ab") == b"content"
    assert hazards_of(records.folder.root) == ()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_link_to_a_folder_is_not_followed(records: Records, tmp_path: Path, depth: int) -> None:
    records.put("name", b"content", "ab")
    folder = records.folder.path(*(OBJECTS, "ab")[:depth])
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = sorted(tmp_path.rglob("*"))
    assert records.get("name", "ab") is None
    assert not records.folder.remove(OBJECTS, "ab", "name")
    assert Records(PrivateFolder(records.folder.root), OBJECTS).verify().num_whole == 0
    with pytest.raises(NotPrivate):
        records.put("name", b"x", "ab")
    assert [problem.path for problem in hazards_of(records.folder.root)] == [folder]
    assert sorted(tmp_path.rglob("*")) == before, "nothing outside is removed or written"


def test_a_folder_above_must_not_let_others_rename(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    records = Records(PrivateFolder(shared / "deep" / "cache"), OBJECTS)
    records.put("name", b"content")
    shared.chmod(0o777)
    fresh = Records(PrivateFolder(shared / "deep" / "cache"), OBJECTS)
    assert fresh.get("name") is None
    (problem,) = hazards_of(shared / "deep" / "cache")
    assert problem.path == shared
    assert "lets others replace" in problem.reason
    shared.chmod(0o1777)
    assert fresh.get("name") == b"content", "the sticky bit lets only owners rename"


def test_links_above_the_cache_are_followed_if_they_are_ones_own(tmp_path: Path) -> None:
    (tmp_path / "disk" / "inner").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("disk/inner/../inner")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    Records(PrivateFolder(tmp_path / "absolute" / "cache"), OBJECTS).put("name", b"content")
    assert (tmp_path / "disk" / "inner" / "cache" / OBJECTS / "name").is_file()
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(NotPrivate, match="too many symbolic links"):
        PrivateFolder(tmp_path / "ring" / "cache").write(b"", "name")


def test_a_record_is_bound_to_its_kind_and_name_and_key(records: Records, state: Path) -> None:
    records.put("a", b"one")
    whole = records.folder.read(OBJECTS, "a")
    other = Records(records.folder, "loops")
    for target, name in ((records, "b"), (other, "a")):
        target.folder.write(whole, target.kind, name)
        with pytest.raises(BadRecord, match="damaged"):
            target.verified(name)
    (state / KEY_NAME).unlink()
    records.put("c", b"three")  # makes another key
    with pytest.raises(BadRecord, match="another key"):
        records.verified("a")


def test_a_lost_key_makes_records_misses_without_a_word(
    records: Records, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records.put("a", b"one")
    (state / KEY_NAME).unlink()
    assert records.get("a") is None
    assert records.folder.path(OBJECTS, "a").exists(), "there is no other key yet"
    records.put("b", b"two")
    assert records.get("a") is None
    assert not records.folder.path(OBJECTS, "a").exists()
    assert records.get("b") == b"two"
    assert caplog.records == []


@pytest.mark.parametrize("length", [0, 31])
def test_a_key_that_was_cut_off_is_replaced(records: Records, state: Path, length: int) -> None:
    records.put("a", b"one")
    (state / KEY_NAME).write_bytes(b"k" * length)
    assert records.get("a") is None
    records.put("a", b"two")
    assert records.get("a") == b"two"
    assert (state / KEY_NAME).stat().st_size == 32


def test_a_key_that_others_may_read_is_not_used(
    records: Records, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records.put("a", b"one", "ab")
    old = (state / KEY_NAME).read_bytes()
    (state / KEY_NAME).chmod(0o644)
    assert records.get("a", "ab") is None
    assert "may be read by others" in caplog.text
    assert [problem.path for problem in hazards_of(records.folder.root)] == [state / KEY_NAME]
    records.put("a", b"two", "ab")
    assert records.get("a", "ab") == b"two"
    assert (state / KEY_NAME).read_bytes() != old
    assert hazards_of(records.folder.root) == ()


def test_without_a_home_the_key_lies_in_the_cache(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "relative")
    assert key_directory() is None
    records.put("a", b"one")
    assert records.get("a") == b"one"
    assert (records.folder.root / KEY_NAME).is_file()


def test_processes_that_are_first_together_agree_on_the_key(tmp_path: Path) -> None:
    code = (
        "import sys; from tilewright.private_files import *\n"
        "print(record_key(PrivateFolder(sys.argv[1]), create=True).hex())"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    racers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    assert len({racer.communicate()[0] for racer in racers}) == 1


def test_threads_that_are_first_together_agree_on_the_key(tmp_path: Path) -> None:
    found: list[bytes | None] = []
    folder = PrivateFolder(tmp_path / "cache")
    threads = [
        threading.Thread(target=lambda: found.append(record_key(folder, create=True))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0] is not None


def test_a_folder_that_was_replaced_is_looked_at_again(records: Records, tmp_path: Path) -> None:
    records.put("a", b"one")
    records.folder.root.rename(tmp_path / "old")
    assert records.get("a") is None
    records.put("a", b"two")
    assert records.get("a") == b"two"
    assert (tmp_path / "old" / OBJECTS / "a").is_file()


def test_reading_leaves_no_descriptor_open(records: Records) -> None:
    records.put("a", b"one", "ab")
    (records.folder.root / OBJECTS / "ab" / "pipe").parent.chmod(0o700)
    os.mkfifo(records.folder.root / OBJECTS / "ab" / "pipe")
    logging.getLogger("tilewright").setLevel(logging.NOTSET)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        records.get("a", "ab")
        records.get("pipe", "ab")
        records.get("missing", "cd")
        Records(PrivateFolder(records.folder.root), OBJECTS).get("a", "ab")
        hazards_of(records.folder.root)
    assert len(os.listdir("/proc/self/fd")) == before


@needs_root
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_what_belongs_to_another_user_is_not_used(records: Records, depth: int) -> None:
    records.put("name", b"content", "ab")
    path = records.folder.path(*(OBJECTS, "ab", "name")[:depth])
    os.chown(path, NOBODY, NOBODY)
    fresh = Records(PrivateFolder(records.folder.root), OBJECTS)
    assert fresh.get("name", "ab") is None
    (problem,) = hazards_of(records.folder.root)
    assert problem.path == path
    assert "belongs to another user (uid 65534)" in problem.reason


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says in a child process that belongs to another user."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child runs no other thread's code
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = work()
        except BaseException as error:
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder that every user may pass through."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


@needs_root
def test_another_user_who_may_write_the_folder_makes_nothing_that_is_used(reachable: Path) -> None:
    """A root of mode 0777, in which another user's own process puts a record of the right name."""
    cache = reachable / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    forged = cache / OBJECTS / "ab" / "name"

    def attack() -> str:
        forged.parent.mkdir(parents=True)
        forged.write_bytes(keys.sealed(b"foreign", bytes(32), OBJECTS, "name"))
        return "done"

    assert as_nobody(attack) == "done"
    records = Records(PrivateFolder(cache), OBJECTS)
    for mode in (0o777, 0o755, 0o700):
        cache.chmod(mode)
        assert records.get("name", "ab") is None
        assert hazards_of(cache) != ()
    for path in (forged, forged.parent, forged.parent.parent):  # taken over without a look, as chown -R does
        os.chown(path, 0, 0)
        path.chmod(0o700)
    assert hazards_of(cache) == ()
    assert records.get("name", "ab") is None, "the digest is not of this user's key"


@needs_root
def test_another_user_does_not_use_what_root_made_for_all(reachable: Path) -> None:
    cache = reachable / "cache"
    Records(PrivateFolder(cache), OBJECTS).put("name", b"content")
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o777)

    def look() -> str:
        os.environ["HOME"] = "/nonexistent"
        found = Records(PrivateFolder(cache), OBJECTS).get("name")
        return f"{found} {[problem.reason for problem in hazards_of(cache)][:1]}"

    assert as_nobody(look) == "None ['belongs to another user (uid 0)']"


@needs_root
def test_a_user_without_a_home_still_has_a_cache(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/nonexistent")
    home = reachable / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)

    def work() -> str:
        records = Records(PrivateFolder(home / "cache"), OBJECTS)
        records.put("name", b"content", "ab")
        return f"{records.get('name', 'ab')!r} {list(map(str, hazards_of(home / 'cache')))}"

    assert as_nobody(work) == "b'content' []"


def test_warnings_are_one_line_whatever_the_path_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "a\nb\x1b[31m"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    assert Records(PrivateFolder(folder), OBJECTS).get("a") is None
    (record,) = caplog.records
    assert record.getMessage().isprintable()


def test_the_header_is_as_long_as_it_says(records: Records) -> None:
    records.put("a", b"")
    assert len(records.folder.read(OBJECTS, "a")) == private_files.HEADER_BYTES
