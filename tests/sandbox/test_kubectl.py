import yaml

from imex_dra.sandbox.kubernetes.kubectl import in_yaml


def test_objects_stay_objects_of_their_own() -> None:
    first, second = {"kind": "One", "text": "a: b\n---\n"}, {"kind": "Two", "on": "yes"}
    assert list(yaml.safe_load_all(in_yaml(first, second))) == [first, second]
