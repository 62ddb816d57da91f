"""`mpirun`: maps ranks to hosts, starts them there, and exits with their result.

A rank that fails, or a lost worker, terminates the job. The exit code is that of the first rank that failed. No
rank outlives the launcher: when this process ends for any reason, its connections close, and every host kills its
ranks.
"""

import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from imex_dra.base.errors import ImexError, Misconfigured, Unavailable
from imex_sandbox.mpi import arguments as command_line
from imex_sandbox.mpi import environment, mapping
from imex_sandbox.mpi.arguments import Arguments
from imex_sandbox.mpi.connection import Connection, JobKey, authenticate_worker, find_job_key
from imex_sandbox.mpi.job import Job
from imex_sandbox.mpi.mapping import Host, Placement
from imex_sandbox.mpi.ranks import Ranks
from imex_sandbox.softimex.errors import Malformed

HOSTFILE = Path("/etc/mpi/hostfile")
CONNECTION_ATTEMPTS = 10
ATTEMPT_SECONDS = 1.0
HANDSHAKE_SECONDS = 60.0
_RETRY_SECONDS = 0.1
_CONNECTION_ATTEMPTS = re.compile(r"ConnectionAttempts[= ](\d+)")


def main(words: Sequence[str] | None = None) -> int:
    try:
        return run(command_line.parse(sys.argv[1:] if words is None else words))
    except (ImexError, Malformed) as error:
        _log(str(error))
        return 1
    except BrokenPipeError:
        return 1


def run(arguments: Arguments) -> int:
    mca = environment.mca_parameters(arguments, os.environ)
    hosts = _hosts(arguments.hostfile or mca.get("orte_default_hostfile", ""))
    placements = mapping.map_ranks(mapping.select_hosts(hosts, arguments.hosts), arguments)
    for flag in arguments.ignored:
        _log(f"{flag} is ignored: it has no effect on simulated racks")
    for name in environment.missing_exports(arguments, os.environ):
        _log(f"-x {name}: the launcher has no such variable, so it is not set for the ranks")
    attempts = _CONNECTION_ATTEMPTS.search(mca.get("plm_rsh_args", ""))
    with _reserve_port() as reserved:
        connections = _connect_all(placements, int(attempts[1]) if attempts else CONNECTION_ATTEMPTS)
        # Created before any rank is started, because it installs the signal handlers.
        job = Job(connections, tag_output=arguments.tag_output)
        variables = environment.job_variables(arguments, os.environ, placements, reserved.getsockname()[1])
        for connection, ranks in connections.items():
            connection.send(_start_request(arguments, variables, ranks))
        result = job.run()
    if result.reason:
        _log(f"{result.reason}; the job of {len(placements)} ranks was terminated")
    return result.exit_code


def _hosts(path: str) -> list[Host]:
    """Without a hostfile, only this host."""
    hostfile = Path(path) if path else HOSTFILE
    if hostfile.is_file():
        return mapping.read_hostfile(hostfile.read_text())
    if path:
        raise Misconfigured(f"hostfile {path} does not exist: correct -hostfile or OMPI_MCA_orte_default_hostfile")
    return [Host(socket.gethostname(), os.cpu_count() or 1)]


def _connect_all(placements: Sequence[Placement], attempts: int) -> dict[Connection, list[Placement]]:
    by_host: dict[Host, list[Placement]] = {}
    for placement in placements:
        by_host.setdefault(placement.host, []).append(placement)
    # The local host first: its child process must not inherit connections to other hosts.
    connections = {_fork_local(): ranks for host, ranks in by_host.items() if _is_local(host)}
    remote = {host: ranks for host, ranks in by_host.items() if not _is_local(host)}
    if remote:
        key = find_job_key()
        connections |= {_connect(host, key, attempts): ranks for host, ranks in remote.items()}
    return connections


def _is_local(host: Host) -> bool:
    return host.label in ("localhost", socket.gethostname().partition(".")[0])


def _fork_local() -> Connection:
    """Start a child process that runs the ranks of this host."""
    parent_end, child_end = socket.socketpair()
    if os.fork():
        child_end.close()
        return Connection(parent_end)
    try:
        os.setpgid(0, 0)
        # The child must not hold the end of the parent open: it would not notice when the parent is gone.
        os.closerange(3, child_end.fileno())
        os.closerange(child_end.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        Ranks(Connection(child_end)).run()
    finally:
        os._exit(0)


def _connect(host: Host, key: JobKey, attempts: int) -> Connection:
    """Wait for a pod that is not running yet as long as ssh would: one second per attempt."""
    deadline = time.monotonic() + attempts * ATTEMPT_SECONDS
    connection = Connection(_open_socket(host, key.address(host.label), deadline))
    connection.set_timeout(HANDSHAKE_SECONDS)
    try:
        authenticate_worker(connection, key, host.name)
    except OSError as error:
        raise Unavailable(f"{host.name} closed the connection during the handshake: {error}") from error
    connection.set_timeout(None)
    return connection


def _open_socket(host: Host, address: str, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    while True:
        try:
            sock.connect(address)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"cannot connect to {host.name}: {error.strerror}. Check that the pod {host.label} is running,"
                    " and that its command is sshd"
                ) from error
            time.sleep(_RETRY_SECONDS)
            continue
        return sock


def _start_request(
    arguments: Arguments, variables: dict[str, str], ranks: Sequence[Placement]
) -> dict[str, object]:
    directory = arguments.working_directory
    return {
        "argv": arguments.command,
        "environment": variables,
        "directories": [directory] if directory else [str(Path.cwd()), "/"],
        "ranks": [(placement.rank, environment.rank_variables(placement)) for placement in ranks],
    }


def _reserve_port() -> socket.socket:
    """A port for rank 0. The socket is bound but does not listen: only a socket with SO_REUSEADDR can use it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((environment.MASTER_ADDRESS, 0))
    return reserved


def _log(message: str) -> None:
    sys.stderr.write(f"mpirun: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
