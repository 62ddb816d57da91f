import json

from imex_dra.sandbox.kubernetes.kubectl import listed


def test_several_objects_are_one_document_which_every_kubectl_reads() -> None:
    first, second = {"kind": "Namespace"}, {"kind": "Pod"}
    assert json.loads(listed(first, second)) == {"apiVersion": "v1", "kind": "List", "items": [first, second]}
