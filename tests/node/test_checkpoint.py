"""The checkpoint file: what was saved, or a word that it can't be read, and never anything else."""

import hashlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.node.checkpoint import Checkpoint, CheckpointFile, PreparedClaim, Unreadable
from tests.node.prepared import prepared

WORDS = st.text(max_size=8)
CLAIMS = st.builds(prepared, WORDS, channel=st.integers(-1, 2047), domain=WORDS, all_channels=st.booleans())
CHECKPOINTS = st.builds(
    Checkpoint,
    st.lists(CLAIMS, max_size=3).map(lambda claims: {claim.uid: claim for claim in claims}),
    st.integers(0, 2**53),
    st.dictionaries(WORDS, st.integers(0, 2**53), max_size=3),
    st.dictionaries(WORDS, st.integers(0, 2**53), max_size=3),
    era=st.just("an era"),
)
SAVED = Checkpoint(era="an era").with_claim(prepared("c1")).without_claim("c0")


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    return CheckpointFile(tmp_path / "plugin" / "imex-dra.json")


@pytest.fixture
def path(file: CheckpointFile, tmp_path: Path) -> Path:
    with file.locked():
        file.save(SAVED)
    return tmp_path / "plugin" / "imex-dra.json"


@given(checkpoint=CHECKPOINTS)
def test_what_is_saved_is_what_is_loaded(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = CheckpointFile(tmp_path_factory.getbasetemp() / "imex-dra.json")
    file.save(checkpoint)
    assert file.load() == checkpoint


def test_a_node_that_never_prepared_anything_has_an_empty_one(file: CheckpointFile) -> None:
    assert file.load() == Checkpoint()


def test_only_root_reads_it(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_later_versions_payload_with_unknown_fields_still_verifies(file: CheckpointFile, path: Path) -> None:
    payload = msgspec.json.decode(msgspec.json.decode(path.read_bytes())["payload"])
    payload["claims"]["c1"]["colour"] = "green"
    payload["shelves"] = [1, 2]
    text = msgspec.json.format(msgspec.json.encode(payload), indent=3).decode()
    checksum = hashlib.sha256(text.encode()).hexdigest()
    envelope = {"version": 7, "checksum": checksum, "payload": text, "compression": None}
    path.write_bytes(msgspec.json.encode(envelope))
    assert file.load() == SAVED


def test_a_later_versions_payload_of_another_shape_is_unreadable(file: CheckpointFile, path: Path) -> None:
    text = '{"claims": ["c1"]}'
    checksum = hashlib.sha256(text.encode()).hexdigest()
    path.write_bytes(msgspec.json.encode({"version": 7, "checksum": checksum, "payload": text}))
    with pytest.raises(Unreadable, match=r"imex-dra\.json: Expected `object`, got `array` - at `\$\.claims`"):
        file.load()


def test_a_file_cut_short_anywhere_is_unreadable(file: CheckpointFile, path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(Unreadable):
            file.load()


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_a_file_with_a_spoilt_byte_is_unreadable_or_says_what_was_saved(
    file: CheckpointFile, path: Path, flip: int
) -> None:
    content = path.read_bytes()
    unreadable = 0
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
        try:
            assert file.load() == SAVED
        except Unreadable:
            unreadable += 1
    assert unreadable >= len(content) - len('"version":1')


def test_what_is_set_aside_is_kept_and_still_there_until_something_better_is(
    file: CheckpointFile, path: Path
) -> None:
    path.write_bytes(b"spoilt")
    aside = file.set_aside()
    assert aside.read_bytes() == path.read_bytes() == b"spoilt"
    file.save(SAVED)
    path.write_bytes(b"spoilt again")
    assert file.set_aside() == aside
    assert aside.read_bytes() == b"spoilt again"


COUNT = """
import sys
from pathlib import Path
from imex_dra.node.checkpoint import CheckpointFile
file = CheckpointFile(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    with file.locked():
        file.save(file.load().without_claim(f"{sys.argv[2]}-{number}"))
"""


def counting(path: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", COUNT, str(path), name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_two_processes_never_lose_each_others_changes(path: Path, file: CheckpointFile) -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(counting(path, name)) for name in ("old", "new")]
        for process in pair:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in pair:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        assert [process.wait(30) for process in pair] == [0, 0]
    checkpoint = file.load()
    assert checkpoint.calls == SAVED.calls + 100
    assert len(checkpoint.unprepared) == len(SAVED.unprepared) + 100
    assert checkpoint.claims == SAVED.claims


def test_an_unprepare_overtakes_the_prepares_that_began_before_it_and_no_others() -> None:
    before = Checkpoint(calls=4)
    after = before.without_claim("c1")
    assert after.calls == 5
    assert after.overtaken("c1", since=before.calls)
    assert not after.overtaken("c1", since=after.calls)
    assert not after.overtaken("c2", since=before.calls)
    assert not Checkpoint().overtaken("c1", since=0)


def test_a_claim_prepared_again_after_its_unprepare_is_overtaken_by_the_next_one_only() -> None:
    again = Checkpoint().without_claim("c1").with_claim(prepared("c1"))
    assert not again.overtaken("c1", since=again.calls)
    assert again.without_claim("c1").overtaken("c1", since=again.calls)


def test_of_very_many_unprepares_the_latest_are_remembered() -> None:
    checkpoint = Checkpoint()
    for number in range(1000):
        checkpoint = checkpoint.without_claim(f"c{number}")
    assert len(checkpoint.unprepared) == 256
    assert checkpoint.overtaken("c999", since=998)
    assert checkpoint.overtaken("c744", since=0)


def test_processes_of_an_earlier_boot_and_claims_without_a_channel_hold_nothing() -> None:
    checkpoint = Checkpoint()
    for claim in (prepared("c1"), prepared("c2", channel=-1), prepared("c3", boot_id="boot-0")):
        checkpoint = checkpoint.with_claim(claim)
    assert [claim.uid for claim in checkpoint.living("boot-1")] == ["c1"]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (prepared("c2"), True),
        (prepared("c1"), False),
        (prepared("c2", channel=8), False),
        (prepared("c2", domain="rival"), False),
        (prepared("c2", partition="another"), False),
        (prepared("c2", boot_id="boot-0"), False),
    ],
    ids=["another claim", "itself", "another channel", "another domain", "another partition", "an earlier boot"],
)
def test_a_channel_is_shared_with_another_claim_of_the_same_domain_only(
    other: PreparedClaim, shared: bool
) -> None:
    assert Checkpoint().with_claim(other).shares(prepared("c1")) is shared


def test_a_promise_outlives_claims_that_come_and_go() -> None:
    checkpoint = Checkpoint().with_promise("p.1", 4).with_claim(prepared("c1")).without_claim("c1")
    assert (checkpoint.promised("p.1"), checkpoint.promised("p.2")) == (4, 0)
