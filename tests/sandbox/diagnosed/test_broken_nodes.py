"""More causes that a simulated rack can have, and that the commands name first, without another error: of nodes,
their hardware and labels, and of claims that somebody made by hand.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.names import CHANNEL_CLASS, CLIQUE_LABEL, DRIVER
from imex_dra.api.nvlinknode import Isolation, IsolationState
from imex_dra.lint.findings import Severity
from imex_sandbox.faults.kinds import ChangeClique, HangProcess, KillProcess
from imex_sandbox.racks import Rack as RackSpec
from tests.sandbox.diagnosed.commands import N0, N1, N2, found, imex
from tests.sandbox.failures.rack import SLEEP, Rack, running_rack

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(400)]

H0 = "h-n00"
"""Without an NVLink fabric."""


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """With a job on two nodes. A test undoes what it breaks, and the next one waits until the rack is healthy."""
    with running_rack(3, RackSpec("h", "hgx-h100", nodes=1)) as rack:
        rack.run("train", N0, N1)
        yield rack


@pytest.fixture(autouse=True)
def healthy(rack: Rack) -> None:
    rack.until(lambda: found(rack) == [])


@contextmanager
def hardware(rack: Rack, *nodes: str, **fields: Any) -> Iterator[None]:
    """Other hardware of the nodes, for a while."""
    roots = [rack.node(node).root for node in nodes]
    before = [root.hardware() for root in roots]
    for root, old in zip(roots, before, strict=True):
        root.write_hardware(structs.replace(old, **fields))
    yield
    for root, old in zip(roots, before, strict=True):
        root.write_hardware(old)


def test_nodes_that_offer_different_numbers_of_channels_are_named(rack: Rack) -> None:
    with hardware(rack, N2, channel_count=1024):
        rack.until(lambda: found(rack) == [("IMEX312", f"NVLinkPartition {rack.partition_name}")])


def test_a_node_on_which_something_else_hands_out_channels_is_named(rack: Rack) -> None:
    isolation = Isolation(IsolationState.OPEN, "the GPU driver creates channel 0 for every process")
    with hardware(rack, N2, isolation=isolation):
        rack.until(lambda: found(rack) == [("IMEX315", f"Node {N2}")])


def test_a_partition_without_a_free_channel_is_named(rack: Rack) -> None:
    """Of two channels one can be used, and train has it."""
    namespace = rack.namespace.name
    with hardware(rack, N0, N1, N2, channel_count=2):
        rack.until(lambda: rack.nvlink_node(N2)["channelCount"] == 2)
        (pod,) = rack.start("late", N2)
        rack.until(lambda: found(rack) == [("IMEX408", f"ComputeDomain {namespace}/late")])
        _, explained = imex(rack, "explain", f"pod/{pod}", "-n", namespace)
        assert explained["brokenLink"] == "channel"
        rack.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
        rack.namespace.delete("computedomain", "late")


def test_a_node_that_was_moved_to_another_clique_is_named(rack: Rack) -> None:
    with rack.injector.during(ChangeClique(nodes=(N1,), clique=7)):
        rack.until(lambda: found(rack, Severity.ERROR) == [("IMEX305", f"Node {N1}")])
        code, explained = imex(rack, "explain", f"node/{N1}")
        assert (code, explained["findings"][0]["id"]) == (1, "IMEX305")


def test_a_clique_label_that_somebody_else_set_is_named(rack: Rack) -> None:
    label = rack.kubectl.get("node", N2)["metadata"]["labels"][CLIQUE_LABEL]
    flags = ("label", "node", N2, "--overwrite", "--field-manager=gpu-feature-discovery")
    rack.kubectl(*flags, f"{CLIQUE_LABEL}=other.1")
    try:
        rack.until(lambda: found(rack) == [("IMEX313", f"NVLinkPartition {rack.partition_name}")])
    finally:
        rack.kubectl(*flags, f"{CLIQUE_LABEL}={label}")


def test_a_node_that_keeps_channels_from_reuse_is_named(rack: Rack) -> None:
    """A minute after the release, whose time is changed here instead."""
    (pod,) = rack.run("short", N0)
    with rack.injector.during(HangProcess(program="imex-node", nodes=(N2,))):
        rack.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
        rack.namespace.delete("computedomain", "short")
        with rack.injector.during(HangProcess(program="imex-controller")):
            status = rack.partition()
            channels = [
                {**one, "releasedAt": "2026-01-01T00:00:00Z"} if one["state"] == "Released" else one
                for one in status["channels"]
            ]
            rack.restore_partition({**status, "channels": channels})
        rack.until(lambda: found(rack) == [("IMEX314", f"NVLinkPartition {rack.partition_name}")])


def test_a_node_that_cannot_write_to_its_disk_is_named(rack: Rack) -> None:
    checkpoint = rack.checkpoint(N2)
    saved = checkpoint.read_bytes()
    checkpoint.unlink()
    (checkpoint / "in-the-way").mkdir(parents=True)
    rack.injector.inject(KillProcess(program="imex-node", nodes=(N2,)))  # so that it reads its disk at once
    try:
        rack.until(lambda: found(rack, Severity.ERROR) == [("IMEX307", f"Node {N2}")])
    finally:
        (checkpoint / "in-the-way").rmdir()
        checkpoint.rmdir()
        checkpoint.write_bytes(saved)


def test_a_kubelet_that_does_not_start_pods_is_named(rack: Rack) -> None:
    """Before its Node becomes NotReady, after 40 s."""
    namespace = rack.namespace.name
    with rack.injector.during(KillProcess(program="kubelet", nodes=(N2,), for_="10m")):
        (pod,) = rack.start("train", N2)
        rack.until(lambda: found(rack) == [("IMEX409", f"ComputeDomain {namespace}/train")])
    rack.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


def test_pods_on_nodes_without_a_fabric_are_named(rack: Rack) -> None:
    namespace = rack.namespace.name
    (pod,) = rack.run("train", H0)
    rack.until(lambda: found(rack) == [("IMEX413", f"ComputeDomain {namespace}/train")])
    rack.namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


@pytest.mark.parametrize(
    ("field", "value", "id"),
    [
        ("kubeletVersion", "v1.33.4", "IMEX211"),
        ("containerRuntimeVersion", "containerd://1.6.20", "IMEX212"),
        ("containerRuntimeVersion", "containerd://1.7.2", "IMEX213"),
    ],
)
def test_a_kubelet_or_runtime_that_is_too_old_is_named(rack: Rack, field: str, value: str, id: str) -> None:
    old = rack.kubectl.get("node", N2)["status"]["nodeInfo"]
    set_node_info(rack, {**old, field: value})
    try:
        code, checked = imex(rack, "preflight")
        assert (code, [f["id"] for f in checked["findings"]]) == (1, [id])
    finally:
        set_node_info(rack, old)


def set_node_info(rack: Rack, info: dict[str, str]) -> None:
    patch = json.dumps({"status": {"nodeInfo": info}})
    rack.kubectl("patch", "node", N2, "--subresource=status", f"--patch={patch}")


def claim(rack: Rack, name: str, domain: str) -> dict[str, Any]:
    """By hand, for the ComputeDomain with this UID."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain,
    }
    devices = {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}],
        "config": [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": rack.namespace.name},
        "spec": {"devices": devices},
    }


def shared(rack: Rack, name: str) -> dict[str, Any]:
    """A pod with the claim of its own name."""
    pod = rack.namespace.pod(name, N2, template="any", command=SLEEP)
    pod["spec"]["resourceClaims"] = [{"name": "channel", "resourceClaimName": name}]
    return pod


def test_a_claim_of_a_computedomain_that_is_gone_is_named(rack: Rack) -> None:
    namespace = rack.namespace
    uid = "00000000-0000-4000-8000-000000000000"
    rack.kubectl.apply(claim(rack, "gone", uid), shared(rack, "gone"))
    rack.until(lambda: found(rack) == [("IMEX405", f"Pod {namespace.name}/gone")])
    _, explained = imex(rack, "explain", "pod/gone", "-n", namespace.name)
    assert explained["brokenLink"] == "ComputeDomain"
    namespace.kubectl("delete", "pod", "gone", "--force", "--grace-period=0")
    namespace.kubectl("delete", "resourceclaim", "gone")


def test_a_claim_that_cannot_be_prepared_is_named_with_what_the_node_said(rack: Rack) -> None:
    """It has the ComputeDomain of another namespace."""
    namespace = rack.namespace
    rack.cluster.kubectl("create", "namespace", f"{namespace.name}-b")
    other = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "theirs", "namespace": f"{namespace.name}-b"},
        "spec": {},
    }
    rack.kubectl.apply(other)
    uid = rack.kubectl.get("-n", f"{namespace.name}-b", "computedomain", "theirs")["metadata"]["uid"]
    rack.kubectl.apply(claim(rack, "foreign", uid), shared(rack, "foreign"))
    rack.until(lambda: found(rack) == [("IMEX404", f"Pod {namespace.name}/foreign")])
    namespace.kubectl("delete", "pod", "foreign", "--force", "--grace-period=0")
    namespace.kubectl("delete", "resourceclaim", "foreign")
    rack.kubectl("-n", f"{namespace.name}-b", "delete", "computedomain", "theirs")


def test_a_node_that_holds_another_channel_than_the_partition_says_is_named(rack: Rack) -> None:
    """As after a wrong restore of the NVLinkPartition."""
    namespace = rack.namespace.name
    with rack.injector.during(HangProcess(program="imex-controller")):
        status = rack.partition()
        (entry,) = [one for one in status["channels"] if one["state"] == "Assigned"]
        channels = [{**one, "channel": 77} if one is entry else one for one in status["channels"]]
        rack.restore_partition({**status, "channels": channels})
        assert set(found(rack, Severity.ERROR)) == {("IMEX414", f"ComputeDomain {namespace}/train")}
        rack.restore_partition(status)
