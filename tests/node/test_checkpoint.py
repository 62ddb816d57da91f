"""The checkpoint file: loading returns exactly what was saved, or fails as unreadable."""

import hashlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.node.checkpoint import VERSION, Checkpoint, CheckpointFile, PreparedClaim, Unreadable
from tests.node.disk import prepared_claim

STRINGS = st.text(max_size=8)
CLAIMS = st.builds(
    prepared_claim, STRINGS, channel=st.integers(-1, 2047), domain=STRINGS, all_channels=st.booleans()
)
CHECKPOINTS = st.builds(
    Checkpoint,
    st.lists(CLAIMS, max_size=3).map(lambda claims: {claim.uid: claim for claim in claims}),
    st.integers(0, 2**53),
    st.dictionaries(STRINGS, st.integers(0, 2**53), max_size=3),
    st.dictionaries(STRINGS, st.integers(0, 2**53), max_size=3),
    STRINGS,
    st.just("file-1"),
)
SAVED = Checkpoint(file_id="file-1").with_claim(prepared_claim("c1")).without_claim("c0")


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    return CheckpointFile(tmp_path / "plugin" / "imex-dra.json")


@pytest.fixture
def path(file: CheckpointFile, tmp_path: Path) -> Path:
    """The path of the file, with `SAVED` in it."""
    with file.locked():
        file.save(SAVED)
    return tmp_path / "plugin" / "imex-dra.json"


def write(path: Path, payload: str, version: int = VERSION, **fields: Any) -> None:
    checksum = hashlib.sha256(payload.encode()).hexdigest()
    envelope = {"version": version, "checksum": checksum, "payload": payload, **fields}
    path.write_bytes(msgspec.json.encode(envelope))


@given(checkpoint=CHECKPOINTS)
def test_a_saved_checkpoint_is_loaded_unchanged(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = CheckpointFile(tmp_path_factory.getbasetemp() / "imex-dra.json")
    file.save(checkpoint)
    assert file.load() == checkpoint


def test_a_missing_file_is_an_empty_checkpoint(file: CheckpointFile) -> None:
    assert file.load() == Checkpoint()


def test_only_root_may_read_the_file(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_unknown_fields_are_ignored(file: CheckpointFile, path: Path) -> None:
    payload = msgspec.json.decode(msgspec.json.decode(path.read_bytes())["payload"])
    payload["claims"]["c1"]["color"] = "green"
    payload["shelves"] = [1, 2]
    write(path, msgspec.json.format(msgspec.json.encode(payload), indent=3).decode(), compression=None)
    assert file.load() == SAVED


def test_a_payload_of_another_shape_is_unreadable(file: CheckpointFile, path: Path) -> None:
    write(path, '{"claims": ["c1"]}')
    with pytest.raises(Unreadable, match=r"imex-dra\.json: Expected `object`, got `array` - at `\$\.claims`"):
        file.load()


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_unreadable(file: CheckpointFile, path: Path, version: int) -> None:
    payload = msgspec.json.decode(path.read_bytes())["payload"]
    write(path, payload, version)
    with pytest.raises(Unreadable, match=rf"imex-dra\.json: version {version} is not supported, only {VERSION}"):
        file.load()


def test_a_file_truncated_anywhere_is_unreadable(file: CheckpointFile, path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content.rstrip())):
        path.write_bytes(content[:length])
        with pytest.raises(Unreadable):
            file.load()


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_a_file_with_any_corrupt_byte_is_unreadable(file: CheckpointFile, path: Path, flip: int) -> None:
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
        with pytest.raises(Unreadable):
            file.load()


def test_a_backup_leaves_the_unreadable_file_in_place_and_replaces_an_older_backup(
    file: CheckpointFile, path: Path
) -> None:
    path.write_bytes(b"corrupt")
    backup = file.back_up()
    assert backup.read_bytes() == path.read_bytes() == b"corrupt"
    file.save(SAVED)
    path.write_bytes(b"corrupt again")
    assert file.back_up() == backup
    assert backup.read_bytes() == b"corrupt again"


UNPREPARE_50_CLAIMS = """
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


def unpreparing_process(path: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", UNPREPARE_50_CLAIMS, str(path), name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_two_processes_do_not_lose_each_others_changes(path: Path, file: CheckpointFile) -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(unpreparing_process(path, name)) for name in ("old", "new")]
        for process in pair:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in pair:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        assert [process.wait(30) for process in pair] == [0, 0]
    checkpoint = file.load()
    assert checkpoint.unprepare_sequence == SAVED.unprepare_sequence + 100
    assert len(checkpoint.unprepared) == len(SAVED.unprepared) + 100
    assert checkpoint.claims == SAVED.claims


def test_an_unprepare_counts_against_prepares_of_its_claim_that_began_before_it_only() -> None:
    before = Checkpoint(unprepare_sequence=4)
    after = before.without_claim("c1")
    assert after.unprepare_sequence == 5
    assert after.unprepared_since("c1", before.unprepare_sequence)
    assert not after.unprepared_since("c1", after.unprepare_sequence)
    assert not after.unprepared_since("c2", before.unprepare_sequence)
    assert not Checkpoint().unprepared_since("c1", 0)


def test_a_claim_may_be_prepared_and_unprepared_again() -> None:
    again = Checkpoint().without_claim("c1").with_claim(prepared_claim("c1"))
    assert not again.unprepared_since("c1", again.unprepare_sequence)
    assert again.without_claim("c1").unprepared_since("c1", again.unprepare_sequence)


def test_only_the_latest_unprepares_are_kept() -> None:
    checkpoint = Checkpoint()
    for number in range(1000):
        checkpoint = checkpoint.without_claim(f"c{number}")
    assert len(checkpoint.unprepared) == 256
    assert checkpoint.unprepared_since("c999", 998)
    assert checkpoint.unprepared_since("c744", 0)


def test_claims_of_an_earlier_boot_or_without_a_channel_are_not_live() -> None:
    checkpoint = Checkpoint()
    for claim in (
        prepared_claim("c1"),
        prepared_claim("c2", channel=-1),
        prepared_claim("c3", boot_id="boot-0"),
    ):
        checkpoint = checkpoint.with_claim(claim)
    assert [claim.uid for claim in checkpoint.live_claims("boot-1")] == ["c1"]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (prepared_claim("c2"), True),
        (prepared_claim("c1"), False),
        (prepared_claim("c2", channel=8), False),
        (prepared_claim("c2", domain="other"), False),
        (prepared_claim("c2", partition="another"), False),
        (prepared_claim("c2", boot_id="boot-0"), False),
    ],
    ids=["another claim", "itself", "another channel", "another domain", "another partition", "an earlier boot"],
)
def test_only_claims_of_the_same_computedomain_share_a_channel(other: PreparedClaim, shared: bool) -> None:
    assert Checkpoint().with_claim(other).shares_channel(prepared_claim("c1")) is shared


def test_a_fence_is_independent_of_claims() -> None:
    checkpoint = Checkpoint().with_fence("p.1", 4).with_claim(prepared_claim("c1")).without_claim("c1")
    assert (checkpoint.fence("p.1"), checkpoint.fence("p.2")) == (4, 0)
