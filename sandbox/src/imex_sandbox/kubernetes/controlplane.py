"""A real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

All files are in one directory, except logs if another directory is given for them. Only the API server uses a
port, so any number of control planes can run at the same time. The API server keeps its port and its data across
`kill_apiserver` and `start_apiserver`. All processes die with this process.

When Kubernetes 1.36 returns 410 Gone:

- Not after `compact` alone: the watch cache of the API server still serves old resource versions.
- After `compact`, `kill_apiserver` and `start_apiserver`, for every older resource version. A watch returns HTTP
  200 and then one ERROR event with code 410, never HTTP 410. A list with `resourceVersionMatch=Exact` or with an
  old `continue` token returns HTTP 410. A list without them succeeds.
- With `--watch-cache=false` in `apiserver_flags`, after `compact` alone.
"""

import signal
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes import apiserver, identities
from imex_sandbox.kubernetes.apiserver import ReservedPort
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.kubernetes.etcd import Etcd
from imex_sandbox.kubernetes.identities import ADMIN, Identities
from imex_sandbox.kubernetes.kubectl import Kubectl, token_credential
from imex_sandbox.process import Process

_CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")


class ControlPlane:
    def __init__(
        self,
        directory: Path,
        *,
        logs: Path | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
        scheduler: bool = True,
        controller_manager: bool = True,
        apiserver_flags: Sequence[str] = (),
        manager_flags: Sequence[str] = (),
        ready_within: float = 60,
    ) -> None:
        """`users` maps names to their groups. Flags of programs come last, so they override other flags."""
        self.directory = directory
        self.audit_log = directory / "audit.log"
        self._logs = logs or directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._port = ReservedPort()
        self._ready_within = ready_within
        self.address = f"127.0.0.1:{self._port.number}"
        self.url = f"https://{self.address}"
        self.authority = Authority(directory / "pki")
        self.identities = Identities(directory, url=self.url, authority=self.authority, users=users or {})
        self._opener = self._make_opener()
        self._etcd = Etcd(directory, self._logs)
        self._apiserver = self._process("kube-apiserver", *self._apiserver_flags(), *apiserver_flags)
        self._manager = (
            self._process("kube-controller-manager", *self._manager_flags(), *manager_flags)
            if controller_manager
            else None
        )
        self._scheduler = (
            self._process("kube-scheduler", *self._client_flags(identities.SCHEDULER)) if scheduler else None
        )
        self.kubectl = Kubectl(self.kubeconfig())

    @property
    def processes(self) -> Sequence[Process]:
        """In the order in which they depend on each other."""
        return [self._etcd.process, self._apiserver, *self._clients()]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        try:
            self.launch()
            self.until_ready()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Returns when the API server is ready. The other processes are started, but may not be ready."""
        self._etcd.start()
        self.start_apiserver()
        for process in self._clients():
            process.start()

    def until_ready(self) -> None:
        """Wait until pods can be created, which requires the default service account."""
        if self._manager:
            self._manager.until(self._has_service_accounts, within=self._ready_within)

    def stop(self) -> None:
        for process in (*self._clients(), self._apiserver):
            process.stop(within=0)
        self._etcd.stop()
        self._port.release()

    def kubeconfig(self, user: str = ADMIN) -> Path:
        return self.identities.with_token(user)

    def service_account(self, namespace: str, name: str, *, node: str | None = None) -> Path:
        """A kubeconfig with a token from the TokenRequest API, bound to a node if one is given."""
        bound = ["--bound-object-kind=Node", f"--bound-object-name={node}"] if node else []
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=8760h", *bound)
        user = ":".join(["system:serviceaccount", namespace, name, *([node] if node else [])])
        return self.identities.write(user, token_credential(token.strip()))

    def start_apiserver(self) -> None:
        """Start it unless it is running, and wait until it is ready."""
        if not self._apiserver.running:
            self._apiserver.start()
        self._apiserver.until(self._apiserver_ready, within=self._ready_within)

    def kill_apiserver(self) -> None:
        """With SIGKILL. After SIGTERM it would keep its port for up to a minute."""
        self._apiserver.kill()
        self._apiserver.wait(within=10)

    def hang_apiserver(self) -> None:
        """It keeps its port and its connections, but does not respond."""
        self._apiserver.kill(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        self._apiserver.kill(signal.SIGCONT)

    def compact(self) -> None:
        """Discard old revisions in etcd. The module docstring describes what clients see."""
        self._etcd.compact()

    def store(self, values: Mapping[str, bytes]) -> None:
        """Write objects to etcd, as JSON by their keys there. Nothing validates them or sets defaults."""
        self._etcd.put(values)

    def _clients(self) -> list[Process]:
        return [process for process in (self._manager, self._scheduler) if process]

    def _apiserver_ready(self) -> bool:
        request = urllib.request.Request(f"{self.url}/readyz")
        request.add_header("Authorization", f"Bearer {self.identities.token(ADMIN)}")
        try:
            with self._opener.open(request, timeout=5):
                return True
        except OSError:
            return False

    def _make_opener(self) -> urllib.request.OpenerDirector:
        """Trusts only the cluster's authority and ignores proxy settings."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def _has_service_accounts(self) -> bool:
        try:
            self.kubectl("get", "serviceaccount", "default")
        except Rejected:
            return False
        return True

    def _process(self, program: str, *flags: str) -> Process:
        log = self._logs / f"{program}.log"
        return Process(program, [find(program), *flags], log=log, cwd=self.directory)

    def _apiserver_flags(self) -> list[str]:
        return apiserver.flags(
            self.directory,
            port=self._port.number,
            authority=self.authority,
            token_file=self.identities.token_file,
            audit_log=self.audit_log,
        )

    def _manager_flags(self) -> list[str]:
        return [
            *self._client_flags(identities.CONTROLLER_MANAGER),
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self.directory / 'service-accounts.key'}",
            "--use-service-account-credentials",
            *_CLIENT_LIMITS,
        ]

    def _client_flags(self, user: str) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig(user)}", "--leader-elect=false", "--secure-port=0"]
