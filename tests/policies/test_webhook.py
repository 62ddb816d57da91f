"""`imex webhook` and the controller's certificates on a real API server, each with its own token."""

import asyncio
import socket
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.api.names import (
    AUTHORITY_SECRET,
    CLIQUE_LABEL,
    DOMAIN_LABEL,
    DRIVER,
    NAMESPACE,
    PLACEMENT_ANNOTATION,
    SAME_PARTITION,
    WEBHOOK,
    WEBHOOK_SECRET,
)
from imex_dra.api.views import SECRETS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError
from imex_dra.base.telemetry import Telemetry
from imex_dra.controller.certificates import CertificateKeeper, Leaf
from imex_dra.controller.issuing import KeyPair, Request, issue
from imex_dra.kube.client import Client
from imex_dra.kube.store import Store
from imex_dra.webhook.configuration import manifests
from imex_dra.webhook.program import PATH, run
from imex_dra.webhook.server import Reviewer
from tests.node.publishing_node import running
from tests.policies.guarded import Body, Guarded, refusal
from tests.waiting import until_async

pytestmark = pytest.mark.kube

DRY = {"dryRun": "All"}
UNKNOWN = "5b1f7b52-2f2e-4a55-a0d2-9a8f8f1f0001"
CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations" for kind in ("validating", "mutating")
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Webhook:
    """A webhook that the API server calls for one namespace."""

    def __init__(self, guarded: Guarded, directory: Path) -> None:
        self.guarded, self.directory, self.port = guarded, directory, free_port()
        self.telemetry = Telemetry()
        self.keeper = CertificateKeeper(
            guarded.account("imex-controller"), NAMESPACE, Clock(), [Leaf(WEBHOOK_SECRET, "localhost", WEBHOOK)]
        )

    async def configure(self) -> None:
        for document, path in zip(manifests(), CONFIGURATIONS, strict=True):
            for webhook in document["webhooks"]:
                webhook["clientConfig"] = {
                    "url": f"https://localhost:{self.port}{webhook['clientConfig']['service']['path']}"
                }
                here = {"kubernetes.io/metadata.name": self.guarded.namespace}
                webhook["namespaceSelector"]["matchLabels"] = here
            await refusal(self.guarded.admin.remove(f"{path}/{WEBHOOK}"))
            await self.guarded.admin.post(path, document)
        await self.keeper.keep()

    async def secret(self, name: str) -> dict[str, str]:
        found = await self.guarded.admin.get(SECRETS, Key(NAMESPACE, name))
        return {file: b64decode(content).decode() for file, content in found.data.items()}

    def mount(self, content: dict[str, str]) -> None:
        for name in ("tls.key", "tls.crt"):
            (self.directory / name).write_text(content[name])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        client = self.guarded.account("imex-webhook")
        program = run(
            client,
            host="127.0.0.1",
            port=self.port,
            certificates=self.directory,
            telemetry=self.telemetry,
            reload_period=0.1,
        )

        async def is_ready() -> bool:
            return (await self.telemetry.server.routes["GET", "/readyz"](b"")).status == 200

        async with running(program):
            await until_async(is_ready)
            yield

    def reviews(self, result: str) -> int:
        """How many had this result, as its metrics say."""
        name = f'imex_dra_review_seconds_count{{result="{result}"}}'
        lines = (line.split() for line in self.telemetry.metrics.text().splitlines())
        return sum(int(line[-1]) for line in lines if line[0] == name)

    async def verdict(self) -> str:
        """What the API server says of a claim that can never work."""
        return await refusal(self.guarded.admin.post(self.guarded.claims, claim(UNKNOWN), **DRY))

    async def rejects(self) -> bool:
        return UNKNOWN in await self.verdict()

    async def admits(self) -> bool:
        return not await self.verdict()


@pytest.fixture
async def webhook(guarded: Guarded, tmp_path: Path) -> AsyncIterator[Webhook]:
    created = Webhook(guarded, tmp_path)
    await created.configure()
    created.mount(await created.secret(WEBHOOK_SECRET))
    yield created
    for path in CONFIGURATIONS:
        await guarded.admin.remove(f"{path}/{WEBHOOK}")


def claim(uid: str, driver: str = DRIVER) -> Body:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"generateName": "claim-"},
        "spec": {
            "devices": {
                "requests": [{"name": "channel", "exactly": {"deviceClassName": "any"}}],
                "config": [{"opaque": {"driver": driver, "parameters": parameters}}],
            }
        },
    }


def pod(**resources: Any) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "imex", "resourceClaimTemplateName": "one-channel"}],
            "containers": [{"name": "main", "image": "x", "resources": resources}],
        },
    }


async def test_objects_are_reviewed_with_what_the_cluster_has(webhook: Webhook) -> None:
    guarded, admin = webhook.guarded, webhook.guarded.admin
    async with webhook.serving():
        await until_async(webhook.rejects)
        domain = await admin.post(guarded.domains, guarded.domain("one"))
        # The watch may lag: what it lacks is read.
        assert await refusal(admin.post(guarded.claims, claim(domain["metadata"]["uid"]), **DRY)) == ""
        assert await refusal(admin.post(guarded.claims, claim(UNKNOWN, "gpu.nvidia.com"), **DRY)) == ""

        async def warnings(path: str, body: Body) -> list[str]:
            return await admin.warnings(path, body)

        second = guarded.domain("two")
        second["spec"]["channel"]["resourceClaimTemplate"]["name"] = "one-channel"

        async def is_warned() -> bool:
            return any("IMEX121" in warning for warning in await warnings(guarded.domains, second))

        await until_async(is_warned)
        pods = f"/api/v1/namespaces/{guarded.namespace}/pods"

        async def has_account() -> bool:
            return not await refusal(admin.post(pods, pod(claims=[{"name": "imex"}]), **DRY))

        await until_async(has_account)
        assert any("IMEX105" in warning for warning in await warnings(pods, pod()))
        assert webhook.reviews("warned") >= 2
        admitted = webhook.reviews("admitted")
        assert await warnings(pods, pod(claims=[{"name": "imex"}])) == []
        # By the validating and by the mutating webhook.
        assert webhook.reviews("admitted") - admitted == 2


async def test_a_compute_domain_that_the_watch_has_not_delivered_is_read(guarded: Guarded) -> None:
    domain = await guarded.admin.post(guarded.domains, guarded.domain("one"))
    domains: Store[ComputeDomain] = Store(
        namespace=lambda domain: [domain.metadata.namespace], uid=lambda domain: [domain.metadata.uid]
    )
    answer = Reviewer(guarded.account("imex-webhook"), domains, Store()).validating()

    async def allowed_in(namespace: str, uid: str) -> bool:
        request = {"uid": "u", "operation": "CREATE", "namespace": namespace, "object": claim(uid)}
        body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})
        return bool(msgspec.json.decode((await answer(body)).body)["response"]["allowed"])

    assert await allowed_in(guarded.namespace, domain["metadata"]["uid"])
    assert not await allowed_in("another", domain["metadata"]["uid"])
    assert not await allowed_in(guarded.namespace, UNKNOWN)


async def test_pods_are_kept_in_one_partition_if_their_compute_domain_or_namespace_asks_for_it(
    webhook: Webhook,
) -> None:
    guarded, admin = webhook.guarded, webhook.guarded.admin
    pods = f"/api/v1/namespaces/{guarded.namespace}/pods"

    async def placed(template: str) -> str:
        """UID of the ComputeDomain near whose pods it runs."""
        requested = pod(claims=[{"name": "imex"}])
        requested["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
        try:
            found = await admin.post(pods, requested, **DRY)
        except ImexError:
            return "the namespace has no service account yet"
        terms = found["spec"].get("affinity", {}).get("podAffinity", {})
        required = terms.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        uids = [term["labelSelector"]["matchLabels"][DOMAIN_LABEL] for term in required]
        assert all(term["topologyKey"] == CLIQUE_LABEL for term in required)
        assert uids == [found["metadata"].get("labels", {}).get(DOMAIN_LABEL)] * len(uids)
        return "".join(uids)

    async def is_placed(template: str, uid: str) -> bool:
        return await placed(template) == uid

    async with webhook.serving():
        together = await admin.post(
            guarded.domains, guarded.domain("one", **{PLACEMENT_ANNOTATION: SAME_PARTITION})
        )
        anywhere = await admin.post(guarded.domains, guarded.domain("two"))
        await until_async(lambda: is_placed("one-channel", together["metadata"]["uid"]))
        assert await placed("two-channel") == ""
        assert webhook.reviews("placed") == 1
        labels = {"metadata": {"labels": {PLACEMENT_ANNOTATION: SAME_PARTITION}}}
        await admin.change(f"/api/v1/namespaces/{guarded.namespace}", labels)
        await until_async(lambda: is_placed("two-channel", anywhere["metadata"]["uid"]))


async def test_200_reviews_at_once_and_malformed_ones(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    context = httpx2.create_ssl_context(verify=False)
    limits = httpx2.Limits(max_connections=None)
    async with webhook.serving(), httpx2.AsyncClient(verify=context, timeout=60, limits=limits) as http:
        await until_async(webhook.rejects)
        url = f"https://127.0.0.1:{webhook.port}{PATH}"
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "namespace": "team", "object": claim(UNKNOWN)},
        }
        malformed = (b"", b"{", b"[]", b"{}", b'{"request": {"uid": 7}}', b"\xff\xfe", b"[" * 100_000)
        for body in malformed:
            assert (await http.post(url, content=body)).status_code == 400
        assert (await http.post(url, json={**review, "apiVersion": "admission.k8s.io/v1beta1"})).status_code == 400
        assert webhook.reviews("malformed") == len(malformed) + 1
        assert (await http.get(url)).status_code == 405
        deep: Any = {}
        for _ in range(200):
            deep = {"deep": deep}
        nested = {**claim(UNKNOWN), "spec": {"devices": {"config": [deep]}}}
        answer = await http.post(url, json={**review, "request": {**review["request"], "object": nested}})  # type: ignore[dict-item]
        assert answer.json()["response"]["allowed"] is True

        async def reviewed(number: int) -> dict[str, Any]:
            request = {**review["request"], "uid": str(number)}  # type: ignore[dict-item]
            found: dict[str, Any] = (await http.post(url, json={**review, "request": request})).json()["response"]
            return found

        rejected = webhook.reviews("rejected")
        # Each needs a live list, because no watch has the ComputeDomain: none is answered before all have asked.
        barrier, listed = asyncio.Barrier(200), Client.list_decodable

        async def list_together(client: Client, *words: Any) -> Any:
            await barrier.wait()
            return await listed(client, *words)

        monkeypatch.setattr(Client, "list_decodable", list_together)
        answers = await asyncio.gather(*(reviewed(number) for number in range(200)))
        assert [answer["uid"] for answer in answers] == [str(number) for number in range(200)]
        assert not any(answer["allowed"] for answer in answers)
        assert webhook.reviews("rejected") - rejected == 200


async def test_a_webhook_that_is_down_or_has_an_expired_certificate_blocks_nothing(webhook: Webhook) -> None:
    valid, authority = await webhook.secret(WEBHOOK_SECRET), await webhook.secret(AUTHORITY_SECRET)
    now = datetime.now(UTC)
    signer = KeyPair(authority["tls.key"], authority["tls.crt"])
    expired = await issue(Request(now - timedelta(days=9), now - timedelta(days=2), signer, "localhost"))
    async with webhook.serving():
        await until_async(webhook.rejects)
        webhook.mount({"tls.key": expired.key, "tls.crt": expired.certificate})
        await until_async(webhook.admits, what="the API server ignores a webhook whose certificate has expired")
        webhook.mount(valid)
        await until_async(webhook.rejects, what="a new certificate is used without a restart")
    assert await webhook.admits()
    async with webhook.serving():
        await until_async(webhook.rejects)


async def test_the_controller_renews_the_certificate_and_tells_the_api_server_of_a_new_authority(
    webhook: Webhook,
) -> None:
    first = await webhook.secret(WEBHOOK_SECRET)
    await webhook.keeper.keep()
    assert await webhook.secret(WEBHOOK_SECRET) == first
    admin = webhook.guarded.admin
    for name in (AUTHORITY_SECRET, WEBHOOK_SECRET):
        await admin.remove(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
    await webhook.keeper.keep()
    second = await webhook.secret(WEBHOOK_SECRET)
    assert second["ca.crt"] != first["ca.crt"]
    for path, document in zip(CONFIGURATIONS, manifests(), strict=True):
        configuration = await admin.read(f"{path}/{WEBHOOK}")
        bundles = [b64decode(entry["clientConfig"]["caBundle"]).decode() for entry in configuration["webhooks"]]
        assert bundles == [second["ca.crt"]] * len(document["webhooks"])
    webhook.mount(second)
    async with webhook.serving():
        await until_async(webhook.rejects)


@pytest.mark.slow
async def test_reviews_go_on_after_a_restart_of_the_api_server(webhook: Webhook) -> None:
    async with webhook.serving():
        await until_async(webhook.rejects)
        await asyncio.to_thread(webhook.guarded.control_plane.kill_apiserver)
        webhook.guarded.control_plane.start_apiserver()
        await until_async(webhook.rejects)
