import yaml

from imex_sandbox.kubernetes.kubectl import to_yaml


def test_each_object_is_a_document_of_its_own() -> None:
    first, second = {"kind": "One", "text": "a: b\n---\n"}, {"kind": "Two", "on": "yes"}
    assert list(yaml.safe_load_all(to_yaml(first, second))) == [first, second]
