"""What the garbage collector and the namespace controller do: delete what nothing keeps alive any more."""

from imex_sandbox.embedded.kinds import NAMESPACES, Kind
from imex_sandbox.embedded.objects import FOREGROUND, Objects
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key, owners


def collect(objects: Objects, kinds: tuple[Kind, ...]) -> int:
    """One pass over all objects; returns how many deletions it requested or completed."""
    storage = objects.storage
    everything = [(kind, key, one.document) for kind in kinds for key, one in storage.all(kind)]
    waiting = {
        document["metadata"]["uid"]: (kind, key, document)
        for kind, key, document in everything
        if waits_for_dependents(document)
    }
    alive = {document["metadata"]["uid"] for _, _, document in everything} - waiting.keys()
    terminating = {
        key.name for key, one in storage.all(NAMESPACES) if one.document["metadata"].get("deletionTimestamp")
    }
    deleted = 0
    for kind, key, document in everything:
        owned_by = list(owners(document))
        orphaned = bool(owned_by) and not alive.intersection(owned_by)
        doomed = key.namespace in terminating
        if (orphaned or doomed) and not document["metadata"].get("deletionTimestamp"):
            objects.delete(kind, key, {})
            deleted += 1
    blocked = {
        reference["uid"]
        for kind in kinds
        for _, one in storage.all(kind)
        if not alive.intersection(owners(one.document))
        for reference in one.document["metadata"].get("ownerReferences") or ()
        if reference.get("blockOwnerDeletion")
    }
    for uid in waiting.keys() - blocked:
        kind, key, document = waiting[uid]
        left = [name for name in document["metadata"]["finalizers"] if name != FOREGROUND]
        objects.patch(kind, key, {"metadata": {"finalizers": left}}, manager="embedded-controllers")
        deleted += 1
    for name in sorted(terminating):
        if not storage.content_of(name):
            objects.delete(NAMESPACES, Key("", name), {})
            deleted += 1
    return deleted


def waits_for_dependents(document: Json) -> bool:
    """Deleted in the foreground: its dependents go first."""
    metadata = document["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND in (metadata.get("finalizers") or ())
