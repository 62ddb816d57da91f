"""The embedded control plane as a process: the interface of `ControlPlane`, without Kubernetes.

Its objects are in memory, so it cannot be killed and started again as a real API server can.
"""

import signal
import ssl
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from imex_dra.base.errors import Rejected
from imex_sandbox.embedded.settings import Settings
from imex_sandbox.kubernetes.apiserver import ReservedPort
from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.identities import ADMIN, Identities
from imex_sandbox.kubernetes.kubectl import Kubectl, token_credential
from imex_sandbox.process import Process

NAME = "embedded-control-plane"


class EmbeddedControlPlane:
    def __init__(
        self,
        directory: Path,
        *,
        logs: Path | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
        controllers: bool = True,
        ready_within: float = 60,
    ) -> None:
        """`users` maps names to their groups. `controllers` include the scheduler."""
        self.directory = directory
        self.audit_log = directory / "audit.log"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._port = ReservedPort()
        self._ready_within = ready_within
        self.url = f"https://127.0.0.1:{self._port.number}"
        self.authority = Authority(directory / "pki")
        self.identities = Identities(directory, url=self.url, authority=self.authority, users=users or {})
        context = ssl.create_default_context(cafile=self.authority.certificate)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        settings = directory / "embedded.json"
        settings.write_bytes(msgspec.json.encode(self._settings(controllers)))
        argv = [sys.executable, "-m", "imex_sandbox.embedded", str(settings)]
        self.process = Process(NAME, argv, log=(logs or directory) / f"{NAME}.log", cwd=directory)
        self.kubectl = Kubectl(self.kubeconfig())

    @property
    def processes(self) -> Sequence[Process]:
        return [self.process]

    def __enter__(self) -> Self:
        try:
            self.launch()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def launch(self) -> None:
        """Returns when it is ready."""
        self.process.start()
        self.process.until(self._is_ready, within=self._ready_within)

    def until_ready(self) -> None:
        """It is ready as soon as it answers."""

    def stop(self) -> None:
        self.process.stop(within=0)
        self._port.release()

    def kubeconfig(self, user: str = ADMIN) -> Path:
        return self.identities.with_token(user)

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}")
        user = f"system:serviceaccount:{namespace}:{name}"
        return self.identities.write(user, token_credential(token.strip()))

    def kill_apiserver(self) -> None:
        raise Rejected(
            "the embedded control plane keeps all objects in memory, so it cannot be killed and started again: use"
            " `imex up --control-plane kubernetes` for this, or hang it"
        )

    start_apiserver = kill_apiserver

    def hang_apiserver(self) -> None:
        """It keeps its port and its connections, but does not respond."""
        self.process.kill(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        self.process.kill(signal.SIGCONT)

    def _is_ready(self) -> bool:
        try:
            with self._opener.open(f"{self.url}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def _settings(self, controllers: bool) -> Settings:
        serving = self.authority.server("apiserver", ["IP:127.0.0.1", "DNS:localhost"])
        client = self.authority.client("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
        return Settings(
            port=self._port.number,
            certificate=str(serving.certificate),
            key=str(serving.key),
            authority=str(self.authority.certificate),
            token_file=str(self.identities.token_file),
            audit_log=str(self.audit_log),
            kubelet_certificate=str(client.certificate),
            kubelet_key=str(client.key),
            controllers=controllers,
        )


AnyControlPlane = ControlPlane | EmbeddedControlPlane
