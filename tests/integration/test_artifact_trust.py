"""Whose code of an artifact is run, and what may be asked of one when it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.artifacts import refusal, rewritten, same, small_artifact
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.api.trust import distrust_key, list_trusted, trust_key
from tilewright.artifact.container import Archive
from tilewright.artifact.signature import Signature
from tilewright.errors import ArtifactCorrupt, UsageError
from tilewright.private_files import is_public_key
from tilewright.targets.cpu.isa import host_isa

FOREIGN = "neon" if host_isa().arch == "x86_64" else "avx2"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_artifact(tmp_path)


def as_from_elsewhere(path: Path, target: Path) -> Path:
    """The same content, not signed."""
    return rewritten(path, target, lambda manifest, members: manifest.update(note="from elsewhere"))


def test_code_of_another_machine_is_made_again_unless_trusted(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = feed_for(small_net())
    want = tw.open(path).run(None, feed)
    foreign = as_from_elsewhere(path, tmp_path / "foreign.tw")
    opened = tw.open(foreign)
    (remark,) = opened.remarks
    assert "its code is not signed" in remark
    assert "--trust" in remark
    assert "\n" not in remark
    assert remark in caplog.messages
    assert same(opened.run(None, feed), want)
    trusted = tw.open(foreign, trust=True)
    assert trusted.remarks == ()
    assert same(trusted.run(None, feed), want)


def test_untrusted_code_is_not_even_read(path: Path, tmp_path: Path) -> None:
    def edit(manifest: dict, members: dict) -> None:
        for name in members:
            if name.startswith("code/"):
                members[name] = b"evil"

    opened = tw.open(rewritten(path, tmp_path / "evil.tw", edit))
    assert same(opened.run(None, feed_for(small_net())), tw.open(path).run(None, feed_for(small_net())))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"isa": "neon", "system": "aarch64-linux"}, "another processor (neon, aarch64-linux"),
        ({"system": "x86_64-solaris"}, "another processor"),
        ({"features": "sse99"}, "with sse99"),
        ({"interface": "0"}, "another version of the runtime (0,"),
    ],
)
def test_code_for_another_processor_or_another_runtime_is_never_run(
    path: Path, tmp_path: Path, change: dict, words: str
) -> None:
    def edit(manifest: dict, members: dict) -> None:
        manifest["native"][0].update(change)
        for name in members:
            if name.endswith(".o"):
                members[name] = b"code of another processor"

    opened = tw.open(rewritten(path, tmp_path / "other.tw", edit), trust=True)
    assert words in opened.remarks[0]
    assert same(opened.run(None, feed_for(small_net())), tw.open(path).run(None, feed_for(small_net())))


@pytest.mark.parametrize(
    ("offset", "byte", "words"), [(18, 183, "for ELF machine 183"), (0, 0, "no ELF object")]
)
def test_objects_for_another_processor_than_their_label_are_refused(
    path: Path, tmp_path: Path, offset: int, byte: int, words: str
) -> None:
    def edit(manifest: dict, members: dict) -> None:
        for name, data in members.items():
            if name.endswith(".o"):
                members[name] = data[:offset] + bytes([byte]) + data[offset + 1 :]

    with pytest.raises(ArtifactCorrupt, match=words):
        tw.open(rewritten(path, tmp_path / "other.tw", edit), trust=True).run(None, feed_for(small_net()))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the keys of a user of whom nothing else is known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tilewright"


def test_another_cache_needs_nothing_of_the_first(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "other"))
    assert tw.open(path).remarks == ()
    assert tw.open(path).run(None, feed_for(small_net()))
    assert not (tmp_path / "other").exists()


def test_another_user_trusts_a_key_once(path: Path, state: Path, tmp_path: Path) -> None:
    (remark,) = tw.open(path).remarks
    assert "which you do not trust" in remark
    assert "tilewright trust add" in remark
    added = trust_key(str(path), "a friend")
    assert tw.open(path).remarks == ()
    assert [(k.key, k.name) for k in list_trusted().keys] == [(added.key, "a friend")]
    assert list_trusted().user_key != added.key
    assert tw.open(tw.compile(small_net(), threads=1).save(tmp_path / "own.tw")).remarks == ()
    distrust_key("a friend")
    assert tw.open(path).remarks


def test_a_container_trusts_by_its_environment(
    path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = Archive(path).signature
    assert signature is not None
    monkeypatch.setenv("TILEWRIGHT_TRUST", f"{'58' + '66' * 31}, {signature.public_key}")
    assert tw.open(path).remarks == ()
    monkeypatch.setenv("TILEWRIGHT_TRUST", "everybody")
    with pytest.raises(UsageError, match="TILEWRIGHT_TRUST: 'everybody' is no public key"):
        tw.open(path)


def test_looking_at_an_artifact_generates_and_trusts_nothing(
    path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signature = Archive(path).signature
    assert signature is not None
    seen = tw.inspect(path)
    assert (seen.signed_by, seen.is_trusted, seen.remarks) == (signature.public_key, False, ())
    assert f"{signature.public_key[:16]}..., not trusted here" in str(seen)
    assert seen.signed_by == signature.public_key
    assert caplog.messages == []
    trust_key(signature.public_key)
    assert tw.inspect(path).is_trusted


def test_keys_that_others_may_write_are_not_believed(path: Path, state: Path) -> None:
    key = trust_key(str(path)).key
    assert tw.open(path).remarks == ()
    (state / "trusted-keys" / key).chmod(0o666)
    assert tw.open(path).remarks


def test_a_signature_of_other_content_is_damage(path: Path, tmp_path: Path) -> None:
    other = tw.compile(small_net(channels=8), threads=1).save(tmp_path / "other.tw")
    raw, donor = path.read_bytes(), other.read_bytes()
    start = raw.rindex(b"ed25519 ")
    end = raw.rindex(b", tilewright artifact")
    given = donor[donor.rindex(b"ed25519 ") : donor.rindex(b", tilewright artifact")]
    path.write_bytes(raw[:start] + given + raw[end:])
    assert "its signature is not of its content" in refusal(path)


def test_what_cannot_be_signed_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    path = tw.compile(small_net(), no_cache=True).save(tmp_path / "m.tw")
    assert any("is not signed" in m for m in caplog.messages)
    assert "its code is not signed" in tw.open(path).remarks[0]


# What may be asked of an artifact.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accuracy": "strict"}, "cannot honour --accuracy strict (compiled with default); leave that out"),
        ({"partition": "layerwise", "effort": 0}, "--effort 0 (compiled with 2), --partition layerwise"),
        ({"shapes": "image:2x3x12x12"}, "--shapes image:2x3x12x12 (its inputs are image:1x3x12x12)"),
        ({"target": "interpreter"}, "--target interpreter (compiled with cpu)"),
        ({"isa": FOREIGN}, f"not for {FOREIGN}"),
        ({"isa": "sse"}, "unknown instruction set 'sse'"),
    ],
)
def test_what_was_not_compiled_in_cannot_be_asked(path: Path, settings: dict, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        tw.open(path, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_compiled_in_may_be_asked(path: Path) -> None:
    opened = tw.open(path, shapes="image:1x3x12x12", seed=3, max_memory_bytes="1GiB", timeout_s=60.0)
    assert opened.run(None, feed_for(small_net()))


def test_a_limit_on_memory_holds_for_artifacts(path: Path) -> None:
    with pytest.raises(tw.BudgetExceeded, match=r"more than the 1\.0 KiB of --max-memory"):
        tw.open(path, max_memory_bytes="1KiB")


def test_a_frozen_cache_makes_no_code_again(path: Path, state: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the cache, which is frozen"):
        tw.open(path, frozen=True, cache_dir=tmp_path / "empty")


def test_a_key_of_small_order_is_nobodys() -> None:
    """Points of edwards25519 whose order divides 8, doubled thrice by the addition law of RFC 8032."""
    prime = 2**255 - 19
    d = -121665 * pow(121666, -1, prime) % prime

    def doubled_y2_x2(y2: int, x2: int) -> tuple[int, int]:
        xy2 = x2 * y2 % prime
        new_y = (y2 + x2) * pow(1 - d * xy2, -1, prime) % prime
        new_x2 = 4 * xy2 * pow(1 + d * xy2, -2, prime) % prime
        return new_y * new_y % prime, new_x2

    order_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    for y in (0, 1, prime - 1, order_8, prime - order_8):
        y2 = y * y % prime
        point = y2, (y2 - 1) * pow(d * y2 + 1, -1, prime) % prime
        for _ in range(3):
            point = doubled_y2_x2(*point)
        assert point == (1, 0)  # the neutral element
        for same_y in (v for v in (y, y + prime) if v < 2**255):
            for sign in (0, 1 << 255):
                key = (same_y + sign).to_bytes(32, "little").hex()
                assert not is_public_key(key)
                assert not Signature(key, "01" + "00" * 63).is_of("ab" * 32)
    assert is_public_key("58" + "66" * 31)  # of the base point
