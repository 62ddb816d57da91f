"""Every review is counted by its result, also one without an answer."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.metrics import REVIEWS, ReviewResult
from imex_dra.api.names import PLACEMENT_ANNOTATION, SAME_PARTITION
from imex_dra.base.errors import Unavailable
from imex_dra.base.httpserver import Response
from imex_dra.base.metrics import Metrics
from imex_dra.kube.client import Selection
from imex_dra.kube.store import Store
from imex_dra.webhook.server import Reviewer
from tests.controller.claims import domain


class NoApiServer:
    """A client whose requests fail or hang."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs

    async def get(self, *words: Any) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        raise Unavailable("no API server")

    async def list_decodable(self, *words: Any) -> None:
        await self.get()


def reviewing(client: Any, *delivered: ComputeDomain) -> tuple[Reviewer, Metrics]:
    domains: Store[ComputeDomain] = Store(namespace=lambda domain: [domain.metadata.namespace])
    domains.replace(delivered)
    metrics = Metrics()
    return Reviewer(client, domains, Store(), metrics), metrics


def pod_review(**claim: str) -> bytes:
    spec = {"resourceClaims": [{"name": "imex", **claim}], "containers": [{"name": "main"}]}
    request = {"uid": "u", "operation": "CREATE", "namespace": "n", "object": {"kind": "Pod", "spec": spec}}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})


def counted(metrics: Metrics, result: ReviewResult) -> bool:
    return f'{REVIEWS.name}_count{{result="{result}"}} 1\n' in metrics.text()


async def test_a_review_that_needs_an_api_server_that_is_down_has_failed() -> None:
    reviewer, metrics = reviewing(NoApiServer())
    with pytest.raises(Unavailable):
        await reviewer.validating()(pod_review(resourceClaimTemplateName="template"))
    assert counted(metrics, ReviewResult.FAILED)


async def test_a_review_whose_time_is_over_has_failed() -> None:
    reviewer, metrics = reviewing(NoApiServer(hangs=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await reviewer.validating()(pod_review(resourceClaimTemplateName="template"))
    assert counted(metrics, ReviewResult.FAILED)


def asking() -> ComputeDomain:
    found = domain("job", namespace="n", template="job-channel")
    annotations = {PLACEMENT_ANNOTATION: SAME_PARTITION}
    return structs.replace(found, metadata=structs.replace(found.metadata, annotations=annotations))


class Listing:
    """A client with ComputeDomains that no watch has delivered; without any, its list hangs."""

    def __init__(self, *domains: ComputeDomain) -> None:
        self._domains = domains
        self.namespaces: list[str] = []

    async def list_decodable(self, resource: Any, selection: Selection) -> list[ComputeDomain]:
        self.namespaces.append(selection.namespace)
        if not self._domains:
            await asyncio.Event().wait()
        return [*self._domains]


def patched(answer: Response) -> str:
    patch: str = msgspec.json.decode(answer.body)["response"].get("patch", "")
    return patch


async def test_a_pod_is_placed_although_the_watch_has_not_delivered_its_compute_domain() -> None:
    client = Listing(asking())
    reviewer, metrics = reviewing(client)
    assert patched(await reviewer.placing(by_namespace=False)(pod_review(resourceClaimTemplateName="job-channel")))
    assert counted(metrics, ReviewResult.PLACED)
    assert client.namespaces == ["n"]


async def test_a_compute_domain_that_the_watch_has_delivered_is_not_read() -> None:
    client = Listing()
    reviewer, _ = reviewing(client, asking())
    assert patched(await reviewer.placing(by_namespace=False)(pod_review(resourceClaimTemplateName="job-channel")))
    assert client.namespaces == []


async def test_a_pod_whose_compute_domain_cannot_be_read_in_time_is_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("imex_dra.webhook.server._READ_LIMIT", 0.01)
    for client in (NoApiServer(), Listing()):
        reviewer, metrics = reviewing(client)
        answer = await reviewer.placing(by_namespace=True)(pod_review(resourceClaimTemplateName="job-channel"))
        assert answer.status == 200
        assert not patched(answer)
        assert counted(metrics, ReviewResult.ADMITTED)


async def test_an_object_that_is_left_alone_is_admitted() -> None:
    reviewer, metrics = reviewing(NoApiServer())
    answer = await reviewer.placing(by_namespace=True)(pod_review(resourceClaimName="claim"))
    assert answer.status == 200
    assert counted(metrics, ReviewResult.ADMITTED)
