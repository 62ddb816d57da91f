"""What happens to programs and services: our own, nvidia-imex, and the API server with its data."""

import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import NamedTuple

from imex_sandbox.embedded.storage import Change, Key, Stored
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.imex import Ctl, Daemon
from imex_sandbox.simulation.kinds import PARTITIONS
from imex_sandbox.simulation.node import SimulatedNode
from imex_sandbox.simulation.process import Program
from imex_sandbox.simulation.undos import Undos


class _Loss(NamedTuple):
    after: int
    """So many more changes."""
    writes: int
    delay: float


class ServiceFaults:
    def __init__(self, cluster: SimulatedCluster, undos: Undos) -> None:
        self._cluster = cluster
        self._undos = undos
        self._backups: dict[str, Stored] = {}
        self._recent: dict[str, deque[Stored]] = {}
        """The last versions of each partition, oldest first."""
        self._losses: dict[str, _Loss] = {}
        cluster.storage.subscribe(self._on_change)

    # imex node

    def kill_node_program(self, chance: random.Random) -> str:
        node = self._node(chance)
        node.kill_programs()
        self._restart_later(node, chance, 120.0)
        return f"kill imex node on {node.name}"

    def kill_node_program_at_file_operation(self, chance: random.Random) -> str:
        node, number = self._node(chance), chance.randrange(40)
        for program in node.running():
            program.kill_before_file_operation(number)
        self._restart_later(node, chance, 600.0)
        return f"kill imex node on {node.name} before its next file operation number {number}"

    def kill_node_program_at_step(self, chance: random.Random) -> str:
        node, number = self._node(chance), int(chance.expovariate(1 / 60))
        for program in node.running():
            program.kill_before_step(number)
        self._restart_later(node, chance, 300.0)
        return f"kill imex node on {node.name} before its step number {number}"

    def update_node_program(self, chance: random.Random) -> str:
        """For a while two programs run."""
        node = self._node(chance)
        before = node.running()
        if not node.powered or len(before) != 1:
            return ""
        node.start_program()
        self._undos.later(120.0, chance, before[0].kill)
        self._restart_later(node, chance, 240.0)
        return f"update imex node on {node.name}"

    def hang_node_program(self, chance: random.Random) -> str:
        node = self._node(chance)
        programs = node.running()
        if not programs:
            return ""
        program = chance.choice(programs)
        self._hang(program, chance, 200.0)
        return f"hang {program.name}"

    def hang_node_program_at_step(self, chance: random.Random) -> str:
        node, number = self._node(chance), int(chance.expovariate(1 / 60))
        for program in node.running():
            self._hang_at_step(program, number, chance)
        return f"hang imex node on {node.name} before its step number {number}"

    # imex controller

    def kill_controller(self, chance: random.Random) -> str:
        return self._to_controller(chance, "kill", lambda program: program.kill())

    def kill_controller_at_step(self, chance: random.Random) -> str:
        number = int(chance.expovariate(1 / 100))
        doing = f"before its step number {number} kill"
        return self._to_controller(chance, doing, lambda program: program.kill_before_step(number))

    def hang_controller(self, chance: random.Random) -> str:
        return self._to_controller(chance, "hang", lambda program: self._hang(program, chance, 200.0))

    def hang_controller_at_step(self, chance: random.Random) -> str:
        """For longer than its Lease lasts: it goes on in the middle of what it did, while another one leads."""
        number = int(chance.expovariate(1 / 200))
        doing = f"before its step number {number} hang"
        return self._to_controller(chance, doing, lambda program: self._hang_at_step(program, number, chance))

    def _to_controller(self, chance: random.Random, doing: str, action: Callable[[Program], None]) -> str:
        program = self._cluster.controllers.get(chance.randrange(2))
        if program is None or not program.running:
            return ""
        action(program)
        return f"{doing} {program.name}"

    def _hang(self, program: Program, chance: random.Random, seconds: float) -> None:
        program.hang()
        self._undos.later(seconds, chance, program.resume)

    def _hang_at_step(self, program: Program, number: int, chance: random.Random) -> None:
        program.hang_before_step(number)

        def resume() -> None:
            program.disarm()
            program.resume()

        self._undos.later(400.0, chance, resume)

    # nvidia-imex

    def restart_daemon(self, chance: random.Random) -> str:
        return self._to_daemon(chance, "restart", lambda daemon: daemon.restart(self._cluster.loop.time()))

    def hang_daemon(self, chance: random.Random) -> str:
        """It is not READY for a while."""
        seconds = 600.0 * chance.random()
        return self._to_daemon(chance, "hang", lambda daemon: daemon.restart(self._cluster.loop.time(), seconds))

    def _to_daemon(self, chance: random.Random, doing: str, action: Callable[[Daemon], None]) -> str:
        node = self._node(chance)
        daemon = self._cluster.fabric.daemons.get(node.name)
        if daemon is None or daemon.applied is None:
            return ""
        action(daemon)
        self._cluster.fabric.notify()
        return f"{doing} nvidia-imex on {node.name}"

    def break_ctl(self, chance: random.Random) -> str:
        node, kind = self._node(chance), chance.choice(("slow", Ctl.FAILS, Ctl.NO_CONNECTIONS))
        daemon = self._cluster.fabric.daemons.get(node.name)
        if daemon is None:
            return ""
        if isinstance(kind, Ctl):
            daemon.ctl = kind
            self._cluster.fabric.notify()
            self._undos.later(600.0, chance, lambda: self._repair_ctl(node))
        else:
            node.ctl_delay = 30.0
            self._undos.later(600.0, chance, lambda: setattr(node, "ctl_delay", 1.0))
        return f"nvidia-imex-ctl on {node.name}: {kind if isinstance(kind, str) else kind.name}"

    def _repair_ctl(self, node: SimulatedNode) -> None:
        if daemon := self._cluster.fabric.daemons.get(node.name):
            daemon.ctl = Ctl.WORKS
            self._cluster.fabric.notify()

    # The API server and its data

    def fail_requests(self, chance: random.Random) -> str:
        share = chance.choice((0.05, 0.3, 0.9))
        return f"fail {share:.0%} of the requests of {self._disturb(chance, 'failures', share)} programs"

    def slow_requests(self, chance: random.Random) -> str:
        return f"slow down the requests of {self._disturb(chance, 'latency', 2.0)} programs"

    def delay_responses(self, chance: random.Random) -> str:
        return f"delay some responses to {self._disturb(chance, 'stragglers', 0.3)} programs"

    def lag_watches(self, chance: random.Random) -> str:
        lag = chance.choice((5.0, 30.0, 120.0))
        return f"let the watches of {self._disturb(chance, 'watch_lag', lag)} programs lag by up to {lag:.0f} s"

    def _disturb(self, chance: random.Random, field: str, value: float) -> int:
        links = [program.link for program in self._cluster.programs()]
        chosen = chance.sample(links, chance.randint(1, len(links)))
        for link in chosen:
            setattr(link, field, value)
            self._undos.later(300.0, chance, partial(link.reset, field))
        return len(chosen)

    def stop_api(self, chance: random.Random) -> str:
        self._cluster.server.is_down = True
        self._undos.later(600.0, chance, self._start_api)
        return "stop the API server"

    def _start_api(self) -> None:
        self._cluster.server.is_down = False
        self._cluster.server.end_watches()

    def end_watches(self, chance: random.Random) -> str:
        self._cluster.server.end_watches()
        return "end all watches"

    def compact(self, chance: random.Random) -> str:
        self._cluster.storage.compact()
        return "compact the history"

    def back_up_partitions(self, chance: random.Random) -> str:
        self._backups |= {key.name: one for key, one in self._cluster.storage.all(PARTITIONS)}
        return "back up the partitions"

    def lose_partition(self, chance: random.Random) -> str:
        partitions = [key for key, _ in self._cluster.storage.all(PARTITIONS)]
        if not partitions:
            return ""
        key = chance.choice(partitions)
        with self._cluster.tampering(key.name):
            self._cluster.storage.remove(PARTITIONS, key)
        return f"lose NVLinkPartition {key.name}"

    def restore_partition(self, chance: random.Random) -> str:
        """Only the object, not the whole etcd; its version is new."""
        if not self._backups:
            return ""
        name = chance.choice(sorted(self._backups))
        backup = self._backups[name]
        with self._cluster.tampering(name):
            self._cluster.storage.put(PARTITIONS, Key("", name), backup.document)
        return f"restore NVLinkPartition {name} to version {backup.version}"

    def lose_last_writes(self, chance: random.Random) -> str:
        """Of one partition, at one of its next changes: as if etcd had acknowledged them and lost them."""
        partitions = [key.name for key, _ in self._cluster.storage.all(PARTITIONS)]
        if not partitions:
            return ""
        name = chance.choice(partitions)
        loss = _Loss(chance.randrange(6), chance.randint(1, 3), 3.0 * chance.random() ** 2)
        self._losses[name] = loss
        return f"lose {loss.writes} writes of NVLinkPartition {name} after {loss.after} more"

    def _on_change(self, change: Change) -> None:
        if change.kind is not PARTITIONS or change.old is None or self._cluster.is_tampering:
            return
        name = change.key.name
        self._recent.setdefault(name, deque(maxlen=3)).append(change.old)
        loss = self._losses.pop(name, None)
        if loss is not None and loss.after:
            self._losses[name] = loss._replace(after=loss.after - 1)
        elif loss is not None:
            loop = self._cluster.loop
            loop.call_later(loss.delay, self._lose, name, loss, context=Context())

    def _lose(self, name: str, loss: "_Loss") -> None:
        recent = list(self._recent[name])
        with self._cluster.tampering(name):
            self._cluster.storage.put(PARTITIONS, Key("", name), recent[-min(loss.writes, len(recent))].document)

    def _node(self, chance: random.Random) -> SimulatedNode:
        return chance.choice(list(self._cluster.nodes.values()))

    def _restart_later(self, node: SimulatedNode, chance: random.Random, seconds: float) -> None:
        self._undos.later(seconds, chance, lambda: self._cluster.ensure_program(node))
