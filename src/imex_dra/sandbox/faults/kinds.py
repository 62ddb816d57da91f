"""Every kind of fault, as a struct: its fields are those of a script's step and the options of `imex fault`.

A docstring's first sentence is what `imex fault list` says of the kind, `example` what it shows. A kind with `for`
lasts until it is undone; one without happens, and is over.
"""

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field, structs

DURATION = r"^\d+(\.\d+)?(ms|s|m|h)$"
POSITIONAL = ("program", "nodes", "between")
"""Fields that are arguments, not options, on the command line."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Duration = Annotated[str, Meta(pattern=DURATION, description="Such as 500ms, 30s, 2m or 1h.")]
Pattern = Annotated[str, Meta(min_length=1)]
Nodes = Annotated[
    tuple[Pattern, ...], Meta(min_length=1, description="Names of nodes; r0-* is every node of rack r0.")
]
Share = Annotated[float, Meta(gt=0, le=1, description="Which part of the requests: 0.3 is three of ten.")]


class Program:
    """What can be killed or stopped; all but the last two run once on each node."""

    KUBELET = "kubelet"
    NODE = "imex-node"
    DAEMON = "imex-daemon"
    IMEX = "nvidia-imex"
    CONTROLLER = "imex-controller"
    APISERVER = "apiserver"
    ON_NODES = (KUBELET, NODE, DAEMON, IMEX)


ProgramName = Annotated[
    Literal["kubelet", "imex-node", "imex-daemon", "nvidia-imex", "imex-controller", "apiserver"],
    Meta(description="imex-controller and apiserver run on no node."),
]


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Fault(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="fault", tag=kebab
):
    """`after` is the pause since the step before began."""

    example: ClassVar[str] = ""
    after: Duration = "0s"

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def seconds(self) -> float | None:
        """How long it lasts; None: until somebody undoes it."""
        return None

    @property
    def lasts(self) -> bool:
        return isinstance(self, Lasting)


class Lasting(Fault, frozen=True, kw_only=True):
    """A fault that stands until its time is over or somebody undoes it."""

    for_: Annotated[Duration | None, Meta(description="Undo it after this time.")] = field(
        name="for", default=None
    )

    @property
    def seconds(self) -> float | None:
        return None if self.for_ is None else seconds(self.for_)


class KillNode(Lasting, frozen=True, kw_only=True):
    """Cut a node's power: all its programs and containers are killed. Undone: it boots, with a new boot id."""

    example = "kill-node r0-n03 --for 30s"
    nodes: Nodes


class RebootNode(Fault, frozen=True, kw_only=True):
    """Cut a node's power and boot it at once, with a new boot id."""

    example = "reboot-node r0-n03"
    nodes: Nodes


class RestartKubelet(Fault, frozen=True, kw_only=True):
    """Kill a node's kubelet and start another; containers go on."""

    example = "restart-kubelet r0-n03"
    nodes: Nodes


class KillProcess(Lasting, frozen=True, kw_only=True):
    """Kill a program, which is started again after the time, or at once if there is none."""

    example = "kill-process nvidia-imex r0-n03"
    program: ProgramName
    nodes: tuple[Pattern, ...] = ()


class HangProcess(Lasting, frozen=True, kw_only=True):
    """Stop a program by SIGSTOP: it lives and does nothing. Undone: it goes on."""

    example = "hang-process nvidia-imex r0-n03 --for 20s"
    program: ProgramName
    nodes: tuple[Pattern, ...] = ()


class DropTraffic(Lasting, frozen=True, kw_only=True):
    """Lose all IMEX traffic between two nodes, or two groups of nodes, in both directions."""

    example = "drop-traffic r0-n03 r0-n04 --for 1m"
    between: tuple[Pattern, Pattern]


class DelayTraffic(Lasting, frozen=True, kw_only=True):
    """Delay all IMEX traffic between two nodes, or two groups of nodes, in each direction."""

    example = "delay-traffic r0-n03 r0-n04 --delay 200ms"
    between: tuple[Pattern, Pattern]
    delay: Duration


class CutApi(Lasting, frozen=True, kw_only=True):
    """Cut a node's programs off the API server: what they send gets no answer."""

    example = "cut-api r0-n03 --for 1m"
    nodes: Nodes
    refuse: Annotated[bool, Meta(description="Refuse connections instead of letting them hang.")] = False


class PendFabric(Lasting, frozen=True, kw_only=True):
    """A node's NVLink fabric is not up (yet), as while its fabric manager starts."""

    example = "pend-fabric r0-n03 --for 30s"
    nodes: Nodes
    reason: str = "a fault says that it is not up yet"


class BreakFabric(Lasting, frozen=True, kw_only=True):
    """A node's NVLink fabric is broken."""

    example = "break-fabric r0-n03 --for 30s"
    nodes: Nodes
    reason: str = "a fault says that it is degraded"


class ChangeClique(Lasting, frozen=True, kw_only=True):
    """The fabric manager puts a node into another clique, and so into another NVLink partition."""

    example = "change-clique r0-n03 --clique 7"
    nodes: Nodes
    clique: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class ReloadDriver(Fault, frozen=True, kw_only=True):
    """Reload a node's GPU driver: nvidia-imex ends, and the channels have another device major then."""

    example = "reload-driver r0-n03 --major 235"
    nodes: Nodes
    major: Annotated[int, Meta(ge=1, le=511)]
    version: Annotated[str, Meta(description="As before, if left out.")] = ""


class ExpireWatches(Lasting, frozen=True, kw_only=True):
    """A storm of 410 Gone: every watch of a node's programs is soon ended by one, so that they list anew."""

    example = "expire-watches r0-n03 --every 500ms --for 20s"
    nodes: Nodes = ("*",)
    every: Annotated[Duration, Meta(description="How long a watch lives.")] = "1s"


class FailApi(Lasting, frozen=True, kw_only=True):
    """A share of the API requests of a node's programs fails with a server error."""

    example = "fail-api 'r0-*' --share 0.5 --code 500 --for 30s"
    nodes: Nodes = ("*",)
    share: Share
    code: Annotated[int, Meta(ge=500, le=599)] = 503


class ThrottleApi(Lasting, frozen=True, kw_only=True):
    """A share of the API requests of a node's programs is refused by 429 Too Many Requests, with Retry-After."""

    example = "throttle-api 'r0-*' --share 0.5 --retry-after 2 --for 30s"
    nodes: Nodes = ("*",)
    share: Share
    retry_after: Annotated[int, Meta(ge=0, le=60, description="Seconds that the server asks for.")] = 1


AnyFault = (
    KillNode
    | RebootNode
    | RestartKubelet
    | KillProcess
    | HangProcess
    | DropTraffic
    | DelayTraffic
    | CutApi
    | PendFabric
    | BreakFabric
    | ChangeClique
    | ReloadDriver
    | ExpireWatches
    | FailApi
    | ThrottleApi
)
KINDS: dict[str, type[Fault]] = {str(kind.__struct_config__.tag): kind for kind in AnyFault.__args__}


def seconds(duration: str) -> float:
    parts = re.fullmatch(r"([\d.]+)(\D+)", duration)
    assert parts is not None, "its type has a pattern"
    return float(parts[1]) * _UNITS[parts[2]]


def sentence(kind: type[Fault]) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def words(fault: Fault) -> str:
    """As one would type it, without what is left at its default."""
    said = [fault.kind, *getattr(fault, "between", ())]
    said += [str(fault.program)] if isinstance(fault, KillProcess | HangProcess) else []
    said += getattr(fault, "nodes", ())
    for option in structs.fields(fault):
        value = getattr(fault, option.name)
        if option.name not in (*POSITIONAL, "after") and value != option.default:
            said.append(f"--{kebab(option.encode_name)}" + ("" if value is True else f" {value}"))
    return " ".join(said)
