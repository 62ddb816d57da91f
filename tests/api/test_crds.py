"""The CRDs as people meet them: with kubectl, on a real API server."""

import json
import re
import uuid
from typing import Any

import pytest
import yaml

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tools import generate

pytestmark = pytest.mark.kube


def test_the_files_are_what_the_types_say() -> None:
    assert all(path.read_bytes() == content for path, content in generate.files().items())


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"crds-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    return name


def domain(namespace: str, spec: dict[str, Any], name: str = "team-a") -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


TEMPLATE = {"channel": {"resourceClaimTemplate": {"name": "imex-channel-0"}}}


def test_the_platforms_example_is_accepted_and_gets_the_peers_defaults(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    live = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace)
    assert live["spec"]["numNodes"] == 0
    assert live["spec"]["channel"]["allocationMode"] == "Single"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"numNodes": 18, **TEMPLATE},
        {"channel": {**TEMPLATE["channel"], "allocationMode": "All"}},
        {"numNodes": 0, "channel": {**TEMPLATE["channel"], "allocationMode": "Single"}},
    ],
)
def test_what_the_peer_accepts_is_accepted(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any]
) -> None:
    control_plane.kubectl.apply(domain(namespace, spec))


def test_the_peers_status_is_accepted_and_nothing_of_it_is_lost(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    clique = f"{uuid.uuid4()}.1"
    nodes = [
        {"name": "n0", "ipAddress": "10.0.0.1", "cliqueID": clique, "index": 0, "status": "Ready"},
        {"name": "n1", "ipAddress": "10.0.0.2", "cliqueID": "", "index": -1, "status": "NotReady"},
    ]
    patch = json.dumps({"status": {"status": "NotReady", "nodes": nodes}})
    words = ["-n", namespace, "--subresource=status", "--type=merge", f"-p={patch}"]
    control_plane.kubectl("patch", "computedomain", "team-a", *words)
    live = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace)
    assert live["status"]["status"] == "NotReady"
    assert live["status"]["nodes"] == nodes


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"numNodes": -1}, "spec.numNodes: Invalid value: -1"),
        ({"channel": {}}, "spec.channel.resourceClaimTemplate: Required value"),
        ({"channel": {"resourceClaimTemplate": {}}}, "spec.channel.resourceClaimTemplate.name: Required value"),
        (
            {"channel": {"resourceClaimTemplate": {"name": "Not_A_Name"}}},
            "spec.channel.resourceClaimTemplate.name: Invalid value",
        ),
        (
            {"channel": {**TEMPLATE["channel"], "allocationMode": "Some"}},
            'spec.channel.allocationMode: Unsupported value: "Some": supported values: "Single", "All"',
        ),
        ({"chanel": {}}, 'unknown field "spec.chanel"'),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(Rejected, match=re.escape(path)):
        control_plane.kubectl.apply(domain(namespace, spec))


def test_the_spec_is_immutable_and_says_what_to_do(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    with pytest.raises(Rejected, match="immutable: create another one"):
        control_plane.kubectl(
            "patch", "computedomain", "team-a", "-n", namespace, "--type=merge", '-p={"spec":{"numNodes":4}}'
        )
    control_plane.kubectl(
        "patch", "computedomain", "team-a", "-n", namespace, "--type=merge", '-p={"metadata":{"labels":{"a":"b"}}}'
    )


def test_server_side_apply(control_plane: ControlPlane, namespace: str, tmp_path: Any) -> None:
    manifest = tmp_path / "domain.yaml"
    manifest.write_text(yaml.safe_dump(domain(namespace, TEMPLATE)))
    for _ in range(2):
        control_plane.kubectl("apply", "--server-side", "--field-manager=team", "-f", str(manifest))
    owners = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace, "--show-managed-fields")
    assert [entry["manager"] for entry in owners["metadata"]["managedFields"]] == ["team"]


def test_columns_and_wait(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(domain(namespace, {}))
    status = (
        '{"status":{"status":"Ready","summary":{"nodes":"17/18","partitions":"1","channels":"7"},"conditions":'
        '[{"type":"Ready","status":"True","reason":"NodesReady","message":"all 18","lastTransitionTime":'
        '"2026-01-01T00:00:00Z"}]}}'
    )
    control_plane.kubectl(
        "patch", "cd", "team-a", "-n", namespace, "--subresource=status", "--type=merge", f"-p={status}"
    )
    control_plane.kubectl("wait", "cd/team-a", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
    heading, row = control_plane.kubectl("get", "computedomain", "-n", namespace).splitlines()
    assert heading.split() == ["NAME", "STATUS", "NODES", "PARTITIONS", "CHANNELS", "AGE"]
    assert row.split()[:5] == ["team-a", "Ready", "17/18", "1", "7"]
    wide = control_plane.kubectl("get", "computedomain", "-n", namespace, "-o=wide")
    assert "all 18" in wide


def test_explain_teaches(control_plane: ControlPlane) -> None:
    text = " ".join(control_plane.kubectl("explain", "computedomain.spec.channel.allocationMode").split())
    assert "ENUM: Single All" in text
    assert "refused unless the namespace allows it" in text
    assert "IMEX domain" in " ".join(control_plane.kubectl("explain", "nvlinkpartition").split())


def test_a_partitions_node_map_is_immutable(control_plane: ControlPlane) -> None:
    name = f"{uuid.uuid4()}.1"
    spec = {"slots": 24, "nameFormat": "imex-0a1b2c3d-%03d"}
    body = {
        "apiVersion": "imex-dra.io/v1alpha1",
        "kind": "NVLinkPartition",
        "metadata": {"name": name},
        "spec": spec,
    }
    control_plane.kubectl.apply(body)
    with pytest.raises(Rejected, match="node map of a partition can't change"):
        control_plane.kubectl("patch", "nvlinkpartition", name, "--type=merge", '-p={"spec":{"slots":18}}')
    with pytest.raises(Rejected, match=r"spec\.nameFormat"):
        control_plane.kubectl.apply({**body, "metadata": {"name": "x.1"}, "spec": {**spec, "nameFormat": "bad"}})
