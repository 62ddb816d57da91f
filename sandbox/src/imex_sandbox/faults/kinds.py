"""The kinds of faults, as structs. Their fields are the fields of a script's step and the options of `imex fault`.

The first line of a docstring and the `example` appear in `imex fault list`. A `LastingFault` stays active until it
is undone; the others have an immediate effect only.
"""

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field, structs

DURATION = r"^\d+(\.\d+)?(ms|s|m|h)$"
POSITIONAL = ("program", "nodes", "between")
"""Fields that are arguments on the command line, not options."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Duration = Annotated[str, Meta(pattern=DURATION)]
Pattern = Annotated[str, Meta(min_length=1)]
Nodes = Annotated[
    tuple[Pattern, ...], Meta(min_length=1, description="Names of nodes; r0-* is every node of rack r0.")
]
Reason = Annotated[str, Meta(description="The reason in the status of the NVLinkNode.")]
Share = Annotated[float, Meta(gt=0, le=1, description="The share of requests: 0.3 is three of ten.")]


KUBELET, NVIDIA_IMEX = "kubelet", "nvidia-imex"
NODE_PROGRAMS = (KUBELET, "imex-node", "imex-supervisor", NVIDIA_IMEX)
"""The programs that run on each node."""

ProgramName = Annotated[
    Literal["kubelet", "imex-node", "imex-supervisor", "nvidia-imex", "imex-controller", "apiserver"],
    Meta(description="imex-controller and apiserver do not run on a node."),
]


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Fault(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="fault", tag=kebab
):
    """`after` counts from the beginning of the previous step of a script."""

    example: ClassVar[str] = ""
    after: Duration = "0s"

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def seconds(self) -> float | None:
        """How long the fault lasts; None if it has no time limit."""
        return None

    @property
    def lasts(self) -> bool:
        return isinstance(self, LastingFault)


class LastingFault(Fault, frozen=True, kw_only=True):
    """A fault that stays active until its time is over or until it is undone."""

    for_: Annotated[Duration | None, Meta(description="Undo the fault after this time, such as 30s.")] = field(
        name="for", default=None
    )

    @property
    def seconds(self) -> float | None:
        return None if self.for_ is None else parse_duration(self.for_)


class KillNode(LastingFault, frozen=True, kw_only=True):
    """Power a node off: its kubelet, programs and containers are killed. Undone, it boots with a new boot id."""

    example = "kill-node r0-n03 --for 30s"
    nodes: Nodes


class RebootNode(Fault, frozen=True, kw_only=True):
    """Power a node off, and boot it at once with a new boot id."""

    example = "reboot-node r0-n03"
    nodes: Nodes


class RestartKubelet(Fault, frozen=True, kw_only=True):
    """Kill the kubelet of a node and start it again. Containers keep running."""

    example = "restart-kubelet r0-n03"
    nodes: Nodes


class KillProcess(LastingFault, frozen=True, kw_only=True):
    """Kill a program. It is started again after the time of --for, or at once without --for."""

    example = "kill-process nvidia-imex r0-n03"
    program: ProgramName
    nodes: tuple[Pattern, ...] = ()


class HangProcess(LastingFault, frozen=True, kw_only=True):
    """Stop a program with SIGSTOP. Undone, it continues (SIGCONT)."""

    example = "hang-process nvidia-imex r0-n03 --for 20s"
    program: ProgramName
    nodes: tuple[Pattern, ...] = ()


class DropTraffic(LastingFault, frozen=True, kw_only=True):
    """Drop all IMEX traffic between two nodes, or between two groups of nodes, in both directions."""

    example = "drop-traffic r0-n03 r0-n04 --for 1m"
    between: tuple[Pattern, Pattern]


class DelayTraffic(LastingFault, frozen=True, kw_only=True):
    """Delay all IMEX traffic between two nodes, or between two groups of nodes, in each direction."""

    example = "delay-traffic r0-n03 r0-n04 --delay 200ms"
    between: tuple[Pattern, Pattern]
    delay: Annotated[Duration, Meta(description="How much later the traffic arrives, such as 200ms.")]


class CutApi(LastingFault, frozen=True, kw_only=True):
    """Disconnect the programs of a node from the API server: their requests get no answer."""

    example = "cut-api r0-n03 --for 1m"
    nodes: Nodes
    refuse: Annotated[bool, Meta(description="Refuse connections instead of stalling them.")] = False


class PendFabric(LastingFault, frozen=True, kw_only=True):
    """Report the NVLink fabric of a node as not up yet, as while its fabric manager starts."""

    example = "pend-fabric r0-n03 --for 30s"
    nodes: Nodes
    reason: Reason = "injected fault: the fabric is not up yet"


class BreakFabric(LastingFault, frozen=True, kw_only=True):
    """Report the NVLink fabric of a node as broken."""

    example = "break-fabric r0-n03 --for 30s"
    nodes: Nodes
    reason: Reason = "injected fault: the fabric is degraded"


class ChangeClique(LastingFault, frozen=True, kw_only=True):
    """Move a node to another clique, and so to another NVLink partition, as a fabric manager would do."""

    example = "change-clique r0-n03 --clique 7"
    nodes: Nodes
    clique: Annotated[int, Meta(ge=0, le=0xFFFFFFFF, description="The new clique id.")]


class ReloadDriver(Fault, frozen=True, kw_only=True):
    """Reload the GPU driver of a node: nvidia-imex ends, and the channels get another device major."""

    example = "reload-driver r0-n03 --major 235"
    nodes: Nodes
    major: Annotated[int, Meta(ge=1, le=511, description="The new device major of the channels.")]
    version: Annotated[str, Meta(description="The new driver version. Default: unchanged.")] = ""


class ExpireWatches(LastingFault, frozen=True, kw_only=True):
    """End every watch of a node's programs with 410 Gone after a short time, so that they list again."""

    example = "expire-watches r0-n03 --every 500ms --for 20s"
    nodes: Nodes = ("*",)
    every: Annotated[Duration, Meta(description="The lifetime of a watch, such as 500ms.")] = "1s"


class FailApi(LastingFault, frozen=True, kw_only=True):
    """Answer a share of the API requests of a node's programs with a server error."""

    example = "fail-api 'r0-*' --share 0.5 --code 500 --for 30s"
    nodes: Nodes = ("*",)
    share: Share
    code: Annotated[int, Meta(ge=500, le=599, description="The HTTP status.")] = 503


class ThrottleApi(LastingFault, frozen=True, kw_only=True):
    """Answer a share of the API requests of a node's programs with 429 Too Many Requests and Retry-After."""

    example = "throttle-api 'r0-*' --share 0.5 --retry-after 2 --for 30s"
    nodes: Nodes = ("*",)
    share: Share
    retry_after: Annotated[int, Meta(ge=0, le=60, description="Seconds in the Retry-After header.")] = 1


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


def parse_duration(duration: str) -> float:
    """In seconds."""
    parts = re.fullmatch(r"([\d.]+)(\D+)", duration)
    assert parts is not None, "the type of the field has a pattern"
    return float(parts[1]) * _UNITS[parts[2]]


def summary(kind: type[Fault]) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def command_line(fault: Fault) -> str:
    """The arguments of `imex fault` for this fault, without those that have their default value."""
    arguments = [fault.kind, *getattr(fault, "between", ())]
    arguments += [str(fault.program)] if isinstance(fault, KillProcess | HangProcess) else []
    arguments += getattr(fault, "nodes", ())
    for option in structs.fields(fault):
        value = getattr(fault, option.name)
        if option.name not in (*POSITIONAL, "after") and value != option.default:
            arguments.append(f"--{kebab(option.encode_name)}" + ("" if value is True else f" {value}"))
    return " ".join(arguments)
