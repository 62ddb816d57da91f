"""Every review is counted by its result, also one without an answer."""

import asyncio
from typing import Any

import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.metrics import REVIEWS, ReviewResult
from imex_dra.base.errors import Unavailable
from imex_dra.base.metrics import Metrics
from imex_dra.kube.store import Store
from imex_dra.webhook.server import Reviewer


class NoApiServer:
    """A client whose requests fail or hang."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs

    async def get(self, *words: Any) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        raise Unavailable("no API server")


def reviewing(client: Any) -> tuple[Reviewer, Metrics]:
    domains: Store[ComputeDomain] = Store(namespace=lambda domain: [domain.metadata.namespace])
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


async def test_an_object_that_is_left_alone_is_admitted() -> None:
    reviewer, metrics = reviewing(NoApiServer())
    answer = await reviewer.placing(by_namespace=True)(pod_review(resourceClaimName="claim"))
    assert answer.status == 200
    assert counted(metrics, ReviewResult.ADMITTED)
