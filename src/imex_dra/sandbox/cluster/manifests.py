"""What a cluster must know before our driver can work: the files of `deploy/`."""

from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes.kubectl import Kubectl

_PACKAGED = Path(__file__).parents[2] / "deploy"
_SOURCE = Path(__file__).parents[4] / "deploy"


def deploy(places: tuple[Path, ...] = (_PACKAGED, _SOURCE)) -> Path:
    """In the installed package, or in the tree that this module lies in."""
    for place in places:
        if (place / "crds").is_dir() and (place / "rbac.yaml").is_file():
            return place
    raise Misconfigured(
        f"the manifests of the driver are neither in {' nor in '.join(map(str, places))}: install imex-dra from"
        " its wheel, or run it from its source tree"
    )


def apply(kubectl: Kubectl) -> None:
    """All at once: each start of kubectl costs more than what it does. The API server checks them itself."""
    directory = deploy()
    files = [directory / "crds", *sorted(directory.glob("*.yaml"))]
    words = [f"--filename={file}" for file in files]
    kubectl("apply", "--server-side", "--validate=false", *words)
    crds = [f"--filename={directory / 'crds'}"]
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds, within=70)
