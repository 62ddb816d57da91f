"""The controllers of a leader on a real API server, with real watches: which change triggers which reconcile."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api import metrics
from imex_dra.api.meta import Key
from imex_dra.api.names import CLIQUE_LABEL, NAMESPACE, PartitionId
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState
from imex_dra.api.views import EVENTS, NAMESPACES, NODES, RESOURCE_CLAIM_TEMPLATES
from imex_dra.base.errors import NotFound
from imex_dra.base.telemetry import Telemetry
from imex_dra.controller.leader import Leader, run
from imex_dra.controller.settings import Settings
from imex_dra.kube.client import Client, Selection
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.conftest import install_crds
from tests.controller.cluster import Cluster
from tests.waiting import until_async

pytestmark = pytest.mark.kube


@contextlib.asynccontextmanager
async def running(leader: Leader) -> AsyncIterator[None]:
    task = asyncio.create_task(leader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_a_deleted_template_is_created_again_and_a_name_that_becomes_free_is_used(cluster: Cluster) -> None:
    other = await cluster.create_other_template("two")
    await cluster.create_domain("one")
    await cluster.create_domain("two")

    async def name_is_taken() -> bool:
        conditions = (await cluster.domains())["two"].status.conditions
        return any(condition.reason == "TemplateTaken" for condition in conditions)

    async def has_its_template() -> bool:
        return (await cluster.domain_conditions("two"))["TemplateReady"][0] == "True"

    async with running(Leader(cluster.client, "test")):
        await until_async(lambda: cluster.has_template("one"), what="template one")
        await until_async(name_is_taken)
        created = await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, Key(cluster.namespace, "one"))
        for template in (created, other):
            await cluster.client.delete(RESOURCE_CLAIM_TEMPLATES, template)
        await until_async(lambda: cluster.has_template("one"), what="template one, created again")
        await until_async(lambda: cluster.has_template("two"), what="template two")
        await until_async(has_its_template)
        again = await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, Key(cluster.namespace, "one"))
        assert structs.asdict(again.spec) == structs.asdict(created.spec)


async def test_a_clique_label_that_was_removed_is_restored(cluster: Cluster) -> None:
    node = Key("", await cluster.create_node("a"))

    async def is_labeled() -> bool:
        labels = (await cluster.client.get(NODES, node)).metadata.labels
        return labels.get(CLIQUE_LABEL) == cluster.partition

    async with running(Leader(cluster.client, "test", relabel_delay=0.1)):
        await until_async(is_labeled)
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {CLIQUE_LABEL: None}}})
        await until_async(is_labeled)


async def test_a_change_of_a_nodes_readiness_changes_its_membership(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    node = await cluster.create_node("a", state=ImexState.READY, index=0)

    async def is_member(state: MemberState) -> bool:
        try:
            members = (await cluster.live_partition()).status.members
        except NotFound:
            return False
        await cluster.acknowledge()
        return [(member.node, member.state) for member in members] == [(node, state)]

    async with running(Leader(cluster.client, "test")):
        await until_async(lambda: is_member(MemberState.READY))
        # In a thread: the condition may still have to be written by the leader.
        wait = ("wait", "--for=condition=Ready", f"nvlinkpartition/{cluster.partition}", "--timeout=60s")
        await asyncio.to_thread(control_plane.kubectl, *wait, within=90)
        await cluster.set_node_ready(node, False)
        await until_async(lambda: is_member(MemberState.UNKNOWN))
        await cluster.set_node_ready(node, True)
        await until_async(lambda: is_member(MemberState.READY))


async def test_a_node_that_moves_joins_its_new_partition_when_it_has_left_the_old_one(cluster: Cluster) -> None:
    stays = await cluster.create_node("a")
    moves = await cluster.create_node("b", address="10.0.0.2")
    new = PartitionId(f"{cluster.partition}9")

    async def is_member_of(partition: PartitionId, node: str) -> bool:
        with contextlib.suppress(NotFound):
            await cluster.acknowledge()
            members = (await cluster.client.get(NVLINK_PARTITIONS, Key("", partition))).status.members
            return node in {m.node for m in members if m.state is not MemberState.LEAVING}
        return False

    async def has_condition(reason: str) -> bool:
        conditions = (await cluster.live_partition()).status.conditions
        return any(condition.reason == reason for condition in conditions)

    async with running(Leader(cluster.client, "test")):
        await until_async(cluster.run_daemons)
        await cluster.report(moves, address="10.0.0.2", partition=new)
        await until_async(lambda: has_condition("ContradictedMove"))
        assert not await is_member_of(new, moves)
        await cluster.cut(stays, moves)
        await until_async(lambda: is_member_of(new, moves))
        assert not await is_member_of(cluster.partition, moves)


async def test_a_template_that_loses_its_owner_reference_is_reported(cluster: Cluster) -> None:
    await cluster.create_domain("one")

    async def reason() -> str:
        return (await cluster.domain_conditions("one")).get("TemplateReady", ("", "", ""))[1]

    async with running(Leader(cluster.client, "test")):
        await until_async(lambda: cluster.has_template("one"))
        stripped = {"metadata": {"ownerReferences": None}}
        await cluster.client.patch(RESOURCE_CLAIM_TEMPLATES, Key(cluster.namespace, "one"), stripped)
        await until_async(lambda: is_equal(reason(), "TemplateOrphaned"))


async def test_a_report_of_a_member_without_a_claim_shows_which_node_is_cut_off(cluster: Cluster) -> None:
    a, b, c = [await cluster.create_node(name, address=f"10.0.0.{name}") for name in "abc"]
    domain = await cluster.create_domain("one")

    async def not_ready() -> dict[str, str]:
        nodes = (await cluster.domains())["one"].status.nodes
        return {node.name: node.reason for node in nodes if node.reason}

    async with running(Leader(cluster.client, "test")):
        await until_async(cluster.run_daemons)
        for node in (a, b):
            await cluster.prepare(node, await cluster.create_claim(domain, node, pod=f"pod-{node}"))
        await until_async(lambda: is_condition(cluster, "one", "Ready", "True"))
        await cluster.cut(a, b)
        await cluster.cut(b, a)
        await until_async(lambda: is_equal(not_ready(), dict.fromkeys((a, b), "NodesNotConnected")))
        await cluster.cut(c, b)
        await until_async(lambda: is_equal(not_ready(), {b: "NodesNotConnected"}))


async def test_the_number_of_channels_of_one_node_changes_what_a_computedomain_on_another_one_waits_for(
    cluster: Cluster,
) -> None:
    a, b = [await cluster.create_node(name, address=f"10.0.0.{name}", channel_count=3) for name in "ab"]
    one, two, waiting = [await cluster.create_domain(name) for name in ("one", "two", "waiting")]

    async def waits_for(count: int) -> bool:
        nodes = (await cluster.domains())["waiting"].status.nodes
        return any(node.name == b and f"no free channel: all {count} are" in node.message for node in nodes)

    async with running(Leader(cluster.client, "test")):
        await until_async(cluster.run_daemons)
        for domain in (one, two):
            await cluster.create_claim(domain, a, pod=domain.metadata.name)
        await until_async(lambda: is_equal(cluster.channels_in_use(), 2))
        await cluster.create_claim(waiting, b)
        await until_async(partial(waits_for, 2))
        await cluster.offer_channels(a, 2)
        await until_async(partial(waits_for, 1))


async def test_a_claim_that_is_allocated_after_the_deletion_of_its_computedomain_gets_an_event(
    cluster: Cluster,
) -> None:
    domain = await cluster.create_domain("one")
    await cluster.delete_domain("one")

    async def events() -> list[str]:
        found = await cluster.client.list(
            EVENTS, Selection(cluster.namespace, fields="regarding.name=late-channel")
        )
        return [event.reason for event in found]

    async with running(Leader(cluster.client, "test", late_claim_delay=0.1)):
        await cluster.create_claim(domain, await cluster.create_node("a"), pod="late")
        await until_async(lambda: is_equal(events(), ["NoSuchComputeDomain"]))


async def test_the_life_of_a_computedomain_with_18_pods_costs_9_writes(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """Events aside. Every node has one pod, and reports on its own. Changes are gathered for some time. On a busy
    machine, which needs longer for all of them, each further period may cost a write.
    """
    clock = asyncio.get_running_loop().time
    nodes = [await cluster.create_node(f"n{n:02}", address=f"10.0.0.{n}") for n in range(18)]
    client = Client.connect("imex-leader", control_plane.kubeconfig())
    async with running(Leader(client, "test")):
        await until_async(cluster.run_daemons)
        domain = await cluster.create_domain("one")
        await until_async(lambda: is_condition(cluster, "one", "Ready", "False"))
        # The API server logs a request after it has responded.
        await until_async(lambda: len(writes(control_plane, cluster)) >= 3)
        before = len(writes(control_plane, cluster))
        began = clock()
        claims = {node: await cluster.create_claim(domain, node, pod=f"pod-{node}") for node in nodes}
        for node, claim in claims.items():
            await cluster.prepare(node, claim)
        await until_async(lambda: is_condition(cluster, "one", "Ready", "True"))
        ready = clock()
        for claim in claims.values():
            await cluster.delete_claim(claim)
        deleted = clock()
        await until_async(lambda: is_condition(cluster, "one", "Ready", "False"))
        await cluster.delete_domain("one")
        await until_async(lambda: is_equal(cluster.domains(), {}))
    await client.close()
    made = writes(control_plane, cluster)
    assert before == 3, made[:before]
    allowed = 9 + (ready - began) // 3.0 + (deleted - ready) // 0.6
    assert len(made) <= allowed, made


async def test_metrics_and_readiness_of_a_controller_that_becomes_leader(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    control_plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    telemetry = Telemetry()
    client = Client.connect("imex-controller", control_plane.kubeconfig(), metrics=telemetry.metrics)
    await cluster.create_domain("one")
    await cluster.create_node("a")
    task = asyncio.create_task(
        run(client, namespace=NAMESPACE, settings=Settings(daemon_certificates=False), telemetry=telemetry)
    )

    async def ready() -> bool:
        return (await telemetry.server.routes["GET", "/readyz"](b"")).body == b"[+]lease ok\n[+]caches ok\nok\n"

    def shows(series: str) -> bool:
        return series in telemetry.metrics.text()

    def says(*lines: str) -> bool:
        return set(lines) <= set(telemetry.metrics.text().splitlines())

    try:
        await asyncio.sleep(0)
        assert says("imex_dra_leader_status 0")
        response = await telemetry.server.routes["GET", "/readyz"](b"")
        assert response.body == b"[-]lease: the Lease has not been read yet\nfailed\n"
        await until_async(ready)
        assert says("imex_dra_leader_status 1")
        down = f'imex_dra_partition_state{{partition="{cluster.partition}",state="DOWN"}} 1'
        await until_async(lambda: says(down))
        for series in (
            'imex_dra_computedomain_objects{state="NoPods",reason="NoPodsYet"}',
            'imex_dra_computedomain_reconcile_seconds_count{result="ok"}',
            "imex_dra_computedomain_queue_keys",
        ):
            await until_async(partial(shows, series))
        found = telemetry.metrics.text()
        names = {line.split()[2] for line in found.splitlines() if line.startswith("# TYPE")}
        assert names <= {metric.name for metric in metrics.ALL}
        with pytest.raises(NotFound):
            await client.get(NODES, Key("", "no-such-node"))
        assert 'imex_dra_api_errors_total{reason="NotFound"}' in telemetry.metrics.text()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await client.close()
    assert task.cancelled()
    assert says("imex_dra_leader_status 0")
    assert "imex_dra_partition_members" not in telemetry.metrics.text()


@pytest.mark.slow
async def test_a_namespace_is_deleted_with_everything_in_it_and_no_error_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a real namespace controller, which deletes the objects of all kinds at the same time."""
    with ControlPlane(tmp_path / "cp", scheduler=False) as control_plane:
        install_crds(control_plane)
        client = Client.connect("imex-controller", control_plane.kubeconfig())
        cluster = await Cluster(client).set_up()
        node = await cluster.create_node("a")
        async with running(Leader(client, "test")):
            await until_async(cluster.run_daemons)
            for name in ("one", "two"):
                domain = await cluster.create_domain(name)
                claim = await cluster.create_claim(domain, node, pod=f"pod-{name}")
                await cluster.prepare(node, claim)
                await until_async(partial(is_condition, cluster, name, "Ready", "True"))
            await cluster.create_domain("unused")
            capsys.readouterr()
            await client.delete(NAMESPACES, await client.get(NAMESPACES, Key("", cluster.namespace)))
            await until_async(lambda: is_gone(cluster))
        await client.close()
    lines = "".join(capsys.readouterr()).splitlines()
    assert [line for line in lines if "[warning" in line or "[error" in line] == []


async def is_gone(cluster: Cluster) -> bool:
    try:
        await cluster.client.get(NAMESPACES, Key("", cluster.namespace))
    except NotFound:
        return True
    return False


async def is_condition(cluster: Cluster, domain: str, type_: str, status: str) -> bool:
    return (await cluster.domain_conditions(domain)).get(type_, ("", "", ""))[0] == status


async def is_equal(found: Awaitable[object], expected: object) -> bool:
    return await found == expected


def writes(control_plane: ControlPlane, cluster: Cluster) -> list[str]:
    """What the leader wrote for the ComputeDomain: its own objects, and its partition since its last member."""
    made: list[str] = []
    # What follows the last line break may be half a line.
    for line in control_plane.audit_log.read_text().split("\n")[:-1]:
        event = json.loads(line)
        if not event["userAgent"].startswith("imex-leader") or event["verb"] not in ("create", "patch", "delete"):
            continue
        target = event["objectRef"]
        if target["resource"] == "nvlinkpartitions" and target.get("name") == cluster.partition:
            made.append("partition")
        elif target.get("namespace") == cluster.namespace and target["resource"] != "events":
            made.append(f"{event['verb']} {target['resource']}/{target.get('subresource', '')}")
    first = next((number for number, one in enumerate(made) if one != "partition"), len(made))
    return made[first:]
