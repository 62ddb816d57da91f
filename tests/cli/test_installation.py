"""What the commands find in a cluster at each step of an installation."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from imex_dra.api.names import LEASE, NAMESPACE
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.cli import imex
from imex_dra.picture.snapshot import PRODUCT_LABEL
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from tests.conftest import install_crds
from tests.paths import DEPLOY


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedControlPlane]:
    """Without the driver and its CRDs."""
    with EmbeddedControlPlane(tmp_path_factory.mktemp("bare"), controllers=False) as running:
        yield running


def found(cluster: EmbeddedControlPlane, *command: str) -> list[str]:
    flags = ["--output=json", f"--kubeconfig={cluster.kubeconfig()}"]
    done = CliRunner().invoke(imex, [*command, *flags], prog_name="imex")
    findings = json.loads(done.stdout)["findings"]
    assert done.exit_code == (1 if findings else 0)
    return [finding["id"] for finding in findings]


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def device_classes() -> list[dict[str, Any]]:
    documents = [one for file in sorted(DEPLOY.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]
    return [one for one in documents if one and one["kind"] == "DeviceClass"]


def test_each_step_of_an_installation_is_found(bare: EmbeddedControlPlane) -> None:
    kubectl = bare.kubectl
    kubectl.apply(node("control-plane"))
    assert found(bare, "preflight") == ["IMEX214"]
    assert found(bare, "verify", "-A") == ["IMEX201", "IMEX214"]

    kubectl.apply(node("r0-n00", **{PRODUCT_LABEL: "GB200"}))
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    patch = json.dumps({"status": {"conditions": [ready]}})
    kubectl("patch", "node", "r0-n00", "--subresource=status", f"--patch={patch}")
    assert found(bare, "preflight") == []
    assert found(bare, "verify", "-A") == ["IMEX201"]

    containers = [{"name": "x", "image": "x", "command": ["compute-domain-kubelet-plugin"]}]
    labels = {"app": "x"}
    other = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kubelet-plugin", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
    kubectl.apply(other)
    assert found(bare, "preflight") == ["IMEX203"]
    kubectl("-n", "kube-system", "delete", "daemonset", "kubelet-plugin")

    install_crds(bare)
    assert found(bare, "verify", "-A") == ["IMEX202", "IMEX204", "IMEX205"]
    kubectl.apply(*device_classes())
    assert found(bare, "preflight") == ["IMEX204", "IMEX205"]

    kubectl("create", "namespace", NAMESPACE)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": NAMESPACE},
        "spec": {"holderIdentity": "x", "renewTime": rfc3339_micro(Clock().now())},
    }
    kubectl.apply(lease)
    assert found(bare, "verify", "-A") == ["IMEX205"]
