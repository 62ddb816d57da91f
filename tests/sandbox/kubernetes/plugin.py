"""A minimal DRA plugin: it prepares every claim at once, always with the same CDI device, which a test can choose.

It encodes its protobuf messages itself, so that tests of the node depend only on the node. Every field in them is
a field number, a length, and bytes.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from imex_sandbox.kubernetes.node import Node

DRIVER = "test.imex-dra.io"
DEVICE = "/dev/nvidia-caps-imex-channels/channel7"
_DEVICE_NAME = "channel-7"
_EDITS = {
    "env": ["CHANNEL=7"],
    "deviceNodes": [{"path": DEVICE, "type": "c", "major": 238, "minor": 7, "fileMode": 0o666}],
}

Handler = Callable[[bytes, grpc.ServicerContext], bytes]


class Plugin:
    """Registered with the kubelet while the context is entered."""

    def __init__(self, node: Node, edits: dict[str, Any] = _EDITS) -> None:
        self._node = node
        device = {"name": _DEVICE_NAME, "containerEdits": edits}
        self._content = {"cdiVersion": "0.6.0", "kind": "imex-dra.io/test", "devices": [device]}
        cdi_device = f"imex-dra.io/test={_DEVICE_NAME}"
        self._prepared = field(1, field(2, node.name) + field(3, _DEVICE_NAME) + field(4, cdi_device))
        self._socket = node.root / "k" / "plugins" / DRIVER / "dra.sock"
        self._spec = node.root / "run" / "cdi" / "test.json"
        self._registration = node.root / "k" / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._registered = threading.Event()

    def __enter__(self) -> Self:
        self._spec.write_text(json.dumps(self._content))
        self._serve(
            "pluginregistration.Registration",
            GetInfo=self._get_info,
            NotifyRegistrationStatus=self._notify_registration_status,
        )
        self._serve(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=lambda request, _: respond(request, self._prepared),
            NodeUnprepareResources=lambda request, _: respond(request, b""),
        )
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._socket, self._registration):
            self._server.add_insecure_port(f"unix:{path}")
        self._server.start()
        if not self._registered.wait(60):
            self._stop()
            raise AssertionError(f"the kubelet of {self._node.name} did not register {DRIVER} within 60 s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._server.stop(grace=None).wait()
        self._spec.unlink()

    def objects(self, template: str, namespace: str = "default") -> list[dict[str, Any]]:
        """The DeviceClass, the ResourceSlice, and a ResourceClaimTemplate for pods that claim the device."""
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        pool = {"name": self._node.name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": _DEVICE_NAME}]
        resource_slice = {"driver": DRIVER, "nodeName": self._node.name, "pool": pool, "devices": devices}
        request = {"name": "channel", "exactly": {"deviceClassName": "test"}}
        claim = {"spec": {"devices": {"requests": [request]}}}
        return [
            _object("DeviceClass", {"name": "test"}, {"selectors": [selector]}),
            _object("ResourceSlice", {"name": f"{self._node.name}-test"}, resource_slice),
            _object("ResourceClaimTemplate", {"name": template, "namespace": namespace}, claim),
        ]

    def _serve(self, service: str, **methods: Handler) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _get_info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        values = ("DRAPlugin", DRIVER, str(self._socket), "v1.DRAPlugin")
        return b"".join(field(number, value) for number, value in enumerate(values, start=1))

    def _notify_registration_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._registered.set()
        return b""


def _object(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def respond(request: bytes, result: bytes) -> bytes:
    """A response that maps the UID of every claim in the request to the same result."""
    uids = [dict(fields(claim))[2] for _, claim in fields(request)]
    return b"".join(field(1, field(1, uid) + field(2, result)) for uid in uids)


def field(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2]) + varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    while message:
        number, length = message[0] >> 3, message[1]
        assert length < 0x80, "names and UIDs in tests are shorter than 128 bytes"
        yield number, message[2 : 2 + length]
        message = message[2 + length :]


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)
