"""Each failure says why in the pod's event: at once where no wait can help, else when it must."""

import uuid

import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from tests.driver.site import DEADLINE, RACK_A, Site, Team, changed, healthy, waited_for

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

AT_ONCE = DEADLINE
CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}


def test_no_such_domain(team: Team) -> None:
    uid = str(uuid.uuid4())
    team.claim("orphan", {**CONFIG, "domainID": uid})
    team.pod("p", "a0", claim="orphan")
    message = team.failure("p")
    assert f"claim {team.name}/orphan asks for ComputeDomain {uid}, but namespace {team.name} has none" in message
    assert team.waited("a0", "orphan") < AT_ONCE


def test_a_domain_of_another_namespace(team: Team, neighbour: Team) -> None:
    uid = neighbour.domain("private")
    neighbour.pod("insider", "a0", template="private")
    neighbour.until_running("insider")
    team.claim("thief", {**CONFIG, "domainID": uid})
    team.pod("p", "a0", claim="thief")
    message = team.failure("p")
    assert f"claim {team.name}/thief asks for ComputeDomain {uid}, which is in another namespace" in message
    assert team.waited("a0", "thief") < AT_ONCE


def test_an_unknown_field_in_the_configuration(team: Team) -> None:
    uid = team.domain("typo")
    team.claim("misspelt", {**CONFIG, "domainID": uid, "alocationMode": "All"})
    team.pod("p", "a0", claim="misspelt")
    message = team.failure("p")
    assert "unknown field `alocationMode`" in message
    assert f"claim {team.name}/misspelt" in message
    assert team.waited("a0", "misspelt") < AT_ONCE


def test_all_channels_are_refused_until_an_administrator_allows_them(site: Site, team: Team) -> None:
    uid = team.domain("all", channel={"resourceClaimTemplate": {"name": "all"}, "allocationMode": "All"})
    site.until(lambda: team.condition("all", "Accepted").get("status") == "False")
    team.pod("p", "a1", template="all")
    message = team.failure("p")
    assert f"ComputeDomain {team.name}/all asks for allocationMode All" in message
    (claim,) = [claim["metadata"]["name"] for claim in team.get("resourceclaims")["items"]]
    assert team.waited("a1", claim) < AT_ONCE
    site.kubectl("label", "namespace", team.name, "imex-dra.io/all-channels=allowed")
    site.until(lambda: site.channel_of(uid) is not None)
    team.until_running_again("p")
    assert len(team.channels_inside("p")) == 2048


def test_no_controller(site: Site, team: Team) -> None:
    team.domain("waiting")
    with site.without_controller():
        team.pod("p", "a0", template="waiting")
        message = team.failure("p")
    assert f"ComputeDomain {team.name}/waiting has no channel in NVLink partition {RACK_A} yet" in message
    assert "kubectl -n imex-dra get lease imex-controller" in message
    assert waited_for(message) >= DEADLINE
    team.until_running_again("p")


def test_a_daemon_that_is_not_ready(site: Site, team: Team) -> None:
    team.domain("stuck")
    daemon = site.drivers["a1"].daemon
    with site.without_kubelet("a1"):
        team.pod("p", "a1", template="stuck")
        site.until(lambda: bool(team.get("pod", "p")["spec"].get("nodeName")))
        daemon.stop()
    message = team.failure("p")
    daemon.start()
    assert "the IMEX daemon of node a1 is UNAVAILABLE, not READY" in message
    assert "delete the pod to reschedule it" in message
    assert waited_for(message) >= DEADLINE
    site.until_seats("a1")
    team.until_running_again("p")


def test_a_broken_fabric(site: Site, team: Team) -> None:
    team.domain("broken")
    root = site.drivers["a1"].root
    with site.without_kubelet("a1"):
        team.pod("p", "a1", template="broken")
        site.until(lambda: bool(team.get("pod", "p")["spec"].get("nodeName")))
        root.write_hardware(
            changed(healthy("a1"), fabric=Fabric(FabricState.BROKEN, "GPU 2 reports route unhealthy"))
        )
        site.until(lambda: site.kubectl.get("nvlinknode", "a1")["status"]["fabric"]["state"] == "broken")
    message = team.failure("p")
    assert "the NVLink fabric of node a1 is broken: GPU 2 reports route unhealthy" in message
    assert "after waiting" not in message
    root.write_hardware(healthy("a1"))
    site.until_seats("a1")
    team.until_running_again("p")


@pytest.mark.slow
def test_with_the_default_patience_the_sentence_comes_before_the_kubelet_gives_up(site: Site, team: Team) -> None:
    """40 s against the kubelet's 45: a driver that is later is quoted as "context deadline exceeded"."""
    driver = site.drivers["a1"]
    registrations = site.registrations("a1")
    patient = driver.node_program("imex-node-patient", flags=())
    driver.program.stop()
    patient.start()
    try:
        site.until(lambda: site.registrations("a1") > registrations)
        site.until_seats("a1")
        team.domain("waiting")
        with site.without_controller():
            team.pod("p", "a1", template="waiting")
            message = team.failure("p")
        assert f"ComputeDomain {team.name}/waiting has no channel in NVLink partition {RACK_A} yet" in message
        assert 40 <= waited_for(message) < 45
        team.delete("pod", "p")
        site.until_nothing_prepared()
    finally:
        patient.stop()
        driver.program.start()
    site.until(lambda: site.registrations("a1") > registrations + 1)


def test_a_wait_ends_with_its_domain(site: Site, team: Team) -> None:
    team.domain("short-lived")
    with site.without_controller():
        team.pod("p", "a0", template="short-lived")
        (claim,) = waiting_claims(site, team)
        site.until(lambda: bool(site.said("a0", "preparing", f"{team.name}/{claim}")))
        patch = '-p={"metadata":{"finalizers":null}}'
        team.kubectl("patch", "computedomain", "short-lived", "--type=merge", patch)
        team.kubectl("delete", "computedomain", "short-lived")
        message = team.failure("p")
    assert f"namespace {team.name} has none with this UID: it was deleted or made anew" in message


def waiting_claims(site: Site, team: Team) -> list[str]:
    site.until(lambda: bool(team.get("resourceclaims")["items"]))
    return [claim["metadata"]["name"] for claim in team.get("resourceclaims")["items"]]
