"""Kills a process before each of the system calls by which `PreparedClaims` changes the disk.

    python -m tests.node.crash_points <scenario> <directory> [device-nodes]

For N = 0, 1, ... a child process sets up a node's disk in `<directory>/N`, runs the scenario's operation and is
killed right before its N-th such call. The first child that completes its operation is the last one. Prints how
many were killed. It is a program of its own because it forks, and a pytest worker has threads.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.killing import kill_before_call
from tests.node.disk import NodeDisk, prepared_claim
from tests.node.snapshots import PARTITION

_OS_CALLS = ("open", "close", "fchmod", "chmod", "rename", "unlink", "mkdir", "rmdir", "mknod", "fdopen")
CALLS = [*((os, name) for name in _OS_CALLS), (fcntl, "flock")]


class Scenario(NamedTuple):
    set_up: Callable[[NodeDisk], object]
    operation: Callable[[NodeDisk], object]


def with_another_claim(disk: NodeDisk) -> None:
    disk.add(prepared_claim("other", channel=1, domain="other"))


def with_both_claims(disk: NodeDisk) -> None:
    with_another_claim(disk)
    disk.add(prepared_claim("c1", channel=7))


def after_reboot(disk: NodeDisk) -> None:
    with_another_claim(disk)
    disk.add(prepared_claim("c1", channel=5, boot_id="boot-0"))


def after_driver_reload(disk: NodeDisk) -> None:
    with_both_claims(disk)
    disk.root.load_driver(99)


def with_corrupt_checkpoint(disk: NodeDisk) -> None:
    with_both_claims(disk)
    disk.checkpoint.write_bytes(b"corrupt")


def with_missing_checkpoint(disk: NodeDisk) -> None:
    with_both_claims(disk)
    disk.checkpoint.unlink()


def with_entry_without_spec(disk: NodeDisk) -> None:
    with_both_claims(disk)
    disk.spec_path("c1").unlink()


def with_orphans(disk: NodeDisk) -> None:
    with_both_claims(disk)
    disk.prepared_claims().hardware.container_edits("orphan", [5])
    disk.spec_path("orphan").write_text("{}")
    (disk.cdi / ".imex-dra.io-channel_c1.json.x7_gk2aa").write_text("{")


def add(disk: NodeDisk) -> None:
    disk.add(prepared_claim("c1", channel=7))


SCENARIOS = {
    "add": Scenario(with_another_claim, add),
    "add-first": Scenario(lambda disk: None, add),
    "add-after-reboot": Scenario(after_reboot, add),
    "remove": Scenario(with_both_claims, lambda disk: disk.remove("c1")),
    "raise-fence": Scenario(with_both_claims, lambda disk: disk.prepared_claims().raise_fence(PARTITION, 4)),
    "rewrite-spec": Scenario(
        after_driver_reload, lambda disk: disk.prepared_claims().rewrite_spec(prepared_claim("c1", channel=7))
    ),
    "rebuild": Scenario(with_corrupt_checkpoint, lambda disk: disk.prepared_claims().read()),
    "rebuild-missing": Scenario(with_missing_checkpoint, lambda disk: disk.prepared_claims().read()),
    "rewrite-specs": Scenario(after_driver_reload, lambda disk: disk.prepared_claims().rewrite_specs("boot-1")),
    "repair-spec": Scenario(with_entry_without_spec, lambda disk: disk.prepared_claims().rewrite_specs("boot-1")),
    "sweep": Scenario(
        with_entry_without_spec, lambda disk: disk.prepared_claims().remove_unless("c1", lambda: False)
    ),
    "remove-orphans": Scenario(with_orphans, lambda disk: disk.prepared_claims().remove_orphans()),
}


def completes(scenario: Scenario, fatal: int, directory: Path, *, device_nodes: bool) -> bool:
    child = os.fork()
    if child == 0:
        disk = NodeDisk(directory / str(fatal), device_nodes=device_nodes)
        scenario.set_up(disk)
        kill_before_call(fatal, CALLS)
        scenario.operation(disk)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"the child ended with {code}")
    return code == 0


def main(scenario: str, directory: str, *options: str) -> None:
    device_nodes = "device-nodes" in options
    killed = next(
        fatal
        for fatal in count()
        if completes(SCENARIOS[scenario], fatal, Path(directory), device_nodes=device_nodes)
    )
    print(killed)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
