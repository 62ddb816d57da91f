"""Whatever is killed, whenever: nothing leaks, nothing sticks, membership is untouched."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from tests.driver.site import RACK_A, Site, Team, restart

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def membership_is_untouched(site: Site, team: Team) -> Iterator[None]:
    site.until(lambda: site.is_whole(RACK_A) and {node for node, _, _ in site.members()} == {"a0", "a1"})
    before = site.members(), site.partition()["status"]["generation"]
    yield
    site.until(lambda: site.partition()["status"]["summary"]["state"] == "UP")
    assert (site.members(), site.partition()["status"]["generation"]) == before


def test_a_restarted_kubelet_finds_seats_and_claims_again(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("before", "a0", template="train")
    team.until_running("before")
    held, wiped, registrations = site.prepared("a0"), slices(site, "a0"), site.registrations("a0")
    with site.without_kubelet("a0"):
        pass
    site.until(lambda: bool(slices(site, "a0") - wiped))
    site.until(lambda: site.registrations("a0") > registrations)
    team.pod("after", "a0", template="train")
    team.until_running("before", "after")
    assert held < site.prepared("a0")
    assert team.channels_inside("before") == team.channels_inside("after")


def test_a_plugin_killed_during_a_prepare(site: Site, team: Team) -> None:
    uid = team.domain("train")
    with site.without_controller():
        team.pod("p", "a0", template="train")
        claim = waiting_claim(site, team)
        registrations = site.registrations("a0")
        restart(site.drivers["a0"].program)
        assert claim not in site.prepared("a0")
    site.until(lambda: site.channel_of(uid) is not None)
    site.until(lambda: site.registrations("a0") > registrations)
    team.until_running_again("p")
    assert team.channels_inside("p") == [f"channel{site.channel_of(uid)}"]


def waiting_claim(site: Site, team: Team) -> str:
    """The kubelet has asked for it, and the prepare waits."""
    site.until(lambda: bool(allocated(team)))
    (claim,) = allocated(team)
    site.until(lambda: bool(site.said("a0", "preparing", f"{team.name}/{claim['name']}")))
    return str(claim["uid"])


def allocated(team: Team) -> list[dict[str, Any]]:
    claims = team.get("resourceclaims")["items"]
    return [claim["metadata"] for claim in claims if claim.get("status", {}).get("allocation")]


def test_a_plugin_updated_by_a_second_one_beside_it(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("old", "a0", template="train")
    team.until_running("old")
    driver = site.drivers["a0"]
    (published,) = slices(site, "a0")
    registrations = site.registrations("a0")
    second = driver.node_program("imex-node-second")
    second.start()
    site.until(lambda: site.registrations("a0") > registrations)
    team.pod("both", "a0", template="train")
    team.until_running("both")
    driver.program.stop()
    team.pod("new", "a0", template="train")
    team.until_running("new")
    team.delete("pod", "old", "both", "new")
    site.until_nothing_prepared()
    driver.program.start()
    site.until(lambda: site.registrations("a0") > registrations + 1)
    second.stop()
    assert slices(site, "a0") == {published}


def slices(site: Site, node: str) -> set[str]:
    """Their UIDs. A kubelet that starts wipes its node's slices, so that the driver publishes new ones."""
    found = site.kubectl.get("resourceslices")["items"]
    return {each["metadata"]["uid"] for each in found if each["spec"]["nodeName"] == node}


def test_a_force_deleted_pod(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("p", "a0", template="train")
    team.until_running("p")
    team.kubectl("delete", "pod", "p", "--force", "--grace-period=0")
    site.until_nothing_prepared()


def test_claim_and_domain_gone_before_unprepare(site: Site, team: Team) -> None:
    uid = team.domain("train")
    team.pod("p", "a0", template="train")
    team.until_running("p")
    with site.without_kubelet("a0"):
        team.kubectl("delete", "computedomain", "train", "--wait=false")
        team.kubectl("annotate", "computedomain", "train", "imex-dra.io/release=now")
        team.kubectl("delete", "pod", "p", "--force", "--grace-period=0")
        for claim in team.get("resourceclaims")["items"]:
            name = claim["metadata"]["name"]
            with suppress(Rejected):  # Kubernetes may have been faster
                team.kubectl("patch", "resourceclaim", name, "--type=merge", '-p={"metadata":{"finalizers":null}}')
        team.delete("resourceclaims", "--all")
        site.until(lambda: not team.exists("computedomain", "train"))
        site.until(lambda: site.channel_of(uid) is None)
        assert len(site.prepared("a0")) == 1
    site.until_nothing_prepared()


def test_a_controller_killed_between_assignment_and_status(site: Site, team: Team) -> None:
    uid = team.domain("train")
    site.until(lambda: team.condition("train", "Ready") != {})
    with status_writes_refused(site):
        team.pod("p", "a0", template="train")
        site.until(lambda: site.channel_of(uid) is not None)
        site.controller.kill()
        assert site.controller.ended(within=60)
    assert "partitions" not in team.status("train")
    channel = site.channel_of(uid)
    team.until_running("p")
    site.controller.start()

    def held() -> list[tuple[str, int]]:
        return [(held["name"], held["channel"]) for held in team.status("train").get("partitions", [])]

    site.until(lambda: held() == [(RACK_A, channel)])
    assert site.channel_of(uid) == channel


@contextmanager
def status_writes_refused(site: Site) -> Iterator[None]:
    """The one way to stop the controller exactly there: it may assign, but not say so."""
    role = site.kubectl.get("clusterrole", "imex-controller")
    kept = {"apiVersion": role["apiVersion"], "kind": role["kind"], "metadata": {"name": "imex-controller"}}
    start, refused = datetime.now(UTC), "computedomains/status"
    fewer = [rule for rule in role["rules"] if rule["resources"] != [refused]]
    site.kubectl.apply({**kept, "rules": fewer})
    try:
        site.until(lambda: not may_write_status(site))
        yield
    finally:
        site.kubectl.apply({**kept, "rules": role["rules"]})
        site.until(lambda: may_write_status(site))
        site.refusals.append((refused, start, datetime.now(UTC)))


def may_write_status(site: Site) -> bool:
    account = "--as=system:serviceaccount:imex-dra:imex-controller"
    try:
        site.kubectl("auth", "can-i", "patch", "computedomains", "--subresource=status", account)
    except Rejected:
        return False
    return True


def test_an_imex_daemon_killed_and_back(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("p", "a0", template="train")
    team.until_running("p")
    lock = site.drivers["a0"].node.root / "run/imex.lock"
    killed = lock.read_text()
    site.drivers["a0"].node.machine.run("kill", "-9", killed.strip())
    site.until(lambda: lock.read_text() not in ("", killed))
    site.until(lambda: site.kubectl.get("nvlinknode", "a0")["status"]["imexState"] == "READY")
    site.until(lambda: team.condition("train", "Ready").get("status") == "True")
