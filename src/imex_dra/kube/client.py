"""Requests to the API server, typed by the resource they are about, with our own errors.

What is retried here is only what is safe to retry without knowing what the caller meant: a request that the
server says it did not take (429), and reads. Everything else is the caller's decision, because a write that
timed out may have happened.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError
from msgspec import Struct

from imex_dra.api.meta import Key, Object, Resource, T, key_of
from imex_dra.base.errors import ApiRetryable, Gone, TooManyRequests, Unavailable
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.connection import connect
from imex_dra.kube.status import error_from

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_BROKEN = (httpx2.HTTPError, OSError, ConfigError)
"""No answer: the line, TLS (an OSError of its own in mid-stream), or credentials that can't be had right now."""

_TRIES = 4
_PAGE = 500


Lines = list[bytes]
"""Whole lines, as many as had arrived."""


class ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(Struct, Generic[T]):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Selection(Struct, frozen=True):
    """Which objects of a kind: everything, by default."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def parameters(self) -> dict[str, str]:
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in chosen.items() if value}


EVERYTHING = Selection()


class Client:
    def __init__(self, http: httpx2.AsyncClient, *, backoff: Backoff | None = None) -> None:
        self._http = http
        self._backoff = backoff or Backoff(0.1, 2.0)
        self.field_manager = http.headers["User-Agent"].partition("/")[0]

    @classmethod
    def connect(cls, component: str, kubeconfig: Path | None = None) -> "Client":
        return cls(connect(component, kubeconfig))

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, resource: Resource[T], key: Key) -> T:
        return msgspec.json.decode(await self.get_raw(resource, key), type=resource.type)

    async def get_raw(self, resource: Resource[T], key: Key) -> bytes:
        return await self._request("GET", resource.path(key.namespace, key.name))

    async def list(self, resource: Resource[T], selection: Selection = EVERYTHING) -> list[T]:
        decoder = msgspec.json.Decoder(resource.type)
        return [decoder.decode(raw) async for page in self.pages(resource, selection) for raw in page.items or ()]

    async def pages(
        self, resource: Resource[T], selection: Selection = EVERYTHING, **parameters: str
    ) -> AsyncIterator[Page[T]]:
        """Raises Gone when the list took so long that its snapshot was compacted away."""
        query = {"limit": str(_PAGE), **selection.parameters(), **parameters}
        while True:
            body = await self._request("GET", resource.path(selection.namespace), params=query)
            page = msgspec.json.decode(body, type=Page[T])
            yield page
            if not page.metadata.continue_:
                return
            query = {**query, "continue": page.metadata.continue_}
            query.pop("resourceVersion", None)
            query.pop("resourceVersionMatch", None)

    async def create(self, resource: Resource[T], obj: T) -> T:
        path = resource.path(obj.metadata.namespace)
        body = await self._request("POST", path, content=encode(resource, obj))
        return msgspec.json.decode(body, type=resource.type)

    async def patch(
        self,
        resource: Resource[T],
        key: Key,
        patch: dict[str, Any],
        *,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        **parameters: str,
    ) -> T:
        body = await self._request(
            "PATCH",
            resource.path(key.namespace, key.name, subresource),
            content=msgspec.json.encode(patch),
            headers={"Content-Type": content_type},
            params=parameters,
        )
        return msgspec.json.decode(body, type=resource.type)

    async def delete(self, resource: Resource[T], obj: T) -> None:
        """Deletes this very object, not a namesake that came after it."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": obj.metadata.uid}}
        key = key_of(obj)
        await self._request("DELETE", resource.path(key.namespace, key.name), content=msgspec.json.encode(options))

    @asynccontextmanager
    async def watch(
        self, resource: Resource[T], selection: Selection, *, inactivity: float, **parameters: str
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """The lines of a watch. It ends with Unavailable after `inactivity` seconds without a byte."""
        request = self._http.build_request(
            "GET",
            resource.path(selection.namespace),
            params={"watch": "1", "allowWatchBookmarks": "true", **selection.parameters(), **parameters},
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(10, read=inactivity),
        )
        try:
            response = await self._http.send(request, stream=True)
            try:
                if response.is_error:
                    raise error_from(request, response.status_code, response.headers, await response.aread())
                yield _lines(response.aiter_bytes())
            finally:
                await response.aclose()
        except _BROKEN as error:
            raise _unavailable(request, error) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> bytes:
        """Sends, and sends again what is safe to repeat."""
        for failures in range(1, _TRIES + 1):
            request = self._http.build_request(
                method,
                path,
                content=content,
                params=params,
                headers={"Content-Type": "application/json", "Accept": "application/json", **(headers or {})},
            )
            try:
                return await self._send(request)
            except TooManyRequests as error:
                if failures == _TRIES:
                    raise
                await asyncio.sleep(max(error.retry_after, self._backoff.delay(failures)))
            except ApiRetryable as error:
                if failures == _TRIES or method != "GET" or isinstance(error, Gone):
                    raise
                await asyncio.sleep(self._backoff.delay(failures))
        raise AssertionError("unreachable")

    async def _send(self, request: httpx2.Request) -> bytes:
        try:
            response = await self._http.send(request)
        except _BROKEN as error:
            raise _unavailable(request, error) from error
        if response.is_error:
            raise error_from(request, response.status_code, response.headers, response.content)
        return response.content


def encode(resource: Resource[Any], obj: Object) -> bytes:
    body = {"apiVersion": resource.api_version, "kind": resource.kind}
    return msgspec.json.encode(body | msgspec.to_builtins(obj))


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Lines]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines


def _unavailable(request: httpx2.Request, error: Exception) -> Unavailable:
    cause = str(error) or type(error).__name__
    return Unavailable(f"{request.method} {request.url.path}: no answer from {request.url.host}: {cause}")
