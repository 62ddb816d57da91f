"""A DRA plugin that answers as a test tells it, and records the kubelet's calls."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from imex_dra.dra.proto import dra_pb2, health_pb2, registration_pb2
from tests.waiting import until

PREPARE = "prepare"
UNPREPARE = "unprepare"
HEALTH = "v1alpha1.DRAResourceHealth"


class Call(NamedTuple):
    kind: str
    claims: frozenset[str]
    at: float


class FakePlugin:
    """Identifies claims by name; each name is used once."""

    def __init__(self, kubelet: Path, driver: str, instance: str = "a", *, versions: tuple[str, ...]) -> None:
        self.driver = driver
        self.socket = kubelet / "plugins" / driver / f"{instance}.sock"
        self.registration = kubelet / "plugins_registry" / f"{driver}-{instance}.sock"
        self.versions = versions
        self.calls: list[Call] = []
        self.registered = threading.Event()
        self.registration_errors: list[str] = []
        self.get_info_calls = 0
        self.errors: dict[tuple[str, str], str] = {}
        """(kind, claim) to the error that every such call returns."""
        self.skipped: set[str] = set()
        """Claims that are left out of responses."""
        self.cdi_devices: dict[str, list[str]] = {}
        self.gate = {PREPARE: threading.Event(), UNPREPARE: threading.Event()}
        """Calls block while their gate is cleared."""
        for gate in self.gate.values():
            gate.set()
        self._health_reports: queue.Queue[health_pb2.NodeWatchResourcesResponse | None] = queue.Queue()
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
        self._health_reports.put(None)
        for gate in self.gate.values():
            gate.set()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        for path in (self.registration, self.socket):
            path.unlink(missing_ok=True)

    def crash(self) -> None:
        """Aborts the calls in progress before any of them can be answered."""
        assert self._server is not None
        self._server.stop(grace=None)
        self.stop()

    def until_registered(self) -> None:
        assert self.registered.wait(60), "the kubelet did not register the plugin"

    def call_count(self, kind: str, claim: str) -> int:
        return len(self._calls(kind, claim))

    def until_called(self, kind: str, claim: str, *, times: int = 1, within: float = 60) -> Call:
        until(
            lambda: self.call_count(kind, claim) >= times,
            within=within,
            what=f"{times} {kind} calls for {claim}",
        )
        return self._calls(kind, claim)[times - 1]

    def _calls(self, kind: str, claim: str) -> list[Call]:
        return [call for call in self.calls if call.kind == kind and claim in call.claims]

    def _registration_service(self) -> grpc.GenericRpcHandler:
        def get_info(request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
            self.get_info_calls += 1
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
                self.registration_errors.append(request.error)
            return registration_pb2.RegistrationStatusResponse()

        return _service(
            "pluginregistration.Registration",
            GetInfo=(get_info, registration_pb2.InfoRequest),
            NotifyRegistrationStatus=(notify, registration_pb2.RegistrationStatus),
        )

    def _dra_service(self) -> grpc.GenericRpcHandler:
        def prepare(request: dra_pb2.NodePrepareResourcesRequest, context: Any) -> Any:
            return dra_pb2.NodePrepareResourcesResponse(claims=self._respond(PREPARE, request, self._prepare))

        def unprepare(request: dra_pb2.NodeUnprepareResourcesRequest, context: Any) -> Any:
            return dra_pb2.NodeUnprepareResourcesResponse(
                claims=self._respond(UNPREPARE, request, self._unprepare)
            )

        return _service(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=(prepare, dra_pb2.NodePrepareResourcesRequest),
            NodeUnprepareResources=(unprepare, dra_pb2.NodeUnprepareResourcesRequest),
        )

    def report_health(
        self, claim: str, health: health_pb2.HealthStatus, message: str = "", timeout: int = 0
    ) -> None:
        """Reports the health of the one device of a claim."""
        device = health_pb2.DeviceHealth(
            device=health_pb2.DeviceIdentifier(pool_name="pool", device_name=claim),
            health=health,
            message=message,
            health_check_timeout_seconds=timeout,
            last_updated_time=int(time.time()),
        )
        self._health_reports.put(health_pb2.NodeWatchResourcesResponse(devices=[device]))

    def _health_service(self) -> grpc.GenericRpcHandler:
        def watch(request: Any, context: Any) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
            while (report := self._health_reports.get()) is not None:
                yield report

        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=health_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(HEALTH, {"NodeWatchResources": handler})

    def _respond(self, kind: str, request: Any, respond: Callable[[str], Any]) -> dict[str, Any]:
        self.calls.append(Call(kind, frozenset(claim.name for claim in request.claims), time.time()))
        self.gate[kind].wait(60)
        return {claim.uid: respond(claim.name) for claim in request.claims if claim.name not in self.skipped}

    def _prepare(self, claim: str) -> dra_pb2.NodePrepareResourceResponse:
        if error := self.errors.get((PREPARE, claim)):
            return dra_pb2.NodePrepareResourceResponse(error=error)
        device = dra_pb2.Device(
            request_names=["one"],
            pool_name="pool",
            device_name=claim,
            cdi_device_ids=self.cdi_devices.get(claim, []),
        )
        return dra_pb2.NodePrepareResourceResponse(devices=[device])

    def _unprepare(self, claim: str) -> dra_pb2.NodeUnprepareResourceResponse:
        return dra_pb2.NodeUnprepareResourceResponse(error=self.errors.get((UNPREPARE, claim), ""))


def _service(name: str, **methods: tuple[Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        name,
        {
            method: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
            for method, (call, request) in methods.items()
        },
    )
