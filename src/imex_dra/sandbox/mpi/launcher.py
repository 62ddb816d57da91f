"""`mpirun`: decides which rank runs where, has them started there, and ends as they end.

One rank that fails, or a worker that is lost, ends the job; the exit code is that of the first rank that failed.
Nobody is orphaned: when this process is gone, however it ended, its connections close, and every host kills its
ranks.
"""

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from imex_dra.base.errors import ImexError, Misconfigured
from imex_dra.sandbox.mpi import arguments as command_line
from imex_dra.sandbox.mpi import connection, environment, keys, layout
from imex_dra.sandbox.mpi.arguments import Arguments
from imex_dra.sandbox.mpi.job import Job
from imex_dra.sandbox.mpi.layout import Host, Placement
from imex_dra.sandbox.mpi.wire import Wire
from imex_dra.softimex.errors import Malformed

HOSTFILE = Path("/etc/mpi/hostfile")
ATTEMPTS = 10
_ATTEMPTS = re.compile(r"ConnectionAttempts[= ](\d+)")


def main(words: Sequence[str] | None = None) -> int:
    try:
        return run(command_line.parse(sys.argv[1:] if words is None else words))
    except (ImexError, Malformed) as error:
        _say(str(error))
        return 1
    except BrokenPipeError:
        return 1


def run(arguments: Arguments) -> int:
    settings = environment.parameters(arguments, dict(os.environ))
    hosts = layout.choose(_hosts(arguments.hostfile or settings.get("orte_default_hostfile", "")), arguments.hosts)
    placements = layout.place(hosts, arguments)
    for name in environment.unset(arguments, os.environ):
        _say(f"-x {name}: there is no such variable here, so the ranks do not get one")
    found = _ATTEMPTS.search(settings.get("plm_rsh_args", ""))
    with _meeting_point() as reserved:
        placed = _reach(placements, int(found[1]) if found else ATTEMPTS)
        job = Job(placed, tag_output=arguments.tag_output)
        shared = environment.shared(arguments, os.environ, placements, reserved.getsockname()[1])
        for wire, ranks in placed.items():
            wire.send(_order(arguments, shared, ranks))
        verdict = job.run()
    if verdict.why:
        _say(f"{verdict.why}; the job of {len(placements)} ranks was ended")
    return verdict.code


def _hosts(named: str) -> list[Host]:
    """Without any hostfile, this host alone."""
    hostfile = Path(named) if named else HOSTFILE
    if hostfile.is_file():
        return layout.read_hostfile(hostfile.read_text())
    if named:
        raise Misconfigured(f"there is no hostfile {named}")
    return [Host(socket.gethostname(), os.cpu_count() or 1)]


def _reach(placements: Sequence[Placement], attempts: int) -> dict[Wire, list[Placement]]:
    """Our own host first: its child must not hold the other connections."""
    by_host: dict[Host, list[Placement]] = {}
    for placement in placements:
        by_host.setdefault(placement.host, []).append(placement)
    here = {connection.local(): ranks for host, ranks in by_host.items() if connection.is_here(host)}
    others = {host: ranks for host, ranks in by_host.items() if not connection.is_here(host)}
    if not others:
        return here
    key = keys.find()
    return here | {connection.remote(host, key, attempts): ranks for host, ranks in others.items()}


def _order(arguments: Arguments, shared: dict[str, str], ranks: Sequence[Placement]) -> dict[str, object]:
    return {
        "argv": arguments.command,
        "environment": shared,
        "directories": [arguments.directory] if arguments.directory else [str(Path.cwd()), "/"],
        "ranks": [(placement.rank, environment.own(placement)) for placement in ranks],
    }


def _meeting_point() -> socket.socket:
    """Keeps a port for rank 0: bound but not listening, so that only one who reuses addresses can have it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((environment.MASTER_ADDRESS, 0))
    return reserved


def _say(words: str) -> None:
    sys.stderr.write(f"mpirun: {words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
