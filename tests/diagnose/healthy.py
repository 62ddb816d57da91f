"""A healthy cluster as plain objects, as the API server returns them: two racks of two nodes, and a job on one.

A test changes something in it, by name: `cluster.change("nodes", "r0-n01", ...)`.
"""

import copy
from collections.abc import Callable
from typing import Any

from imex_dra.api.names import CHANNEL_CLASS, CLIQUE_LABEL, DRIVER
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.rule import Finding
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.snapshot import BY_PLURAL, KINDS, Missing, Plain, Snapshot

NOW = "2026-11-18T03:00:00Z"
HERE, THERE = "aaaa.1", "bbbb.1"
RACKS = {HERE: ["r0-n00", "r0-n01"], THERE: ["r1-n00", "r1-n01"]}
TRAIN_UID = "11111111-1111-4111-8111-111111111111"
DEVICES = 16


def meta(name: str, namespace: str = "", **more: Any) -> Plain:
    return {"name": name, "uid": f"uid-{name}", **({"namespace": namespace} if namespace else {}), **more}


def condition(type: str, status: str, reason: str = "Because", message: str = "") -> Plain:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


def node(name: str, partition: str) -> Plain:
    labels = {CLIQUE_LABEL: partition, "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-GB200"}
    allocatable = {"nvidia.com/gpu": "4", "cpu": "144", "memory": "926771656Ki"}
    return {
        "metadata": meta(name, labels=labels),
        "spec": {},
        "status": {
            "conditions": [condition("Ready", "True")],
            "allocatable": allocatable,
            "nodeInfo": {"kubeletVersion": "v1.36.4", "containerRuntimeVersion": "containerd://2.1.4"},
        },
    }


def nvlink_node(name: str, partition: str) -> Plain:
    status = {
        "fabric": {"state": "ok"},
        "partition": partition,
        "address": "10.0.0.1",
        "index": 0,
        "imexState": "READY",
        "isolation": {"state": "enforced"},
        "conditions": [condition("Ready", "True"), condition("Connected", "True")],
    }
    return {"metadata": meta(name), "status": status}


def partition(name: str, nodes: list[str]) -> Plain:
    members = [
        {"node": one, "index": index, "address": "10.0.0.1", "state": "Ready"} for index, one in enumerate(nodes)
    ]
    status = {
        "members": members,
        "channels": [],
        "conditions": [condition("Ready", "True")],
        "summary": {"nodes": "2/2", "channels": "0", "state": "UP"},
    }
    return {"metadata": meta(name), "spec": {"maxNodes": 24, "nameFormat": "imex-0-%03d"}, "status": status}


def resource_slice(node: str) -> Plain:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"channel-{number}"} for number in range(DEVICES)]
    return {"metadata": meta(node), "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}}


def configuration(uid: str) -> list[Plain]:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
    }
    return [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}]


def claim_devices(uid: str) -> Plain:
    requests = [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}]
    return {"requests": requests, "config": configuration(uid)}


def domain(
    name: str = "train", namespace: str = "team", uid: str = TRAIN_UID, template: str = "imex-channel"
) -> Plain:
    status = {
        "status": "Ready",
        "conditions": [condition("Ready", "True"), condition("TemplateReady", "True")],
        "summary": {"status": "Ready"},
    }
    spec = {"channel": {"resourceClaimTemplate": {"name": template}}}
    return {"metadata": {**meta(name, namespace), "uid": uid}, "spec": spec, "status": status}


def template(name: str = "imex-channel", namespace: str = "team", uid: str = TRAIN_UID) -> Plain:
    return {"metadata": meta(name, namespace), "spec": {"spec": {"devices": claim_devices(uid)}}}


def pod(name: str, node: str = "", *, owner: str = "MPIJob/train", template: str = "imex-channel") -> Plain:
    """Running on the node, or Pending without one."""
    kind, _, owner_name = owner.partition("/")
    reference = {"apiVersion": "v1", "kind": kind, "name": owner_name, "uid": "uid-owner", "controller": True}
    container = {
        "name": "main",
        "resources": {
            "claims": [{"name": "imex"}],
            "limits": {"nvidia.com/gpu": "4"},
            "requests": {"cpu": "32", "memory": "200Gi"},
        },
    }
    term = {"labelSelector": {"matchLabels": {"job": owner_name}}, "topologyKey": CLIQUE_LABEL}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    scheduled = condition(
        "PodScheduled", "True" if node else "False", "Unschedulable", "" if node else "0/4 nodes"
    )
    return {
        "metadata": meta(
            name, "team", labels={"job": owner_name}, **({"ownerReferences": [reference]} if kind else {})
        ),
        "spec": {
            "nodeName": node,
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": template}],
            "containers": [container],
            "affinity": affinity,
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": [scheduled],
            "resourceClaimStatuses": [{"name": "imex", "resourceClaimName": f"{name}-imex"}],
        },
    }


def claim(pod: str, node: str = "", uid: str = TRAIN_UID) -> Plain:
    """Allocated on the node and reserved for the pod, or waiting."""
    status: Plain = {}
    if node:
        result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
        status["allocation"] = {"devices": {"results": [result], "config": configuration(uid)}}
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
    return {
        "metadata": meta(f"{pod}-imex", "team", ownerReferences=[owner]),
        "spec": {"devices": claim_devices(uid)},
        "status": status,
    }


def event(kind: str, name: str, reason: str, note: str, namespace: str = "team") -> Plain:
    regarding = {"kind": kind, "namespace": namespace, "name": name, "uid": f"uid-{name}"}
    return {
        "metadata": meta(f"{name}.1", namespace),
        "regarding": regarding,
        "reason": reason,
        "note": note,
        "eventTime": NOW,
    }


class Broken:
    """The objects of a cluster. Starts healthy."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Plain]] = {resource.plural: [] for resource in KINDS}
        self.missing: list[Missing] = []
        self.version = "v1.36.4"
        for name, nodes in RACKS.items():
            self.add("nvlinkpartitions", partition(name, nodes))
            for one in nodes:
                self.add("nodes", node(one, name))
                self.add("nvlinknodes", nvlink_node(one, name))
                self.add("resourceslices", resource_slice(one))
        self.add("deviceclasses", {"metadata": meta(CHANNEL_CLASS)})
        for name in ("default", "other", "team"):
            self.add("namespaces", {"metadata": meta(name)})
        renewed = {"holderIdentity": "a", "renewTime": "2026-11-18T02:59:55.000000Z"}
        self.add("leases", {"metadata": meta("imex-controller", "imex-dra"), "spec": renewed})
        self.add("computedomains", domain())
        self.add("resourceclaimtemplates", template())
        self.job("worker-0", "r0-n00")
        self.job("worker-1", "r0-n01")
        entry = {"computeDomain": {"namespace": "team", "name": "train", "uid": TRAIN_UID}, "assignedAt": NOW}
        self.get("nvlinkpartitions", HERE)["status"]["channels"] = [{"channel": 7, "state": "Assigned", **entry}]

    def job(self, name: str, node: str, **more: str) -> None:
        """A pod, its claim, and the report of its node."""
        self.add("pods", pod(name, node, **more))
        self.add("resourceclaims", claim(name, node))
        if node:
            status = self.get("nvlinknodes", node)["status"]
            status.setdefault("preparedClaims", []).append(f"uid-{name}-imex")
            status["heldChannels"] = [{"partition": HERE, "channel": 7, "computeDomain": TRAIN_UID}]

    def add(self, plural: str, obj: Plain) -> Plain:
        resource = BY_PLURAL[plural]
        self.objects[plural].append({"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        return self.objects[plural][-1]

    def get(self, plural: str, name: str) -> Any:
        return next(obj for obj in self.objects[plural] if obj["metadata"]["name"] == name)

    def remove(self, plural: str, name: str = "") -> None:
        self.objects[plural] = [o for o in self.objects[plural] if name and o["metadata"]["name"] != name]

    def condition(
        self, plural: str, name: str, type: str, status: str, reason: str = "X", message: str = ""
    ) -> None:
        conditions = self.get(plural, name)["status"].setdefault("conditions", [])
        conditions[:] = [one for one in conditions if one["type"] != type]
        conditions.append(condition(type, status, reason, message))

    def hide(self, plural: str, why: str = "you may not list them", **more: Any) -> None:
        del self.objects[plural]
        self.missing.append(Missing(plural, why, **more))

    def snapshot(self) -> Snapshot:
        objects = {plural: tuple(copy.deepcopy(found)) for plural, found in self.objects.items()}
        return Snapshot(objects, tuple(self.missing), NOW, self.version)

    def cluster(self) -> Cluster:
        return Cluster(self.snapshot())

    def findings(self) -> list[Finding]:
        return diagnose(self.cluster())


Breaking = Callable[[Broken], None]
