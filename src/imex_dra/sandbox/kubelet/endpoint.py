"""A kubelet's own API: the API server fetches logs here and runs commands, and nobody else may.

Everybody on this machine can connect, so a caller proves by a certificate of the cluster's authority that it is of
the group that may do everything. A node, whose certificate comes from the same authority, is refused.
"""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, NotFound, Rejected
from imex_dra.sandbox.kubelet import logs, remotecommand
from imex_dra.sandbox.kubelet.commands import Command
from imex_dra.sandbox.kubelet.containers import Runtime, Task
from imex_dra.sandbox.kubelet.logs import Logs
from imex_dra.sandbox.kubelet.views.pod import Pod
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus

GROUP = "system:masters"

Find = Callable[[str, str], Pod | None]


class Endpoint:
    def __init__(self, find: Find, runtime: Runtime, kept: Logs, clock: Clock) -> None:
        self._find = find
        self._runtime = runtime
        self._logs = kept
        self._clock = clock

    @asynccontextmanager
    async def open(self, address: str, context: ssl.SSLContext) -> AsyncIterator[int]:
        """Gives the port, which is any free one. At the end all connections are cut."""
        application = web.Application(middlewares=[_admit])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve_logs)
        application.router.add_route("*", "/exec/{namespace}/{pod}/{container}", self._execute)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, address, 0, ssl_context=context).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _serve_logs(self, request: web.Request) -> web.StreamResponse:
        pod, name = self._pod(request), request.match_info["container"]
        if name not in {container.name for container in pod.spec.every_container}:
            raise web.HTTPNotFound(text=f'container "{name}" not found in pod "{pod.metadata.name}"')
        try:
            what = logs.wanted(request.query, self._clock.now())
            attempt = attempt_to_show(pod, name, previous=request.query.get("previous") == "true")
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"Unable to decode query: {error}") from error
        except ImexError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return await self._send_log(request, pod, name, attempt, what)

    async def _send_log(
        self, request: web.Request, pod: Pod, name: str, attempt: int, what: logs.Wanted
    ) -> web.StreamResponse:
        path = self._logs.file(pod, name, attempt)
        if not path.exists():
            where = f'container "{name}" in pod "{pod.metadata.name}"'
            why = "the log is gone" if self._runtime.has_inside else "hollow containers write nothing"
            raise web.HTTPBadRequest(text=f"{where}: {why}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for text in logs.read(path, what, lambda: self._runtime.goes_on(pod.uid, name, attempt)):
            await response.write(text)
        await response.write_eof()
        return response

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        task = self._task(self._pod(request, "pod does not exist"), request.match_info["container"])
        query = request.query
        if not query.getall("command", []):
            raise web.HTTPBadRequest(text="you must specify a command")
        if remotecommand.PROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
            raise web.HTTPBadRequest(text=f"only WebSockets with {remotecommand.PROTOCOL} are served here")
        socket = web.WebSocketResponse(protocols=(remotecommand.PROTOCOL,))
        await socket.prepare(request)
        command = Command(
            tuple(query.getall("command")), stdin=query.get("input") == "1", terminal=query.get("tty") == "1"
        )
        try:
            execution = await task.enter(command)
        except Rejected as error:
            await remotecommand.tell_status(socket, remotecommand.status_of_failure(str(error)))
        else:
            await remotecommand.serve(socket, execution)
        await socket.close()
        return socket

    def _pod(self, request: web.Request, otherwise: str = "") -> Pod:
        name = request.match_info["pod"]
        pod = self._find(request.match_info["namespace"], name)
        if pod is None:
            raise web.HTTPNotFound(text=otherwise or f'pod "{name}" does not exist')
        return pod

    def _task(self, pod: Pod, container: str) -> Task:
        try:
            return self._runtime.task(pod.uid, container)
        except NotFound as error:
            raise web.HTTPInternalServerError(text=str(error)) from error


@web.middleware
async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    certificate = request.get_extra_info("peercert")
    if not certificate:
        raise web.HTTPUnauthorized(text="Unauthorized")
    user, groups = subject(certificate)
    if GROUP not in groups:
        words = f"user={user}, verb={request.method.lower()}, resource=nodes, subresource(s)=[proxy]"
        raise web.HTTPForbidden(text=f"Forbidden ({words})")
    return await handler(request)


def subject(certificate: dict[str, Any]) -> tuple[str, set[str]]:
    """A Kubernetes user and its groups, as a certificate names them."""
    fields = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for kind, value in fields if kind == "commonName"]
    return names[0] if names else "", {value for kind, value in fields if kind == "organizationName"}


def attempt_to_show(pod: Pod, name: str, *, previous: bool) -> int:
    """By what the pod's status says, in the real kubelet's words if there is nothing to show."""
    where = f'container "{name}" in pod "{pod.metadata.name}"'
    known = pod.status.of(name) or ContainerStatus(name)
    ended = known.last_state.terminated is not None
    if previous:
        if not ended:
            raise Rejected(f"previous terminated {where} not found")
        return known.restart_count - (0 if known.state.waiting else 1)
    if known.state.running or known.state.terminated or ended:
        return known.restart_count
    waiting = known.state.waiting
    raise Rejected(f"{where} is waiting to start: {waiting.reason if waiting else 'ContainerCreating'}")
