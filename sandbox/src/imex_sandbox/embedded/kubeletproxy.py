"""What a real API server passes on to a node, too: `kubectl logs` and `kubectl exec` to the kubelet of the pod's
node, and requests for pages of other ports of a node (`nodes/NAME:PORT/proxy/PATH`).

A real one refuses pages of loopback addresses. Here all nodes have such addresses.
"""

import asyncio
import ssl
from typing import NamedTuple

import aiohttp
from aiohttp import web

from imex_sandbox.embedded.kinds import NODES, PODS
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Key

_PROTOCOL = "v5.channel.k8s.io"
_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Names in the API, and those of the kubelet."""


class PodRequest(NamedTuple):
    namespace: str
    name: str
    subresource: str


def pod_request(path: str) -> PodRequest | None:
    match path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "pods", name, ("log" | "exec") as subresource]:
            return PodRequest(namespace, name, subresource)
    return None


class NodePage(NamedTuple):
    node: str
    port: int
    path: str


def node_page(path: str) -> NodePage | None:
    match path.strip("/").split("/"):
        case ["api", "v1", "nodes", place, "proxy", *rest]:
            name, _, port = place.partition(":")
            return NodePage(name, int(port), "/".join(rest)) if port.isdecimal() else None
    return None


class KubeletProxy:
    def __init__(self, objects: Objects, certificate: str, key: str) -> None:
        self._objects = objects
        self._tls = ssl.create_default_context()
        self._tls.load_cert_chain(certificate, key)
        # As kube-apiserver without `--kubelet-certificate-authority`: everything is on loopback.
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    async def serve(self, http: web.Request, wanted: PodRequest) -> web.StreamResponse:
        """Raises ApiError."""
        pod = self._objects.get(PODS, Key(wanted.namespace, wanted.name)).document
        container = _container(pod, http.query.get("container", ""))
        kubelet = self._kubelet(pod)
        place = f"{wanted.namespace}/{wanted.name}/{container}"
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=10)) as session:
                if wanted.subresource == "log":
                    return await self._log(http, session, f"{kubelet}/containerLogs/{place}")
                return await self._exec(http, session, f"{kubelet}/exec/{place}")
        except aiohttp.ClientConnectorError as error:
            raise ApiError(500, f"Get {kubelet}: {error}") from error

    async def page(self, wanted: NodePage) -> web.Response:
        """Raises ApiError."""
        node = self._objects.get(NODES, Key("", wanted.node)).document
        url = f"http://{_address(node)}:{wanted.port}/{wanted.path}"
        try:
            timeout = aiohttp.ClientTimeout(total=10)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type=answer.content_type)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(503, f"error trying to reach service: {error or 'no answer'}") from error

    async def _log(self, http: web.Request, session: aiohttp.ClientSession, url: str) -> web.StreamResponse:
        query = [(name, value) for name, value in http.query.items() if name != "container"]
        async with session.get(url, params=query, ssl=self._tls) as answer:
            if answer.status != 200:
                code = answer.status if answer.status in (400, 404) else 500
                raise ApiError(code, (await answer.text()).strip())
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            response.enable_chunked_encoding()
            await response.prepare(http)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _exec(self, http: web.Request, session: aiohttp.ClientSession, url: str) -> web.StreamResponse:
        if _PROTOCOL not in http.headers.get("Sec-WebSocket-Protocol", ""):
            raise ApiError(501, f"exec is supported by the embedded API over WebSockets with {_PROTOCOL} only")
        query = [("command", word) for word in http.query.getall("command", [])]
        query += [(theirs, "1") for ours, theirs in _STREAMS.items() if http.query.get(ours) in ("1", "true")]
        try:
            async with session.ws_connect(url, params=query, ssl=self._tls, protocols=(_PROTOCOL,)) as remote:
                local = web.WebSocketResponse(protocols=(_PROTOCOL,))
                await local.prepare(http)
                async with asyncio.TaskGroup() as group:
                    sending = group.create_task(_copy(local, remote))
                    await _copy(remote, local)
                    sending.cancel()
                await local.close()
                return local
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(
                500, f"the kubelet refused to run the command: {error.status} {error.message}"
            ) from error

    def _kubelet(self, pod: Json) -> str:
        name = pod["spec"].get("nodeName")
        if not name:
            raise ApiError(400, f"pod {pod['metadata']['name']} does not have a host assigned")
        node = self._objects.get(NODES, Key("", name)).document
        endpoints = (node.get("status") or {}).get("daemonEndpoints") or {}
        port = (endpoints.get("kubeletEndpoint") or {}).get("Port")
        if not port:
            raise ApiError(500, f"node {name} has not reported the port of its kubelet")
        return f"https://{_address(node)}:{port}"


Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _copy(source: Socket, target: Socket) -> None:
    """Until one side closes."""
    async for message in source:
        if message.type is aiohttp.WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            await target.send_str(message.data)


def _address(node: Json) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    for one in addresses:
        if one["type"] == "InternalIP":
            return str(one["address"])
    raise ApiError(500, f"node {node['metadata']['name']} has not reported its address")


def _container(pod: Json, wanted: str) -> str:
    names = [one["name"] for one in pod["spec"]["containers"]]
    everything = [*names, *(one["name"] for one in pod["spec"].get("initContainers") or ())]
    name = pod["metadata"]["name"]
    if not wanted and len(names) > 1:
        choices = " ".join(names)
        raise ApiError(400, f"a container name must be specified for pod {name}, choose one of: [{choices}]")
    if wanted and wanted not in everything:
        raise ApiError(400, f"container {wanted} is not valid for pod {name}")
    return wanted or names[0]
