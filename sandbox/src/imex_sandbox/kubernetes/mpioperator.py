"""The real MPI Operator on a simulated cluster, built from its own Go module.

Its manifest (namespace, CRD, service account, roles) is in the cache next to the program. It is applied without
the Deployment: the program runs as a process with a token of the service account, and so has the permissions that
it has in any cluster.
"""

from pathlib import Path

from imex_dra.base.errors import Misconfigured, Rejected, Unavailable
from imex_sandbox.kubernetes.binaries import MPI_OPERATOR, find
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.process import Process

NAME = "mpi-operator"
READY_SECONDS = 120.0
_CLIENT_LIMITS = ("--kube-api-qps=100", "--kube-api-burst=200")
_STARTED = "Started workers"


class MpiOperator:
    """Install, start and wait are separate steps, because other work can go on while kubectl applies the
    manifest."""

    def __init__(self, control_plane: ControlPlane, logs: Path) -> None:
        self._control_plane = control_plane
        self._logs = logs
        self._installation: Process | None = None
        self._process: Process | None = None

    def install(self) -> None:
        """Start to apply the manifest; do not wait for it."""
        file = self._control_plane.directory / f"{NAME}.yaml"
        file.write_text(without_deployment(manifest().read_text()))
        # Server-side apply, because the CRD is too large for the annotation that client-side apply adds.
        words = ["apply", "--server-side", "--force-conflicts", "-f", str(file)]
        argv = [str(find("kubectl")), f"--kubeconfig={self._control_plane.kubeconfig()}", *words]
        self._installation = Process(f"{NAME}-installation", argv, log=self._log(f"{NAME}-installation"))
        self._installation.start()

    def start(self) -> Process:
        """Wait for the installation, and start the operator.

        The operator exits when it loses the API server. The caller must restart the process.
        """
        if self._installation is None:
            self.install()
        self._wait_installed()
        account = self._control_plane.service_account(NAME, NAME)
        argv = [str(find(NAME)), f"--kubeConfig={account}", *_CLIENT_LIMITS]
        self._process = Process(NAME, argv, log=self._log(NAME))
        self._process.start()
        return self._process

    def until_ready(self) -> None:
        """Wait until its caches are filled."""
        if self._process is None:
            raise Misconfigured("the MPI Operator was not started: call start() first")
        log = self._log(NAME)
        self._process.until(lambda: _STARTED in log.read_text(), within=READY_SECONDS)

    def stop(self) -> None:
        for process in (self._installation, self._process):
            if process:
                process.stop(within=0)

    def _wait_installed(self) -> None:
        kubectl = self._installation
        if kubectl and not kubectl.wait(within=READY_SECONDS):
            raise Unavailable(f"kubectl did not apply the manifest of the MPI Operator within {READY_SECONDS:g} s")
        if kubectl and kubectl.exit_code:
            raise Rejected(
                f"kubectl cannot apply the manifest of the MPI Operator: {kubectl.log.read_text().strip()}"
            )

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def manifest() -> Path:
    program = find(NAME)
    path = program.with_suffix(".yaml")
    if not path.is_file():
        raise Misconfigured(
            f"the manifest {path} is missing: remove {program} and run `imex up`, which builds both, or copy the"
            f" manifest of MPI Operator {MPI_OPERATOR} there"
        )
    return path


def without_deployment(text: str) -> str:
    """Splits the text instead of parsing it: parsing 670 kB of YAML takes seconds."""
    documents = text.split("\n---\n")
    return "\n---\n".join(document for document in documents if "\nkind: Deployment\n" not in f"\n{document}")
