"""What people write after `mpirun`: Open MPI's flags, with one dash or two.

Flags that place and feed the ranks are followed. Those about cores and messages on the screen are accepted and
do nothing: a simulated node has no cores to bind to. Any other flag is an error that names it, because a flag
that is silently dropped makes another job than the one that was asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from imex_dra.base.errors import Misconfigured

_WITHOUT_EFFECT = {
    **dict.fromkeys(("allow-run-as-root", "q", "quiet", "v", "verbose", "report-bindings", "nolocal"), 0),
    **dict.fromkeys(("display-map", "display-allocation", "nooversubscribe", "byslot"), 0),
    **dict.fromkeys(("bind-to", "rank-by", "prefix"), 1),
}
_SAME = {
    **dict.fromkeys(("n", "np", "c"), "np"),
    **dict.fromkeys(("N", "npernode"), "npernode"),
    **dict.fromkeys(("hostfile", "machinefile", "default-hostfile"), "hostfile"),
    **dict.fromkeys(("H", "host"), "host"),
    **dict.fromkeys(("wd", "wdir"), "wdir"),
    **dict.fromkeys(("mca", "gmca"), "mca"),
}
_VALUES = {"np": 1, "npernode": 1, "x": 1, "hostfile": 1, "host": 1, "wdir": 1, "map-by": 1, "mca": 2}
_SWITCHES = ("tag-output", "oversubscribe", "pernode", "bynode")
_WITHIN_A_NODE = (
    "slot",
    "hwthread",
    "core",
    "l1cache",
    "l2cache",
    "l3cache",
    "numa",
    "socket",
    "package",
    "board",
)


@dataclass(frozen=True)
class Arguments:
    processes: int | None = None
    per_node: int | None = None
    by_node: bool = False
    oversubscribe: bool = False
    exports: tuple[str, ...] = ()
    """`NAME=value`, or `NAME` for the launcher's own value."""
    hostfile: str = ""
    hosts: tuple[str, ...] = ()
    directory: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    tag_output: bool = False
    command: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> Arguments:
    rest = iter(words)
    found = Arguments()
    for word in rest:
        if not word.startswith("-"):
            return replace(found, command=_command(word, rest))
        if word != "--":
            found = _followed(found, word, rest)
    raise Misconfigured("no program is named: mpirun [flags] PROGRAM [arguments]")


def _command(first: str, rest: Iterator[str]) -> tuple[str, ...]:
    command = (first, *rest)
    if ":" in command:
        raise Misconfigured("several programs in one job (`:`) are not supported here: start one")
    return command


def _followed(found: Arguments, word: str, rest: Iterator[str]) -> Arguments:
    text, given, value = word.removeprefix("-").removeprefix("-").partition("=")
    name = _SAME.get(text, text)
    count = _count(name, word)
    values = [value] if given else []
    values += [_next(rest, word) for _ in range(count - len(values))]
    if len(values) != count:
        raise Misconfigured(f"{word}: this flag takes no value")
    return _applied(found, name, values)


def _count(name: str, word: str) -> int:
    if name in _SWITCHES:
        return 0
    count = _VALUES.get(name, _WITHOUT_EFFECT.get(name))
    if count is None:
        raise Misconfigured(f"{word} is no flag that this mpirun knows; docs/mpi.md lists those that it does")
    return count


def _next(rest: Iterator[str], word: str) -> str:
    try:
        return next(rest)
    except StopIteration:
        raise Misconfigured(f"{word} needs a value") from None


def _applied(found: Arguments, name: str, values: list[str]) -> Arguments:
    match name, values:
        case "np", [value]:
            return replace(found, processes=_number(value, "-np"))
        case "npernode", [value]:
            return replace(found, per_node=_number(value, "-N"))
        case "pernode", []:
            return replace(found, per_node=1)
        case "x", [value]:
            return replace(found, exports=(*found.exports, value))
        case "hostfile", [value]:
            return replace(found, hostfile=value)
        case "host", [value]:
            return replace(found, hosts=(*found.hosts, *value.split(",")))
        case "wdir", [value]:
            return replace(found, directory=value)
        case "map-by", [value]:
            return _mapped(found, value)
        case "mca", [key, value]:
            return replace(found, parameters={**found.parameters, key: value})
        case "tag-output", []:
            return replace(found, tag_output=True)
        case "oversubscribe", []:
            return replace(found, oversubscribe=True)
        case "bynode", []:
            return replace(found, by_node=True)
    return found


def _mapped(found: Arguments, value: str) -> Arguments:
    words = value.lower().split(":")
    if "oversubscribe" in words:
        found = replace(found, oversubscribe=True)
    match words:
        case ["ppr", count, "node", *_]:
            return replace(found, per_node=_number(count, "--map-by ppr"))
        case ["node", *_]:
            return replace(found, by_node=True)
        case [kind, *_] if kind in _WITHIN_A_NODE:
            return found
    raise Misconfigured(f"--map-by {value}: known here are slot, node, ppr:N:node, and the parts of a node")


def _number(text: str, flag: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise Misconfigured(f"{flag} {text}: it must be a whole number, 1 or more")
    return int(text)
