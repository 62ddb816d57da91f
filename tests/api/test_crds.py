"""The CRDs: the generated files, and how they behave with kubectl on a real API server."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from imex_dra.api import crds
from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tools import generate


def test_the_generated_files_are_up_to_date() -> None:
    assert all(path.read_bytes() == content for path, content in generate.files().items())


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, content in schema.get("properties", {}).items():
        yield f"{path}.{name}", content
        yield from properties(content, f"{path}.{name}")
    if "items" in schema:
        yield from properties(schema["items"], f"{path}[]")


@pytest.mark.parametrize("file", crds.definitions())
def test_kubectl_explain_has_a_description_of_every_field(file: str) -> None:
    (version,) = crds.definitions()[file]["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["description"]
    fields = dict(properties(schema))
    assert len(fields) > 10
    undescribed = {path for path, content in fields.items() if not content.get("description")}
    # The API server has its own descriptions of these.
    assert undescribed == {".apiVersion", ".kind", ".metadata"}


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


@pytest.mark.kube
def test_a_minimal_compute_domain_gets_the_defaults_of_nvidias_driver(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    live = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace)
    assert live["spec"]["numNodes"] == 0
    assert live["spec"]["channel"]["allocationMode"] == "Single"


@pytest.mark.kube
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"numNodes": 18, **TEMPLATE},
        {"channel": {**TEMPLATE["channel"], "allocationMode": "All"}},
        {"numNodes": 0, "channel": {**TEMPLATE["channel"], "allocationMode": "Single"}},
    ],
)
def test_specs_of_nvidias_driver_are_accepted(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any]
) -> None:
    control_plane.kubectl.apply(domain(namespace, spec))


@pytest.mark.kube
def test_the_status_of_nvidias_driver_is_stored_completely(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    clique = f"{uuid.uuid4()}.1"
    nodes = [
        {"name": "n0", "ipAddress": "10.0.0.1", "cliqueID": clique, "index": 0, "status": "Ready"},
        {"name": "n1", "ipAddress": "10.0.0.2", "cliqueID": "", "index": -1, "status": "NotReady"},
    ]
    patch = json.dumps({"status": {"status": "NotReady", "nodes": nodes}})
    flags = ["-n", namespace, "--subresource=status", "--type=merge", f"-p={patch}"]
    control_plane.kubectl("patch", "computedomain", "team-a", *flags)
    live = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace)
    assert live["status"]["status"] == "NotReady"
    assert live["status"]["nodes"] == nodes


@pytest.mark.kube
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
def test_an_invalid_value_is_rejected_with_its_path(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(Rejected, match=re.escape(path)):
        control_plane.kubectl.apply(domain(namespace, spec))


@pytest.mark.kube
def test_the_spec_is_immutable_and_the_error_names_the_next_step(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl.apply(domain(namespace, TEMPLATE))
    with pytest.raises(Rejected, match="immutable: create another ComputeDomain"):
        control_plane.kubectl(
            "patch", "computedomain", "team-a", "-n", namespace, "--type=merge", '-p={"spec":{"numNodes":4}}'
        )
    control_plane.kubectl(
        "patch", "computedomain", "team-a", "-n", namespace, "--type=merge", '-p={"metadata":{"labels":{"a":"b"}}}'
    )


@pytest.mark.kube
def test_server_side_apply_can_be_repeated(control_plane: ControlPlane, namespace: str, tmp_path: Any) -> None:
    manifest = tmp_path / "domain.yaml"
    manifest.write_text(yaml.safe_dump(domain(namespace, TEMPLATE)))
    for _ in range(2):
        control_plane.kubectl("apply", "--server-side", "--field-manager=team", "-f", str(manifest))
    owners = control_plane.kubectl.get("computedomain", "team-a", "-n", namespace, "--show-managed-fields")
    assert [entry["manager"] for entry in owners["metadata"]["managedFields"]] == ["team"]


@pytest.mark.kube
def test_kubectl_get_shows_the_columns_and_kubectl_wait_the_condition(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl.apply(domain(namespace, {}))
    ready = {"type": "Ready", "status": "True", "reason": "NodesReady", "message": "all 18"}
    summary = {"status": "Deleting", "message": "waits", "nodes": "17/18", "partitions": "1", "channels": "7"}
    conditions = [{**ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    status = json.dumps({"status": {"status": "Ready", "summary": summary, "conditions": conditions}})
    control_plane.kubectl(
        "patch", "cd", "team-a", "-n", namespace, "--subresource=status", "--type=merge", f"-p={status}"
    )
    control_plane.kubectl(
        "wait", "cd/team-a", "-n", namespace, "--for=condition=Ready", "--timeout=60s", within=90
    )
    heading, row = control_plane.kubectl("get", "computedomain", "-n", namespace).splitlines()
    assert heading.split() == ["NAME", "STATUS", "NODES", "PARTITIONS", "CHANNEL", "AGE"]
    assert row.split()[:5] == ["team-a", "Deleting", "17/18", "1", "7"]
    wide = control_plane.kubectl("get", "computedomain", "-n", namespace, "-o=wide")
    assert "waits" in wide


@pytest.mark.kube
def test_a_number_of_channels_is_not_shown_under_the_heading_of_a_channel_number(
    control_plane: ControlPlane,
) -> None:
    spec = {"maxNodes": 24, "nameFormat": "imex-0a1b2c3d-%03d"}
    metadata = {"name": f"{uuid.uuid4()}.1"}
    body = {"apiVersion": "imex-dra.io/v1alpha1", "kind": "NVLinkPartition", "metadata": metadata, "spec": spec}
    control_plane.kubectl.apply(body)
    heading, *_ = control_plane.kubectl("get", "nvlinkpartition", metadata["name"]).splitlines()
    assert heading.split() == ["NAME", "NODES", "CHANNELS-IN-USE", "STATE", "AGE"]


@pytest.mark.kube
def test_kubectl_explain_shows_values_and_descriptions(control_plane: ControlPlane) -> None:
    text = " ".join(control_plane.kubectl("explain", "computedomain.spec.channel.allocationMode").split())
    assert "ENUM: Single All" in text
    assert "refused unless the namespace allows it" in text
    assert "IMEX domain" in " ".join(control_plane.kubectl("explain", "nvlinkpartition").split())


@pytest.mark.kube
def test_the_node_map_of_a_partition_is_immutable(control_plane: ControlPlane) -> None:
    name = f"{uuid.uuid4()}.1"
    spec = {"maxNodes": 24, "nameFormat": "imex-0a1b2c3d-%03d"}
    body = {
        "apiVersion": "imex-dra.io/v1alpha1",
        "kind": "NVLinkPartition",
        "metadata": {"name": name},
        "spec": spec,
    }
    control_plane.kubectl.apply(body)
    with pytest.raises(Rejected, match="node map of a partition is immutable"):
        control_plane.kubectl("patch", "nvlinkpartition", name, "--type=merge", '-p={"spec":{"maxNodes":18}}')
    with pytest.raises(Rejected, match=r"spec\.nameFormat"):
        control_plane.kubectl.apply({**body, "metadata": {"name": "x.1"}, "spec": {**spec, "nameFormat": "bad"}})


@pytest.mark.kube
@pytest.mark.parametrize(
    ("status", "path"),
    [
        ({"address": "10.0.0.9\n10.6.6.6 kubernetes.default.svc"}, "status.address: Invalid value"),
        ({"address": "1" * 46}, "status.address: Too long"),
        ({"fabric": {"state": "broken", "reason": "x" * 1025}}, "status.fabric.reason: Too long"),
        ({"unreachable": ["x" * 254]}, "status.unreachable[0]: Too long"),
        ({"acknowledgedEpoch": 2**63 - 1}, "status.acknowledgedEpoch: Invalid value"),
    ],
    ids=["a second hosts line", "no address", "a long reason", "no node name", "an absurd counter"],
)
def test_a_report_that_would_harm_its_readers_is_rejected(
    control_plane: ControlPlane, status: dict[str, Any], path: str
) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl.apply(
        {"apiVersion": "imex-dra.io/v1alpha1", "kind": "NVLinkNode", "metadata": {"name": name}}
    )
    patch = json.dumps({"status": status})
    with pytest.raises(Rejected, match=re.escape(path)):
        control_plane.kubectl(
            "patch", "nvlinknode", name, "--subresource=status", "--type=merge", f"--patch={patch}"
        )
