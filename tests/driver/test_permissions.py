"""What the programs did on the API server is what their permissions allow, and all of it: no more, no less."""

from datetime import datetime
from typing import Any

import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.api.rbac import ACCOUNTS
from tests.driver.site import Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

Use = tuple[str, str, str]
"""Group, resource, verb."""


def _lists(*resources: str) -> set[Use]:
    return {(group, resource, "list") for group, _, resource in (name.rpartition("/") for name in resources)}


UNUSED: dict[str, set[Use]] = {
    "imex-controller": {
        # Where the API server can't stream a list inside a watch, as this one does, it is asked for one.
        *_lists(
            "resource.nvidia.com/computedomains",
            "resource.k8s.io/resourceclaimtemplates",
            "imex-dra.io/nvlinknodes",
            "imex-dra.io/nvlinkpartitions",
            "nodes",
            "namespaces",
        ),
        # Somebody made the same template at the same moment.
        ("resource.k8s.io", "resourceclaimtemplates", "get"),
        # The same Event again within minutes.
        ("events.k8s.io", "events", "patch"),
    },
    "imex-node": {
        *_lists("imex-dra.io/nvlinkpartitions", "resource.k8s.io/resourceslices"),
        # The node has moved to another partition (`test_reuse`).
        ("resource.k8s.io", "resourceslices", "patch"),
        ("resource.k8s.io", "resourceslices", "get"),
    },
}
"""Rights that a run need not use, and why it has them. Whatever else is never used is one too many."""


def uses(site: Site, account: str) -> dict[Use, set[int]]:
    """What an account asked for, and the answers."""
    found: dict[Use, set[int]] = {}
    for entry in site.requests():
        if entry["user"]["username"] == f"system:serviceaccount:imex-dra:{account}" and "objectRef" in entry:
            what = entry["objectRef"]
            resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            use = (what.get("apiGroup", ""), resource, entry["verb"])
            if not taken_away(site, resource, entry):
                found.setdefault(use, set()).add(entry.get("responseStatus", {}).get("code", 0))
    return found


def taken_away(site: Site, resource: str, entry: dict[str, Any]) -> bool:
    """By a test, for a while."""
    asked = datetime.fromisoformat(entry["requestReceivedTimestamp"])
    return any(resource == refused and start <= asked <= end for refused, start, end in site.refusals)


def allowed(account: str) -> set[Use]:
    return {(rule.group, rule.resource, verb) for rule in ACCOUNTS[account] for verb in rule.verbs}


def test_every_right_is_used_and_nothing_else_is_asked_for(site: Site, team: Team) -> None:
    team.domain("train")
    team.pod("p", "a0", template="train")
    team.until_running("p")
    team.domain("waiting")
    with site.without_controller():
        team.pod("q", "a0", template="waiting")
        team.failure("q")
    team.delete("pod", "p", "q")
    team.delete("computedomain", "train", "waiting")
    with site.hardware("b0", fabric=Fabric(FabricState.BROKEN, "for a moment")):
        site.until(lambda: "b0" not in site.offering())
    site.until_seats("b0")
    for account in ACCOUNTS:
        may, did = allowed(account), uses(site, account)
        assert {use for use, codes in did.items() if 403 in codes} == set(), f"{account} was refused"
        assert did.keys() - may == set(), f"{account} did what its table does not have"
        assert UNUSED[account] - may == set(), f"{account} has no such right any more"
        assert may - did.keys() - UNUSED[account] == set(), f"{account} never used it"
