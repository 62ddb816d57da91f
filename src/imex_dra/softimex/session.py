"""What a daemon must hold before it may be one: the node's only IMEX session, and a seat in the node map."""

import fcntl
import os
import resource
from collections.abc import Sequence
from typing import TextIO

from imex_dra.softimex import nodemap
from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.nodemap import Seat
from imex_dra.softimex.noderoot import NO_GPU, NO_HARDWARE, Hardware, NodeRoot


def hold(run: str, pid: int) -> TextIO:
    """The driver grants one session per operating system; the kernel frees it when its holder dies."""
    path = os.path.join(run, "imex.lock")
    try:
        os.makedirs(run, exist_ok=True)
        lock = open(path, "a+")  # noqa: SIM115, it stays open as long as the daemon lives
    except OSError as error:
        raise StartError(f"can't make {path}: {error.strerror}. Is the node root writable?") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(32).strip() or "unknown"
        lock.close()
        raise StartError(
            f"NV_ERR_IN_USE: Failed to allocate Imex session: process {holder} has it. Stop that one first"
        ) from None
    lock.truncate(0)
    lock.write(f"{pid}\n")
    lock.flush()
    return lock


def find_hardware(root: NodeRoot, no_gpu: bool) -> Hardware:
    """At start the driver must be there; later its health is asked for anew each time."""
    hardware = NO_GPU if no_gpu else root.hardware()
    if hardware is NO_HARDWARE:
        raise StartError(
            f"no GPU driver: {root.file('hardware.json')} is missing or no JSON. Write it, or start with --nogpu"
        )
    return hardware


def take_seat(root: NodeRoot, config: Config, entries: Sequence[str]) -> Seat:
    seat = nodemap.find_seat(entries, root.hosts(), root.addresses(), config.bind_interface_ip)
    if seat is None:
        own = ", ".join(root.addresses()) or f"none, see {root.file('addresses')}"
        bind = f" and BIND_INTERFACE_IP={config.bind_interface_ip}" if config.bind_interface_ip else ""
        raise StartError(
            f"No matching network interface found: none of the {len(entries)} entries of"
            f" {config.imex_node_config_file} resolves to an address of this node ({own}){bind}"
        )
    return seat


def raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
