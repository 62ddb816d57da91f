"""Assigns pods to nodes, and devices to their claims. One pod at a time, the oldest first.

Of pods that were created in the same second, the one that was changed first is the first.
"""

from typing import NamedTuple

import structlog

from imex_sandbox.embedded import placement
from imex_sandbox.embedded.allocation import DELETE_PROTECTION, Unschedulable, allocate, devices_for, fits, in_use
from imex_sandbox.embedded.claims import claim_names
from imex_sandbox.embedded.events import failure, record
from imex_sandbox.embedded.kinds import CLAIMS, CLASSES, NODES, PODS, SLICES
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.placement import Nodes
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key

log = structlog.get_logger()

_MANAGER = "embedded-scheduler"
_NAME = "default-scheduler"
_MAX_CONSUMERS = 256
_ENOUGH = 100
"""Possible nodes among which the best is chosen: kube-scheduler limits them in large clusters, too."""
_AT_ONCE = 50


class Decision(NamedTuple):
    node: str
    allocations: dict[str, Json]
    """By the name of the claim; only of claims that were not allocated before."""


def schedule(objects: Objects) -> int:
    """One pass over all pods; returns how many were assigned."""
    waiting = [
        (key, one.document)
        for key, one in objects.storage.all(PODS)
        if not one.document["spec"].get("nodeName")
        and one.document["spec"]["schedulerName"] == _NAME
        and not one.document["metadata"].get("deletionTimestamp")
        and not one.document["spec"].get("schedulingGates")
        # As kube-scheduler does, it says nothing of a pod whose claims are not created yet.
        and None not in claim_names(one.document).values()
    ]
    waiting.sort(key=_age)
    assigned = 0
    cluster = _nodes(objects) if waiting else Nodes([], {})
    for key, pod in waiting:
        try:
            decision = _decide(objects, key, pod, cluster)
            _assign(objects, key, pod, decision)
        except Unschedulable as reason:
            _report(objects, key, pod, str(reason))
        except Exception as error:
            # A pod, a claim or a device that cannot be handled must not stop the others.
            if _report(objects, key, pod, failure(error)):
                log.exception("a pod cannot be scheduled", namespace=key.namespace, name=key.name)
        else:
            cluster.add(decision.node, pod)
            assigned += 1
            if assigned == _AT_ONCE:
                break  # so that the API answers in between; the next pass goes on
    return assigned


def _age(waiting: tuple[Key, Json]) -> tuple[str, int]:
    metadata = waiting[1]["metadata"]
    return metadata["creationTimestamp"], int(metadata["resourceVersion"])


def _decide(objects: Objects, key: Key, pod: Json, cluster: Nodes) -> Decision:
    """Raises Unschedulable."""
    storage = objects.storage
    claims = _claims(objects, key, pod)
    slices = [one.document for _, one in storage.all(SLICES)] if claims else []
    classes = {name.name: one.document for name, one in storage.all(CLASSES)} if claims else {}
    used = in_use(one.document for _, one in storage.all(CLAIMS)) if claims else set()
    reasons: list[str] = []
    possible: list[tuple[tuple[int, int, str], str, dict[str, Json]]] = []
    first = cluster.count % max(1, len(cluster.nodes))
    for node in cluster.nodes[first:] + cluster.nodes[:first]:
        if len(possible) == _ENOUGH:
            break
        reason = placement.obstacle(pod, node, cluster) or _elsewhere(claims, node)
        allocations = None if reason else _allocations(claims, node, slices, used, classes)
        if not reason and allocations is None:
            reason = "cannot allocate all claims"
        if reason:
            reasons.append(reason)
        else:
            possible.append(
                (placement.preference(pod, node, cluster), node["metadata"]["name"], allocations or {})
            )
    if not possible:
        raise Unschedulable(placement.summary(reasons, len(cluster.nodes)))
    _, name, allocations = min(possible, key=lambda one: one[0])
    return Decision(name, allocations)


def _claims(objects: Objects, key: Key, pod: Json) -> list[Json]:
    claims = []
    for name in claim_names(pod).values():
        assert name is not None
        found = objects.storage.get(CLAIMS, Key(key.namespace, name))
        if found is None:
            raise Unschedulable(f'resourceclaim "{name}" not found')
        claim, uid = found.document, pod["metadata"]["uid"]
        status = claim.get("status") or {}
        if claim["metadata"].get("deletionTimestamp"):
            raise Unschedulable(f'resourceclaim "{name}" is being deleted')
        consumers = status.get("reservedFor") or ()
        if len(consumers) >= _MAX_CONSUMERS and uid not in {one["uid"] for one in consumers}:
            raise Unschedulable(f'resourceclaim "{name}" has {_MAX_CONSUMERS} consumers already')
        claims.append(claim)
    return claims


def _elsewhere(claims: list[Json], node: Json) -> str:
    """Said of a claim that is allocated for another node."""
    allocations = [(claim.get("status") or {}).get("allocation") for claim in claims]
    if all(fits(one, node) for one in allocations if one):
        return ""
    return "resourceclaim not available on the node"


def _allocations(
    claims: list[Json],
    node: Json,
    slices: list[Json],
    used: set[tuple[str, str, str]],
    classes: dict[str, Json],
) -> dict[str, Json] | None:
    found, taken = {}, set(used)
    devices = devices_for(node, slices) if claims else []
    for claim in claims:
        if (claim.get("status") or {}).get("allocation"):
            continue
        made = allocate(claim, node, devices, taken, classes)
        if made is None:
            return None
        found[claim["metadata"]["name"]] = made
    return found


def _nodes(objects: Objects) -> Nodes:
    pods: dict[str, list[Json]] = {}
    for _, one in objects.storage.all(PODS):
        node = one.document["spec"].get("nodeName")
        if node and one.document["status"].get("phase") not in ("Succeeded", "Failed"):
            pods.setdefault(node, []).append(one.document)
    return Nodes([one.document for _, one in objects.storage.all(NODES)], pods)


def _assign(objects: Objects, key: Key, pod: Json, decision: Decision) -> None:
    """Claims first: a kubelet that sees the pod expects them to be allocated and reserved."""
    consumer = {"resource": "pods", "name": key.name, "uid": pod["metadata"]["uid"]}
    for name in claim_names(pod).values():
        assert name is not None
        claim_key = Key(key.namespace, name)
        claim = objects.get(CLAIMS, claim_key).document
        if name in decision.allocations and DELETE_PROTECTION not in (claim["metadata"].get("finalizers") or ()):
            finalizers = [*(claim["metadata"].get("finalizers") or ()), DELETE_PROTECTION]
            patch = {"metadata": {"finalizers": finalizers}}
            claim = objects.patch(CLAIMS, claim_key, patch, manager=_MANAGER).document
        status = dict(claim.get("status") or {})
        if name in decision.allocations:
            status["allocation"] = decision.allocations[name]
        others = [one for one in status.get("reservedFor") or () if one["uid"] != consumer["uid"]]
        status["reservedFor"] = [*others, consumer]
        objects.update(CLAIMS, claim_key, {**claim, "status": status}, subresource="status", manager=_MANAGER)
    objects.assign(key, decision.node)
    _set_condition(objects, key, {"type": "PodScheduled", "status": "True"})
    message = f"Successfully assigned {key.namespace}/{key.name} to {decision.node}"
    record(objects, pod, "Normal", "Scheduled", message, _NAME)


def _report(objects: Objects, key: Key, pod: Json, message: str) -> bool:
    """Returns whether this is new."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    _set_condition(objects, key, condition)
    return record(objects, pod, "Warning", "FailedScheduling", message, _NAME)


def _set_condition(objects: Objects, key: Key, condition: Json) -> None:
    live = objects.get(PODS, key).document
    conditions = live["status"].get("conditions") or []
    before: Json = next((one for one in conditions if one["type"] == condition["type"]), {})
    if all(before.get(name, "") == condition.get(name, "") for name in ("status", "reason", "message")):
        return
    at = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
    entry = {**condition, "lastTransitionTime": at or objects.timestamp()}
    others = [one for one in conditions if one["type"] != condition["type"]]
    patch = {"status": {"conditions": [*others, entry]}}
    objects.patch(PODS, key, patch, subresource="status", manager=_MANAGER)
