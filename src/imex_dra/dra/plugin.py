"""The driver as the kubelet sees it: one socket that says who we are, one that prepares claims.

The kubelet watches its registry directory; a socket that appears there is asked once. Socket names carry an
instance id, so that during an update the new plugin registers beside the old one and no pod finds nobody.
Whatever goes wrong, every claim that was asked for gets an answer with its own reason: a missing one would be
reported as "skipped", and the reason would be lost.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import structlog
from grpc import aio

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import ImexError, Misconfigured
from imex_dra.dra.proto import dra_pb2, registration_pb2

log = structlog.get_logger()

SERVICE = "v1.DRAPlugin"
_WIRE_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_LONGEST_SOCKET_PATH = 107

LINGER = 2.0
"""The kubelet looks once a second whether a plugin's registration is gone; until then it still calls."""


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
    """Errors are raised as ImexError; their words reach the pod's events."""

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]: ...

    async def unprepare(self, claim: ClaimId) -> None: ...


class Sockets(NamedTuple):
    registration: Path
    service: Path


def sockets(kubelet: Path, instance: str) -> Sockets:
    """`kubelet` is the kubelet's directory; `instance` six characters or so, unique on the node."""
    chosen = Sockets(
        kubelet / "plugins_registry" / f"{DRIVER}-{instance}-reg.sock",
        kubelet / "plugins" / DRIVER / f"dra-{instance}.sock",
    )
    for path in chosen:
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise Misconfigured(f"{path} is longer than a unix socket path may be ({_LONGEST_SOCKET_PATH} bytes)")
    return chosen


@asynccontextmanager
async def serving(driver: Driver, paths: Sockets, *, linger: float = LINGER) -> AsyncIterator[None]:
    """The service comes first and goes last, so that nobody is sent to a socket that is not there."""
    service = await _server(paths.service, _dra_handler(driver))
    registration = await _server(paths.registration, _registration_handler(paths.service))
    try:
        yield
    finally:
        await registration.stop(grace=0)
        paths.registration.unlink(missing_ok=True)
        await asyncio.sleep(linger)
        await service.stop(grace=1)
        paths.service.unlink(missing_ok=True)


async def _server(path: Path, handler: grpc.GenericRpcHandler) -> aio.Server:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def _registration_handler(endpoint: Path) -> grpc.GenericRpcHandler:
    async def get_info(request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=[SERVICE]
        )

    async def notify(
        request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("the kubelet registered the driver")
        else:
            log.error("the kubelet refused the driver", error=request.error)
        return registration_pb2.RegistrationStatusResponse()

    return _handler(
        "pluginregistration.Registration",
        GetInfo=(get_info, registration_pb2.InfoRequest),
        NotifyRegistrationStatus=(notify, registration_pb2.RegistrationStatus),
    )


def _dra_handler(driver: Driver) -> grpc.GenericRpcHandler:
    async def prepare(
        request: dra_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        answers = await _for_each(request.claims, lambda claim: _prepare(driver, claim))
        return dra_pb2.NodePrepareResourcesResponse(claims=answers)

    async def unprepare(
        request: dra_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        answers = await _for_each(request.claims, lambda claim: _unprepare(driver, claim))
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)

    return _handler(
        _WIRE_SERVICE,
        NodePrepareResources=(prepare, dra_pb2.NodePrepareResourcesRequest),
        NodeUnprepareResources=(unprepare, dra_pb2.NodeUnprepareResourcesRequest),
    )


async def _for_each(claims: Iterable[dra_pb2.Claim], work: Callable[[ClaimId], Awaitable[Any]]) -> dict[str, Any]:
    ids = [ClaimId(claim.namespace, claim.name, claim.uid) for claim in claims]
    answers = await asyncio.gather(*(work(claim) for claim in ids))
    return {claim.uid: answer for claim, answer in zip(ids, answers, strict=True)}


async def _prepare(driver: Driver, claim: ClaimId) -> dra_pb2.NodePrepareResourceResponse:
    try:
        devices = await driver.prepare(claim)
    except Exception as error:
        return dra_pb2.NodePrepareResourceResponse(error=_words(error, claim))
    return dra_pb2.NodePrepareResourceResponse(devices=[_device(device) for device in devices])


async def _unprepare(driver: Driver, claim: ClaimId) -> dra_pb2.NodeUnprepareResourceResponse:
    try:
        await driver.unprepare(claim)
    except Exception as error:
        return dra_pb2.NodeUnprepareResourceResponse(error=_words(error, claim))
    return dra_pb2.NodeUnprepareResourceResponse()


def _device(device: PreparedDevice) -> dra_pb2.Device:
    return dra_pb2.Device(
        request_names=[device.request],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )


def _words(error: Exception, claim: ClaimId) -> str:
    if isinstance(error, ImexError):
        log.warning("claim failed", claim=str(claim), error=str(error))
        return str(error) or type(error).__name__  # an empty one would mean success
    log.error("claim failed unexpectedly", claim=str(claim), exc_info=error)
    return f"claim {claim}: unexpected {type(error).__name__}: {error}; see the log of imex node on this node"


def _handler(service: str, **methods: tuple[Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (call, request) in methods.items()
        },
    )
