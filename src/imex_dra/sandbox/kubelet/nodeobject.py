"""What a kubelet says of its node. Pure: facts and the time in, JSON out."""

import platform
from datetime import datetime
from typing import Any

from msgspec import Struct

from imex_dra.base.clock import rfc3339
from imex_dra.sandbox.kubernetes.binaries import KUBERNETES

Json = dict[str, Any]

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
VERSION = f"{KUBERNETES}+imex-sandbox"

_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


class NodeFacts(Struct, frozen=True):
    name: str
    address: str
    boot_id: str
    pod_network: str = "10.244.0"
    """The first three numbers of its pods' addresses, which are for display only."""
    labels: dict[str, str] = {}
    cpu: int = 144
    memory_gib: int = 960
    pods: int = 110
    gpus: int = 0
    """What the device plugin would offer as `nvidia.com/gpu`."""


def labels(facts: NodeFacts) -> dict[str, str]:
    system = {"os": "linux", "arch": ARCHITECTURE}
    own = {f"{prefix}kubernetes.io/{key}": value for prefix in ("", "beta.") for key, value in system.items()}
    return {"kubernetes.io/hostname": facts.name, **own, **facts.labels}


def node(facts: NodeFacts, now: datetime, port: int = 0) -> Json:
    return {"metadata": {"name": facts.name, "labels": labels(facts)}, "status": status(facts, now, {}, port)}


def status(facts: NodeFacts, now: datetime, since: dict[tuple[str, str], str], port: int = 0) -> Json:
    """`since` maps a condition's type and status to when it began, as far as that is known.

    `port` is where the kubelet's own API is, if it has one.
    """
    resources = {
        "cpu": str(facts.cpu),
        "memory": f"{facts.memory_gib * 1024 * 1024}Ki",
        "pods": str(facts.pods),
        "ephemeral-storage": "1874374728Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        **({"nvidia.com/gpu": str(facts.gpus)} if facts.gpus else {}),
    }
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "conditions": _conditions(now, since),
        "nodeInfo": _info(facts),
        **(_endpoint(port) if port else {}),
    }


def _endpoint(port: int) -> Json:
    """With the feature, the API server hands kubectl's WebSocket on to us instead of speaking SPDY."""
    return {
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
    }


def _conditions(now: datetime, since: dict[tuple[str, str], str]) -> list[Json]:
    told = [(kind, "False", *words) for kind, words in _PRESSURES.items()]
    told.append(("Ready", "True", "KubeletReady", "kubelet is posting ready status"))
    return [
        {
            "type": kind,
            "status": verdict,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": rfc3339(now),
            "lastTransitionTime": since.get((kind, verdict), rfc3339(now)),
        }
        for kind, verdict, reason, message in told
    ]


def _info(facts: NodeFacts) -> Json:
    identity = facts.boot_id.replace("-", "")
    return {
        "architecture": ARCHITECTURE,
        "bootID": facts.boot_id,
        "containerRuntimeVersion": "imex-sandbox://1",
        "kernelVersion": platform.release(),
        "kubeletVersion": VERSION,
        "kubeProxyVersion": "",
        "machineID": identity,
        "operatingSystem": "linux",
        "osImage": "imex-dra sandbox",
        "systemUUID": facts.boot_id,
    }
