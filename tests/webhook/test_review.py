"""What is rejected, and what is only warned of."""

from typing import Any

import pytest

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import CHANNEL_CLASS, DRIVER
from imex_dra.webhook.review import Known, Verdict, review
from tests.controller.claims import domain

UID = "5b1f7b52-2f2e-4a55-a0d2-9a8f8f1f0001"


def claim(kind: str = "ResourceClaim", /, **changes: Any) -> dict[str, Any]:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": "uid-job",
        **changes,
    }
    spec = {
        "devices": {
            "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
        }
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "c"},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def pod(template: str = "job-channel", *, listed: bool = True) -> dict[str, Any]:
    claims = [{"name": "imex"}] if listed else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": template}],
            "containers": [{"name": "main", "resources": {"claims": claims}}],
        },
    }


def compute_domain(template: str, nodes: int = 0) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "new"},
        "spec": {"numNodes": nodes, "channel": {"resourceClaimTemplate": {"name": template}}},
    }


JOB: ComputeDomain = domain("job", template="job-channel")
KNOWN = Known((JOB,), largest_partition=18)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(
    ("changes", "known", "reason"),
    [
        ({"unknown": 1}, KNOWN, "unknown"),
        ({"kind": "Other"}, KNOWN, "Invalid enum value"),
        ({"domainID": 7}, KNOWN, "domainID"),
        ({"domainID": "uid-other"}, KNOWN, "uid-other"),
        ({"domainID": "uid-job"}, Known(), "uid-job"),
        ({"domainID": "uid-far"}, Known((JOB,), frozenset({"uid-far"})), "another namespace"),
    ],
    ids=["unknown field", "another kind", "wrong type", "no such one", "none at all", "another namespace"],
)
def test_claims_that_can_never_work(kind: str, changes: dict[str, Any], known: Known, reason: str) -> None:
    verdict = review(claim(kind, **changes), "team", known)
    assert len(verdict.rejections) == 1
    assert reason in verdict.rejections[0]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_claims_of_a_compute_domain_of_the_namespace_pass(kind: str) -> None:
    assert review(claim(kind), "team", KNOWN) == Verdict()


def test_configurations_of_other_drivers_are_not_looked_at() -> None:
    found = claim(unknown=1)
    found["spec"]["devices"]["config"][0]["opaque"]["driver"] = "gpu.nvidia.com"
    assert review(found, "team", KNOWN) == Verdict()


@pytest.mark.parametrize(
    ("found", "known", "id"),
    [
        (pod(listed=False), KNOWN, "IMEX105"),
        (pod("job"), KNOWN, "IMEX101"),
        (pod("imex-channel-0"), Known(), "IMEX102"),
        (compute_domain("job-channel"), KNOWN, "IMEX121"),
        (compute_domain("free"), Known(foreign_template=True), "IMEX121"),
        (compute_domain("free", nodes=19), KNOWN, "IMEX124"),
    ],
)
def test_what_another_object_may_cure_is_warned_of(found: dict[str, Any], known: Known, id: str) -> None:
    verdict = review(found, "team", known)
    assert verdict.rejections == ()
    assert [warning.partition(" ")[0] for warning in verdict.warnings] == [id]


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (pod(), KNOWN),
        (pod("shared"), Known(templates=frozenset({"shared"}))),
        (compute_domain("free", nodes=18), KNOWN),
        (compute_domain("free", nodes=19), Known()),
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": 3, "resourceClaims": "x"}}, KNOWN),
        ({"kind": "Other"}, KNOWN),
        ({}, KNOWN),
    ],
)
def test_everything_else_passes(found: dict[str, Any], known: Known) -> None:
    assert review(found, "team", known) == Verdict()
