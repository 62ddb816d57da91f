"""What to do next with nvidia-imex: a pure function of what is desired and of what is found.

What is found is all in files (`supervisor`), so an `imex node` that has just started decides like one that has run
for days, and adopts the process that runs. Each step ends in a state in which the next step is clear, also if this
program is killed in the middle of it. See docs/design/membership.md for what a change of the member list requires.
"""

from enum import Enum, auto

from msgspec import structs

from imex_dra.daemon.state import Recovery
from imex_dra.daemon.supervisor import Found, Process
from imex_dra.imex.config import Identity, generation_in, hosts_file, identity_of
from imex_dra.imex.memberlist import Leave, MemberList


class Step(Enum):
    """A restart of nvidia-imex tears down every import of every workload that uses this node's memory, so it is
    the last resort.
    """

    NOTHING = auto()
    STOP = auto()
    """Remove `current` and send `apply`. For a restart START follows when the process has ended: the hosts file of
    another identity must not be written while it runs.
    """
    START = auto()
    """Write the configuration and the hosts file, set `current`, send `apply`."""
    UPDATE_HOSTS = auto()
    """Addresses of other members changed: write the hosts file. RELOAD follows."""
    RELOAD = auto()
    """The process has not been told about the hosts file, or about a new certificate: send `reload`."""
    SET_QUORUM = auto()
    """Set `current` to a configuration that differs only in the quorum, for the next start."""
    APPLY = auto()
    """The process is not what `current` says: send `apply`, which may have been lost."""


def next_step(
    desired: MemberList | Leave | None, found: Found, recovery: Recovery, *, answers: bool, tls: bool = False
) -> Step:
    """`answers`: the running process has answered its ctl, so it also has its signal handlers."""
    match desired:
        case MemberList() if not _is_older(desired, found):
            wanted = identity_of(desired, recovery.quorum, tls=tls)
            return _towards(desired, wanted, found, recovery, answers=answers)
        case Leave(partition) if found.current and not (
            found.configured and found.configured.partition == partition
        ):
            return Step.STOP
    return _unfinished(found) or _reload(found, answers=answers)


def must_skip_recovery(found: Found, recovery: Recovery) -> bool:
    """Whether the running process still waits for nodes that did not reconnect in time."""
    return recovery.timed_out and found.running is not None and found.running.quorum != recovery.quorum


def lacks_certificate(found: Found, *, tls: bool) -> bool:
    """Whether nothing can start before the Secret with the certificate is there."""
    return tls and not found.certificate and found.process is not Process.RUNNING


def supersedes(new: MemberList, partition: str, generation: int) -> bool:
    """A watch that starts again may deliver an older partition for a moment; its list must not win."""
    return new.partition != partition or new.generation >= generation


def has_same_identity(one: Identity, other: Identity) -> bool:
    """The quorum matters only at a start: it is no reason for a restart."""
    return structs.replace(one, quorum="") == structs.replace(other, quorum="")


def _is_older(desired: MemberList, found: Found) -> bool:
    # Without a configuration nothing runs, and an old hosts file means nothing.
    if found.configured is None:
        return False
    partition = found.configured.partition
    return not supersedes(desired, partition, generation_in(found.hosts_title, partition))


def _towards(desired: MemberList, wanted: Identity, found: Found, recovery: Recovery, *, answers: bool) -> Step:
    if lacks_certificate(found, tls=wanted.tls):
        return Step.NOTHING
    if found.process is Process.RUNNING:
        if not found.current:
            return Step.APPLY
        is_same = found.running is not None and has_same_identity(found.running, wanted)
        if not is_same or must_skip_recovery(found, recovery):
            return Step.STOP
    elif found.current != wanted.name or found.process is Process.STOPPED:
        return Step.START
    if found.hosts != hosts_file(desired).content:
        return Step.UPDATE_HOSTS
    if found.current != wanted.name:
        return Step.SET_QUORUM
    return _unfinished(found) or _reload(found, answers=answers)


def _unfinished(found: Found) -> Step | None:
    """A step whose last command did not reach the supervisor."""
    is_lost = found.process is (Process.STOPPED if found.current else Process.RUNNING)
    return Step.APPLY if is_lost else None


def _reload(found: Found, *, answers: bool) -> Step:
    # A process that does not answer yet may not have its signal handler: SIGUSR1 would kill it.
    runs = found.process is Process.RUNNING and found.current and answers
    uses_tls = found.running is not None and found.running.tls
    # A certificate that is gone is no other one: the process goes on with what it has.
    new_certificate = uses_tls and found.certificate not in ("", found.loaded_certificate)
    return Step.RELOAD if runs and (found.applied_title != found.hosts_title or new_certificate) else Step.NOTHING
