"""What a picture shows, as plain values: racks of trays, who holds channels there, and what is being done."""

from enum import StrEnum

from msgspec import Struct


class Holding(Struct, frozen=True):
    """A ComputeDomain's claims on one node."""

    letter: str
    claims: int = 1
    prepared: bool = True
    """Whether a container has the channel, or a seat is allocated and no more."""


class Tray(Struct, frozen=True):
    name: str
    ready: bool = True
    imex: str = "READY"
    fabric: str = "ok"
    seats: int = 0
    """How many are offered to the scheduler."""
    holdings: tuple[Holding, ...] = ()

    @property
    def claims(self) -> int:
        return sum(holding.claims for holding in self.holdings)


class Rack(Struct, frozen=True):
    name: str
    trays: tuple[Tray, ...]
    product: str = ""
    state: str = ""
    """Of its IMEX domain: UP, DEGRADED, DOWN; empty while nobody made one."""


class Place(Struct, frozen=True):
    """A ComputeDomain's channel in a rack."""

    rack: str
    channel: int


class Domain(Struct, frozen=True):
    letter: str
    namespace: str
    name: str
    status: str = ""
    places: tuple[Place, ...] = ()


class Tally(Struct, frozen=True):
    """How many there are in each state, in the order that they are told."""

    claims: tuple[tuple[str, int], ...] = ()
    pods: tuple[tuple[str, int], ...] = ()


class Scene(Struct, frozen=True):
    racks: tuple[Rack, ...] = ()
    domains: tuple[Domain, ...] = ()
    tally: Tally = Tally()

    @property
    def lights(self) -> int:
        """How many times a tray holds a channel."""
        holdings = (holding for rack in self.racks for tray in rack.trays for holding in tray.holdings)
        return sum(holding.prepared for holding in holdings)


EMPTY = Scene()


class Progress(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Step(Struct, frozen=True):
    name: str
    progress: Progress = Progress.PENDING
    seconds: float = 0.0
    detail: str = ""


class Story(Struct, frozen=True):
    """What is being done while one looks."""

    title: str
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0

    @property
    def current(self) -> Step | None:
        """The step at work, or else the last that ended."""
        begun = [step for step in self.steps if step.progress is not Progress.PENDING]
        return begun[-1] if begun else None
