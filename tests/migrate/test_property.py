"""Whatever the manifests and their format: the output lints clean, and nothing else is changed."""

import copy
import random
from typing import Any

import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from imex_dra.migrate.migration import migrate
from tests.migrate.manifests import DEVICES, LEGACY_MOUNT, VARIABLE, Plain, files

random_manifests = settings(max_examples=25, deadline=None, phases=[Phase.generate])
"""A smaller seed does not make smaller manifests: shrinking would be useless."""
many_manifests = settings(random_manifests, max_examples=100)
"""Insertions that meet in one place, in the wrong order, break one in twenty."""

LABEL = "imex-dra.io/workload"


def parsed(texts: dict[str, str]) -> list[Plain]:
    return [document for text in texts.values() for document in yaml.safe_load_all(text) if document]


def pod_specs(value: Any) -> list[Plain]:
    if isinstance(value, list):
        return [found for one in value for found in pod_specs(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [found for one in value.values() for found in pod_specs(one)]


def without_requests(documents: list[Plain]) -> list[Plain]:
    """What a careful person would remove; an independent implementation."""
    documents = copy.deepcopy(documents)
    for spec in pod_specs(documents):
        volumes = spec.get("volumes", [])
        spec["volumes"] = [one for one in volumes if one["name"] not in ("request", "channels")]
        for one in spec["containers"]:
            one["env"] = [entry for entry in one.get("env", ()) if entry["name"] != VARIABLE]
            one["volumeMounts"] = [
                entry
                for entry in one.get("volumeMounts", ())
                if entry["mountPath"] != LEGACY_MOUNT and entry["name"] != "channels"
            ]
            if f"{VARIABLE}=0" in one.get("command", ()):
                one["command"] = ["mpirun", "train"]
    return documents


def without_additions(documents: list[Plain]) -> list[Plain]:
    """Without claims, affinity and labels that migrate adds, and without ComputeDomains."""
    documents = [document for document in copy.deepcopy(documents) if document["kind"] != "ComputeDomain"]
    for spec in pod_specs(documents):
        claims = spec.pop("resourceClaims", ())
        assert all(set(claim) == {"name", "resourceClaimTemplateName"} for claim in claims)
        (spec.get("affinity") or {}).pop("podAffinity", None)
        for one in spec["containers"]:
            (one.get("resources") or {}).pop("claims", None)
    return [_without_label(document) for document in documents]


def _without_label(value: Any) -> Any:
    """And without what is empty, which is the same to Kubernetes."""
    match value:
        case dict():
            items = {key: _without_label(item) for key, item in value.items() if key != LABEL}
            return {key: item for key, item in items.items() if item not in (None, {}, [])}
        case list():
            return [_without_label(item) for item in value]
    return value


def comments(texts: dict[str, str]) -> list[str]:
    lines = [line for text in texts.values() for line in text.splitlines()]
    return ["# comment" + line.rpartition("# comment")[2] for line in lines if "# comment" in line]


@many_manifests
@given(st.integers(0, 10**9))
def test_the_output_lints_clean_and_nothing_else_changes(seed: int) -> None:
    texts, written = files(random.Random(seed))
    before = parsed(texts)
    done = migrate(texts)
    after = parsed(done.after)

    assert done.by_hand == []
    assert done.findings == []
    assert VARIABLE not in str(after)
    assert DEVICES not in str(after)
    assert without_additions(after) == without_additions(without_requests(before))
    assert comments(done.after) == comments(texts)
    assert len(comments(texts)) == len(written)
    assert migrate(done.after).changed == []


@random_manifests
@given(st.integers(0, 10**9))
def test_every_workload_with_a_channel_has_a_compute_domain_of_its_own(seed: int) -> None:
    texts, _ = files(random.Random(seed))
    done = migrate(texts)
    after = parsed(done.after)
    templates = [
        document["spec"]["channel"]["resourceClaimTemplate"]["name"]
        for document in after
        if document["kind"] == "ComputeDomain"
    ]
    assert len(set(templates)) == len(templates)
    users: dict[str, set[str]] = {}
    for document in after:
        name = "Pods" if document["kind"] == "Pod" else document["metadata"]["name"]
        for spec in pod_specs(document):
            for claim in spec.get("resourceClaims", ()):
                users.setdefault(claim["resourceClaimTemplateName"], set()).add(name)
    assert set(users) <= set(templates)
    assert all(len(names) == 1 for names in users.values())


@random_manifests
@given(st.integers(0, 10**9))
def test_line_breaks_of_windows_stay(seed: int) -> None:
    texts, _ = files(random.Random(seed))
    windows = {name: text.replace("\n", "\r\n") for name, text in texts.items()}
    expected = {name: text.replace("\n", "\r\n") for name, text in migrate(texts).after.items()}
    assert migrate(windows).after == expected
