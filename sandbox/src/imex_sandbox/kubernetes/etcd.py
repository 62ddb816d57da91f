"""etcd for one API server, which it serves through a Unix socket in its directory.

etcd uses no port, and other users of the machine cannot read or write the data of the cluster without going
through the API server. The path of the socket is relative, and clients run in the same directory, so the path of
the directory may exceed the 107 bytes that are possible for a socket. Data is not synced to disk: it is lost if
the machine crashes.
"""

import base64
import http.client
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imex_dra.base.errors import Unavailable
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.process import Process

_CLIENT = "etcd:0"
_PEER = "peer:0"
_OPERATIONS = 100
"""In one transaction. The limit of etcd is 128, and 1.5 MiB."""


class Etcd:
    url = f"unix://{_CLIENT}"

    def __init__(self, directory: Path, logs: Path) -> None:
        self._directory = directory
        peer = f"unix://{_PEER}"
        argv = [
            str(find("etcd")),
            "--data-dir=etcd",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self.process = Process("etcd", argv, log=logs / "etcd.log", cwd=directory)

    def start(self) -> None:
        self.process.start()

    def stop(self) -> None:
        self.process.stop()

    def compact(self) -> int:
        """Discard all revisions before the current revision, which is returned."""
        revision = int(self._call("maintenance/status")["header"]["revision"])
        self._call("kv/compaction", revision=revision, physical=True)
        return revision

    def put(self, values: Mapping[str, bytes]) -> None:
        """Store all values by key: ten times as fast as through an API server, which validates nothing of it."""
        puts = [{"requestPut": {"key": _base64(key.encode()), "value": _base64(values[key])}} for key in values]
        for start in range(0, len(puts), _OPERATIONS):
            self._call("kv/txn", success=puts[start : start + _OPERATIONS])

    def _call(self, method: str, **arguments: Any) -> Any:
        connection = _UnixConnection(self._directory / _CLIENT)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(arguments))
            response = connection.getresponse()
            answer = json.load(response)
        except OSError as error:
            raise Unavailable(f"etcd in {self._directory} does not respond: {error}. Is it running?") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise Unavailable(f"etcd rejected {method}: {answer}")
        return answer


class _UnixConnection(http.client.HTTPConnection):
    """Connects through a descriptor of the directory, so that the length of its path does not matter."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
