"""Configuration of the process that runs the simulated kubelets, and of the stand-ins for container images.

`imex up` writes the configuration but runs no kubelet itself, so this module does not import one.
"""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubelet.views.pod import Container


class StandIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs `argv` in place of every container that matches both shell patterns."""

    argv: tuple[str, ...]
    image: str = "*"
    command: str = "*"

    def matches(self, container: Container) -> bool:
        command = " ".join(container.command + container.args)
        return fnmatchcase(container.image, self.image) and fnmatchcase(command, self.command)


class StandInFile(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The file given to `imex up --stand-ins`."""

    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["StandIns"]
    rules: tuple[StandIn, ...]


def load_stand_ins(path: Path) -> tuple[StandIn, ...]:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=StandInFile).rules
    except OSError as error:
        raise Misconfigured(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} is not a valid StandIns file: {error}") from error


class NodeFacts(Struct, frozen=True):
    name: str
    address: str
    boot_id: str
    pod_network: str = "10.244.0"
    """First three octets of pod IPs. Pod IPs are shown in pod status, but no packet is routed to them."""
    labels: dict[str, str] = {}
    gpus: int = 0
    """Capacity of `nvidia.com/gpu`, which NVIDIA's device plugin would advertise."""
    resources: dict[str, str] = {}
    """Other extended resources."""


class NodeConfig(Struct, frozen=True):
    facts: NodeFacts
    root: Path
    token: str
    server: str
    """URL of the API server. It differs per node, so that a fault can cut off a single node."""


class ServingCertificate(Struct, frozen=True):
    """For the kubelets' own API (`kubectl logs` and `kubectl exec`); all kubelets share one."""

    certificate: Path
    key: Path


class KubeletsConfig(Struct, frozen=True):
    authority: Path
    """CA certificate of the cluster."""
    nodes: list[NodeConfig]
    serving: ServingCertificate
    control: Path
    """Unix socket for requests that stop and start kubelets and machines (`imex_sandbox.control`)."""
    containers: Literal["hollow", "processes"] = "processes"
    stand_ins: tuple[StandIn, ...] = ()
