"""What the demo asks Kubernetes for, apart from the examples that it applies as they stand."""

import sys
from typing import Any

NAMESPACE = "demo"
TRAIN, OTHER = "train", "other"
"""Two ComputeDomains; each one's ResourceClaimTemplate has its name."""

_IMAGE = "registry.example/imex-demo:1"
"""Nothing is pulled: a simulated node runs the command itself."""

LOOK = (
    'ls /dev/nvidia-caps-imex-channels; echo "$COMPUTE_DOMAIN_NAME $COMPUTE_DOMAIN_CHANNEL";'
    " trap 'exit 0' TERM; while :; do sleep 1; done"
)
"""What the minimal pod does: it says what it was given, and waits to be ended."""

Json = dict[str, Any]


def namespace() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def compute_domain(name: str) -> Json:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"channel": {"resourceClaimTemplate": {"name": name}}},
    }


def pod(name: str, template: str, *command: str, node: str = "") -> Json:
    """A pod that claims a channel, on any node or on a certain one; by the scheduler, who allocates seats."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": template}],
            "containers": [
                {
                    "name": "main",
                    "image": _IMAGE,
                    "command": list(command),
                    "resources": {"claims": [{"name": "imex"}]},
                }
            ],
        },
    }


def minimal() -> Json:
    return pod("minimal", TRAIN, "sh", "-c", LOOK)


def memory(name: str, template: str, *words: str, node: str = "") -> Json:
    return pod(name, template, sys.executable, "-P", "-m", "imex_dra.sandbox.demo.memory", *words, node=node)
