"""The ledger: checkpoint and CDI specs, changed together."""

import pytest

from imex_dra.base.errors import Misconfigured, NotYet
from imex_dra.node.checkpoint import Checkpoint, PreparedClaim
from imex_dra.node.ledger import Recalled
from tests.node.desk import Desk
from tests.node.facts import PARTITION
from tests.node.prepared import prepared


def test_a_prepared_claim_has_a_spec_with_its_device_and_its_environment(desk: Desk) -> None:
    desk.enter(prepared("c1", channel=7), since=0)
    spec = desk.spec("c1")
    (device,) = spec["devices"]
    assert (spec["cdiVersion"], spec["kind"], device["name"]) == ("0.6.0", "imex-dra.io/channel", "c1")
    edits = device["containerEdits"]
    assert edits["deviceNodes"] == [
        {
            "path": "/dev/nvidia-caps-imex-channels/channel7",
            "major": 234,
            "minor": 7,
            "type": "c",
            "fileMode": 0o666,
            "permissions": "rw",
        }
    ]
    assert {"COMPUTE_DOMAIN_NAME=job", "COMPUTE_DOMAIN_UUID=uid-job", "COMPUTE_DOMAIN_CHANNEL=7"} <= set(
        edits["env"]
    )
    assert desk.held() == {"c1": 7}


def test_without_a_channel_there_is_an_environment_and_no_device(desk: Desk) -> None:
    desk.enter(prepared("c1", channel=-1, partition=""), since=0)
    edits = desk.spec("c1")["devices"][0]["containerEdits"]
    assert edits == {"env": ["COMPUTE_DOMAIN_NAME=job", "COMPUTE_DOMAIN_UUID=uid-job"]}


def test_all_channels_are_all_of_them_with_the_own_one_first(desk: Desk) -> None:
    desk.enter(prepared("c1", channel=3, all_channels=True, channel_count=8), since=0)
    edits = desk.spec("c1")["devices"][0]["containerEdits"]
    assert [node.get("minor", 0) for node in edits["deviceNodes"]] == [3, 0, 1, 2, 4, 5, 6, 7]
    assert len(edits["mounts"]) == 2


def test_entering_a_claim_again_changes_nothing(desk: Desk) -> None:
    desk.enter(prepared("c1"), since=0)
    before = desk.spec("c1"), (desk.cdi / "imex-dra.io-channel_c1.json").stat().st_ino
    desk.enter(prepared("c1"), since=0)
    assert (desk.spec("c1"), (desk.cdi / "imex-dra.io-channel_c1.json").stat().st_ino) == before
    assert desk.held() == {"c1": 7}


def test_a_channel_that_another_computedomain_holds_here_is_refused_with_the_holder(desk: Desk) -> None:
    desk.enter(prepared("c1", channel=7), since=0)
    with pytest.raises(NotYet) as refusal:
        desk.enter(prepared("c2", channel=7, domain="rival"), since=0)
    assert str(refusal.value) == (
        "channel 7 of NVLink partition 7b968a6d.1 is still held on node n1 by claim team/claim-c1 of ComputeDomain"
        " team/job; delete the pod that uses that claim"
    )
    assert desk.held() == desk.specs() == {"c1": 7}
    desk.ledger().strike("c1")
    desk.enter(prepared("c2", channel=7, domain="rival"), since=1)
    assert desk.held() == desk.specs() == {"c2": 7}


@pytest.mark.parametrize(
    "other",
    [
        prepared("c2", channel=7),
        prepared("c2", channel=8, domain="rival"),
        prepared("c2", channel=7, domain="rival", boot_id="boot-2"),
    ],
    ids=["same ComputeDomain", "another channel", "after a reboot"],
)
def test_what_does_not_collide_is_entered_beside_it(desk: Desk, other: PreparedClaim) -> None:
    desk.enter(prepared("c1", channel=7), since=0)
    desk.enter(other, since=0)
    assert desk.held().keys() == desk.specs().keys() == {"c1", "c2"}


def test_claims_without_a_channel_never_collide(desk: Desk) -> None:
    for uid, domain in (("c1", "job"), ("c2", "rival")):
        desk.enter(prepared(uid, channel=-1, partition="", domain=domain), since=0)
    assert desk.held() == desk.specs() == {"c1": -1, "c2": -1}


def test_a_prepare_that_was_overtaken_leaves_nothing(desk: Desk) -> None:
    since = desk.ledger().read().calls
    desk.ledger().strike("c1")
    with pytest.raises(NotYet, match="preparing claim team/claim-c1 was overtaken by its unprepare"):
        desk.enter(prepared("c1"), since)
    assert desk.held() == desk.specs() == {}


def test_a_claim_that_was_unprepared_is_not_mended_back_to_life(desk: Desk) -> None:
    desk.enter(prepared("c1"), since=0)
    desk.ledger().strike("c1")
    with pytest.raises(NotYet, match="overtaken"):
        desk.ledger().mend(prepared("c1"))
    assert desk.held() == desk.specs() == {}


def test_after_a_driver_reload_the_spec_has_the_new_major(desk: Desk) -> None:
    desk.enter(prepared("c1"), since=0)
    desk.root.load_driver(99)
    desk.ledger().mend(prepared("c1"))
    assert desk.spec("c1")["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] == 99
    assert desk.held() == {"c1": 7}


@pytest.mark.parametrize("spoilt", [b"", b"{}", b"\xff", b'{"cdiVersion":"0.6.0","kind":"x","devices":[]}', None])
def test_a_spec_that_is_spoilt_or_gone_is_mended(desk: Desk, spoilt: bytes | None) -> None:
    desk.enter(prepared("c1"), since=0)
    before = desk.spec("c1")
    path = desk.cdi / "imex-dra.io-channel_c1.json"
    path.unlink()
    if spoilt is not None:
        path.write_bytes(spoilt)
    desk.ledger().mend(prepared("c1"))
    assert desk.spec("c1") == before


def test_without_a_driver_nothing_is_prepared_and_unpreparing_works(desk: Desk) -> None:
    desk.enter(prepared("c1"), since=0)
    (desk.root.path / "proc/devices").unlink()
    with pytest.raises(Misconfigured, match="proc/devices can't be read"):
        desk.enter(prepared("c2"), since=0)
    desk.ledger().strike("c1")
    assert desk.held() == desk.specs() == {}


def test_unpreparing_what_is_not_there_is_fine_and_counts(desk: Desk) -> None:
    desk.ledger().strike("c1")
    desk.ledger().strike("c1")
    assert desk.stored().calls == 2


@pytest.mark.parametrize("spoilt", [b"", b"{", b"\xff\xfe", b'{"version":1,"checksum":"0","payload":"{}"}'])
def test_an_unreadable_checkpoint_is_kept_and_rebuilt_from_the_specs(desk: Desk, spoilt: bytes) -> None:
    desk.enter(prepared("c1"), since=0)
    desk.enter(prepared("c2", channel=-1, partition=""), since=0)
    before = desk.stored().claims
    desk.checkpoint.write_bytes(spoilt)
    assert desk.ledger().read() == Checkpoint(before)
    assert desk.stored().claims == before
    assert desk.checkpoint.with_suffix(".unreadable").read_bytes() == spoilt
    with pytest.raises(NotYet, match="still held"):
        desk.enter(prepared("c3", domain="rival"), since=0)


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b'{"cdiVersion":"0.6.0","kind":"x","devices":[]}',
        b'{"cdiVersion":"0.6.0","kind":"x","devices":[],"annotations":{"imex-dra.io/prepared-claim":"{"}}',
    ],
    ids=["empty", "without annotation", "with half an annotation"],
)
def test_a_spec_that_says_nothing_does_not_stop_the_rebuilding(desk: Desk, strange: bytes) -> None:
    desk.enter(prepared("c1"), since=0)
    (desk.cdi / "imex-dra.io-channel_c9.json").write_bytes(strange)
    desk.checkpoint.write_bytes(b"")
    assert desk.ledger().read().claims.keys() == {"c1"}


def test_tidying_removes_the_specs_that_nobody_owns_and_nothing_of_others(desk: Desk) -> None:
    desk.enter(prepared("c1"), since=0)
    (desk.cdi / "imex-dra.io-channel_orphan.json").write_text("{}")
    (desk.cdi / ".imex-dra.io-channel_c1.json.x7_gk2aa").write_text("{")
    (desk.cdi / "nvidia.com-gpu.json").write_text("theirs")
    (desk.checkpoint.parent / ".imex-dra.json.abcdefgh").write_text("{")
    (desk.checkpoint.parent / "checkpoint.json").write_text("the peer's")
    desk.ledger().tidy()
    assert desk.files() == {
        "imex-dra.io-channel_c1.json",
        "nvidia.com-gpu.json",
        "imex-dra.json",
        "imex-dra.lock",
        "checkpoint.json",
    }


def test_a_number_is_one_device_whatever_partition_it_was_given_in(desk: Desk) -> None:
    desk.enter(prepared("c1", channel=7, partition="another"), since=0)
    with pytest.raises(NotYet, match="channel 7 of NVLink partition another is still held on node n1"):
        desk.enter(prepared("c2", channel=7, domain="rival"), since=0)


def test_after_a_promise_older_grants_are_not_entered(desk: Desk) -> None:
    desk.ledger().promise(PARTITION, 4)
    with pytest.raises(Recalled):
        desk.enter(prepared("c1"), recall=3)
    assert desk.held() == desk.specs() == {}
    desk.enter(prepared("c1"), recall=4)
    assert desk.held() == {"c1": 7}


def test_a_claim_that_shares_a_channel_needs_no_newer_grant(desk: Desk) -> None:
    desk.enter(prepared("c1"), recall=0)
    assert desk.ledger().promise(PARTITION, 4).claims.keys() == {"c1"}
    desk.enter(prepared("c2"), recall=3)
    desk.ledger().strike("c1")
    desk.ledger().strike("c2")
    with pytest.raises(Recalled):
        desk.enter(prepared("c3"), since=2, recall=3)


def test_a_promise_elsewhere_ends_grants_of_the_place_the_node_came_from(desk: Desk) -> None:
    desk.enter(prepared("c1"))
    desk.ledger().promise("7b968a6d.2", 0)
    with pytest.raises(Recalled):
        desk.enter(prepared("c2"))


def test_a_prepare_that_began_with_another_checkpoint_begins_again(desk: Desk) -> None:
    desk.ledger().promise(PARTITION, 4)
    began = desk.ledger().read()
    desk.checkpoint.write_bytes(b"spoilt")
    with pytest.raises(Recalled):
        desk.ledger().enter(prepared("c1"), began, 4)


def test_a_promise_is_made_once_and_never_taken_back(desk: Desk) -> None:
    desk.ledger().promise(PARTITION, 4)
    written = desk.checkpoint.stat().st_ino
    desk.ledger().promise(PARTITION, 3)
    assert desk.checkpoint.stat().st_ino == written
    assert desk.stored().promised(PARTITION) == 4
