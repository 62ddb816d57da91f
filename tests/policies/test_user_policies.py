"""What users of a namespace can do with ComputeDomains, and what only the controller can."""

import pytest

from imex_dra.api.names import DOMAIN_FINALIZER, PLACEMENT_ANNOTATION, READINESS_ANNOTATION, RELEASE_ANNOTATION
from tests.policies.conftest import CLUSTER_ROLES
from tests.policies.guarded import NVLINK_NODES, Guarded, refusal
from tests.policies.test_node_policies import DRY, allowed, denied
from tests.waiting import until_async

pytestmark = pytest.mark.kube

NVLINK_PARTITIONS = "/apis/imex-dra.io/v1alpha1/nvlinkpartitions"


async def test_roles(guarded: Guarded) -> None:
    """Roles of Kubernetes that the controller manager fills from the aggregated ones."""
    viewer, editor = guarded.user("viewer"), guarded.user("editor")
    await allowed(lambda: editor.post(guarded.domains, guarded.domain("one")))
    await allowed(lambda: viewer.read(f"{guarded.domains}/one"))
    await allowed(lambda: editor.read(f"{guarded.domains}/one"))
    assert 'cannot create resource "computedomains"' in await refusal(
        viewer.post(guarded.domains, guarded.domain("two"))
    )
    status = {"status": {"status": "Ready"}}
    assert 'cannot patch resource "computedomains/status"' in await refusal(
        editor.change(f"{guarded.domains}/one/status", status)
    )
    # A RoleBinding gives no right to objects without a namespace.
    assert "cannot list" in await refusal(viewer.read(NVLINK_NODES))
    await editor.remove(f"{guarded.domains}/one")


@pytest.mark.parametrize("name", CLUSTER_ROLES)
async def test_users_with_a_role_for_the_whole_cluster_read_racks_and_change_nothing(
    guarded: Guarded, name: str
) -> None:
    user = guarded.user(name)
    for path in (NVLINK_NODES, NVLINK_PARTITIONS):
        await allowed(lambda path=path: user.read(path))  # type: ignore[misc]
        for part in ("", "/status"):
            labels = {"metadata": {"labels": {"changed": "yes"}}}
            assert "cannot patch" in await refusal(user.change(f"{path}/any{part}", labels))


async def test_only_the_controller_and_administrators_write_status(guarded: Guarded) -> None:
    owner, path = guarded.user("owner"), f"{guarded.domains}/one/status"
    status = {"status": {"status": "Ready"}}
    await allowed(lambda: owner.post(guarded.domains, guarded.domain("one")))
    await denied(lambda: owner.change(path, status, **DRY), "only imex controller writes the status")
    await allowed(lambda: guarded.account("imex-controller").change(path, status))
    await allowed(lambda: guarded.admin.change(path, status))


async def test_only_the_controller_and_administrators_write_the_finalizer(guarded: Guarded) -> None:
    owner, path = guarded.user("owner"), f"{guarded.domains}/one"
    reason = f"only imex controller adds and removes the finalizer {DOMAIN_FINALIZER}"
    forged = guarded.domain("forged")
    forged["metadata"]["finalizers"] = [DOMAIN_FINALIZER]
    await denied(lambda: owner.post(guarded.domains, forged, **DRY), reason)
    await allowed(lambda: owner.post(guarded.domains, guarded.domain("one")))
    ours = {"metadata": {"finalizers": [DOMAIN_FINALIZER]}}
    await denied(lambda: owner.change(path, ours, **DRY), reason)
    await allowed(lambda: guarded.account("imex-controller").change(path, ours))
    await denied(lambda: owner.change(path, {"metadata": {"finalizers": None}}, **DRY), reason)
    both = {"metadata": {"finalizers": [DOMAIN_FINALIZER, "example.com/mine"]}}
    await allowed(lambda: owner.change(path, both))
    await allowed(lambda: owner.change(path, {"metadata": {"labels": {"team": "a"}}}))
    await owner.remove(path)
    await denied(lambda: owner.change(path, {"metadata": {"finalizers": None}}, **DRY), reason)
    await allowed(lambda: owner.change(path, ours))
    await allowed(lambda: guarded.account("imex-controller").change(path, {"metadata": {"finalizers": None}}))
    assert "not found" in await refusal(guarded.admin.read(path))


async def test_a_release_needs_the_right_to_delete(guarded: Guarded) -> None:
    creator, editor, path = guarded.user("creator"), guarded.user("editor"), f"{guarded.domains}/one"
    reason = f"the annotation {RELEASE_ANNOTATION} needs the right to delete"
    annotated = guarded.domain("annotated", **{RELEASE_ANNOTATION: "now"})
    await denied(lambda: creator.post(guarded.domains, annotated, **DRY), reason)
    await allowed(lambda: creator.post(guarded.domains, guarded.domain("one")))
    release = {"metadata": {"annotations": {RELEASE_ANNOTATION: "now"}}}
    await denied(lambda: creator.change(path, release, **DRY), reason)
    await allowed(lambda: editor.change(path, release))
    # What is there already does not concern who changes something else.
    await allowed(lambda: creator.change(path, {"metadata": {"annotations": {"note": "a"}}}))


@pytest.mark.parametrize(
    ("annotation", "wrong", "right"),
    [
        (RELEASE_ANNOTATION, "yes", "now"),
        (READINESS_ANNOTATION, "peers", "members"),
        (PLACEMENT_ANNOTATION, "same-rack", "same-partition"),
    ],
)
async def test_annotations_have_known_values(guarded: Guarded, annotation: str, wrong: str, right: str) -> None:
    editor, reason = guarded.user("editor"), f"the annotation {annotation} has the value"
    mistaken = guarded.domain("mistaken", **{annotation: wrong})
    await denied(lambda: editor.post(guarded.domains, mistaken, **DRY), reason)
    await allowed(lambda: editor.post(guarded.domains, guarded.domain("one", **{annotation: right}), **DRY))


@pytest.mark.parametrize("annotation", [RELEASE_ANNOTATION, READINESS_ANNOTATION, PLACEMENT_ANNOTATION])
async def test_a_value_that_is_stored_already_hinders_nobody(guarded: Guarded, annotation: str) -> None:
    """Stored before the policies were installed, for example. The controller must remove its finalizer."""
    admin, path = guarded.admin, f"{guarded.domains}/one"
    stored = guarded.domain("one", **{annotation: "odd"})
    stored["metadata"]["finalizers"] = [DOMAIN_FINALIZER]
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    binding = await admin.read(f"{bindings}/imex-computedomain-metadata")

    async def is_stored() -> bool:
        return not await refusal(admin.post(guarded.domains, stored))

    await admin.remove(f"{bindings}/imex-computedomain-metadata")
    try:
        await until_async(is_stored)
    finally:
        restored = {**binding, "metadata": {"name": binding["metadata"]["name"]}}
        await admin.post(bindings, restored)
    odd = {"metadata": {"annotations": {annotation: "even"}}}
    await denied(lambda: admin.change(path, odd, **DRY), f"the annotation {annotation} has the value")
    await allowed(lambda: admin.change(path, {"metadata": {"labels": {"team": "a"}}}))
    await admin.remove(path)
    await allowed(lambda: guarded.account("imex-controller").change(path, {"metadata": {"finalizers": None}}))
    assert "not found" in await refusal(admin.read(path))


async def test_all_channels_without_permission_is_warned_of(guarded: Guarded) -> None:
    domain = guarded.domain("one")
    domain["spec"]["channel"]["allocationMode"] = "All"

    async def warned() -> bool:
        found = await guarded.admin.warnings(guarded.domains, domain)
        return any("opens the memory of every workload" in warning for warning in found)

    await until_async(warned)
    assert await guarded.admin.warnings(guarded.domains, guarded.domain("single")) == []
    labels = {"metadata": {"labels": {"imex-dra.io/all-channels": "allowed"}}}
    await guarded.admin.change(f"/api/v1/namespaces/{guarded.namespace}", labels)

    async def silent() -> bool:
        return not await warned()

    await until_async(silent)


async def test_a_quota_limits_the_number_of_compute_domains(guarded: Guarded) -> None:
    hard = {"count/computedomains.resource.nvidia.com": "1"}
    quotas = f"/api/v1/namespaces/{guarded.namespace}/resourcequotas"
    await guarded.admin.post(quotas, {"metadata": {"name": "domains"}, "spec": {"hard": hard}})

    # It looks for kinds that it does not know yet only every 30 s, and at its start.
    manager = next(p for p in guarded.control_plane.processes if p.name == "kube-controller-manager")
    manager.stop(within=0)
    manager.start()

    async def is_counted() -> bool:
        return bool((await guarded.admin.read(f"{quotas}/domains")).get("status", {}).get("used"))

    await until_async(is_counted)
    editor = guarded.user("editor")
    await allowed(lambda: editor.post(guarded.domains, guarded.domain("one")))
    assert "exceeded quota: domains" in await refusal(editor.post(guarded.domains, guarded.domain("two")))
    await editor.remove(f"{guarded.domains}/one")

    async def is_free_again() -> bool:
        return not await refusal(editor.post(guarded.domains, guarded.domain("two")))

    await until_async(is_free_again)
