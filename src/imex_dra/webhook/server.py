"""Answers AdmissionReviews. Look-ups come from watches; what these lack is confirmed by a live read before
an object is rejected for it, because watches lag.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.api.metrics import REVIEWS, ReviewResult
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.views import RESOURCE_CLAIM_TEMPLATES, ResourceClaimTemplate
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.httpserver import Handler, Response
from imex_dra.base.metrics import Metrics
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.decoding import decode
from imex_dra.kube.store import Store
from imex_dra.webhook.placement import needs_look_up, placement_patch
from imex_dra.webhook.review import Known, Verdict, named_domains, named_templates, review

log = structlog.get_logger()

_API_VERSION = "admission.k8s.io/v1"
_MAX_READS = 8
"""Templates of a pod that are looked up."""
_READ_LIMIT = 2.0
"""Seconds for the ComputeDomains of a pod that may have to be placed. The API server waits 5 s for an answer."""
_MAX_WARNING = 250
"""Characters. The API server cuts longer ones."""


class ReviewRequest(Struct):
    uid: str
    namespace: str = ""
    object: dict[str, Any] | None = None
    operation: str = ""


class AdmissionReview(Struct, rename="camel"):
    request: ReviewRequest
    api_version: str = ""


_reviews = msgspec.json.Decoder(AdmissionReview)


class _Answer(NamedTuple):
    result: ReviewResult
    response: Response


class Reviewer:
    def __init__(
        self,
        client: Client,
        domains: Store[ComputeDomain],
        partitions: Store[NVLinkPartition],
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`domains` has the indexes `namespace` and `uid`."""
        self._client = client
        self._domains = domains
        self._partitions = partitions
        self._metrics = metrics or Metrics()
        self._clock = clock or Clock()

    def validating(self) -> Handler:
        """Answers reviews of all objects with what is wrong with them."""

        async def answer(request: ReviewRequest) -> _Answer:
            verdict = await self._judge(request)
            if verdict != Verdict():
                log.info("reviewed", namespace=request.namespace, **verdict._asdict())
            return _Answer(_result(verdict), _reply(_response(request.uid, verdict)))

        return self._measured(answer)

    def placing(self, *, by_namespace: bool) -> Handler:
        """Answers reviews of pods with what keeps them in one NVLink partition."""

        async def answer(request: ReviewRequest) -> _Answer:
            patch = await self._placement(request, by_namespace)
            result = ReviewResult.PLACED if patch else ReviewResult.ADMITTED
            return _Answer(result, _reply(_response(request.uid, Verdict()), patch))

        return self._measured(answer)

    def _measured(self, answer: Callable[[ReviewRequest], Awaitable[_Answer]]) -> Handler:
        async def answer_body(body: bytes) -> Response:
            # Unless something else is known at the end: also a review that is cancelled has failed.
            start, result = self._clock.monotonic(), ReviewResult.FAILED
            try:
                result, response = await answer(_decoded(body).request)
            except _Malformed as error:
                result, response = ReviewResult.MALFORMED, Response(400, f"{error}\n".encode())
            finally:
                self._metrics.observe(REVIEWS, self._clock.monotonic() - start, result)
            return response

        return answer_body

    async def _placement(self, request: ReviewRequest, by_namespace: bool) -> list[dict[str, Any]]:
        if request.object is None or request.operation != "CREATE":
            return []
        domains = tuple(self._domains.by("namespace", request.namespace))
        try:
            # A ComputeDomain that is applied together with its pods reaches the watch after the first of them: if
            # these were not placed, the job could be split.
            if needs_look_up(request.object, domains):
                domains = await self._live_domains(request.namespace) or domains
            return placement_patch(request.object, domains, by_namespace=by_namespace)
        except ValueError:
            return []  # nested too deeply

    async def _live_domains(self, namespace: str) -> tuple[ComputeDomain, ...]:
        """Empty if they cannot be read in time: then a pod is placed by what the watch has delivered."""
        try:
            async with asyncio.timeout(_READ_LIMIT):
                return tuple(await self._client.list_decodable(COMPUTE_DOMAINS, Selection(namespace)))
        except (ImexError, TimeoutError) as error:
            log.warning(
                "ComputeDomains cannot be read", namespace=namespace, error=str(error) or "it took too long"
            )
            return ()

    async def _judge(self, request: ReviewRequest) -> Verdict:
        if request.object is None or request.operation != "CREATE":
            return Verdict()
        try:
            return review(request.object, request.namespace, await self._known(request.object, request.namespace))
        except ValueError as error:
            # Nested too deeply for the rules: nodes say what they think of it, if it is a claim.
            return Verdict(warnings=(f"it cannot be checked: {error}",))

    async def _known(self, obj: dict[str, Any], namespace: str) -> Known:
        kind = obj.get("kind")
        domains = tuple(self._domains.by("namespace", namespace))
        if kind in ("ResourceClaim", "ResourceClaimTemplate"):
            return await self._known_for_claim(domains, namespace, named_domains(obj))
        if kind == COMPUTE_DOMAINS.kind:
            sizes = (len(partition.status.members) for partition in self._partitions.values())
            foreign = await self._is_foreign_template(obj, namespace)
            return Known(domains, foreign_template=foreign, largest_partition=max(sizes, default=0))
        served = {domain.template_name for domain in domains}
        names = sorted(named_templates(obj) - served)[:_MAX_READS]
        existing = [name for name in names if await self._template(namespace, name) is not None]
        return Known(domains, templates=frozenset(existing))

    async def _known_for_claim(self, domains: tuple[ComputeDomain, ...], namespace: str, named: set[str]) -> Known:
        found = {uid: domain for uid in named for domain in self._domains.by("uid", uid)}
        if named - found.keys():
            live = await self._client.list_decodable(COMPUTE_DOMAINS)
            found |= {domain.metadata.uid: domain for domain in live if domain.metadata.uid in named}
        here = {domain.metadata.uid: domain for domain in domains}
        here |= {uid: domain for uid, domain in found.items() if domain.metadata.namespace == namespace}
        return Known(tuple(here.values()), frozenset(found.keys() - here.keys()))

    async def _is_foreign_template(self, obj: dict[str, Any], namespace: str) -> bool:
        try:
            name = obj["spec"]["channel"]["resourceClaimTemplate"]["name"]
        except (KeyError, TypeError):
            return False
        template = await self._template(namespace, str(name))
        return template is not None and not any(
            owner.kind == COMPUTE_DOMAINS.kind for owner in template.metadata.owner_references
        )

    async def _template(self, namespace: str, name: str) -> ResourceClaimTemplate | None:
        try:
            return await self._client.get(RESOURCE_CLAIM_TEMPLATES, Key(namespace, name))
        except NotFound:
            return None


class _Malformed(ValueError):
    pass


def _decoded(body: bytes) -> AdmissionReview:
    try:
        found = decode(_reviews, body)
    except ValueError as error:
        raise _Malformed(f"malformed AdmissionReview: {error}") from error
    if found.api_version != _API_VERSION:
        raise _Malformed(f"malformed AdmissionReview: its apiVersion is not {_API_VERSION}")
    return found


def _result(verdict: Verdict) -> ReviewResult:
    if verdict.rejections:
        return ReviewResult.REJECTED
    return ReviewResult.WARNED if verdict.warnings else ReviewResult.ADMITTED


def _reply(response: dict[str, Any], patch: list[dict[str, Any]] | None = None) -> Response:
    if patch:
        response |= {"patchType": "JSONPatch", "patch": b64encode(msgspec.json.encode(patch)).decode()}
    document = {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}
    return Response(200, msgspec.json.encode(document), "application/json")


def _response(uid: str, verdict: Verdict) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.rejections}
    if verdict.rejections:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": "; ".join(verdict.rejections)}
    if verdict.warnings:
        response["warnings"] = [warning[:_MAX_WARNING] for warning in verdict.warnings]
    return response
