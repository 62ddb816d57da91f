"""The driver's service accounts have exactly the permissions that the driver uses."""

from datetime import datetime
from typing import Any

import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.api.rbac import ACCOUNTS
from tests.driver.cluster import DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

Permission = tuple[str, str, str]
"""API group, resource and verb."""
EVERYBODY: set[Permission] = {("authentication.k8s.io", "selfsubjectreviews", "create")}
"""What Kubernetes allows every account: to ask who it is."""


def _lists(*resources: str) -> set[Permission]:
    return {(group, resource, "list") for group, _, resource in (name.rpartition("/") for name in resources)}


NOT_ALWAYS_USED: dict[str, set[Permission]] = {
    "imex-controller": {
        # For API servers without streaming lists. The one of this test streams the list within the watch.
        *_lists(
            "resource.nvidia.com/computedomains",
            "resource.k8s.io/resourceclaimtemplates",
            "imex-dra.io/nvlinknodes",
            "imex-dra.io/nvlinkpartitions",
            "nodes",
            "namespaces",
            "apps/daemonsets",
            "coordination.k8s.io/leases",
            "resource.k8s.io/resourceslices",
        ),
        # When a partition has no members any more, or when a forgotten node returns
        # (controller/test_nvlinkpartition_reconciler.py).
        ("imex-dra.io", "nvlinkpartitions", "delete"),
        ("imex-dra.io", "nvlinkpartitions", "patch"),
        # After a write was refused, to tell a conflict from an invalid object (kube/test_patch.py).
        ("imex-dra.io", "nvlinkpartitions", "get"),
        # When the same template was created by another client at the same moment.
        ("resource.k8s.io", "resourceclaimtemplates", "get"),
        # When the certificate of IMEX daemons is renewed (controller/test_certificates.py).
        ("", "secrets", "patch"),
        # With --webhook-certificates (webhook/).
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "get"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "patch"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "get"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "patch"),
        # When the same Event is repeated within minutes.
        ("events.k8s.io", "events", "patch"),
    },
    "imex-node": {
        *_lists("imex-dra.io/nvlinkpartitions", "resource.k8s.io/resourceslices"),
        # When the node has moved to another partition (test_channel_reuse.py).
        ("resource.k8s.io", "resourceslices", "patch"),
        ("resource.k8s.io", "resourceslices", "get"),
    },
}
"""Permissions that a run may not use, with the reason why they are needed."""


def used(cluster: DriverCluster, account: str) -> dict[Permission, set[int]]:
    """The permissions that the requests of an account needed, with the status codes of the responses."""
    found: dict[Permission, set[int]] = {}
    for event in cluster.audit_events():
        if event["user"]["username"] == f"system:serviceaccount:imex-dra:{account}" and "objectRef" in event:
            reference = event["objectRef"]
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            permission = (reference.get("apiGroup", ""), resource, event["verb"])
            if not was_revoked(cluster, resource, event) and not is_in_terminating_namespace(event):
                found.setdefault(permission, set()).add(event.get("responseStatus", {}).get("code", 0))
    return found


def was_revoked(cluster: DriverCluster, resource: str, event: dict[str, Any]) -> bool:
    received = datetime.fromisoformat(event["requestReceivedTimestamp"])
    return any(resource == name and start <= received <= end for name, start, end in cluster.revoked_permissions)


def is_in_terminating_namespace(event: dict[str, Any]) -> bool:
    """A create then gets 403 with any permission: an Event about a ComputeDomain whose test has just ended."""
    return "being terminated" in event.get("responseStatus", {}).get("message", "")


def granted(account: str) -> set[Permission]:
    return {(rule.group, rule.resource, verb) for rule in ACCOUNTS[account] for verb in rule.verbs}


def test_every_permission_is_used_and_no_request_needs_another(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    namespace.create_domain("waiting")
    with cluster.without_controller():
        namespace.create_pod("q", "a0", template="waiting")
        namespace.prepare_error("q")
    namespace.delete("pod", "p", "q")
    namespace.delete("computedomain", "train", "waiting")
    with cluster.hardware("b0", fabric=Fabric(FabricState.BROKEN, "for a moment")):
        cluster.until(lambda: "b0" not in cluster.publishing_nodes())
    cluster.until_published("b0")
    for account in NOT_ALWAYS_USED:  # imex webhook does not run here (tests/webhook)
        may, did = granted(account), used(cluster, account)
        assert {permission for permission, codes in did.items() if 403 in codes} == set(), f"{account}: forbidden"
        assert did.keys() - may - EVERYBODY == set(), f"{account}: used, but not granted"
        assert NOT_ALWAYS_USED[account] - may == set(), f"{account}: listed above, but not granted"
        assert may - did.keys() - NOT_ALWAYS_USED[account] == set(), f"{account}: granted, but never used"
