"""The embedded API over HTTPS on loopback, for our programs, simulated kubelets and kubectl.

One process, all objects in memory: they are gone when it ends. Every request is in the audit log before its
response is sent, in the format of kube-apiserver.
"""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

import msgspec
import structlog
from aiohttp import HttpVersion11, web

from imex_sandbox.embedded import clusterroles, protobuf
from imex_sandbox.embedded.admission import ServerAdmission, field_validation, warnings
from imex_sandbox.embedded.authentication import Tokens, User
from imex_sandbox.embedded.authorization import Attributes, Authorizer
from imex_sandbox.embedded.definitions import Definitions
from imex_sandbox.embedded.discovery import AGGREGATED, Discovery
from imex_sandbox.embedded.kinds import BUILT_IN, LISTED_ONLY, NAMESPACES, SERVICE_ACCOUNTS, Kinds
from imex_sandbox.embedded.kubeletproxy import KubeletProxy, NodePage, PodRequest, node_page, pod_request
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.requests import Request, Response, Target, answer, parse_path
from imex_sandbox.embedded.settings import Settings
from imex_sandbox.embedded.statuses import ApiError, Json, no_controller
from imex_sandbox.embedded.storage import Key, Storage
from imex_sandbox.embedded.tables import Tables
from imex_sandbox.embedded.watches import Watch

log = structlog.get_logger()

_BODY_LIMIT = 3 * 1024 * 1024
_WATCH_SECONDS = 1800.0
_BOOKMARK_SECONDS = 60.0
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Api:
    """The objects, and what a server needs to know about them."""

    def __init__(self) -> None:
        self.kinds = Kinds(BUILT_IN)
        self.definitions = Definitions(self.kinds)
        storage = Storage()
        storage.subscribe(self.definitions.on_change)
        self.objects = Objects(
            storage,
            now=_now,
            new_uid=lambda: str(uuid.uuid4()),
            kinds=self.kinds,
            admission=ServerAdmission(self.definitions, lambda: _now().strftime("%Y-%m-%dT%H:%M:%SZ")),
            tracks_managers=True,
        )
        self.tables = Tables(self.definitions, _now)
        self.discovery = Discovery(self.kinds, self.definitions)
        for name in _NAMESPACES:
            self.objects.create(NAMESPACES, "", {"metadata": {"name": name}}, "embedded")
        clusterroles.install(self.objects)


class Server:
    def __init__(self, api: Api, tokens: Tokens, audit_log: IO[bytes], kubelets: KubeletProxy) -> None:
        self._api = api
        self._tokens = tokens
        self._authorizer = Authorizer(api.objects.storage)
        self._audit_log = audit_log
        self._kubelets = kubelets

    @asynccontextmanager
    async def listening(self, port: int, tls: ssl.SSLContext) -> AsyncIterator[None]:
        application = web.Application(client_max_size=_BODY_LIMIT)
        application.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away ends its watch.
        runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=0, handler_cancellation=True
        )
        await runner.setup()
        try:
            # The parent process has reserved the port, so that no other program gets it.
            await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_port=True).start()
            yield
        finally:
            await runner.cleanup()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            body = await http.read()
        except web.HTTPRequestEntityTooLarge:
            error = ApiError(413, f"Request entity too large: limit is {_BODY_LIMIT}")
            return web.json_response(error.status, status=error.code)
        request = Request(
            http.method,
            http.path,
            dict(http.query),
            http.content_type,
            body,
            http.headers.get("User-Agent", ""),
            http.headers.get("Accept", ""),
        )
        user = self._tokens.user(http.headers.get("Authorization", ""), http.get_extra_info("peercert"))
        if http.method in ("GET", "POST") and (wanted := pod_request(http.path)):
            return await self._pass_on(http, user, request, wanted)
        if http.method == "GET" and (page := node_page(http.path)):
            return await self._pass_on(http, user, request, page)
        noticed: list[str] = []
        warnings.set(noticed)
        field_validation.set(request.query.get("fieldValidation", "Warn"))
        try:
            answered = self._answer(user, request)
        except ApiError as error:
            answered = Response(error.code, msgspec.json.encode(error.status))
        except Exception as error:
            # One request must not be answered by something else than a Status, whatever is wrong here.
            log.exception("request failed", method=request.method, path=request.path)
            answered = Response(500, msgspec.json.encode(ApiError(500, f"{type(error).__name__}: {error}").status))
        self._audit(user, request, answered.code if isinstance(answered, Response) else 200)
        if isinstance(answered, Watch):
            return await _stream(http, answered, request)
        response = web.Response(status=answered.code, body=answered.body)
        response.headers["Content-Type"] = answered.content_type
        for text in noticed:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{escaped}"')
        return response

    async def _pass_on(
        self, http: web.Request, user: User | None, request: Request, wanted: PodRequest | NodePage
    ) -> web.StreamResponse:
        try:
            if user is None:
                raise ApiError(401, "Unauthorized")
            if isinstance(wanted, NodePage):
                self._authorizer.check(user, Attributes("get", "", "nodes/proxy", "", wanted.node))
                self._audit(user, request, 200)
                return await self._kubelets.page(wanted)
            verb = "get" if wanted.subresource == "log" else "create"
            resource = f"pods/{wanted.subresource}"
            self._authorizer.check(user, Attributes(verb, "", resource, wanted.namespace, wanted.name))
            self._audit(user, request, 200)
            return await self._kubelets.serve(http, wanted)
        except ApiError as error:
            return web.json_response(error.status, status=error.code)

    def _answer(self, user: User | None, request: Request) -> Response | Watch:
        if user is None:
            raise ApiError(401, "Unauthorized")
        api, path = self._api, request.path
        if path in ("/healthz", "/livez", "/readyz"):
            return Response(200, b"ok", "text/plain")
        if path == "/openapi/v2":
            # kubectl asks for it if a kind is not in version 3. It says then that there is no such kind.
            return Response(200, b"", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        aggregated = "as=APIGroupDiscoveryList" in request.accept and "v=v2;" in request.accept + ";"
        found = api.discovery.answer(path, aggregated=aggregated) if request.method == "GET" else None
        if found is not None:
            self._authorizer.check_path(user, path)
            kind = AGGREGATED if found.get("kind") == "APIGroupDiscoveryList" else "application/json"
            return Response(200, msgspec.json.encode(found), kind)
        if account := _token_request(path):
            attributes = Attributes("create", "", "serviceaccounts/token", *account)
            self._authorizer.check(user, attributes)
            return self._create_token(_as_json(request), *account)
        target = parse_path(api.kinds, path)
        self._authorizer.check(user, attributes_of(target, request))
        if request.method == "POST" and target.kind in LISTED_ONLY:
            raise no_controller(target.kind)
        return answer(api.objects, _as_json(request), api.tables)

    def _create_token(self, request: Request, namespace: str, name: str) -> Response:
        self._api.objects.get(SERVICE_ACCOUNTS, Key(namespace, name))
        body: Json = msgspec.json.decode(request.body, type=dict)
        spec = body.get("spec") or {}
        bound = spec.get("boundObjectRef")
        if bound:
            kind = next((one for one in self._api.kinds if one.kind == bound["kind"]), None)
            if kind is None:
                raise ApiError(400, f"a token cannot be bound to a {bound['kind']}")
            self._api.objects.get(kind, Key(namespace if kind.namespaced else "", bound["name"]))
        node = bound["name"] if bound and bound["kind"] == "Node" else ""
        token = self._tokens.service_account(namespace, name, node)
        status = {"token": token, "expirationTimestamp": "2999-01-01T00:00:00Z"}
        made = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": name}}
        return Response(201, msgspec.json.encode({**made, "spec": spec, "status": status}))

    def _audit(self, user: User | None, request: Request, code: int) -> None:
        event: Json = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": str(uuid.uuid4()),
            "stage": "ResponseComplete",
            "requestURI": f"{request.path}?{urlencode(request.query)}" if request.query else request.path,
            "verb": request.method.lower(),
            "user": user.document if user else {},
            "userAgent": request.user_agent,
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": _now().isoformat(timespec="microseconds"),
        }
        try:
            target = parse_path(self._api.kinds, request.path)
        except ApiError:
            pass
        else:
            wanted = attributes_of(target, request)
            event["verb"] = wanted.verb
            reference = {
                "resource": target.served.plural,
                "namespace": target.namespace,
                "name": target.name,
                "apiGroup": target.served.group,
                "apiVersion": target.served.version,
                "subresource": target.subresource,
            }
            event["objectRef"] = {field: value for field, value in reference.items() if value}
        self._audit_log.write(msgspec.json.encode(event) + b"\n")
        self._audit_log.flush()


def attributes_of(target: Target, request: Request) -> Attributes:
    if request.method == "GET":
        verb = "watch" if request.is_watch else "get" if target.name else "list"
    elif request.method == "DELETE":
        verb = "delete" if target.name else "deletecollection"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(request.method, request.method.lower())
    plural = target.served.plural
    resource = f"{plural}/{target.subresource}" if target.subresource else plural
    return Attributes(verb, target.served.group, resource, target.namespace, target.name)


def _as_json(request: Request) -> Request:
    if request.content_type != protobuf.CONTENT_TYPE:
        return request
    return request._replace(body=msgspec.json.encode(protobuf.decode(request.body)))


def _token_request(path: str) -> tuple[str, str] | None:
    match path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]:
            return namespace, name
    return None


async def _stream(http: web.Request, watch: Watch, request: Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    if http.version >= HttpVersion11:  # before, the end of the connection ends the response
        response.enable_chunked_encoding()
    loop = asyncio.get_running_loop()
    ends = loop.time() + float(request.query.get("timeoutSeconds") or _WATCH_SECONDS)
    try:
        await response.prepare(http)
        while (remaining := ends - loop.time()) > 0:
            lines = await watch.lines(min(remaining, _BOOKMARK_SECONDS))
            if lines is None:
                break
            if not lines and watch.bookmarks and ends > loop.time():
                lines = watch.bookmark()
            if lines:
                await response.write(lines)
        await response.write_eof()
    except ConnectionResetError:
        pass
    finally:
        watch.close()
    return response


def server_tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.certificate, settings.key)
    context.load_verify_locations(settings.authority)
    # Optional: users with a token have no certificate.
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Api]:
    api = Api()
    with Path(settings.audit_log).open("ab") as audit_log:  # noqa: ASYNC230 - once, at the start
        kubelets = KubeletProxy(api.objects, settings.kubelet_certificate, settings.kubelet_key)
        server = Server(api, Tokens(Path(settings.token_file)), audit_log, kubelets)
        async with server.listening(settings.port, server_tls(settings)):
            yield api


def _now() -> datetime:
    return datetime.now(UTC)
