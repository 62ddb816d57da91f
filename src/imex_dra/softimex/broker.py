"""The broker that a daemon process runs: its states, its signals, and the parts that it is made of.

The order of the start is the order of the states: the session, the node map and our seat in it, the sockets,
then, after an unclean exit, the wait for those who had imported from us. Once READY it stays READY until it is
told to stop, whatever its peers do.
"""

import os
import signal
import time
from collections.abc import Callable

from imex_dra.softimex import nodemap, session
from imex_dra.softimex.clients import ClientService
from imex_dra.softimex.command import CommandService
from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.exchange import Exchange
from imex_dra.softimex.fabric import VARIABLE, Fabric, node_id
from imex_dra.softimex.frames import Message
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.journal import Journal
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.mesh import Encryption, Mesh
from imex_dra.softimex.noderoot import NO_GPU, Hardware, NodeRoot
from imex_dra.softimex.persistence import Persistence
from imex_dra.softimex.sockets import listen_tcp, listen_unix
from imex_dra.softimex.states import DaemonState

RELOAD_SECONDS = 5.0
GOODBYE_SECONDS = 0.5


class Broker:
    def __init__(self, root: NodeRoot, config: Config, hardware: Hardware, journal: Journal) -> None:
        self._root, self._config, self._journal = root, config, journal
        self._session = session.hold(root.run, os.getpid())
        entries = nodemap.read_nodes(config.imex_node_config_file)
        self._seat = session.take_seat(root, config, entries)
        self._identity = Identity(
            self._seat.slot, os.urandom(8).hex(), hardware.driver_version, nodemap.key(entries)
        )
        self._loop = Loop()
        self._loop.on_fault = journal.error
        self._encryption = _encryption(config, journal)
        self._persistence = Persistence(root.file("run/persist.dat"), self._identity.map_key)
        self._exchange = Exchange(
            self._identity, _current(root, hardware), _fabric(root, self._identity.instance), self._persistence
        )
        self._mesh = Mesh(
            self._loop,
            root,
            journal,
            self._exchange,
            self._identity,
            config,
            entries,
            self._seat.address,
            self._encryption,
        )
        self._exchange.peer = self._mesh.peer
        self._clients = ClientService(self._loop, root, self._exchange, self._seat.slot)
        self._command = CommandService(self._loop, self._describe, self._mesh.fault_to)
        self._awaited: set[int] = set()
        self._reloaded_at = float("-inf")

    def start(self) -> None:
        """Returns once everybody can connect; raises `StartError` if something can't be had."""
        self._loop.on_signals(
            {
                signal.SIGTERM: self.shut_down,
                signal.SIGINT: self.shut_down,
                signal.SIGQUIT: self.shut_down,
                signal.SIGUSR1: self.reload,
                signal.SIGHUP: self._journal.dump,
            }
        )
        self._listen_for_commands()
        if self._encryption:
            self._enter(DaemonState.STARTING_AUTH_SERVER)
        self._mesh.on_heard = self._recover
        self._mesh.start()
        self._clients.start()
        self._await_importers()

    def run(self) -> None:
        self._loop.run()
        self._clients.clients.close()
        self._command.sessions.close()

    def reload(self) -> None:
        """Keys and names are read anew and all connections made anew, but not twice within five seconds."""
        now = time.monotonic()
        if now - self._reloaded_at < RELOAD_SECONDS:
            self._journal.info("SIGUSR1 ignored: the last one was handled less than 5 s ago")
            return
        self._reloaded_at = now
        self._journal.info("SIGUSR1: all connections are made anew")
        self._mesh.reload_keys()
        self._mesh.tell_all({"reload": 1})
        self._mesh.reconnect()

    def shut_down(self) -> None:
        """In order: the peers are told, so that they drop what we exported."""
        self._enter(DaemonState.SHUTTING_DOWN)
        self._mesh.close()
        self._mesh.tell_all({"bye": 1})
        self._exchange.close()
        self._persistence.clear()
        self._loop.call_later(GOODBYE_SECONDS if self._mesh.busy() else 0, self._loop.stop)

    def _listen_for_commands(self) -> None:
        config = self._config
        if not config.imex_cmd_enabled:
            return
        bind = config.imex_cmd_bind_interface_ip
        addresses = [bind] if bind else self._root.addresses()
        listening = [listen_tcp(address, config.imex_cmd_port) for address in addresses]
        if config.imex_cmd_unix_domain_path:
            listening.append(listen_unix(config.imex_cmd_unix_domain_path))
        self._command.start(listening)

    def _await_importers(self) -> None:
        if self._config.imex_wait_for_quorum == "RECOVERY":
            self._awaited = set(self._mesh.others()) & self._persistence.load()
        if self._awaited:
            self._enter(DaemonState.WAITING_FOR_RECOVERY)
            self._journal.info(f"unclean exit: waiting for nodes {sorted(self._awaited)}, which had imported")
        self._recover()

    def _recover(self) -> None:
        """Ready, once all who had imported from our last instance know that we are another."""
        self._awaited -= self._mesh.heard()
        if not self._awaited and self._command.state < DaemonState.INIT_GPU:
            self._persistence.clear()
            self._enter(DaemonState.INIT_GPU)
            self._enter(DaemonState.READY)
            self._exchange.ready = True

    def _enter(self, state: DaemonState) -> None:
        self._command.enter(state)
        self._journal.info(f"state: {state.name}")

    def _describe(self) -> Message:
        connections = {
            str(slot): {"host": address, "status": state.name} for slot, address, state in self._mesh.states()
        }
        return {
            "slot": self._identity.slot,
            "version": self._identity.version,
            "connections": connections,
        }


def _current(root: NodeRoot, at_start: Hardware) -> Callable[[], Hardware]:
    """The hardware's health changes; that there is no GPU does not."""
    return (lambda: NO_GPU) if at_start is NO_GPU else root.hardware


def _fabric(root: NodeRoot, instance: str) -> Fabric | None:
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    try:
        return Fabric(directory, node_id(root.run), instance)
    except OSError as error:
        raise StartError(f"can't use {VARIABLE}={directory}: {error.strerror}") from error


def _encryption(config: Config, journal: Journal) -> Encryption | None:
    if not config.imex_enable_auth_encryption:
        return None
    from imex_dra.softimex.tls import Tls

    return Tls(config, journal)
