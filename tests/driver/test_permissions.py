"""What the programs did on the API server is what their permissions allow, and all of it: no more, no less."""

import json

import pytest

from imex_dra.api.rbac import ACCOUNTS
from tests.driver.site import Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


def test_the_table_allows_what_is_done(site: Site, team: Team) -> None:
    before = len(site.control_plane.audit_log.read_text().splitlines())
    team.domain("train")
    team.pod("p", "a0", template="train")
    team.until_running("p")
    team.delete("pod", "p")
    team.delete("computedomain", "train")
    done: dict[str, set[tuple[str, str, str]]] = {name: set() for name in ACCOUNTS}
    refused = []
    for line in site.control_plane.audit_log.read_text().splitlines()[before:]:
        entry = json.loads(line)
        account = entry["user"]["username"].removeprefix("system:serviceaccount:imex-dra:")
        if account not in done or "objectRef" not in entry:
            continue
        what = entry["objectRef"]
        resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
        done[account].add((what.get("apiGroup", ""), resource, entry["verb"]))
        if entry.get("responseStatus", {}).get("code") == 403:
            refused.append((account, resource, entry["verb"]))
    assert refused == []
    for account, rules in ACCOUNTS.items():
        allowed = {(rule.group, rule.resource, verb) for rule in rules for verb in rule.verbs}
        assert done[account] <= allowed
