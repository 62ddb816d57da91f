"""Maps ranks to the hosts of a hostfile. By default, all slots of a host are filled before those of the next."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from typing import NamedTuple

from imex_dra.base.errors import Misconfigured
from imex_sandbox.mpi.arguments import Arguments

_SLOTS = re.compile(r"\bslots\s*=\s*(\d+)")


class Host(NamedTuple):
    name: str
    slots: int

    @property
    def label(self) -> str:
        """The host name of the pod: the name in the hostfile without its domain."""
        return self.name.partition(".")[0]


class Placement(NamedTuple):
    rank: int
    host: Host
    local_rank: int
    local_size: int


def read_hostfile(text: str) -> list[Host]:
    """Lines such as `name slots=4`, as in Open MPI. Slots of repeated names are added; the default is 1."""
    slots: Counter[str] = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            found = _SLOTS.search(line)
            slots[words[0]] += int(found[1]) if found else 1
    return [Host(name, count) for name, count in slots.items()]


def select_hosts(hosts: Sequence[Host], names: Sequence[str]) -> list[Host]:
    """The hosts of `--host`, each as `name` or `name:slots`. All hosts if there are no names."""
    return [_select(hosts, *name.partition(":")[::2]) for name in names] or list(hosts)


def _select(hosts: Sequence[Host], name: str, slots: str) -> Host:
    for host in hosts:
        if name in (host.name, host.label):
            return Host(host.name, int(slots) if slots.isdecimal() else host.slots)
    known = ", ".join(host.label for host in hosts)
    raise Misconfigured(f"--host {name} is not in the hostfile, which contains {known}")


def map_ranks(hosts: Sequence[Host], arguments: Arguments) -> list[Placement]:
    """One rank per slot unless the arguments give a number."""
    slots = _slots(hosts, arguments)
    count = arguments.processes or len(slots)
    if count > len(slots):
        slots += _oversubscribed_slots(hosts, arguments, len(slots), count)
    chosen = slots[:count]
    local_sizes, local_ranks = Counter(chosen), Counter[Host]()
    placements = []
    for rank, host in enumerate(chosen):
        placements.append(Placement(rank, host, local_ranks[host], local_sizes[host]))
        local_ranks[host] += 1
    return placements


def _slots(hosts: Sequence[Host], arguments: Arguments) -> list[Host]:
    """The host of each slot, in the order in which ranks use the slots."""
    counts = {host: arguments.per_node or host.slots for host in hosts}
    for host, count in counts.items():
        if count > host.slots and not arguments.oversubscribe:
            raise Misconfigured(
                f"{count} ranks per node were requested, but {host.name} has {host.slots} slots: increase"
                " slotsPerWorker, or add --oversubscribe"
            )
    if not arguments.by_node:
        return [host for host, count in counts.items() for _ in range(count)]
    rounds = range(max(counts.values(), default=0))
    return [host for number in rounds for host, count in counts.items() if number < count]


def _oversubscribed_slots(hosts: Sequence[Host], arguments: Arguments, available: int, count: int) -> list[Host]:
    """Additional slots, one host after the other."""
    if not arguments.oversubscribe or arguments.per_node or not hosts:
        raise Misconfigured(
            f"{count} ranks were requested, but {len(hosts)} hosts have {available} slots: request fewer ranks,"
            " increase slotsPerWorker or replicas, or add --oversubscribe"
        )
    return list(islice(cycle(hosts), count - available))
