"""A DRA plugin that does what a test tells it, and remembers what the kubelet asked, in which order and when."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from imex_dra.dra.proto import dra_pb2, health_pb2, registration_pb2
from tests.sandbox.waiting import eventually

PREPARE = "prepare"
UNPREPARE = "unprepare"
HEALTH = "v1alpha1.DRAResourceHealth"


class Call(NamedTuple):
    kind: str
    claims: frozenset[str]
    at: float


class Plugin:
    """Claims are known by their names here; every name is used once."""

    def __init__(self, kubelet: Path, driver: str, instance: str = "a", *, versions: tuple[str, ...]) -> None:
        self.driver = driver
        self.socket = kubelet / "plugins" / driver / f"{instance}.sock"
        self.registration = kubelet / "plugins_registry" / f"{driver}-{instance}.sock"
        self.versions = versions
        self.calls: list[Call] = []
        self.registered = threading.Event()
        self.refusals: list[str] = []
        self.asked = 0
        self.errors: dict[tuple[str, str], str] = {}
        """(kind, claim) to the error that is answered, until it is taken out."""
        self.skipped: set[str] = set()
        self.cdi: dict[str, list[str]] = {}
        self.gate = {PREPARE: threading.Event(), UNPREPARE: threading.Event()}
        for gate in self.gate.values():
            gate.set()
        self.reports: queue.Queue[health_pb2.NodeWatchResourcesResponse | None] = queue.Queue()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        services = [self._registration_service(), self._dra_service()]
        if HEALTH in self.versions:
            services.append(self._health_service())
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(tuple(services))
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.socket, self.registration):
            self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def stop(self) -> None:
        """gRPC takes the sockets away with the server."""
        self.reports.put(None)
        for gate in self.gate.values():
            gate.set()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        for path in (self.registration, self.socket):
            path.unlink(missing_ok=True)

    def crash(self) -> None:
        """In the middle of whatever it was asked."""
        assert self._server is not None
        self._server.stop(grace=None)
        self.stop()

    def until_registered(self) -> None:
        assert self.registered.wait(60), "the kubelet did not register the plugin"

    def times(self, kind: str, claim: str) -> int:
        return len(self.of(kind, claim))

    def of(self, kind: str, claim: str) -> list[Call]:
        return [call for call in self.calls if call.kind == kind and claim in call.claims]

    def until(self, kind: str, claim: str, *, times: int = 1, within: float = 60) -> Call:
        assert eventually(lambda: self.times(kind, claim) >= times, within), f"{kind} {claim}: {self.calls}"
        return self.of(kind, claim)[times - 1]

    def _registration_service(self) -> grpc.GenericRpcHandler:
        def get_info(request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
            self.asked += 1
            return registration_pb2.PluginInfo(
                type="DRAPlugin",
                name=self.driver,
                endpoint=str(self.socket),
                supported_versions=self.versions,
            )

        def notify(
            request: registration_pb2.RegistrationStatus, context: Any
        ) -> registration_pb2.RegistrationStatusResponse:
            if request.plugin_registered:
                self.registered.set()
            else:
                self.refusals.append(request.error)
            return registration_pb2.RegistrationStatusResponse()

        return _service(
            "pluginregistration.Registration",
            GetInfo=(get_info, registration_pb2.InfoRequest),
            NotifyRegistrationStatus=(notify, registration_pb2.RegistrationStatus),
        )

    def _dra_service(self) -> grpc.GenericRpcHandler:
        def prepare(request: dra_pb2.NodePrepareResourcesRequest, context: Any) -> Any:
            return dra_pb2.NodePrepareResourcesResponse(claims=self._answers(PREPARE, request, self._prepared))

        def unprepare(request: dra_pb2.NodeUnprepareResourcesRequest, context: Any) -> Any:
            return dra_pb2.NodeUnprepareResourcesResponse(
                claims=self._answers(UNPREPARE, request, self._unprepared)
            )

        return _service(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=(prepare, dra_pb2.NodePrepareResourcesRequest),
            NodeUnprepareResources=(unprepare, dra_pb2.NodeUnprepareResourcesRequest),
        )

    def report(self, claim: str, health: health_pb2.HealthStatus, message: str = "", lasts: int = 0) -> None:
        """Of the one device that a claim has here."""
        device = health_pb2.DeviceHealth(
            device=health_pb2.DeviceIdentifier(pool_name="pool", device_name=claim),
            health=health,
            message=message,
            health_check_timeout_seconds=lasts,
            last_updated_time=int(time.time()),
        )
        self.reports.put(health_pb2.NodeWatchResourcesResponse(devices=[device]))

    def _health_service(self) -> grpc.GenericRpcHandler:
        def watch(request: Any, context: Any) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
            while (report := self.reports.get()) is not None:
                yield report

        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=health_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(HEALTH, {"NodeWatchResources": handler})

    def _answers(self, kind: str, request: Any, answer: Callable[[str], Any]) -> dict[str, Any]:
        self.calls.append(Call(kind, frozenset(claim.name for claim in request.claims), time.time()))
        self.gate[kind].wait(60)
        return {claim.uid: answer(claim.name) for claim in request.claims if claim.name not in self.skipped}

    def _prepared(self, claim: str) -> dra_pb2.NodePrepareResourceResponse:
        if error := self.errors.get((PREPARE, claim)):
            return dra_pb2.NodePrepareResourceResponse(error=error)
        device = dra_pb2.Device(
            request_names=["one"], pool_name="pool", device_name=claim, cdi_device_ids=self.cdi.get(claim, [])
        )
        return dra_pb2.NodePrepareResourceResponse(devices=[device])

    def _unprepared(self, claim: str) -> dra_pb2.NodeUnprepareResourceResponse:
        return dra_pb2.NodeUnprepareResourceResponse(error=self.errors.get((UNPREPARE, claim), ""))


def _service(name: str, **methods: tuple[Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        name,
        {
            method: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for method, (call, request) in methods.items()
        },
    )
