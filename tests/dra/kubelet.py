"""The kubelet's side of the sockets: generic calls by service and method name, as they stand on the wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from imex_dra.dra.plugin import ClaimId
from imex_dra.dra.proto import dra_pb2, registration_pb2

REGISTRATION = "pluginregistration.Registration"
DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class Kubelet:
    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def info(self) -> registration_pb2.PluginInfo:
        answer: registration_pb2.PluginInfo = await self._call(
            f"/{REGISTRATION}/GetInfo", registration_pb2.InfoRequest(), registration_pb2.PluginInfo
        )
        return answer

    async def notify(self, *, registered: bool, error: str = "") -> None:
        await self._call(
            f"/{REGISTRATION}/NotifyRegistrationStatus",
            registration_pb2.RegistrationStatus(plugin_registered=registered, error=error),
            registration_pb2.RegistrationStatusResponse,
        )

    async def prepare(self, *claims: ClaimId) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        answer: dra_pb2.NodePrepareResourcesResponse = await self._call(
            f"/{DRA}/NodePrepareResources",
            dra_pb2.NodePrepareResourcesRequest(claims=_wire(claims)),
            dra_pb2.NodePrepareResourcesResponse,
        )
        return dict(answer.claims)

    async def unprepare(self, *claims: ClaimId) -> dict[str, str]:
        """The error of each claim, empty if there was none."""
        answer: dra_pb2.NodeUnprepareResourcesResponse = await self._call(
            f"/{DRA}/NodeUnprepareResources",
            dra_pb2.NodeUnprepareResourcesRequest(claims=_wire(claims)),
            dra_pb2.NodeUnprepareResourcesResponse,
        )
        return {uid: response.error for uid, response in answer.claims.items()}

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        call: Any = self._channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=20)


@asynccontextmanager
async def dialled(socket: Path, *, authority: str = "localhost") -> AsyncIterator[Kubelet]:
    async with aio.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", authority)]) as channel:
        yield Kubelet(channel)


def _wire(claims: tuple[ClaimId, ...]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
