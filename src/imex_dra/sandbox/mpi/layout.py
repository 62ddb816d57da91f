"""Which rank runs on which host. Hosts come from a hostfile, in its order; their slots are filled one by one."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from typing import NamedTuple

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.mpi.arguments import Arguments

_SLOTS = re.compile(r"\bslots\s*=\s*(\d+)")


class Host(NamedTuple):
    name: str
    slots: int

    @property
    def label(self) -> str:
        """The host name that the pod itself knows: that of the hostfile without its domain."""
        return self.name.partition(".")[0]


class Placement(NamedTuple):
    rank: int
    host: Host
    local_rank: int
    local_size: int


def read_hostfile(text: str, default_slots: int = 1) -> list[Host]:
    """Open MPI's form (`name slots=4`); a name that is listed again adds to its slots."""
    slots: Counter[str] = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            found = _SLOTS.search(line)
            slots[words[0]] += int(found[1]) if found else default_slots
    return [Host(name, count) for name, count in slots.items()]


def choose(hosts: Sequence[Host], wanted: Sequence[str]) -> list[Host]:
    """Those of `--host`, each as `name` or `name:slots`; all, if none is wanted."""
    return [_chosen(hosts, *word.partition(":")[::2]) for word in wanted] or list(hosts)


def _chosen(hosts: Sequence[Host], name: str, slots: str) -> Host:
    for host in hosts:
        if name in (host.name, host.label):
            return Host(host.name, int(slots) if slots.isdecimal() else host.slots)
    known = ", ".join(host.label for host in hosts)
    raise Misconfigured(f"--host {name}: the hostfile does not list it. It has {known}")


def place(hosts: Sequence[Host], arguments: Arguments) -> list[Placement]:
    """As many ranks as there are slots, if no number was asked for."""
    room = _room(hosts, arguments)
    count = arguments.processes or len(room)
    if count > len(room):
        room = _crowded(hosts, arguments, room, count)
    chosen = room[:count]
    sizes, placed = Counter(chosen), Counter[Host]()
    placements = []
    for rank, host in enumerate(chosen):
        placements.append(Placement(rank, host, placed[host], sizes[host]))
        placed[host] += 1
    return placements


def _room(hosts: Sequence[Host], arguments: Arguments) -> list[Host]:
    """A host for each rank that fits, in the order in which ranks take them."""
    counts = {host: arguments.per_node or host.slots for host in hosts}
    for host, count in counts.items():
        if count > host.slots and not arguments.oversubscribe:
            raise Misconfigured(
                f"{count} ranks per node, but {host.name} has {host.slots} slots: raise slotsPerWorker, "
                "or allow it with --oversubscribe"
            )
    if not arguments.by_node:
        return [host for host, count in counts.items() for _ in range(count)]
    turns = range(max(counts.values(), default=0))
    return [host for turn in turns for host, count in counts.items() if turn < count]


def _crowded(hosts: Sequence[Host], arguments: Arguments, room: list[Host], count: int) -> list[Host]:
    if not arguments.oversubscribe or arguments.per_node or not hosts:
        raise Misconfigured(
            f"{count} ranks were asked for, and there is room for {len(room)} (hosts: {len(hosts)}): "
            "ask for fewer, raise slotsPerWorker or replicas, or allow it with --oversubscribe"
        )
    return room + list(islice(cycle(hosts), count - len(room)))
