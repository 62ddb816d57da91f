"""What the garbage collector and the namespace controller do: delete what nothing keeps alive any more."""

from imex_sandbox.embedded.kinds import NAMESPACES, Kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Key, owners


def collect(objects: Objects, kinds: tuple[Kind, ...]) -> int:
    """One pass over all objects; returns how many deletions it requested."""
    storage = objects.storage
    alive = {one.document["metadata"]["uid"] for kind in kinds for _, one in storage.all(kind)}
    terminating = {
        key.name for key, one in storage.all(NAMESPACES) if one.document["metadata"].get("deletionTimestamp")
    }
    deleted = 0
    for kind in kinds:
        for key, one in storage.all(kind):
            owned_by = list(owners(one.document))
            orphaned = bool(owned_by) and not alive.intersection(owned_by)
            doomed = key.namespace in terminating
            if (orphaned or doomed) and not one.document["metadata"].get("deletionTimestamp"):
                objects.delete(kind, key, {})
                deleted += 1
    for name in sorted(terminating):
        if not storage.content_of(name):
            objects.delete(NAMESPACES, Key("", name), {})
            deleted += 1
    return deleted
