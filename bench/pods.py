"""Pods as a watch delivers them: variations of one pod that was recorded from Kubernetes 1.36.

The recorded pod belongs to a Job and has two resource claims, a status written by a kubelet, and managed fields.
The values that differ between the pods of a cluster (names, UIDs, node, addresses, versions) are generated from a
number.
"""

import hashlib
import json
from pathlib import Path

PODS_PER_JOB = 18

_TEMPLATE = json.dumps(json.loads((Path(__file__).parent / "pod.json").read_text()), separators=(",", ":"))
_LIST_END = '{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1",\
"annotations":{"k8s.io/initial-events-end":"true"}}}'


def pod(number: int) -> bytes:
    return (_TEMPLATE % _differences(number)).encode()


def added(number: int) -> bytes:
    """The line of a watch that delivers this pod."""
    return _event("ADDED", pod(number))


def list_end() -> bytes:
    """The bookmark that ends a streamed list."""
    return _event("BOOKMARK", _LIST_END.encode())


def _event(type_: str, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (type_.encode(), obj)


def _differences(number: int) -> dict[str, object]:
    job, node = divmod(number, PODS_PER_JOB)
    digest = hashlib.sha256(b"pod %d" % number).hexdigest()
    return {
        "job": f"train-{job}",
        "job_uid": _uid(hashlib.sha256(b"job %d" % job).hexdigest()),
        "name": f"train-{job}-{digest[:5]}",
        "uid": _uid(digest),
        "suffix": digest[5:10],
        "version": 1000 + number,
        "node": f"rack-{job % 60}-n{node:02}",
        "host": f"10.20.{job % 60}.{node}",
        "address": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "container": digest,
    }


def _uid(digest: str) -> str:
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"
