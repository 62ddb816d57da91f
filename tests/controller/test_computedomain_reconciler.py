"""ComputeDomains on a real API server: status and Events over a life, templates, deletion."""

import pytest

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key, key_of
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.views import NAMESPACES, RESOURCE_CLAIM_TEMPLATES, Namespace
from imex_dra.base.clock import Clock
from imex_dra.controller.computedomains import ComputeDomainReconciler
from imex_dra.controller.lateclaims import LateClaimReporter
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.claims import claim as claim_object
from tests.controller.claims import configuration
from tests.controller.cluster import Cluster, Reconcilers

pytestmark = pytest.mark.kube

READY_MEMBER = {"state": ImexState.READY, "index": 0}


async def test_a_computedomain_is_ready_from_the_moment_its_claims_are_prepared_until_its_pods_have_ended(
    cluster: Cluster,
) -> None:
    node, domain = await cluster.create_node("a", **READY_MEMBER), await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    assert (await cluster.domain_conditions("one"))["Ready"][:2] == ("False", "NoPodsYet")
    claim = await cluster.create_claim(domain, node, pod="rank-0")
    await cluster.settle(reconcilers, domain)
    assert (await cluster.domain_conditions("one"))["Ready"] == (
        "False",
        "NodesNotReady",
        f"1 of 1 nodes with a claim is not ready: {node} has not prepared the claim of rank-0",
    )
    await cluster.prepare(node, claim)
    await cluster.settle(reconcilers, domain)
    conditions = await cluster.domain_conditions("one")
    assert conditions["Ready"] == ("True", "NodesReady", "1 of 1 nodes with a claim are ready")
    assert conditions["ChannelAssigned"][0] == "True"
    await cluster.delete_claim(claim)
    await cluster.settle(reconcilers, domain)
    assert (await cluster.domain_conditions("one"))["Ready"][:2] == ("False", "PodsEnded")
    assert [event[:2] for event in await cluster.written_events(reconcilers, "one")] == [
        ("Normal", "ChannelAssigned"),
        ("Normal", "NodesReady"),
    ]


async def test_a_failure_is_reported_with_its_cause_and_announced_once(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a", **READY_MEMBER), await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    claim = await cluster.create_claim(domain, node)
    await cluster.settle(reconcilers, domain)
    await cluster.prepare(node, claim)
    await cluster.settle(reconcilers, domain)
    broken = {"fabric": FabricState.BROKEN, "fabric_reason": "3 of 18 links are down"}
    await cluster.report(node, **READY_MEMBER, **broken)
    for _ in range(2):
        await cluster.settle(reconcilers, domain)
    cause = f"1 of 1 nodes with a claim is not ready: {node}: the NVLink fabric is broken (3 of 18 links are down)"
    conditions = await cluster.domain_conditions("one")
    assert conditions["Ready"] == ("False", "NodesNotReady", cause)
    assert conditions["Degraded"] == ("True", "NodesNotReady", cause)
    (entry,) = (await cluster.domains())["one"].status.nodes
    assert (entry.reason, entry.message) == (
        "FabricBroken",
        f"{node}: the NVLink fabric is broken (3 of 18 links are down)",
    )
    await cluster.report(node, **READY_MEMBER)
    await cluster.prepare(node, claim)
    await cluster.settle(reconcilers, domain)
    assert (await cluster.domain_conditions("one"))["Degraded"][0] == "False"
    assert [event[:2] for event in await cluster.written_events(reconcilers, "one")] == [
        ("Normal", "ChannelAssigned"),
        ("Normal", "NodesReady"),
        ("Warning", "NodesNotReady"),
        ("Normal", "Recovered"),
    ]


async def test_a_status_that_only_says_that_pods_start_is_held_back_but_not_the_loss_of_readiness(
    cluster: Cluster,
) -> None:
    node, domain = await cluster.create_node("a", **READY_MEMBER), await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    holding = ComputeDomainReconciler(
        cluster.client, reconcilers.caches, reconcilers.events, Clock(), start_period=600.0
    )
    await cluster.settle(reconcilers, domain)
    first = await cluster.create_claim(domain, node, pod="first")
    await cluster.settle(reconcilers)
    await reconcilers.sync()
    again = await holding.reconcile(key_of(domain))
    assert again is not None
    assert 590 < again < 601
    assert (await cluster.domain_conditions("one"))["Ready"][1] == "NoPodsYet"
    await cluster.prepare(node, first)
    await reconcilers.sync()
    assert await holding.reconcile(key_of(domain)) is None
    assert (await cluster.domain_conditions("one"))["Ready"][0] == "True"
    await cluster.create_claim(domain, node, pod="second")
    await reconcilers.sync()
    assert await holding.reconcile(key_of(domain)) is None
    assert (await cluster.domain_conditions("one"))["Ready"][0] == "False"


async def test_deletion_waits_for_pods_and_names_them_and_then_releases_the_channel(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a"), await cluster.create_domain("one")
    claim = await cluster.create_claim(domain, node, pod="rank-0")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    await cluster.delete_domain("one")
    await cluster.settle(reconcilers, domain)
    waits = (
        f"deletion waits for pods that still hold a channel: {cluster.namespace}/rank-0; delete them, or set the"
        " annotation imex-dra.io/release=now to delete the ComputeDomain now; running pods then keep the channel"
        " device until they end"
    )
    assert (await cluster.domain_conditions("one"))["Deleting"] == ("True", "WaitingForPods", waits)
    assert (await cluster.domains())["one"].status.summary.status == "Deleting"
    assert ("Normal", "WaitingForPods", waits) in await cluster.written_events(reconcilers, "one")
    assert await cluster.channels() == {1: ("one", "Assigned")}
    assert not await cluster.has_template("one")
    await cluster.delete_claim(claim)
    await cluster.settle(reconcilers, domain)
    assert await cluster.channels() == {1: ("one", "Released")}
    assert await cluster.domains() == {}


async def test_a_computedomain_with_1000_pods_says_what_its_deletion_waits_for(cluster: Cluster) -> None:
    domain = await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    await cluster.delete_domain("one")
    await reconcilers.sync()
    uid, namespace = domain.metadata.uid, cluster.namespace
    claims = [
        claim_object(f"c{n:04}", configuration(uid), nodes=(f"n{n}",), namespace=namespace, pods=(f"rank-{n:04}",))
        for n in range(1000)
    ]
    reconcilers.caches.claims.replace(claims)
    await reconcilers.domains.reconcile(key_of(domain))
    status = (await cluster.domains())["one"].status
    message = (await cluster.domain_conditions("one"))["Deleting"][2]
    assert f"{namespace}/rank-0003, {namespace}/rank-0004 and 995 more; delete them" in message
    assert (len(status.nodes), status.nodes_omitted, status.summary.nodes) == (512, 488, "0/1000")
    reconcilers.caches.claims.replace([])
    await reconcilers.domains.reconcile(key_of(domain))
    assert await cluster.domains() == {}


async def test_a_finalizer_of_another_controller_that_keeps_the_object_is_named(cluster: Cluster) -> None:
    domain = await cluster.create_domain("one")
    foreign = {"metadata": {"finalizers": ["example.com/audit"]}}
    await cluster.client.patch(COMPUTE_DOMAINS, key_of(domain), foreign)
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    await cluster.delete_domain("one")
    for _ in range(2):
        await reconcilers.sync()
        await reconcilers.domains.reconcile(key_of(domain))
    assert (await cluster.domains())["one"].metadata.finalizers == ("example.com/audit",)
    assert (await cluster.domain_conditions("one"))["Deleting"] == (
        "True",
        "ForeignFinalizers",
        "imex-dra has released the ComputeDomain; deletion waits for finalizers of others: example.com/audit;"
        " check the controllers that set them",
    )


async def test_a_template_that_the_controller_did_not_create_is_kept_and_reported(cluster: Cluster) -> None:
    domain = await cluster.create_domain("one")
    other = await cluster.create_other_template("one")
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    name = f"{cluster.namespace}/one"
    message = (
        f"ResourceClaimTemplate {name} exists and was not created for ComputeDomain {name}; rename one of them"
    )
    conditions = await cluster.domain_conditions("one")
    assert conditions["Ready"] == conditions["TemplateReady"] == ("False", "TemplateTaken", message)
    assert await cluster.written_events(reconcilers, "one") == [("Warning", "TemplateTaken", message)]
    assert (await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, key_of(other))) == other


async def test_the_controllers_template_is_recognized_as_the_server_stores_it(cluster: Cluster) -> None:
    domain = await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    await reconcilers.sync()
    await reconcilers.domains.reconcile(key_of(domain))
    assert (await cluster.domain_conditions("one"))["TemplateReady"][0] == "True"


async def test_a_template_whose_owner_reference_was_removed_is_reported_and_goes_with_its_computedomain(
    cluster: Cluster,
) -> None:
    domain = await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    template = Key(cluster.namespace, "one")
    await cluster.client.patch(RESOURCE_CLAIM_TEMPLATES, template, {"metadata": {"ownerReferences": None}})
    await reconcilers.sync()
    await reconcilers.domains.reconcile(key_of(domain))
    assert (await cluster.domain_conditions("one"))["TemplateReady"][:2] == ("False", "TemplateOrphaned")
    await cluster.delete_domain("one")
    await reconcilers.sync()
    await reconcilers.domains.reconcile(key_of(domain))
    assert not await cluster.has_template("one")
    assert await cluster.domains() == {}


async def test_a_terminating_namespace_takes_no_template_and_no_event_and_that_is_no_error(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    domain = await cluster.create_domain("one")
    await cluster.create_other_template("two")
    two = await cluster.create_domain("two")
    await terminate(cluster, control_plane)
    reconcilers = await cluster.reconcilers()
    assert await reconcilers.domains.reconcile(key_of(domain)) is None
    await reconcilers.domains.reconcile(key_of(two))
    assert await cluster.written_events(reconcilers, "two") == []
    assert not await cluster.has_template("one")
    output = capsys.readouterr()
    assert "warning" not in output.out + output.err
    assert "error  " not in output.out + output.err


async def terminate(cluster: Cluster, control_plane: ControlPlane) -> None:
    """Deletes the namespace. Without a controller manager it stays, and nothing can be created in it."""
    control_plane.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
    found: Namespace = await cluster.client.get(NAMESPACES, Key("", cluster.namespace))
    assert found.metadata.deletion_timestamp


async def test_a_claim_of_a_computedomain_that_no_longer_exists_gets_an_event(cluster: Cluster) -> None:
    domain = await cluster.create_domain("one")
    late, kept = await cluster.create_claim(domain, "n1", pod="late"), await cluster.create_domain("two")
    await cluster.create_claim(kept, "n1", pod="other")
    await cluster.delete_domain("one")
    reconcilers: Reconcilers = await cluster.reconcilers()
    reporter = LateClaimReporter(reconcilers.caches, reconcilers.events)
    for name in ("late-channel", "other-channel", "no-such-claim"):
        await reporter.reconcile(Key(cluster.namespace, name))
    ((kind, reason, note),) = await cluster.written_events(reconcilers, late.metadata.name)
    assert (kind, reason) == ("Warning", "NoSuchComputeDomain")
    assert f"claim {cluster.namespace}/late-channel names ComputeDomain {domain.metadata.uid}" in note
    assert await cluster.written_events(reconcilers, "other-channel") == []


async def test_claims_that_wait_for_the_scheduler_are_shown_until_it_allocates_them(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a", **READY_MEMBER, max_claims=1), await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    claim = await cluster.create_claim(domain, node, pod="rank-0")
    waiting = await cluster.create_waiting_claim(domain, pod="rank-1")
    await cluster.prepare(node, claim)
    await cluster.settle(reconcilers, domain)
    # Why it waits depends on objects that do not trigger this ComputeDomain.
    assert await reconcilers.domains.reconcile(key_of(domain)) == 30.0
    assert (await cluster.domain_conditions("one"))["Ready"] == (
        "False",
        "ClaimsWaiting",
        f"1 claim waits for a node (rank-1): {node} is full (1 of 1); kubectl describe pod shows what the"
        " scheduler says",
    )
    await cluster.delete_claim(waiting)
    await cluster.settle(reconcilers, domain)
    assert (await cluster.domain_conditions("one"))["Ready"][0] == "True"
    assert await reconcilers.domains.reconcile(key_of(domain)) is None


async def test_a_node_without_nvlink_leads_to_a_warning(cluster: Cluster) -> None:
    node = await cluster.create_node("c", fabric=FabricState.NONE, partition="")
    domain = await cluster.create_domain("one")
    await cluster.prepare(node, await cluster.create_claim(domain, node))
    reconcilers = await cluster.reconcilers()
    await reconcilers.domains.reconcile(key_of(domain))
    message = f"{node} has no NVLink fabric: its pods get no channel"
    assert ("Warning", "NoFabric", message) in await cluster.written_events(reconcilers, "one")
    assert (await cluster.domain_conditions("one"))["ChannelAssigned"] == ("False", "NoFabric", message)
