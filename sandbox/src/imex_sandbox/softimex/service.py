"""The IMEX service that a daemon process runs: its parts, its states and its signals.

The order of the start follows the states: the session lock, the node map and this node's entry in it, the sockets
and, after an unclean exit, the wait for the nodes that had imported memory. A READY daemon stays READY until it
shuts down, whatever its peers do.
"""

import os
import signal
import time
from collections.abc import Callable

from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.clientservice import ClientService
from imex_sandbox.softimex.command import CommandService, DaemonState
from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.daemonlog import DaemonLog
from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.exchange import Exchange
from imex_sandbox.softimex.fabric import FABRIC_DIR_VARIABLE, Fabric
from imex_sandbox.softimex.frames import Message
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.mesh import Encryption, Mesh
from imex_sandbox.softimex.noderoot import NO_GPU, Hardware, NodeRoot
from imex_sandbox.softimex.peerstate import Identity
from imex_sandbox.softimex.rundir import PersistFile, acquire_session, fabric_id
from imex_sandbox.softimex.sockets import listen_tcp, listen_unix

RELOAD_SECONDS = 5.0
FLUSH_SECONDS = 0.5


class ImexService:
    def __init__(self, root: NodeRoot, config: Config, hardware: Hardware, daemon_log: DaemonLog) -> None:
        self._root, self._config, self._log = root, config, daemon_log
        # First, because everything else assumes that this is the only daemon of the node.
        self._session = acquire_session(root.run, os.getpid())
        entries = nodemap.read_nodes(config.imex_node_config_file)
        local = nodemap.require_local_node(root, config, entries)
        self._identity = Identity(
            local.node_index, os.urandom(8).hex(), hardware.driver_version, nodemap.map_key(entries)
        )
        self._loop = Loop()
        self._loop.on_exception = daemon_log.error
        self._encryption = _encryption(config, daemon_log)
        self._persist_file = PersistFile(root.file("run/persist.dat"), self._identity.map_key)
        self._exchange = Exchange(
            self._identity,
            _current_hardware(root, hardware),
            _fabric(root, self._identity.instance),
            self._persist_file,
        )
        self._mesh = Mesh(
            self._loop,
            root,
            daemon_log,
            self._exchange,
            self._identity,
            config,
            entries,
            local.address,
            self._encryption,
        )
        self._exchange.peer = self._mesh.peer
        self._clients = ClientService(self._loop, root, self._exchange, local.node_index)
        self._command = CommandService(self._loop, self._describe, self._mesh.network_fault)
        self._awaited_importers: set[int] = set()
        self._reloaded_at = float("-inf")

    def start(self) -> None:
        """Return when all sockets accept connections. Raises `StartError`."""
        self._loop.on_signals(
            {
                signal.SIGTERM: self.shut_down,
                signal.SIGINT: self.shut_down,
                signal.SIGQUIT: self.shut_down,
                signal.SIGUSR1: self.reload,
                signal.SIGHUP: self._log.dump,
            }
        )
        self._listen_for_commands()
        if self._encryption:
            self._set_state(DaemonState.STARTING_AUTH_SERVER)
        self._mesh.on_peer_connected = self._finish_recovery
        self._mesh.start()
        self._clients.start()
        self._await_importers()

    def run(self) -> None:
        self._loop.run()
        self._clients.clients.close()
        self._command.sessions.close()

    def reload(self) -> None:
        """Read keys and host names again and reconnect to all peers, at most once in five seconds."""
        now = time.monotonic()
        if now - self._reloaded_at < RELOAD_SECONDS:
            self._log.info("SIGUSR1 ignored: the previous one was handled less than 5 s ago")
            return
        self._reloaded_at = now
        self._log.info("SIGUSR1: reconnecting to all peers")
        self._mesh.reload_keys()
        self._mesh.broadcast({"reload": 1})
        self._mesh.reconnect()

    def shut_down(self) -> None:
        self._set_state(DaemonState.SHUTTING_DOWN)
        self._mesh.close()
        # Peers drop what they imported from this daemon, so that nothing needs recovery: the file can go.
        self._mesh.broadcast({"shutdown": 1})
        self._exchange.close()
        self._persist_file.clear()
        self._loop.call_later(FLUSH_SECONDS if self._mesh.has_unsent_data() else 0, self._loop.stop)

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
            self._awaited_importers = set(self._mesh.peer_indexes()) & self._persist_file.load()
        if self._awaited_importers:
            self._set_state(DaemonState.WAITING_FOR_RECOVERY)
            nodes = sorted(self._awaited_importers)
            self._log.info(f"unclean exit: waiting for nodes {nodes}, which had imported memory")
        self._finish_recovery()

    def _finish_recovery(self) -> None:
        """Become READY once all importers from the previous instance have connected.

        Their connection shows them the new instance, so they drop what they imported from the previous one.
        """
        self._awaited_importers -= self._mesh.inbound_peers()
        if not self._awaited_importers and self._command.state < DaemonState.INIT_GPU:
            self._persist_file.clear()
            self._set_state(DaemonState.INIT_GPU)
            self._set_state(DaemonState.READY)
            self._exchange.ready = True

    def _set_state(self, state: DaemonState) -> None:
        self._command.set_state(state)
        self._log.info(f"state: {state.name}")

    def _describe(self) -> Message:
        connections = {
            str(index): {"host": address, "status": state.name}
            for index, address, state in self._mesh.connection_states()
        }
        return {
            "index": self._identity.node_index,
            "version": self._identity.version,
            "connections": connections,
        }


def _current_hardware(root: NodeRoot, at_start: Hardware) -> Callable[[], Hardware]:
    """The health of the hardware may change. A daemon that started without a GPU never gets one."""
    return (lambda: NO_GPU) if at_start is NO_GPU else root.hardware


def _fabric(root: NodeRoot, instance: str) -> Fabric | None:
    directory = os.environ.get(FABRIC_DIR_VARIABLE)
    if not directory:
        return None
    try:
        return Fabric(directory, fabric_id(root.run), instance)
    except OSError as error:
        raise StartError(f"cannot use {FABRIC_DIR_VARIABLE}={directory}: {error.strerror}") from error


def _encryption(config: Config, daemon_log: DaemonLog) -> Encryption | None:
    if not config.imex_enable_auth_encryption:
        return None
    from imex_sandbox.softimex.tls import Tls  # here, because `ssl` takes memory

    return Tls(config, daemon_log)
