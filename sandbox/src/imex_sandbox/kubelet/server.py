"""The kubelet's own API, through which the API server serves `kubectl logs` and `kubectl exec`.

Every process on the machine can connect, so a client must present a certificate of the cluster's CA for the group
`system:masters`. Certificates of nodes come from the same CA and are refused.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, NotFound, Rejected
from imex_sandbox.kubelet import logs, remotecommand
from imex_sandbox.kubelet.containerexec import ExecCommand
from imex_sandbox.kubelet.logs import LogOptions, PodLogs
from imex_sandbox.kubelet.runtime import ContainerRuntime, RunningContainer
from imex_sandbox.kubelet.views.pod import ContainerStatus, Pod

ALLOWED_GROUP = "system:masters"

FindPod = Callable[[str, str], Pod | None]
"""By namespace and name."""


def server_tls(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    # Optional, so that a client without a certificate gets a 401 and not a failed handshake.
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


class KubeletServer:
    def __init__(self, find_pod: FindPod, runtime: ContainerRuntime, pod_logs: PodLogs, clock: Clock) -> None:
        self._find_pod = find_pod
        self._runtime = runtime
        self._logs = pod_logs
        self._clock = clock

    @asynccontextmanager
    async def listening(self, address: str, tls: ssl.SSLContext) -> AsyncIterator[int]:
        """Yields the port, which is any free one. On exit all connections are cut."""
        application = web.Application(middlewares=[_authorize])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve_logs)
        application.router.add_route("*", "/exec/{namespace}/{pod}/{container}", self._serve_exec)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, address, 0, ssl_context=tls).start()
            yield runner.addresses[0][1]
        finally:
            assert runner.server is not None
            transports = [connection.transport for connection in runner.server.connections]
            await runner.cleanup()
            # cleanup() starts an orderly TLS shutdown: idle connections would stay open until the peer answers.
            for transport in transports:
                if transport is not None:
                    transport.abort()
            await asyncio.sleep(0)

    async def _serve_logs(self, request: web.Request) -> web.StreamResponse:
        pod, name = self._pod(request), request.match_info["container"]
        if name not in {container.name for container in pod.spec.all_containers}:
            raise web.HTTPNotFound(text=f'container "{name}" not found in pod "{pod.metadata.name}"')
        try:
            options = logs.parse_log_options(request.query, self._clock.now())
            attempt = attempt_to_show(pod, name, previous=request.query.get("previous") == "true")
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"Unable to decode query: {error}") from error
        except ImexError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return await self._send_log(request, pod, name, attempt, options)

    async def _send_log(
        self, request: web.Request, pod: Pod, name: str, attempt: int, options: LogOptions
    ) -> web.StreamResponse:
        path = self._logs.file(pod, name, attempt)
        if not path.exists():
            cause = (
                "the log file does not exist" if self._runtime.runs_processes else "hollow containers have no logs"
            )
            raise web.HTTPBadRequest(text=f'container "{name}" in pod "{pod.metadata.name}": {cause}')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for text in logs.read(
            path, options, lambda: self._runtime.is_attempt_running(pod.uid, name, attempt)
        ):
            await response.write(text)
        await response.write_eof()
        return response

    async def _serve_exec(self, request: web.Request) -> web.StreamResponse:
        container = self._container(self._pod(request, "pod does not exist"), request.match_info["container"])
        query = request.query
        if not query.getall("command", []):
            raise web.HTTPBadRequest(text="you must specify a command")
        if remotecommand.PROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
            raise web.HTTPBadRequest(
                text=f"only WebSockets with the protocol {remotecommand.PROTOCOL} are supported"
            )
        socket = web.WebSocketResponse(protocols=(remotecommand.PROTOCOL,))
        await socket.prepare(request)
        command = ExecCommand(
            tuple(query.getall("command")), stdin=query.get("input") == "1", tty=query.get("tty") == "1"
        )
        try:
            session = await container.exec(command)
        except Rejected as error:
            await remotecommand.send_status(socket, remotecommand.failure_status(str(error)))
        else:
            await remotecommand.serve(socket, session)
        await socket.close()
        return socket

    def _pod(self, request: web.Request, not_found: str = "") -> Pod:
        name = request.match_info["pod"]
        pod = self._find_pod(request.match_info["namespace"], name)
        if pod is None:
            raise web.HTTPNotFound(text=not_found or f'pod "{name}" does not exist')
        return pod

    def _container(self, pod: Pod, name: str) -> RunningContainer:
        try:
            return self._runtime.running_container(pod.uid, name)
        except NotFound as error:
            raise web.HTTPInternalServerError(text=str(error)) from error


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    certificate = request.get_extra_info("peercert")
    if not certificate:
        raise web.HTTPUnauthorized(text="Unauthorized")
    user, groups = certificate_subject(certificate)
    if ALLOWED_GROUP not in groups:
        attributes = f"user={user}, verb={request.method.lower()}, resource=nodes, subresource(s)=[proxy]"
        raise web.HTTPForbidden(text=f"Forbidden ({attributes})")
    return await handler(request)


def certificate_subject(certificate: dict[str, Any]) -> tuple[str, set[str]]:
    """The Kubernetes user and groups that a client certificate names."""
    fields = [pair for part in certificate.get("subject", ()) for pair in part]
    users = [value for kind, value in fields if kind == "commonName"]
    return users[0] if users else "", {value for kind, value in fields if kind == "organizationName"}


def attempt_to_show(pod: Pod, name: str, *, previous: bool) -> int:
    """Which run's log to show. Raises Rejected, with the message of the real kubelet, if there is none."""
    where = f'container "{name}" in pod "{pod.metadata.name}"'
    known = pod.status.container(name) or ContainerStatus(name)
    has_terminated = known.last_state.terminated is not None
    if previous:
        if not has_terminated:
            raise Rejected(f"previous terminated {where} not found")
        return known.restart_count - (0 if known.state.waiting else 1)
    if known.state.running or known.state.terminated or has_terminated:
        return known.restart_count
    waiting = known.state.waiting
    raise Rejected(f"{where} is waiting to start: {waiting.reason if waiting else 'ContainerCreating'}")
