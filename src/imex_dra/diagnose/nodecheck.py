"""The check pod of `imex preflight --node`: its manifest, and what its log says. Pure: nothing is created here.

What can be seen only on a node is checked by a shell script in a privileged pod there (`node-check.sh`): it
has to run before the driver is installed, and with any image.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from importlib import resources
from typing import Any, NamedTuple

from imex_dra.base.errors import Unreadable
from imex_dra.picture.text import Lines, line

CONTAINER = "check"
DEADLINE = 120
"""Seconds, after which Kubernetes ends the pod."""
_HOST = "/host"


class Verdict(StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class NodeCheck(NamedTuple):
    verdict: Verdict
    sentence: str


def script() -> str:
    return resources.files(__package__).joinpath("node-check.sh").read_text(encoding="utf-8")


def pod_name(node: str) -> str:
    """Names of nodes may be longer than names of pods should be."""
    return f"imex-node-check-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def check_pod(node: str, namespace: str, image: str) -> dict[str, Any]:
    """It runs on exactly this node, whatever its taints, and can change nothing on the host's disk."""
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["sh", "-c", script()],
        # Processes of the host, and files below /proc that only root may read. The image may name another user.
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "host", "mountPath": _HOST, "readOnly": True}],
    }
    spec = {
        "nodeName": node,
        "hostPID": True,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}],
    }
    labels = {"app.kubernetes.io/part-of": "imex-dra", "app.kubernetes.io/component": "node-check"}
    metadata = {"name": pod_name(node), "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def parse_log(log: str) -> list[NodeCheck]:
    """Raises Unreadable if the script did not reach its end."""
    lines = [line.partition("\t") for line in log.splitlines()]
    if not any(verdict == "done" for verdict, _, _ in lines):
        last = log.strip().rpartition("\n")[2] or "nothing"
        raise Unreadable(f"the check pod ended too early; the last line of its log: {printable(last)}")
    return [NodeCheck(Verdict(verdict), printable(text)) for verdict, _, text in lines if verdict in set(Verdict)]


def printable(text: str) -> str:
    """The log comes from a node, and goes to a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def fails(checks: Sequence[NodeCheck]) -> bool:
    return any(check.verdict is Verdict.FAILED for check in checks)


_MARKS = {Verdict.OK: ("✓", "good"), Verdict.FAILED: ("✗", "bad"), Verdict.UNKNOWN: ("?", "dim")}


def node_check_lines(checks: Sequence[NodeCheck]) -> Lines:
    return tuple(line(_MARKS[check.verdict], f" {check.sentence}") for check in checks)
