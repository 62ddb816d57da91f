"""Create, change and delete objects, with the rules that hold for all kinds.

Names, UIDs, generations, finalizers, the status subresource, preconditions, namespaces. The clock and the source
of random names are arguments, so that a simulation is reproducible. What holds for one kind only, such as defaults
and schemas, is up to `Admission`; without one, everything is accepted as it is.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import jsonpatch

from imex_sandbox.embedded.kinds import NAMESPACES, NODES, PODS, Kind, Kinds
from imex_sandbox.embedded.lists import ListKeys, applied_keys
from imex_sandbox.embedded.patches import apply, changed_leaves, merge, with_manager
from imex_sandbox.embedded.statuses import (
    ApiError,
    Json,
    Undecodable,
    already_exists,
    conflict,
    invalid,
    not_found,
    not_supported,
    unprocessable,
)
from imex_sandbox.embedded.storage import Key, Storage, Stored
from imex_sandbox.embedded.strategic import strategic_merge

FOREGROUND = "foregroundDeletion"
"""The finalizer of an object whose dependents are deleted before it (`garbage`)."""
_PERMANENT = ("default", "kube-system", "kube-public")
_IMMUTABLE_METADATA = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
)


class Admission:
    """Accepts everything."""

    def admit(self, kind: Kind, document: Json, old: Json | None, *, subresource: str = "") -> Json:
        """The object with defaults and without unknown fields. Raises ApiError if it is invalid."""
        return document

    def list_keys(self, kind: Kind) -> ListKeys:
        return applied_keys


class Objects:
    def __init__(
        self,
        storage: Storage,
        *,
        now: Callable[[], datetime],
        new_uid: Callable[[], str],
        kinds: Kinds | None = None,
        admission: Admission | None = None,
        tracks_managers: bool = False,
    ) -> None:
        """`tracks_managers`: of all kinds, so that every object can be applied. Simulations are faster without."""
        self.storage = storage
        self.kinds = kinds or Kinds()
        self.now = now
        self._new_uid = new_uid
        self._admission = admission or Admission()
        self._tracks_managers = tracks_managers

    def get(self, kind: Kind, key: Key) -> Stored:
        found = self.storage.get(kind, key)
        if found is None:
            raise not_found(kind.qualified, key.name)
        return found

    def create(
        self, kind: Kind, namespace: str, body: Json, manager: str = "", operation: str = "Update"
    ) -> Stored:
        given = dict(body.get("metadata") or {})
        if (given.get("namespace") or namespace) != namespace:
            cause = "the namespace of the provided object does not match the namespace sent on the request"
            raise ApiError(400, cause)
        name = given.get("name") or self._generated_name(given.get("generateName", ""))
        if not name:
            raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
        key = Key(namespace, name)
        self._check_namespace(kind, namespace)
        if self.storage.get(kind, key) is not None:
            raise already_exists(kind.qualified, name)
        metadata = {
            **{field: value for field, value in given.items() if field not in _IMMUTABLE_METADATA},
            "name": name,
            **({"namespace": namespace} if kind.namespaced else {}),
            "uid": self._new_uid(),
            "creationTimestamp": self.timestamp(),
            "generation": 1,
        }
        rest = {field: value for field, value in body.items() if field not in ("metadata", "status")}
        keeps_status = not kind.has_status or kind is NODES  # a kubelet registers its node with its status
        status = {"status": body["status"]} if keeps_status and "status" in body else {}
        document = {**rest, **status, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        if kind is NAMESPACES:
            document["status"] = {"phase": "Active"}
        document = self._admission.admit(kind, document, None)
        if self._tracks(kind):
            keys = self._admission.list_keys(kind)
            document = with_manager(document, manager, operation, changed_leaves({}, body, keys))
        return self.storage.put(kind, key, document)

    def patch(self, kind: Kind, key: Key, patch: Json, *, subresource: str = "", manager: str = "") -> Stored:
        """A JSON merge patch."""
        live = self.get(kind, key).document
        return self._replace(kind, key, live, merge(live, patch), subresource, manager)

    def strategic_patch(
        self, kind: Kind, key: Key, patch: Json, *, subresource: str = "", manager: str = ""
    ) -> Stored:
        if kind.is_custom:
            cause = "the body of the request was in an unknown format - accepted media types include: "
            accepted = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            raise ApiError(415, cause + accepted)
        live = self.get(kind, key).document
        return self._replace(kind, key, live, strategic_merge(live, patch), subresource, manager)

    def json_patch(
        self, kind: Kind, key: Key, operations: list[Json], *, subresource: str = "", manager: str = ""
    ) -> Stored:
        live = self.get(kind, key).document
        try:
            after = jsonpatch.apply_patch(live, operations)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise unprocessable() from error
        return self._replace(kind, key, live, after, subresource, manager)

    def update(self, kind: Kind, key: Key, body: Json, *, subresource: str = "", manager: str = "") -> Stored:
        live = self.get(kind, key).document
        return self._replace(kind, key, live, body, subresource, manager)

    def apply(
        self, kind: Kind, key: Key, body: Json, *, manager: str, force: bool, subresource: str = ""
    ) -> tuple[Stored, bool]:
        """Server-side apply; also says whether the object is new."""
        if not self._tracks(kind):
            raise not_supported(f"server-side apply of {kind.plural}")
        if not manager:
            raise ApiError(
                422, "PatchOptions is invalid: fieldManager: Required value: is required for apply patch"
            )
        found = self.storage.get(kind, key)
        if found is None:
            if subresource:
                raise not_found(kind.qualified, key.name)
            named = {**body, "metadata": {**(body.get("metadata") or {}), "name": key.name}}
            return self.create(kind, key.namespace, named, manager, "Apply"), True
        live = found.document
        self._check_preconditions(kind, key, live, body.get("metadata") or {})
        part = {name: value for name, value in body.items() if (name == "status") is (subresource == "status")}
        if not kind.has_status:
            part = body
        keys = self._admission.list_keys(kind)
        after = apply(live, part, manager, force=force, keys=keys, subresource=subresource)
        after = self._admission.admit(kind, after, live, subresource=subresource)
        return self._store(kind, key, live, after), False

    def assign(self, key: Key, node: str) -> Stored:
        """A pod to a node."""
        live = self.get(PODS, key).document
        return self.storage.put(PODS, key, {**live, "spec": {**live["spec"], "nodeName": node}})

    def delete(self, kind: Kind, key: Key, options: Json) -> Stored:
        """The object as it is afterwards: gone, or with a deletion timestamp while finalizers remain."""
        if kind is NAMESPACES and key.name in _PERMANENT:
            cause = f'namespaces "{key.name}" is forbidden: this namespace may not be deleted'
            raise ApiError(403, cause, name=key.name, kind="namespaces")
        live = self.get(kind, key).document
        self._check_preconditions(kind, key, live, options.get("preconditions") or {})
        policy = options.get("propagationPolicy") or "Background"
        if policy not in ("Background", "Foreground"):
            raise not_supported(f"deletion with the propagation policy {policy}")
        metadata = live["metadata"]
        if policy == "Foreground" and FOREGROUND not in (finalizers := metadata.get("finalizers") or []):
            metadata = {**metadata, "finalizers": [*finalizers, FOREGROUND]}
        grace = self._grace(kind, live, options)
        if not metadata.get("finalizers") and not grace and not self._has_content(kind, key):
            return self.storage.remove(kind, key)
        if metadata.get("deletionTimestamp") and grace >= (metadata.get("deletionGracePeriodSeconds") or 0):
            return self.get(kind, key)
        deleting = {
            **metadata,
            "deletionTimestamp": self.timestamp(grace),
            "deletionGracePeriodSeconds": grace,
            "generation": metadata["generation"] + 1,
        }
        document = {**live, "metadata": deleting}
        if kind is NAMESPACES:
            document["status"] = {"phase": "Terminating"}
        return self.storage.put(kind, key, document)

    def _replace(self, kind: Kind, key: Key, live: Json, after: Json, subresource: str, manager: str) -> Stored:
        check_head(kind, after)
        _check_name(key, after.get("metadata") or {})
        self._check_preconditions(kind, key, live, after.get("metadata") or {})
        if subresource == "status":
            after = {**live, "status": after["status"]} if "status" in after else _without_status(live)
        elif kind.has_status:
            after = {**_without_status(after), **({"status": live["status"]} if "status" in live else {})}
        kept = {field: live["metadata"][field] for field in _IMMUTABLE_METADATA if field in live["metadata"]}
        changed = {f: v for f, v in (after.get("metadata") or {}).items() if f not in _IMMUTABLE_METADATA}
        after = {**after, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**changed, **kept}}
        after = self._admission.admit(kind, after, live, subresource=subresource)
        if self._tracks(kind):
            changed_paths = changed_leaves(live, after, self._admission.list_keys(kind))
            if changed_paths:
                after = with_manager(after, manager, "Update", changed_paths, subresource=subresource)
        return self._store(kind, key, live, after)

    def _store(self, kind: Kind, key: Key, live: Json, after: Json) -> Stored:
        if _content(after) == _content(live):
            # A real API server does not write either, and no watch sees an event.
            return self.get(kind, key)
        metadata = after["metadata"]
        if _spec(after) != _spec(live):
            metadata = {**metadata, "generation": live["metadata"]["generation"] + 1}
        stored = self.storage.put(kind, key, {**after, "metadata": metadata})
        waits = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not waits and not self._has_content(kind, key):
            self.storage.remove(kind, key)
        return stored

    def _tracks(self, kind: Kind) -> bool:
        return self._tracks_managers or kind.tracks_managers

    def _check_preconditions(self, kind: Kind, key: Key, live: Json, wanted: Json) -> None:
        metadata = live["metadata"]
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            cause = (
                f"the UID in the precondition ({wanted['uid']}) does not match the UID in record"
                f" ({metadata['uid']}). The object might have been deleted and then recreated"
            )
            raise conflict(kind.qualified, key.name, cause)
        if (wanted.get("resourceVersion") or metadata["resourceVersion"]) != metadata["resourceVersion"]:
            cause = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind.qualified, key.name, cause)

    def _check_namespace(self, kind: Kind, namespace: str) -> None:
        if not kind.namespaced:
            return
        found = self.storage.get(NAMESPACES, Key("", namespace))
        if found is None:
            raise not_found("namespaces", namespace)
        if found.document["metadata"].get("deletionTimestamp"):
            cause = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, f"{kind.qualified} is forbidden: {cause}")

    def _has_content(self, kind: Kind, key: Key) -> bool:
        """A namespace goes when everything in it is gone (`garbage`)."""
        return kind is NAMESPACES and bool(self.storage.content_of(key.name))

    def _grace(self, kind: Kind, live: Json, options: Json) -> int:
        """Only pods that run on a node have a grace period; their kubelet ends it."""
        if kind is not PODS or not live.get("spec", {}).get("nodeName"):
            return 0
        grace = options.get("gracePeriodSeconds")
        default = live["spec"].get("terminationGracePeriodSeconds", 30)
        return int(default if grace is None else grace)

    def _generated_name(self, prefix: str) -> str:
        return prefix + self._new_uid()[-5:] if prefix else ""

    def timestamp(self, later: int = 0) -> str:
        """Now, or so many seconds later."""
        return (self.now() + timedelta(seconds=later)).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_head(kind: Kind, body: Json) -> None:
    """What is needed to know which object a body is. Raises Undecodable."""
    metadata = body.get("metadata")
    what = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: metadata'
    if not isinstance(metadata, dict | None):
        raise Undecodable(f"{what} is not an object")
    for field in ("name", "generateName", "namespace"):
        if not isinstance((metadata or {}).get(field), str | None):
            raise Undecodable(f"{what}.{field} is not a string")


def _check_name(key: Key, metadata: Json) -> None:
    name = metadata.get("name")
    if not name:
        cause = f"the name of the object ({key.name} based on URL) was undeterminable: name must be provided"
        raise ApiError(400, cause)
    if name != key.name:
        raise ApiError(400, f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    if (metadata.get("namespace") or key.namespace) != key.namespace:
        cause = "the namespace of the provided object does not match the namespace sent on the request"
        raise ApiError(400, cause)


def _without_status(document: Json) -> Json:
    return {field: value for field, value in document.items() if field != "status"}


def _content(document: Json) -> Any:
    """Everything but what the API itself maintains."""
    maintained = ("resourceVersion", "managedFields", "generation")
    metadata = {field: value for field, value in document["metadata"].items() if field not in maintained}
    return {**document, "metadata": metadata}


def _spec(document: Json) -> Any:
    return {field: value for field, value in document.items() if field not in ("metadata", "status")}
