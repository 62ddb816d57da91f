"""Events: those of the controllers, and their two versions.

`events.k8s.io` is stored; the older version of the core group has other names of fields.
"""

import hashlib
from collections.abc import Callable

import structlog

from imex_sandbox.embedded.kinds import CORE_EVENTS, EVENTS, Kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Key

log = structlog.get_logger()

_TO_CORE = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
_FROM_CORE = {core: name for name, core in _TO_CORE.items()}


def to_core(document: Json) -> Json:
    renamed = {_TO_CORE.get(name, name): value for name, value in document.items()}
    defaults = {"involvedObject": {}, "source": {}, "reportingComponent": "", "reportingInstance": ""}
    return {**defaults, **renamed, "apiVersion": CORE_EVENTS.api_version, "kind": CORE_EVENTS.kind}


def from_core(document: Json) -> Json:
    renamed = {_FROM_CORE.get(name, name): value for name, value in document.items() if value is not None}
    return {**renamed, "apiVersion": EVENTS.api_version, "kind": EVENTS.kind}


def for_each(objects: Objects, kind: Kind, controller: str, work: Callable[[Key, Json], object]) -> None:
    """What a controller does with all objects of a kind. One that it cannot handle must not stop the others."""
    for key, one in objects.storage.all(kind):
        try:
            work(key, one.document)
        except Exception as error:
            if record(objects, one.document, "Warning", "FailedSync", failure(error), controller):
                log.exception("a controller failed", kind=kind.kind, namespace=key.namespace, name=key.name)


def failure(error: Exception) -> str:
    if isinstance(error, ApiError):
        return str(error)
    return f"the embedded control plane cannot handle this object: {type(error).__name__}: {error}"


def record(objects: Objects, about: Json, severity: str, reason: str, message: str, controller: str) -> bool:
    """An Event, once for each message about an object. Returns whether it is new."""
    metadata, now = about["metadata"], objects.now().isoformat(timespec="microseconds")
    digest = hashlib.sha256(f"{metadata['uid']}/{reason}/{message}".encode()).hexdigest()[:16]
    name, namespace = f"{metadata['name']}.{digest}", metadata.get("namespace", "default")
    if objects.storage.get(EVENTS, Key(namespace, name)) is not None:
        return False
    regarding = {field: about[field] for field in ("apiVersion", "kind")}
    regarding |= {field: metadata[field] for field in ("namespace", "name", "uid") if field in metadata}
    body = {
        "metadata": {"name": name},
        "regarding": regarding,
        "type": severity,
        "reason": reason,
        "note": message,
        "action": reason,
        "eventTime": now.replace("+00:00", "Z"),
        "reportingController": controller,
        "reportingInstance": controller,
    }
    try:
        objects.create(EVENTS, namespace, body, controller)
    except ApiError:
        return False  # the namespace is being deleted
    return True
