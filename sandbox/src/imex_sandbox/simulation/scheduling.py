"""The control plane's part in a claim: claims from templates, allocation of devices, binding of pods, clean-up."""

import asyncio
import random

from imex_sandbox.embedded.garbage import collect
from imex_sandbox.embedded.kinds import KINDS, PODS
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Change, Key
from imex_sandbox.simulation.kinds import CLAIMS, NODES, SLICES, TEMPLATES

_DRIVER = "compute-domain.nvidia.com"


_WATCHED = {PODS, CLAIMS, TEMPLATES, SLICES, NODES}
_COLLECTED = tuple(kind for kind in KINDS if kind.plural not in ("events", "leases"))
"""What may have owners, or be one. Events are many, and have none."""


class ControlPlane:
    def __init__(self, objects: Objects, chance: random.Random) -> None:
        self._objects = objects
        self._chance = chance
        self._changed = asyncio.Event()
        objects.storage.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if (
            change.kind in _WATCHED
            or change.new is None
            or change.new.document["metadata"].get("deletionTimestamp")
        ):
            self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(0.2 + self._chance.random())
            while collect(self._objects, _COLLECTED):  # noqa: ASYNC110 - what is deleted may own something
                await asyncio.sleep(0.1)
            for key, pod in self._objects.storage.all(PODS):
                if not pod.document["spec"].get("nodeName") and not pod.document["metadata"].get(
                    "deletionTimestamp"
                ):
                    self._schedule(key, pod.document)

    def _schedule(self, key: Key, pod: Json) -> None:
        claim_key = Key(key.namespace, f"{key.name}-imex")
        claim = self._objects.storage.get(CLAIMS, claim_key)
        if claim is None:
            template_name = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
            template = self._objects.storage.get(TEMPLATES, Key(key.namespace, template_name))
            if template is not None and not template.document["metadata"].get("deletionTimestamp"):
                self._objects.create(CLAIMS, key.namespace, _claim(claim_key.name, pod, template.document))
            return
        if claim.document["metadata"]["ownerReferences"][0]["uid"] != pod["metadata"]["uid"]:
            return  # of an earlier pod of this name; the garbage collector deletes it
        choices = self._free_devices(pod)
        if not choices:
            return
        node, device = self._chance.choice(choices)
        spec = claim.document["spec"]["devices"]
        result = {"request": spec["requests"][0]["name"], "driver": _DRIVER, "pool": node, "device": device}
        configs = [{"source": "FromClaim", **config} for config in spec["config"]]
        consumer = {"resource": "pods", "name": key.name, "uid": pod["metadata"]["uid"]}
        status = {"allocation": {"devices": {"results": [result], "config": configs}}, "reservedFor": [consumer]}
        self._objects.patch(CLAIMS, claim_key, {"status": status}, subresource="status")
        self._objects.patch(PODS, key, {"spec": {"nodeName": node}})

    def _free_devices(self, pod: Json) -> list[tuple[str, str]]:
        storage = self._objects.storage
        used = {
            (result["pool"], result["device"])
            for _, claim in storage.all(CLAIMS)
            for result in claim.document.get("status", {})
            .get("allocation", {})
            .get("devices", {})
            .get("results", ())
        }
        ready = {key.name for key, node in storage.all(NODES) if is_ready(node.document)}
        wanted = pod["spec"].get("nodeSelector", {}).get("node")
        return [
            (one.document["spec"]["nodeName"], device["name"])
            for _, one in storage.all(SLICES)
            for device in one.document["spec"].get("devices", ())
            if one.document["spec"]["nodeName"] in ready
            and wanted in (None, one.document["spec"]["nodeName"])
            and (one.document["spec"]["nodeName"], device["name"]) not in used
        ]


def is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _claim(name: str, pod: Json, template: Json) -> Json:
    meta = template["spec"].get("metadata", {})
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    metadata = {
        "name": name,
        "ownerReferences": [owner],
        "labels": meta.get("labels", {}),
        "annotations": {"resource.kubernetes.io/pod-claim-name": "imex"},
    }
    return {"metadata": metadata, "spec": template["spec"]["spec"]}
