"""The DRA plugin as the kubelet sees it: a registration socket and a service socket.

The kubelet watches its plugin registry and calls GetInfo on each new socket. Socket names contain an instance
ID: in a rolling update the new plugin registers next to the old one, and there is always one that serves.

Every claim of a request gets its own response, also after an unexpected error. The kubelet would report a claim
without a response as "skipped", and the cause would be lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import structlog
from grpc import aio

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import ImexError
from imex_dra.dra.health import SERVICES, HealthSource, health_handlers
from imex_dra.dra.proto import dra_pb2, registration_pb2
from imex_dra.dra.sockets import Sockets, remove_abandoned

log = structlog.get_logger()

SERVICE = "v1.DRAPlugin"
_GRPC_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_REGISTRATION_SERVICE = "pluginregistration.Registration"
_LOCAL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
"""For a probe of our own socket. Without a pool of its own, a channel may share the last probe's connection."""
_PROBE_LIMIT = 5.0

DEREGISTRATION_DELAY = 2.0
"""Seconds to serve after the registration socket is removed: the kubelet checks the registry once a second."""


class ClaimId(NamedTuple):
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PreparedDevice(NamedTuple):
    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


class Driver(Protocol):
    """Raises ImexError; the kubelet shows the message in an event of the pod."""

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]: ...

    async def unprepare(self, claim: ClaimId) -> None: ...


class Registration:
    """What the kubelet last said about the registration of this plugin."""

    def __init__(self) -> None:
        self.problem = "the kubelet has not registered the plugin yet"
        """Empty if it is registered."""


@asynccontextmanager
async def serving(
    driver: Driver,
    paths: Sockets,
    *,
    health: HealthSource,
    registration: Registration | None = None,
    deregistration_delay: float = DEREGISTRATION_DELAY,
) -> AsyncIterator[None]:
    # The service starts first and stops last: the registration refers to its socket.
    service = await _server(paths.service, _dra_handler(driver), *health_handlers(health))
    handler = _registration_handler(paths, registration or Registration())
    registering = await _server(paths.registration, handler)
    try:
        yield
    finally:
        await registering.stop(grace=0)
        paths.registration.unlink(missing_ok=True)
        await asyncio.sleep(deregistration_delay)
        await service.stop(grace=1)
        paths.service.unlink(missing_ok=True)


async def registration_problem(paths: Sockets) -> str:
    """Calls the registration socket as the kubelet does. Returns what is wrong; empty if nothing is.

    With a connection of its own each time: one that is kept would not notice that the socket was removed, after
    which a kubelet that restarts cannot find the plugin.
    """
    async with aio.insecure_channel(f"unix:{paths.registration}", options=_LOCAL) as channel:
        get_info: Any = channel.unary_unary(
            f"/{_REGISTRATION_SERVICE}/GetInfo",
            request_serializer=registration_pb2.InfoRequest.SerializeToString,
            response_deserializer=registration_pb2.PluginInfo.FromString,
        )
        try:
            found = await get_info(registration_pb2.InfoRequest(), timeout=_PROBE_LIMIT)
        except aio.AioRpcError as error:
            return f"the registration socket does not answer: {error.details()}"
    if (found.name, found.endpoint) != (DRIVER, str(paths.service)):
        return f"another plugin answers on the registration socket: {found.name} at {found.endpoint}"
    return "" if paths.service.exists() else f"the service socket {paths.service} was removed"


async def _server(path: Path, *handlers: grpc.GenericRpcHandler) -> aio.Server:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def _registration_handler(paths: Sockets, registration: Registration) -> grpc.GenericRpcHandler:
    async def get_info(request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(paths.service), supported_versions=[SERVICE, *SERVICES]
        )

    async def notify(
        request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("registered with the kubelet")
            registration.problem = ""
            await asyncio.to_thread(remove_abandoned, paths)
        else:
            registration.problem = f"the kubelet rejected the registration: {request.error}"
            log.error("the kubelet rejected the registration", error=request.error)
        return registration_pb2.RegistrationStatusResponse()

    return _handler(
        _REGISTRATION_SERVICE,
        GetInfo=(get_info, registration_pb2.InfoRequest),
        NotifyRegistrationStatus=(notify, registration_pb2.RegistrationStatus),
    )


def _dra_handler(driver: Driver) -> grpc.GenericRpcHandler:
    async def prepare(
        request: dra_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        responses = await _for_each(request.claims, lambda claim: _prepare(driver, claim))
        return dra_pb2.NodePrepareResourcesResponse(claims=responses)

    async def unprepare(
        request: dra_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        responses = await _for_each(request.claims, lambda claim: _unprepare(driver, claim))
        return dra_pb2.NodeUnprepareResourcesResponse(claims=responses)

    return _handler(
        _GRPC_SERVICE,
        NodePrepareResources=(prepare, dra_pb2.NodePrepareResourcesRequest),
        NodeUnprepareResources=(unprepare, dra_pb2.NodeUnprepareResourcesRequest),
    )


async def _for_each(claims: Iterable[dra_pb2.Claim], work: Callable[[ClaimId], Awaitable[Any]]) -> dict[str, Any]:
    ids = [ClaimId(claim.namespace, claim.name, claim.uid) for claim in claims]
    responses = await asyncio.gather(*(work(claim) for claim in ids))
    return {claim.uid: response for claim, response in zip(ids, responses, strict=True)}


async def _prepare(driver: Driver, claim: ClaimId) -> dra_pb2.NodePrepareResourceResponse:
    try:
        devices = await driver.prepare(claim)
    except Exception as error:
        return dra_pb2.NodePrepareResourceResponse(error=_error_message(error, claim))
    return dra_pb2.NodePrepareResourceResponse(devices=[_device(device) for device in devices])


async def _unprepare(driver: Driver, claim: ClaimId) -> dra_pb2.NodeUnprepareResourceResponse:
    try:
        await driver.unprepare(claim)
    except Exception as error:
        return dra_pb2.NodeUnprepareResourceResponse(error=_error_message(error, claim))
    return dra_pb2.NodeUnprepareResourceResponse()


def _device(device: PreparedDevice) -> dra_pb2.Device:
    return dra_pb2.Device(
        request_names=[device.request],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )


def _error_message(error: Exception, claim: ClaimId) -> str:
    if isinstance(error, ImexError):
        log.warning("claim failed", claim=str(claim), error=str(error))
        # An empty message would mean success.
        return str(error) or type(error).__name__
    log.error("claim failed with an unexpected error", claim=str(claim), exc_info=error)
    return f"claim {claim}: unexpected {type(error).__name__}: {error}; see the log of imex node on this node"


def _handler(service: str, **methods: tuple[Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
            for name, (call, request) in methods.items()
        },
    )
