"""The smallest DRA driver there can be: gives every claim the same CDI device and answers at once.

Its messages are encoded by hand, so that a test of the node depends on nothing but the node: every field here is
a number, a length and bytes.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from imex_dra.sandbox.kubernetes.node import Node

DRIVER = "test.imex-dra.io"
DEVICE = "/dev/nvidia-caps-imex-channels/channel7"
_SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "imex-dra.io/test",
    "devices": [
        {
            "name": "seven",
            "containerEdits": {
                "env": ["CHANNEL=7"],
                "deviceNodes": [{"path": DEVICE, "type": "c", "major": 238, "minor": 7, "fileMode": 0o666}],
            },
        }
    ],
}

Handler = Callable[[bytes, grpc.ServicerContext], bytes]


class Plugin:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._prepared = field(1, field(2, node.name) + field(3, "seat") + field(4, "imex-dra.io/test=seven"))
        self._socket = node.root / "k" / "plugins" / DRIVER / "dra.sock"
        self._spec = node.root / "run" / "cdi" / "test.json"
        self._registration = node.root / "k" / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._registered = threading.Event()

    def __enter__(self) -> Self:
        self._spec.write_text(json.dumps(_SPEC))
        self._serve("pluginregistration.Registration", GetInfo=self._info, NotifyRegistrationStatus=self._notified)
        self._serve(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=lambda request, _: answers(request, self._prepared),
            NodeUnprepareResources=lambda request, _: answers(request, b""),
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
        """What a pod needs to claim from it, by a ResourceClaimTemplate of this name."""
        cel = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        pool = {"name": self._node.name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "seat"}]
        slices = {"driver": DRIVER, "nodeName": self._node.name, "pool": pool, "devices": devices}
        request = {"name": "channel", "exactly": {"deviceClassName": "test"}}
        claim = {"spec": {"devices": {"requests": [request]}}}
        return [
            _object("DeviceClass", {"name": "test"}, {"selectors": [cel]}),
            _object("ResourceSlice", {"name": "seats"}, slices),
            _object("ResourceClaimTemplate", {"name": template, "namespace": namespace}, claim),
        ]

    def _serve(self, service: str, **methods: Handler) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        words = ("DRAPlugin", DRIVER, str(self._socket), "v1.DRAPlugin")
        return b"".join(field(number, word) for number, word in enumerate(words, start=1))

    def _notified(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._registered.set()
        return b""


def _object(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def answers(request: bytes, answer: bytes) -> bytes:
    """The same answer for every claim of a request, by the claim's UID."""
    uids = [dict(fields(claim))[2] for _, claim in fields(request)]
    return b"".join(field(1, field(1, uid) + field(2, answer)) for uid in uids)


def field(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2]) + varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    while message:
        number, length = message[0] >> 3, message[1]
        assert length < 0x80, "no name of a test is that long"
        yield number, message[2 : 2 + length]
        message = message[2 + length :]


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)
