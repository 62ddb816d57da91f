"""Channels are used again when every node has let go of them; a node that has moved is drained first."""

import pytest

from tests.driver.site import RACK_A, RACK_B, Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


def test_with_two_channels_many_domains_have_one_after_the_other(site: Site, team: Team) -> None:
    with site.hardware("b0", channel_count=3):
        site.until(lambda: site.card("b0")["channelCount"] == 3)
        given = []
        for number in range(4):
            name = f"job-{number}"
            uid = team.domain(name)
            team.pod(name, "b0", template=name)
            team.until_running(name, within=240)
            given.append(site.channel_of(uid, RACK_B))
            assert team.channels_inside(name) == [f"channel{given[-1]}"]
            team.delete("pod", name)
            team.delete("computedomain", name)
    assert set(given) == {1, 2}
    site.until(lambda: site.card("b0")["channelCount"] == 2048)


def test_a_channel_that_a_process_holds_is_not_given_again_although_its_domain_is_gone(
    site: Site, team: Team
) -> None:
    with site.hardware("b0", channel_count=2):
        site.until(lambda: site.card("b0")["channelCount"] == 2)
        team.domain("first")
        team.pod("stays", "b0", template="first")
        team.until_running("stays", within=240)
        team.kubectl("delete", "computedomain", "first", "--wait=false")
        team.kubectl("annotate", "computedomain", "first", "imex-dra.io/release=now")
        site.until(lambda: not team.exists("computedomain", "first"))
        second = team.domain("second")
        team.pod("waits", "b0", template="second")
        site.until(
            lambda: "b0 holds channel 1" in site.partition_condition("ChannelsFree", RACK_B).get("message", "")
        )
        assert site.channel_of(second, RACK_B) is None
        team.delete("pod", "stays")
        site.until(lambda: site.channel_of(second, RACK_B) == 1)
        team.until_running_again("waits")
    site.until(lambda: site.card("b0")["channelCount"] == 2048)


def test_a_node_that_has_moved_joins_when_its_old_channels_are_let_go(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("old", "b0", template="train")
    team.until_running("old")
    with site.hardware("b0", partition=RACK_A):
        site.until(lambda: f"{team.name}/old" in site.partition_condition("NodesAdmitted").get("message", ""))
        assert site.partition_condition("NodesAdmitted")["reason"] == "DrainFirst"
        site.until(lambda: "may not join NVLink partition" in site.card("b0").get("problem", ""))
        site.until(lambda: site.card("b0").get("imexPartition", "") == "")
        assert "b0" not in site.member_names()
        team.delete("pod", "old")
        site.until(lambda: "b0" in site.member_names())
        site.until(lambda: site.card("b0").get("imexPartition") == RACK_A)
        site.until(lambda: site.partition()["status"]["summary"]["nodes"] == "3/3")
        site.until(lambda: site.member_names(RACK_B) == [])
        site.until(lambda: site.partition_condition("NodesAdmitted").get("status") == "True")
    site.until(lambda: site.member_names(RACK_B) == ["b0"])
    site.until(lambda: {node for node, _, _ in site.members()} == {"a0", "a1"})
    site.until(lambda: site.partition(RACK_B)["status"]["summary"]["state"] == "UP")
    site.until_seats("b0")
