"""The real MPI Operator on a control plane of ours: `make kube` builds it from its own Go module.

What it needs in the cluster comes from its own manifest (namespace, CRD, service account, roles), which lies
beside the program. Only its Deployment is left out: the program runs as a process, with a token of that service
account, so that it may do in our cluster what it may do in any other.
"""

from pathlib import Path

from imex_dra.base.errors import Misconfigured, Rejected, Unavailable
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.process import Process

NAME = "mpi-operator"
READY_SECONDS = 120.0
_UNTHROTTLED = ("--kube-api-qps=100", "--kube-api-burst=200")
_AT_WORK = "Started workers"


class MpiOperator:
    """In three steps, so that a cluster can do other things in between: the manifest alone takes seconds."""

    def __init__(self, control_plane: ControlPlane, logs: Path) -> None:
        self._control_plane = control_plane
        self._logs = logs
        self._installation: Process | None = None
        self._process: Process | None = None

    def install(self) -> None:
        """Begins. By the server: the CRD is too long for the annotation that a client would add."""
        file = self._control_plane.directory / f"{NAME}.yaml"
        file.write_text(without_deployment(manifest().read_text()))
        words = ["apply", "--server-side", "--force-conflicts", "-f", str(file)]
        argv = [str(find("kubectl")), f"--kubeconfig={self._control_plane.kubeconfig()}", *words]
        self._installation = Process(f"{NAME}-installation", argv, log=self._log(f"{NAME}-installation"))
        self._installation.start()

    def start(self) -> Process:
        """Once it is installed. It ends when it misses the API server: whoever has it start again keeps it."""
        if self._installation is None:
            self.install()
        self._until_installed()
        account = self._control_plane.service_account(NAME, NAME)
        argv = [str(find(NAME)), f"--kubeConfig={account}", *_UNTHROTTLED]
        self._process = Process(NAME, argv, log=self._log(NAME))
        self._process.start()
        return self._process

    def until_ready(self) -> None:
        """Its caches are filled, so the API server knows MPIJobs."""
        if self._process is None:
            raise Misconfigured("the MPI Operator was not started: call start() first")
        log = self._log(NAME)
        self._process.until(lambda: _AT_WORK in log.read_text(), within=READY_SECONDS)

    def stop(self) -> None:
        for process in (self._installation, self._process):
            if process:
                process.stop(within=0)

    def _until_installed(self) -> None:
        kubectl = self._installation
        if kubectl and not kubectl.ended(within=READY_SECONDS):
            raise Unavailable(f"the MPI Operator's manifest was not applied within {READY_SECONDS:g} s")
        if kubectl and kubectl.exit_code:
            raise Rejected(f"the MPI Operator's manifest was not applied: {kubectl.log.read_text().strip()}")

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def manifest() -> Path:
    beside = find(NAME).with_suffix(".yaml")
    if not beside.is_file():
        raise Misconfigured(
            f"{beside} is missing: it comes from the MPI Operator's sources, and `make kube` puts it there"
        )
    return beside


def without_deployment(text: str) -> str:
    """Cut by hand: parsing 670 kB of YAML would take seconds."""
    documents = text.split("\n---\n")
    return "\n---\n".join(document for document in documents if "\nkind: Deployment\n" not in f"\n{document}")
