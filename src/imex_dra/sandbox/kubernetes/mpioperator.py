"""The real MPI Operator on a control plane of ours: `make kube` builds it from its own Go module.

What it needs in the cluster comes from its own manifest (namespace, CRD, service account, roles), which lies
beside the program. Only its Deployment is left out: the program runs as a process, with a token of that service
account, so that it may do in our cluster what it may do in any other.
"""

from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.process import Process

NAME = "mpi-operator"
CRD = "mpijobs.kubeflow.org"
READY_SECONDS = 60.0
_UNTHROTTLED = ("--kube-api-qps=100", "--kube-api-burst=200")
_AT_WORK = "Started workers"


class MpiOperator:
    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._process: Process | None = None

    def start(self) -> None:
        """Installs it and returns when it works."""
        self.install()
        kubeconfig = self._control_plane.service_account(NAME, NAME)
        log = self._control_plane.directory / f"{NAME}.log"
        self._process = Process(NAME, [find(NAME), f"--kubeConfig={kubeconfig}", *_UNTHROTTLED], log=log)
        self._process.start()
        self._process.until(lambda: _AT_WORK in log.read_text(), within=READY_SECONDS)

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def install(self) -> None:
        """By the server: the CRD is too long for the annotation that a client would add."""
        kubectl = self._control_plane.kubectl
        kubectl("apply", "--server-side", "-f", "-", stdin=without_deployment(manifest().read_text()))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{CRD}", within=90)


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
