"""What a picture shows, as plain values: racks and their nodes, ComputeDomains, and the steps of a run."""

from enum import StrEnum

from msgspec import Struct


class DomainClaims(Struct, frozen=True):
    """The claims of one ComputeDomain on one node."""

    letter: str
    claims: int = 1
    prepared: bool = True
    """A container has the channel; if False, devices are allocated and no claim is prepared yet."""


class RackNode(Struct, frozen=True):
    """A node, which is one compute tray of the rack."""

    name: str
    ready: bool = True
    imex: str = "READY"
    fabric: str = "ok"
    devices: int = 0
    """Channel devices that the node publishes."""
    domains: tuple[DomainClaims, ...] = ()

    @property
    def claims(self) -> int:
        return sum(domain.claims for domain in self.domains)


class Rack(Struct, frozen=True):
    name: str
    nodes: tuple[RackNode, ...]
    product: str = ""
    state: str = ""
    """State of its IMEX domain: UP, DEGRADED or DOWN; empty while there is no NVLinkPartition."""


class RackChannel(Struct, frozen=True):
    """The channel of a ComputeDomain in one rack."""

    rack: str
    channel: int


class Domain(Struct, frozen=True):
    """A ComputeDomain and the letter that stands for it."""

    letter: str
    namespace: str
    name: str
    status: str = ""
    channels: tuple[RackChannel, ...] = ()


class Counts(Struct, frozen=True):
    """The number of objects in each state, in display order."""

    claims: tuple[tuple[str, int], ...] = ()
    pods: tuple[tuple[str, int], ...] = ()


class ClusterModel(Struct, frozen=True):
    racks: tuple[Rack, ...] = ()
    domains: tuple[Domain, ...] = ()
    counts: Counts = Counts()

    @property
    def prepared(self) -> int:
        """On how many nodes a ComputeDomain has a prepared claim, summed over all ComputeDomains."""
        return sum(domain.prepared for rack in self.racks for node in rack.nodes for domain in node.domains)


EMPTY = ClusterModel()


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Step(Struct, frozen=True):
    name: str
    state: StepState = StepState.PENDING
    seconds: float = 0.0
    detail: str = ""


class RunProgress(Struct, frozen=True):
    """The steps of the run that a picture accompanies, such as a demo."""

    title: str
    steps: tuple[Step, ...] = ()
    seconds: float | None = 0.0
    """None if nothing runs, and only the cluster is shown."""

    @property
    def current(self) -> Step | None:
        """The running step, or the last one that ended."""
        begun = [step for step in self.steps if step.state is not StepState.PENDING]
        return begun[-1] if begun else None
