"""ResourceClaims of pods: created from templates, released when their pods end."""

from imex_sandbox.embedded.allocation import DELETE_PROTECTION
from imex_sandbox.embedded.events import for_each, record
from imex_sandbox.embedded.kinds import CLAIMS, PODS, TEMPLATES
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Key

_MANAGER = "embedded-controllers"
_NAME = "resource_claim"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


def claim_names(pod: Json) -> dict[str, str | None]:
    """By the name in the pod: the claim's; None while it is not created."""
    created = {
        one["name"]: one.get("resourceClaimName") for one in pod["status"].get("resourceClaimStatuses") or ()
    }
    return {
        one["name"]: one.get("resourceClaimName") or created.get(one["name"])
        for one in pod["spec"].get("resourceClaims") or ()
    }


def has_ended(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def create_claims(objects: Objects) -> None:
    for_each(objects, PODS, _NAME, lambda key, pod: _create_missing(objects, key, pod))


def _create_missing(objects: Objects, key: Key, pod: Json) -> None:
    if pod["metadata"].get("deletionTimestamp") or has_ended(pod):
        return
    missing = [name for name, claim in claim_names(pod).items() if claim is None]
    if missing:
        _create(objects, key, pod, missing)


def _create(objects: Objects, key: Key, pod: Json, missing: list[str]) -> None:
    statuses = list(pod["status"].get("resourceClaimStatuses") or ())
    templates = {one["name"]: one.get("resourceClaimTemplateName") for one in pod["spec"]["resourceClaims"]}
    for name in missing:
        template = objects.storage.get(TEMPLATES, Key(key.namespace, templates[name] or ""))
        if template is None or template.document["metadata"].get("deletionTimestamp"):
            message = (
                f'PodResourceClaim {name}: resource claim template "{templates[name]}":'
                f' resourceclaimtemplate.resource.k8s.io "{templates[name]}" not found'
            )
            record(objects, pod, "Warning", "FailedResourceClaimCreation", message, _NAME)
            continue
        try:
            made = objects.create(CLAIMS, key.namespace, _claim(pod, name, template.document), _MANAGER)
        except ApiError:
            continue  # the namespace is being deleted
        statuses.append({"name": name, "resourceClaimName": made.document["metadata"]["name"]})
    if len(statuses) > len(pod["status"].get("resourceClaimStatuses") or ()):
        patch = {"status": {"resourceClaimStatuses": statuses}}
        objects.patch(PODS, key, patch, subresource="status", manager=_MANAGER)


def _claim(pod: Json, name: str, template: Json) -> Json:
    given, owner = template["spec"].get("metadata") or {}, pod["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": owner["name"],
        "uid": owner["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "generateName": f"{owner['name']}-{name}-",
        "labels": given.get("labels") or {},
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
        "ownerReferences": [reference],
    }
    return {"metadata": metadata, "spec": template["spec"]["spec"]}


def release_claims(objects: Objects) -> None:
    """Drops consumers that have ended, then the allocation, then the claim if it was made for one pod."""
    for_each(objects, CLAIMS, _NAME, lambda key, claim: _release_claim(objects, key, claim))


def _release_claim(objects: Objects, key: Key, claim: Json) -> None:
    status, metadata = claim.get("status") or {}, claim["metadata"]
    pods = {
        found.document["metadata"]["uid"]: found.document
        for consumer in [*(status.get("reservedFor") or ()), *(metadata.get("ownerReferences") or ())]
        if (found := objects.storage.get(PODS, Key(key.namespace, consumer["name"])))
    }
    consumers = status.get("reservedFor") or []
    kept = [one for one in consumers if one["uid"] in pods and not has_ended(pods[one["uid"]])]
    if kept != consumers or (not kept and status.get("allocation")):
        _release(objects, key, claim, kept)
    owner = next((one["uid"] for one in metadata.get("ownerReferences") or () if one["kind"] == "Pod"), None)
    ended = owner in pods and has_ended(pods[owner])
    if ended and not kept and not metadata.get("deletionTimestamp"):
        objects.delete(CLAIMS, key, {})


def _release(objects: Objects, key: Key, claim: Json, kept: list[Json]) -> None:
    status = {name: value for name, value in (claim.get("status") or {}).items() if name != "reservedFor"}
    if kept:
        status["reservedFor"] = kept
    else:
        status.pop("allocation", None)
    after = {name: value for name, value in claim.items() if name != "status"}
    if status:
        after["status"] = status
    live = objects.update(CLAIMS, key, after, subresource="status", manager=_MANAGER).document
    finalizers = live["metadata"].get("finalizers") or []
    if not kept and DELETE_PROTECTION in finalizers:
        left = [one for one in finalizers if one != DELETE_PROTECTION]
        objects.patch(CLAIMS, key, {"metadata": {"finalizers": left}}, manager=_MANAGER)
