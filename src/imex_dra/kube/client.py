"""A typed client of the API server that raises the errors of `base.errors`.

It retries only what is always safe to repeat: requests that the server did not process (429), and reads. All other
retries are up to the caller, because a write that timed out may have been applied.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError
from msgspec import Struct

from imex_dra.api.meta import Key, Object, Resource, T, key_of
from imex_dra.api.metrics import API_ERRORS
from imex_dra.api.views import PODS
from imex_dra.base.errors import ApiRetryable, Gone, ImexError, TooManyRequests, Unavailable, Undecodable
from imex_dra.base.metrics import Metrics
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.connection import connect
from imex_dra.kube.decoding import ObjectDecoder, decode
from imex_dra.kube.status import error_from

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_CONNECTION_ERRORS = (httpx2.HTTPError, OSError, ConfigError)
"""OSError: a TLS error in the middle of a stream. ConfigError: credentials that cannot be read at the moment."""

_ATTEMPTS = 4
_PAGE_SIZE = 500


E = TypeVar("E", bound=ImexError)

Patch = dict[str, Any] | list[dict[str, Any]]
"""A list of operations for JSON_PATCH."""

Lines = list[bytes]
"""The complete lines of one read."""


class ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(Struct, Generic[T]):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


_pages: msgspec.json.Decoder[Page[Any]] = msgspec.json.Decoder(Page)


class _ServerVersion(Struct, rename="camel"):
    git_version: str = ""


class Selection(Struct, frozen=True):
    """Which objects of a kind to list or watch; all by default."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def parameters(self) -> dict[str, str]:
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


EVERYTHING = Selection()


class Client:
    def __init__(
        self, http: httpx2.AsyncClient, *, backoff: Backoff | None = None, metrics: Metrics | None = None
    ) -> None:
        self._http = http
        self.metrics = metrics or Metrics()
        """Of the program that uses this client."""
        self._backoff = backoff or Backoff(0.1, 2.0)
        self._attempts = _ATTEMPTS
        self.field_manager = http.headers["User-Agent"].partition("/")[0]

    @classmethod
    def connect(
        cls,
        component: str,
        kubeconfig: Path | None = None,
        context: str = "",
        *,
        metrics: Metrics | None = None,
    ) -> "Client":
        return cls(connect(component, kubeconfig, context), metrics=metrics)

    def without_retries(self) -> Self:
        """The same connections for a caller that has its own deadline, and reports the server's last answer."""
        client = copy(self)
        client._attempts = 1
        return client

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, resource: Resource[T], key: Key) -> T:
        return ObjectDecoder(resource).decode(await self.get_raw(resource, key))

    async def get_raw(self, resource: Resource[T], key: Key) -> bytes:
        return await self._request("GET", resource.path(key.namespace, key.name))

    async def server_version(self) -> str:
        """Such as v1.36.4."""
        body = await self._request("GET", "/version")
        try:
            return msgspec.json.decode(body, type=_ServerVersion).git_version
        except ValueError as error:
            raise Unavailable(f"GET /version: malformed response: {error}") from error

    async def pod_log(self, key: Key, container: str, *, lines: int, limit: int) -> bytes:
        """The last lines of a container's log, at most `limit` bytes."""
        parameters = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        path = PODS.path(key.namespace, key.name, "log")
        return await self._request("GET", path, params=parameters, headers={"Accept": "*/*"})

    async def proxied(self, resource: Resource[Any], key: Key, port: int, path: str) -> bytes:
        """A page of a pod or node, which the API server reads."""
        location = resource.path(key.namespace, f"{key.name}:{port}", f"proxy{path}")
        return await self._request("GET", location, headers={"Accept": "*/*"})

    async def list_decodable(self, resource: Resource[T], selection: Selection = EVERYTHING) -> list[T]:
        """Without objects that cannot be decoded: only for callers that conclude nothing from a missing object."""
        decoder, found = ObjectDecoder(resource), []
        async for page in self.pages(resource, selection):
            for raw in page.items or ():
                with suppress(Undecodable):
                    found.append(decoder.decode(raw))
        return found

    async def list(self, resource: Resource[T], selection: Selection = EVERYTHING) -> list[T]:
        """Raises Undecodable if an object cannot be decoded: a list that lacks an object must not look
        complete.
        """
        decoder = ObjectDecoder(resource)
        return [decoder.decode(raw) async for page in self.pages(resource, selection) for raw in page.items or ()]

    async def pages(
        self, resource: Resource[T], selection: Selection = EVERYTHING, **parameters: str
    ) -> AsyncIterator[Page[T]]:
        """Raises Gone if etcd was compacted before the last page was read."""
        query = {"limit": str(_PAGE_SIZE), **selection.parameters(), **parameters}
        while True:
            body = await self._request("GET", resource.path(selection.namespace), params=query)
            page: Page[T] = await _page(resource, body)
            yield page
            if not page.metadata.continue_:
                return
            query = {**query, "continue": page.metadata.continue_}
            # The API server rejects a continue token together with a resourceVersion.
            query.pop("resourceVersion", None)
            query.pop("resourceVersionMatch", None)

    async def create(self, resource: Resource[T], obj: T) -> T:
        path = resource.path(obj.metadata.namespace)
        body = await self._request("POST", path, content=encode(resource, obj))
        return ObjectDecoder(resource).decode(body)

    async def patch(
        self,
        resource: Resource[T],
        key: Key,
        patch: Patch,
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
        return ObjectDecoder(resource).decode(body)

    async def delete(self, resource: Resource[T], obj: T) -> None:
        """Deletes the object with this UID, never a later object of the same name."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": obj.metadata.uid}}
        key = key_of(obj)
        await self._request("DELETE", resource.path(key.namespace, key.name), content=msgspec.json.encode(options))

    @asynccontextmanager
    async def watch(
        self, resource: Resource[T], selection: Selection, *, inactivity: float, **parameters: str
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """The lines of a watch. Raises Unavailable after `inactivity` seconds without data."""
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
                    body = await response.aread()
                    raise self._counted(error_from(request, response.status_code, response.headers, body))
                yield _lines(response.aiter_bytes())
            finally:
                await response.aclose()
        except _CONNECTION_ERRORS as error:
            raise self._counted(_unavailable(request, error)) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> bytes:
        for attempt in range(1, self._attempts + 1):
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
                if attempt == self._attempts:
                    raise
                await asyncio.sleep(max(error.retry_after, self._backoff.delay(attempt)))
            except ApiRetryable as error:
                if attempt == self._attempts or method != "GET" or isinstance(error, Gone):
                    raise
                await asyncio.sleep(self._backoff.delay(attempt))
        raise AssertionError("unreachable")

    async def _send(self, request: httpx2.Request) -> bytes:
        try:
            response = await self._http.send(request)
        except _CONNECTION_ERRORS as error:
            raise self._counted(_unavailable(request, error)) from error
        if response.is_error:
            raise self._counted(error_from(request, response.status_code, response.headers, response.content))
        return response.content

    def _counted(self, error: E) -> E:
        self.metrics.count(API_ERRORS, type(error).__name__)
        return error


def encode(resource: Resource[Any], obj: Object) -> bytes:
    body = {"apiVersion": resource.api_version, "kind": resource.kind}
    return msgspec.json.encode(body | msgspec.to_builtins(obj, enc_hook=msgspec.json.decode))


async def _page(resource: Resource[T], body: bytes) -> Page[T]:
    try:
        return _pages.decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        # In a thread: to repair a page of large hostile objects takes seconds, in which the Lease must be renewed.
        return await asyncio.to_thread(decode, _pages, body)
    except ValueError as error:
        raise Unavailable(f"list of {resource.plural}: malformed response: {error}") from error


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Lines]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines


def _unavailable(request: httpx2.Request, error: Exception) -> Unavailable:
    cause = str(error) or type(error).__name__
    return Unavailable(f"{request.method} {request.url.path}: no response from {request.url.host}: {cause}")
