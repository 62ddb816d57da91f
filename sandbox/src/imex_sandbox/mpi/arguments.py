"""The command line of `mpirun`: flags of Open MPI, with one dash or two.

Flags for the mapping and the environment of ranks are implemented. Flags for binding and for messages are
accepted without effect: a simulated node has no cores to bind to. Others of Open MPI that public manifests use
are ignored, and `ignored` lists them, so that the launcher can say so. Any other flag is an error: ignoring it
could run a different job than the user wants.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from imex_dra.base.errors import Misconfigured

_NO_EFFECT = {
    **dict.fromkeys(("allow-run-as-root", "q", "quiet", "v", "verbose", "report-bindings", "nolocal"), 0),
    **dict.fromkeys(("display-map", "display-allocation", "nooversubscribe", "byslot"), 0),
    **dict.fromkeys(("bind-to", "rank-by", "prefix"), 1),
}
_IGNORED = {
    **dict.fromkeys(("show-progress", "display-devel-map", "display-topo", "timestamp-output", "xml"), 0),
    **dict.fromkeys(("merge-stderr-to-stdout", "use-hwthread-cpus", "get-stack-traces"), 0),
    **dict.fromkeys(("output", "output-filename", "timeout", "report-uri", "tune", "personality", "rankfile"), 1),
    **dict.fromkeys(("display", "runtime-options", "launch-agent", "cpu-set", "cpus-per-proc", "rsh-agent"), 1),
}
"""With the number of their values."""
_ALIASES = {
    **dict.fromkeys(("n", "np", "c"), "np"),
    **dict.fromkeys(("N", "npernode"), "npernode"),
    **dict.fromkeys(("hostfile", "machinefile", "default-hostfile"), "hostfile"),
    **dict.fromkeys(("H", "host"), "host"),
    **dict.fromkeys(("wd", "wdir"), "wdir"),
    **dict.fromkeys(("mca", "gmca"), "mca"),
}
_VALUE_COUNTS = {"np": 1, "npernode": 1, "x": 1, "hostfile": 1, "host": 1, "wdir": 1, "map-by": 1, "mca": 2}
_SWITCHES = ("tag-output", "oversubscribe", "pernode", "bynode")
_PARTS_OF_A_NODE = (
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
    """Each is `NAME=value`, or `NAME` for the value that the launcher has."""
    hostfile: str = ""
    hosts: tuple[str, ...] = ()
    working_directory: str = ""
    mca_parameters: dict[str, str] = field(default_factory=dict)
    tag_output: bool = False
    ignored: tuple[str, ...] = ()
    """Flags without effect here that have one in Open MPI."""
    command: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> Arguments:
    rest = iter(words)
    arguments = Arguments()
    for word in rest:
        if not word.startswith("-"):
            return replace(arguments, command=_command(word, rest))
        if word != "--":
            arguments = _parse_flag(arguments, word, rest)
    raise Misconfigured("the program is missing. Usage: mpirun [flags] PROGRAM [arguments]")


def _command(first: str, rest: Iterator[str]) -> tuple[str, ...]:
    command = (first, *rest)
    if ":" in command:
        raise Misconfigured("several programs in one job (`:`) are not supported: run one program")
    return command


def _parse_flag(arguments: Arguments, word: str, rest: Iterator[str]) -> Arguments:
    text, assigned, value = word.removeprefix("-").removeprefix("-").partition("=")
    name = _ALIASES.get(text, text)
    count = _value_count(name, word)
    values = [value] if assigned else []
    values += [_next(rest, word) for _ in range(count - len(values))]
    if len(values) != count:
        raise Misconfigured(f"{word}: this flag does not take a value")
    if name in _IGNORED:
        return replace(arguments, ignored=(*arguments.ignored, word))
    return _set(arguments, name, values)


def _value_count(name: str, word: str) -> int:
    if name in _SWITCHES:
        return 0
    count = {**_IGNORED, **_NO_EFFECT, **_VALUE_COUNTS}.get(name)
    if count is None:
        supported = sorted({*_ALIASES, *_VALUE_COUNTS, *_SWITCHES, *_NO_EFFECT}, key=str.lower)
        raise Misconfigured(f"this mpirun does not support {word}. Supported flags: -{', -'.join(supported)}")
    return count


def _next(rest: Iterator[str], word: str) -> str:
    try:
        return next(rest)
    except StopIteration:
        raise Misconfigured(f"{word} requires a value") from None


def _set(arguments: Arguments, name: str, values: list[str]) -> Arguments:
    match name, values:
        case "np", [value]:
            return replace(arguments, processes=_number(value, "-np"))
        case "npernode", [value]:
            return replace(arguments, per_node=_number(value, "-N"))
        case "pernode", []:
            return replace(arguments, per_node=1)
        case "x", [value]:
            return replace(arguments, exports=(*arguments.exports, value))
        case "hostfile", [value]:
            return replace(arguments, hostfile=value)
        case "host", [value]:
            return replace(arguments, hosts=(*arguments.hosts, *value.split(",")))
        case "wdir", [value]:
            return replace(arguments, working_directory=value)
        case "map-by", [value]:
            return _map_by(arguments, value)
        case "mca", [key, value]:
            return replace(arguments, mca_parameters={**arguments.mca_parameters, key: value})
        case "tag-output", []:
            return replace(arguments, tag_output=True)
        case "oversubscribe", []:
            return replace(arguments, oversubscribe=True)
        case "bynode", []:
            return replace(arguments, by_node=True)
    return arguments


def _map_by(arguments: Arguments, value: str) -> Arguments:
    words = value.lower().split(":")
    if "oversubscribe" in words:
        arguments = replace(arguments, oversubscribe=True)
    match words:
        case ["ppr", count, "node", *_]:
            return replace(arguments, per_node=_number(count, "--map-by ppr"))
        case ["node", *_]:
            return replace(arguments, by_node=True)
        case [kind, *_] if kind in _PARTS_OF_A_NODE:
            return arguments
    raise Misconfigured(
        f"--map-by {value} is not supported: use slot, node, ppr:N:node, or a part of a node such as core"
    )


def _number(text: str, flag: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise Misconfigured(f"{flag} {text}: the value must be an integer greater than 0")
    return int(text)
