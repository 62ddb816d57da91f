"""What a user sees on a rack with dead nodes, lost objects and dead programs; docs/design/failures.md is the list.

Real processes: power is cut by killing every process of a node.
"""

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.node.checkpoint import CheckpointFile, Unreadable
from imex_sandbox.faults.kinds import HangProcess
from tests.sandbox.failures.rack import Rack, running_rack

pytestmark = [pytest.mark.racks, pytest.mark.timeout(400)]

N0, N1, N2, N3 = (f"r0-n0{number}" for number in range(4))
ADVICE = "for a node that will not return, delete its Node object or run imex forget-node"


@pytest.fixture(scope="module")
def shared() -> Iterator[Rack]:
    with running_rack() as rack:
        yield rack


@pytest.fixture
def off() -> list[str]:
    """The nodes that a test powers off."""
    return []


@pytest.fixture
def rack(shared: Rack, off: list[str]) -> Iterator[Rack]:
    yield shared
    shared.reset(off)


@pytest.mark.slow
class TestDeadNodes:
    def test_one_node_off_is_named_and_the_others_go_on(self, rack: Rack, off: list[str]) -> None:
        rack.run("train", *rack.nodes)
        rack.until(lambda: rack.domain_condition("train", "Ready")[0] == "True")
        indexes = rack.indexes()
        off.append(N3)
        rack.power_off(N3)
        not_ready = f"1 of 4 nodes with a claim is not ready: {N3} has been unreachable since 20"
        rack.until(lambda: rack.domain_condition("train", "Ready")[2].startswith(not_ready))
        rack.until(lambda: rack.ready_nodes("train") == {N0: True, N1: True, N2: True, N3: False})
        rack.until(lambda: rack.domain_condition("train", "Degraded")[0] == "True")
        rack.until(lambda: rack.summary() == ("DEGRADED", "3/4"))
        rack.until(lambda: named_in(rack.partition_condition("Ready")[2]) == {N3})
        rack.run("new", N0, N2)
        rack.until(lambda: rack.domain_condition("new", "Ready")[0] == "True")
        assert rack.indexes() == indexes

    def test_two_nodes_off(self, rack: Rack, off: list[str]) -> None:
        rack.run("train", N1, N2, N3)
        rack.until(lambda: rack.domain_condition("train", "Ready")[0] == "True")
        off += [N2, N3]
        rack.power_off(N2, N3)
        rack.until(lambda: rack.ready_nodes("train") == {N1: True, N2: False, N3: False})
        rack.until(lambda: named_in(rack.domain_condition("train", "Ready")[2]) == {N2, N3})
        rack.until(lambda: rack.summary() == ("DEGRADED", "2/4"))
        rack.run("new", N0, N1)
        rack.until(lambda: rack.domain_condition("new", "Ready")[0] == "True")
        rack.until(lambda: rack.members() == {N0: "Ready", N1: "Ready", N2: "Suspended", N3: "Suspended"})

    def test_one_node_off_for_an_hour_is_suspended_and_returns_through_admission(
        self, rack: Rack, off: list[str]
    ) -> None:
        indexes = rack.indexes()
        off.append(N3)
        rack.power_off(N3)
        rack.until(lambda: rack.members()[N3] == "Suspended")
        rack.until(lambda: rack.partition_condition("Ready")[:2] == ("True", "MemberSuspended"))
        suspended = f"3 members are ready and connected; suspended: {N3} since 20"
        rack.until(lambda: rack.partition_condition("Ready")[2].startswith(suspended))
        assert rack.partition_condition("Ready")[2].endswith(ADVICE)
        rack.until(lambda: rack.summary() == ("DEGRADED", "3/4"))
        # What changes while it is off: it must know before it is a member again.
        rack.run("meanwhile", N0)
        rack.node(off.pop()).power_on()
        rack.until(lambda: rack.summary() == ("UP", "4/4"))
        assert rack.indexes() == indexes
        rack.until(lambda: rack.nvlink_node(N3).get("acknowledgedEpoch") == rack.partition()["epoch"])
        rack.until(lambda: rack.nvlink_node(N3).get("appliedGeneration") == rack.partition()["generation"])
        rack.run("meanwhile", N3)

    def test_a_rebooted_node_publishes_devices_while_another_one_is_off(self, rack: Rack, off: list[str]) -> None:
        """Before Kubernetes has noticed: the dead node still counts as Ready, so the delay must end the wait."""
        off += [N2, N3]
        rack.node(N3).power_off()
        rack.node(N2).power_off()
        rack.delete_slice(N2)
        rack.node(N2).power_on()
        off.remove(N2)
        rack.until(lambda: N2 in rack.publishing_nodes())
        rack.run("train", N2)

        def connected() -> str:
            conditions = rack.nvlink_node(N2).get("conditions", [])
            return next((c["message"] for c in conditions if c["type"] == "Connected"), "")

        rack.until(lambda: f"the IMEX daemon of node {N2} cannot reach {N3}" in connected())

    def test_a_partition_that_is_lost_while_a_node_is_off_serves_known_channels_until_it_is_forgotten(
        self, rack: Rack, off: list[str]
    ) -> None:
        rack.run("known", N0)
        rack.until(lambda: rack.domain_condition("known", "Ready")[0] == "True")
        channels, indexes = rack.domain("known")["partitions"], rack.indexes()
        off.append(N3)
        rack.power_off(N3)
        rack.until(lambda: rack.members()[N3] in ("Unknown", "Suspended"))
        rack.lose_partition()
        rack.until(lambda: rack.partition().get("pendingReports") == [N3])
        rack.until(lambda: {node for node, state in rack.members().items() if state == "Ready"} == {N0, N1, N2})
        rack.run("known", N1)
        # The ComputeDomain listed no partition while there was none.
        rack.until(lambda: rack.domain("known").get("partitions"))
        assert rack.domain("known")["partitions"][0]["channel"] == channels[0]["channel"]
        rack.start("new", N2)
        rack.until(lambda: rack.domain_condition("new", "ChannelAssigned")[1] == "AssignmentBlocked")
        missing = f"until every node has reported the channels it holds (missing: {N3})"
        rack.until(lambda: missing in rack.domain_condition("new", "ChannelAssigned")[2])
        assert ADVICE in rack.domain_condition("new", "ChannelAssigned")[2]
        assert "may share memory with other workloads" in rack.forget_node(N3)
        rack.until(lambda: rack.domain_condition("new", "ChannelAssigned")[0] == "True")
        rack.run("new", N2)
        assert {node: index for node, index in rack.indexes().items() if node != N3} == {
            node: index for node, index in indexes.items() if node != N3
        }


class TestPrograms:
    """Those that are not slow run in `make test`, on the embedded control plane."""

    def test_the_restart_of_an_imex_daemon_is_an_event_of_the_computedomains_with_claims_there(
        self, rack: Rack
    ) -> None:
        rack.run("train", N0, N1)
        rack.run("elsewhere", N0)

        def daemons(domain: str) -> set[str]:
            return {node["name"] for node in rack.domain(domain).get("nodes", []) if "imexStartedAt" in node}

        rack.until(lambda: (daemons("train"), daemons("elsewhere")) == ({N0, N1}, {N0}))
        before = rack.nvlink_node(N1)["imexStartedAt"]
        rack.node(N1).kill("nvidia-imex")
        expected = (
            f"the IMEX daemon of {N1} was restarted: imports of this node's GPU memory by other nodes have ended;"
            " restart the job if it reports errors"
        )
        rack.until(lambda: rack.events("ComputeDomain", "train", "DaemonRestarted") == [expected])
        assert rack.nvlink_node(N1)["imexStartedAt"] > before
        rack.until(lambda: rack.domain_condition("train", "Ready")[0] == "True")
        assert rack.events("ComputeDomain", "elsewhere", "DaemonRestarted") == []

    @pytest.mark.slow
    def test_an_unreadable_checkpoint_is_rebuilt_and_its_claim_can_be_unprepared(self, rack: Rack) -> None:
        (pod,) = rack.run("train", N2)
        root, path = rack.node(N2).root.path, rack.checkpoint(N2)
        held = CheckpointFile(path).load().claims
        assert len(held) == 1
        rack.node(N2).kill("imex-node")
        path.write_bytes(b"not a checkpoint")
        rack.node(N2).start("imex-node")
        rack.until(lambda: claims_in(path) == held.keys())
        assert path.with_suffix(".unreadable").read_bytes() == b"not a checkpoint"
        rack.namespace.delete("pod", pod)
        rack.until(lambda: claims_in(path) == set())
        rack.until(lambda: not list((root / "run/cdi").glob("imex-dra.io-channel_*.json")))

    def test_a_computedomain_with_a_channel_takes_pods_while_the_controller_does_nothing(self, rack: Rack) -> None:
        """Hung, not killed: another one would have to wait for the Lease to expire."""
        rack.run("train", N0)
        with rack.injector.during(HangProcess(program="imex-controller")):
            rack.run("train", N0, N1)
        rack.until(lambda: rack.ready_nodes("train") == {N0: True, N1: True})


@pytest.mark.slow
class TestChannels:
    def test_exhausted_channels_are_in_the_condition_the_event_and_the_prepare_error(self, rack: Rack) -> None:
        with channel_count(rack, 2):
            rack.run("first", N0)
            (pod,) = rack.start("second", N1)
            message = f"NVLink partition {rack.partition_name} has no free channel: all 1 are assigned or not yet"
            rack.until(lambda: message in rack.domain_condition("second", "ChannelAssigned")[2])
            assert rack.domain_condition("second", "ChannelAssigned")[:2] == ("False", "ChannelsExhausted")
            rack.until(lambda: rack.events("ComputeDomain", "second", "ChannelsExhausted"))
            rack.until(lambda: any(message in event for event in rack.events("Pod", pod)))

    def test_a_partition_that_is_restored_from_an_old_backup_assigns_no_channel_twice(self, rack: Rack) -> None:
        rack.run("before", N0)
        backup = rack.partition()
        # Without the evidence of the nodes, the next ComputeDomain would get the number of this one again.
        (pod,) = rack.run("ended", N0)
        rack.namespace.delete("pod", pod)
        rack.namespace.delete("computedomain", "ended")
        rack.run("after", N1)
        # Its node has reported the channel. Ready comes after that.
        rack.until(lambda: rack.domain_condition("after", "Ready")[0] == "True")
        channels = {name: rack.channel(name) for name in ("before", "after")}
        rack.restore_partition(backup)
        rack.start("new", N0, N1)
        rack.until(lambda: rack.domain_condition("new", "ChannelAssigned")[0] == "True")
        assert {name: rack.channel(name) for name in channels} == channels
        assert rack.channel("new") not in channels.values()


def named_in(message: str) -> set[str]:
    """The nodes that the message names."""
    return set(re.findall(r"r0-n\d\d", message))


def claims_in(checkpoint: Path) -> Set[str] | None:
    """UIDs; None while the file is not readable."""
    try:
        return CheckpointFile(checkpoint).load().claims.keys()
    except Unreadable:
        return None


@contextmanager
def channel_count(rack: Rack, count: int) -> Iterator[None]:
    """The GPU driver of every node offers so many channels. Channel 0 is never assigned."""
    hardware = {name: rack.node(name).root.hardware() for name in rack.nodes}

    def are_reported(expected: int) -> bool:
        return all(rack.nvlink_node(name).get("channelCount") == expected for name in rack.nodes)

    for name, before in hardware.items():
        rack.node(name).root.write_hardware(structs.replace(before, channel_count=count))
    try:
        rack.until(lambda: are_reported(count))
        yield
    finally:
        for name, before in hardware.items():
            rack.node(name).root.write_hardware(before)
        rack.until(lambda: are_reported(2048))
