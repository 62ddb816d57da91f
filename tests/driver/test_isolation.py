"""Ways round the claim: what a user could try in a manifest, and what it gets them."""

import pytest

from tests.driver.site import Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


def test_an_annotation_that_names_somebody_elses_device_gives_nothing(site: Site, team: Team) -> None:
    """containerd reads CDI devices from annotations too, but only from those that the kubelet makes."""
    team.domain("train")
    team.pod("victim", "a0", template="train")
    team.until_running("victim")
    (claim,) = site.prepared("a0")
    thief = team.manifest("thief", "a0")
    thief["metadata"]["annotations"] = {"cdi.k8s.io/thief": f"imex-dra.io/channel={claim}"}
    thief["spec"]["resourceClaims"] = []
    thief["spec"]["containers"][0]["resources"] = {}
    site.kubectl.apply(thief)
    team.until_running("thief")
    assert team.channels_inside("thief") == []
    assert team.inside("thief", "ls /run/imex 2>/dev/null; true") == ""


def test_a_container_that_makes_the_node_itself_may_not_open_it(site: Site, team: Team) -> None:
    """Its cgroup knows no such device; without that, knowing the number would be enough."""
    team.domain("train")
    team.pod("victim", "a0", template="train", extra=["neighbour"])
    team.until_running("victim")
    number = team.inside("victim", "echo $COMPUTE_DOMAIN_CHANNEL")
    attempt = f"(mknod /node c 234 {number} && cat /node) 2>&1; true"
    assert "No such device" in team.inside("victim", attempt), "allowed, and there is no driver behind it"
    assert "Operation not permitted" in team.inside("victim", attempt, "neighbour")
