"""Kills a process at every call by which the ledger touches the disk.

    python -m tests.node.crashes <deed> <directory>

For each number N a child makes the same beginning in `<directory>/N`, does the deed, and is killed right before
its N-th call that changes something; the first child that lives to the end is the last one. Prints how many died.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tests.node.desk import Desk
from tests.node.facts import PARTITION
from tests.node.prepared import prepared

CALLS = [(os, name) for name in ("open", "close", "fchmod", "chmod", "rename", "unlink", "mkdir", "fdopen")] + [
    (fcntl, "flock")
]


class Deed(NamedTuple):
    before: Callable[[Desk], object]
    act: Callable[[Desk], object]


def a_neighbour(desk: Desk) -> None:
    desk.enter(prepared("neighbour", channel=1, domain="other"), since=0)


def prepared_before(desk: Desk) -> None:
    a_neighbour(desk)
    desk.enter(prepared("c1", channel=7), since=0)


def prepared_before_a_reboot(desk: Desk) -> None:
    a_neighbour(desk)
    desk.enter(prepared("c1", channel=5, boot_id="boot-0"), since=0)


def prepared_before_a_driver_reload(desk: Desk) -> None:
    prepared_before(desk)
    desk.root.load_driver(99)


def prepared_and_spoilt(desk: Desk) -> None:
    prepared_before(desk)
    desk.checkpoint.write_bytes(b"spoilt")


def left_in_the_middle(desk: Desk) -> None:
    prepared_before(desk)
    (desk.cdi / "imex-dra.io-channel_orphan.json").write_text("{}")
    (desk.cdi / ".imex-dra.io-channel_c1.json.x7_gk2aa").write_text("{")


DEEDS = {
    "enter": Deed(a_neighbour, lambda desk: desk.enter(prepared("c1", channel=7), since=0)),
    "enter-first": Deed(lambda desk: None, lambda desk: desk.enter(prepared("c1", channel=7), since=0)),
    "enter-after-reboot": Deed(
        prepared_before_a_reboot, lambda desk: desk.enter(prepared("c1", channel=7), since=0)
    ),
    "promise": Deed(prepared_before, lambda desk: desk.ledger().promise(PARTITION, 4)),
    "strike": Deed(prepared_before, lambda desk: desk.ledger().strike("c1")),
    "mend": Deed(prepared_before_a_driver_reload, lambda desk: desk.ledger().mend(prepared("c1", channel=7))),
    "rebuild": Deed(prepared_and_spoilt, lambda desk: desk.ledger().read()),
    "tidy": Deed(left_in_the_middle, lambda desk: desk.ledger().tidy()),
}


def doomed(fatal: int) -> None:
    """From now on, the call with this number does not happen any more."""
    numbers = count()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            if next(numbers) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return instead

    for module, name in CALLS:
        setattr(module, name, counted(getattr(module, name)))


def lives(deed: Deed, fatal: int, directory: Path) -> bool:
    child = os.fork()
    if child == 0:
        desk = Desk(directory / str(fatal))
        deed.before(desk)
        doomed(fatal)
        deed.act(desk)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"the child ended with {code}")
    return code == 0


def main(deed: str, directory: str) -> None:
    died = next(fatal for fatal in count() if lives(DEEDS[deed], fatal, Path(directory)))
    print(died)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
