"""Nodes: their taints follow their condition, and a node whose kubelet is silent becomes unknown."""

from datetime import datetime

from imex_sandbox.embedded.events import for_each
from imex_sandbox.embedded.kinds import LEASES, NODES, PODS
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.placement import tolerates
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key

_MANAGER = "embedded-controllers"
_NAME = "node-controller"
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_OWN = {_NOT_READY, _UNREACHABLE, _UNSCHEDULABLE}
GRACE_SECONDS = 40.0


def taints_for(node: Json, now: str) -> list[Json]:
    """What the node must be tainted with."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = next((one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"), "")
    wanted = []
    if spec.get("unschedulable"):
        wanted.append((_UNSCHEDULABLE, "NoSchedule"))
    if ready != "True":
        key = _UNREACHABLE if ready == "Unknown" else _NOT_READY
        wanted.append((key, "NoSchedule"))
        if ready:
            wanted.append((key, "NoExecute"))
    before = {(one["key"], one["effect"]): one for one in spec.get("taints") or ()}
    kept = [one for one in spec.get("taints") or () if one["key"] not in _OWN]
    for key, effect in wanted:
        added = {"key": key, "effect": effect, **({"timeAdded": now} if effect == "NoExecute" else {})}
        kept.append(before.get((key, effect), added))
    return kept


def follow_nodes(objects: Objects, now: datetime, grace: float = GRACE_SECONDS) -> None:
    for_each(objects, NODES, _NAME, lambda key, node: _follow_node(objects, key, node, now, grace))


def _follow_node(objects: Objects, key: Key, node: Json, now: datetime, grace: float) -> None:
    if _is_silent(objects, key, node, now, grace):
        node = _mark_unknown(objects, key, node)
    taints = taints_for(node, objects.timestamp())
    if taints != ((node.get("spec") or {}).get("taints") or []):
        objects.patch(NODES, key, {"spec": {"taints": taints or None}}, manager=_MANAGER)


def _is_silent(objects: Objects, key: Key, node: Json, now: datetime, grace: float) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    if ready is None or ready["status"] == "Unknown":
        return False
    times = [ready.get("lastHeartbeatTime")]
    if lease := objects.storage.get(LEASES, Key("kube-node-lease", key.name)):
        times.append(lease.document["spec"].get("renewTime"))
    heard = [datetime.fromisoformat(text) for text in times if text]
    return bool(heard) and (now - max(heard)).total_seconds() > grace


def _mark_unknown(objects: Objects, key: Key, node: Json) -> Json:
    message = "Kubelet stopped posting node status."
    conditions = [
        {
            **one,
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": message,
            "lastTransitionTime": objects.timestamp(),
        }
        for one in node["status"]["conditions"]
    ]
    return objects.patch(
        NODES, key, {"status": {"conditions": conditions}}, subresource="status", manager=_MANAGER
    ).document


def evict_pods(objects: Objects, now: datetime) -> None:
    """Deletes pods on nodes with a NoExecute taint, at once or when they have tolerated it long enough."""
    for_each(objects, NODES, _NAME, lambda key, node: _evict_pods(objects, key, node, now))


def _evict_pods(objects: Objects, key: Key, node: Json, now: datetime) -> None:
    taints = [taint for taint in (node.get("spec") or {}).get("taints") or () if _evicts(taint)]
    for pod_key, pod in objects.storage.all(PODS) if taints else ():
        spec = pod.document["spec"]
        is_here = spec.get("nodeName") == key.name and not pod.document["metadata"].get("deletionTimestamp")
        if is_here and not all(_is_tolerated(taint, spec.get("tolerations") or [], now) for taint in taints):
            objects.delete(PODS, pod_key, {})


def _evicts(taint: Json) -> bool:
    return bool(taint["effect"] == "NoExecute")


def _is_tolerated(taint: Json, tolerations: list[Json], now: datetime) -> bool:
    matching = [one for one in tolerations if tolerates(one, taint)]
    seconds = [one["tolerationSeconds"] for one in matching if one.get("tolerationSeconds") is not None]
    if not matching or not seconds or not taint.get("timeAdded"):
        return bool(matching)
    return bool((now - datetime.fromisoformat(taint["timeAdded"])).total_seconds() <= min(seconds))


def delete_pods_of_missing_nodes(objects: Objects) -> None:
    for key, one in objects.storage.all(PODS):
        node = one.document["spec"].get("nodeName")
        if node and objects.storage.get(NODES, Key("", node)) is None:
            objects.delete(PODS, key, {"gracePeriodSeconds": 0})
