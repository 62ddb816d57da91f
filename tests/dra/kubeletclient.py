"""The gRPC calls that a kubelet makes to a DRA plugin."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from imex_dra.dra.plugin import ClaimId
from imex_dra.dra.proto import dra_pb2, health_pb2, registration_pb2

REGISTRATION = "pluginregistration.Registration"
DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class KubeletClient:
    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def info(self) -> registration_pb2.PluginInfo:
        response: registration_pb2.PluginInfo = await self._call(
            f"/{REGISTRATION}/GetInfo", registration_pb2.InfoRequest(), registration_pb2.PluginInfo
        )
        return response

    async def notify(self, *, registered: bool, error: str = "") -> None:
        await self._call(
            f"/{REGISTRATION}/NotifyRegistrationStatus",
            registration_pb2.RegistrationStatus(plugin_registered=registered, error=error),
            registration_pb2.RegistrationStatusResponse,
        )

    async def prepare(self, *claims: ClaimId) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        response: dra_pb2.NodePrepareResourcesResponse = await self._call(
            f"/{DRA}/NodePrepareResources",
            dra_pb2.NodePrepareResourcesRequest(claims=_messages(claims)),
            dra_pb2.NodePrepareResourcesResponse,
        )
        return dict(response.claims)

    async def unprepare(self, *claims: ClaimId) -> dict[str, str]:
        """The error of each claim, or an empty string, by UID."""
        response: dra_pb2.NodeUnprepareResourcesResponse = await self._call(
            f"/{DRA}/NodeUnprepareResources",
            dra_pb2.NodeUnprepareResourcesRequest(claims=_messages(claims)),
            dra_pb2.NodeUnprepareResourcesResponse,
        )
        return {uid: claim.error for uid, claim in response.claims.items()}

    def watch_health(self, service: str) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        call: Any = self._channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        responses: AsyncIterator[health_pb2.NodeWatchResourcesResponse] = aiter(
            call(health_pb2.NodeWatchResourcesRequest())
        )
        return responses

    async def _call(self, method: str, request: Any, response_type: Any) -> Any:
        call: Any = self._channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        return await call(request, timeout=60)


@asynccontextmanager
async def connect(socket: Path, *, authority: str = "localhost") -> AsyncIterator[KubeletClient]:
    async with aio.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", authority)]) as channel:
        yield KubeletClient(channel)


def _messages(claims: tuple[ClaimId, ...]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
