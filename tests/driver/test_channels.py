"""A pod gets its channel, and nobody else does."""

import pytest

from tests.driver.site import PARTITIONS, RACK_A, RACK_B, Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


def test_a_pod_gets_its_channel_and_a_container_without_the_claim_gets_nothing(site: Site, team: Team) -> None:
    uid = team.domain("train")
    team.pod("p", "a0", template="train", extra=["sidecar"])
    team.until_running("p")
    channel = site.channel_of(uid)
    assert channel is not None
    assert channel > 0
    device = f"/dev/nvidia-caps-imex-channels/channel{channel}"
    assert team.inside("p", f"stat -c '%F %t %T %a' {device}") == f"character special file ea {channel:x} 666"
    environment = set(team.inside("p", "env | grep COMPUTE_DOMAIN").splitlines())
    assert environment == {
        "COMPUTE_DOMAIN_NAME=train",
        f"COMPUTE_DOMAIN_UUID={uid}",
        f"COMPUTE_DOMAIN_CHANNEL={channel}",
    }
    assert team.channels_inside("p", "sidecar") == []
    assert team.inside("p", "env | grep -c COMPUTE_DOMAIN; true", "sidecar") == "0"


def test_pods_of_one_domain_share_its_channel_on_a_node_and_over_nodes(site: Site, team: Team) -> None:
    uid = team.domain("train")
    for name, node in (("one", "a0"), ("two", "a0"), ("three", "a1")):
        team.pod(name, node, template="train")
    team.until_running("one", "two", "three")
    expected = [f"channel{site.channel_of(uid)}"]
    assert [team.channels_inside(pod) for pod in ("one", "two", "three")] == [expected] * 3
    site.until(lambda: team.ready_nodes("train") == "2/2")
    site.until(lambda: team.condition("train", "Ready").get("status") == "True")


def test_two_domains_on_a_node_have_two_channels(site: Site, team: Team) -> None:
    uids = [team.domain(name) for name in ("red", "blue")]
    for name in ("red", "blue"):
        team.pod(name, "a0", template=name)
    team.until_running("red", "blue")
    numbers = [site.channel_of(uid) for uid in uids]
    assert len(set(numbers)) == 2
    assert [team.channels_inside(pod) for pod in ("red", "blue")] == [[f"channel{n}"] for n in numbers]


def test_one_domain_over_two_partitions_has_a_channel_in_each(site: Site, team: Team) -> None:
    uid = team.domain("wide")
    team.pod("here", "a0", template="wide")
    team.pod("there", "b0", template="wide")
    team.until_running("here", "there")
    assert team.channels_inside("here") == [f"channel{site.channel_of(uid, RACK_A)}"]
    assert team.channels_inside("there") == [f"channel{site.channel_of(uid, RACK_B)}"]

    def nodes() -> dict[str, int]:
        return {p["name"]: p["nodes"] for p in team.status("wide").get("partitions", [])}

    site.until(lambda: nodes() == {RACK_A: 1, RACK_B: 1})


def test_a_claim_made_by_hand_may_be_shared_by_pods_of_a_node(site: Site, team: Team) -> None:
    uid = team.domain("shared")
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": uid}
    team.claim("by-hand", config)
    team.pod("one", "a1", claim="by-hand")
    team.pod("two", "a1", claim="by-hand")
    team.until_running("one", "two")
    assert team.channels_inside("one") == team.channels_inside("two") == [f"channel{site.channel_of(uid)}"]


def test_the_clique_label_is_on_the_nodes(site: Site) -> None:
    def cliques() -> dict[str, str]:
        nodes = [node["metadata"] for node in site.kubectl.get("nodes")["items"]]
        return {node["name"]: node["labels"].get("nvidia.com/gpu.clique") for node in nodes}

    site.until(lambda: cliques() == PARTITIONS)


def test_deletion_waits_for_pods_and_names_them(site: Site, team: Team) -> None:
    uid = team.domain("busy")
    team.pod("worker", "a0", template="busy")
    team.until_running("worker")
    channel = site.channel_of(uid)
    team.kubectl("delete", "computedomain", "busy", "--wait=false")
    site.until(lambda: team.condition("busy", "Deleting") != {})
    assert f"{team.name}/worker" in team.condition("busy", "Deleting")["message"]
    assert not team.exists("resourceclaimtemplate", "busy")
    assert site.channel_of(uid) == channel
    team.delete("pod", "worker")
    site.until(lambda: not team.exists("computedomain", "busy"))
    entries = site.partition()["status"]["channels"]
    (resting,) = [entry for entry in entries if entry["computeDomain"]["uid"] == uid]
    assert (resting["channel"], resting["state"]) == (channel, "Resting")
