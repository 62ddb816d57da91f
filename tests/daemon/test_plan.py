"""What to do next with nvidia-imex, given what is found: adopt, reload or restart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.daemon.plan import Step, next_step, supersedes
from imex_dra.daemon.state import Recovery
from imex_dra.daemon.supervisor import Found, Process
from imex_dra.imex.config import Identity, hosts_file, identity_of
from imex_dra.imex.memberlist import Leave, MemberList

LIST = MemberList("7b.1", 5, 24, "imex-0a1b2c3d-%03d", {0: "10.0.0.1", 1: "10.0.0.2"}, 0, "10.0.0.1")
TIMED_OUT = Recovery(0.0, timed_out=True)


def changed(**facts: Any) -> MemberList:
    return structs.replace(LIST, **facts)


def identity(member_list: MemberList = LIST, quorum: str = "RECOVERY") -> Identity:
    return identity_of(member_list, quorum)


def running(member_list: MemberList = LIST, **facts: Any) -> Found:
    """A process that runs with this list."""
    own = facts.pop("running", identity(member_list))
    current = facts.pop("configured", own)
    hosts = hosts_file(facts.pop("hosts", member_list))
    return Found(
        process=Process.RUNNING,
        pid=7,
        running=own,
        applied_title=hosts_file(facts.pop("applied", member_list)).title,
        current=current.name if current else "",
        configured=current,
        hosts=hosts.content,
    )


def stopped(found: Found, process: Process = Process.STOPPED) -> Found:
    return structs.replace(found, process=process, pid=0)


def step(desired: MemberList | Leave | None, found: Found, recovery: Recovery = Recovery()) -> Step:  # noqa: B008
    return next_step(desired, found, recovery, answers=True)


def test_the_first_member_list_starts_the_daemon() -> None:
    assert step(LIST, Found()) is Step.START


def test_without_a_list_nothing_starts_and_nothing_stops() -> None:
    assert step(None, Found()) is Step.NOTHING
    assert step(None, running()) is Step.NOTHING


@pytest.mark.parametrize(
    ("desired", "expected"),
    [
        (LIST, Step.NOTHING),
        (changed(generation=6), Step.UPDATE_HOSTS),
        (changed(generation=6, addresses={**LIST.addresses, 1: "10.0.0.22"}), Step.UPDATE_HOSTS),
        (changed(generation=6, addresses={**LIST.addresses, 2: "10.0.0.3"}), Step.UPDATE_HOSTS),
        (changed(generation=6, addresses={0: "10.0.0.1"}), Step.UPDATE_HOSTS),
        (changed(generation=6, own_index=3, addresses={3: "10.0.0.1"}), Step.STOP),
        (changed(generation=6, own_address="10.0.0.9", addresses={0: "10.0.0.9"}), Step.STOP),
        (changed(partition="7b.2"), Step.STOP),
        (changed(partition="7b.2", generation=1), Step.STOP),
        (changed(max_nodes=16), Step.STOP),
        (changed(name_format="imex-ffffffff-%03d"), Step.STOP),
        (changed(generation=4, addresses={0: "10.0.0.1"}), Step.NOTHING),
        (changed(generation=4, own_index=3, addresses={3: "10.0.0.1"}), Step.NOTHING),
    ],
)
def test_only_what_nvidia_imex_reads_at_start_requires_a_restart_and_an_older_list_nothing(
    desired: MemberList, expected: Step
) -> None:
    assert step(desired, running()) is expected


def test_a_restart_stops_the_process_before_anything_is_written_for_the_next_one() -> None:
    moved = changed(own_index=3, addresses={3: "10.0.0.1"})
    found = running()
    assert step(moved, found) is Step.STOP
    stopping = structs.replace(found, current="", configured=None)
    assert step(moved, stopping) is Step.APPLY
    assert step(moved, stopped(stopping)) is Step.START


NEWER = changed(generation=6, addresses={0: "10.0.0.1"})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (running(), Step.NOTHING),
        (running(hosts=NEWER), Step.RELOAD),
        (stopped(running()), Step.APPLY),
        (stopped(running(), Process.FAILED), Step.NOTHING),
        (running(configured=None), Step.APPLY),
        (stopped(running(configured=None)), Step.NOTHING),
        (stopped(running(configured=None), Process.FAILED), Step.NOTHING),
    ],
    ids=[
        "nothing was lost",
        "the reload was lost",
        "the start was lost",
        "the supervisor restarts it",
        "the stop was lost",
        "nothing is to run",
        "the supervisor will find nothing to run",
    ],
)
def test_a_program_that_starts_repeats_a_command_that_was_lost(found: Found, expected: Step) -> None:
    assert step(None, found) is expected


def test_a_process_is_not_signaled_before_it_answers() -> None:
    found = running(hosts=NEWER)
    assert next_step(NEWER, found, Recovery(), answers=False) is Step.NOTHING
    assert next_step(NEWER, found, Recovery(), answers=True) is Step.RELOAD


def test_the_hosts_file_of_a_process_that_is_started_again_is_updated() -> None:
    assert step(NEWER, stopped(running(), Process.FAILED)) is Step.UPDATE_HOSTS


def test_a_process_that_fails_is_replaced_at_once_by_one_with_another_identity() -> None:
    moved = changed(own_index=3, addresses={3: "10.0.0.1"})
    assert step(moved, stopped(running(), Process.FAILED)) is Step.START


@pytest.mark.parametrize(
    ("partition", "found", "expected"),
    [
        ("7b.1", running(), Step.NOTHING),
        ("7b.2", running(), Step.STOP),
        ("", running(), Step.STOP),
        ("7b.2", stopped(running(), Process.FAILED), Step.STOP),
        ("7b.2", running(configured=None), Step.APPLY),
        ("7b.2", stopped(running(configured=None)), Step.NOTHING),
        ("7b.2", structs.replace(running(), configured=None), Step.STOP),
    ],
    ids=["the same", "another", "none", "a process that fails", "stopping", "stopped", "unreadable"],
)
def test_a_node_that_is_not_a_member_runs_no_daemon_of_another_partition(
    partition: str, found: Found, expected: Step
) -> None:
    assert step(Leave(partition), found) is expected


def test_after_a_stop_any_generation_may_start() -> None:
    left = stopped(running(configured=None))
    assert step(changed(generation=1), left) is Step.START


def test_a_recovery_that_timed_out_is_skipped_by_a_restart_and_the_next_start_recovers_again() -> None:
    assert step(LIST, running(), TIMED_OUT) is Step.STOP
    assert step(LIST, stopped(running(configured=None)), TIMED_OUT) is Step.START
    without = identity(quorum="NONE")
    assert step(LIST, running(running=without), TIMED_OUT) is Step.NOTHING
    assert step(LIST, running(running=without)) is Step.SET_QUORUM
    assert step(LIST, running(running=without, configured=identity())) is Step.NOTHING


@pytest.mark.parametrize(
    ("new", "wins"),
    [
        (LIST, True),
        (changed(generation=6), True),
        (changed(generation=4), False),
        (changed(generation=4, partition="7b.2"), True),
    ],
)
def test_an_older_list_of_the_same_partition_does_not_win(new: MemberList, wins: bool) -> None:
    assert supersedes(new, "7b.1", 5) is wins


LISTS = st.sampled_from(
    [
        LIST,
        NEWER,
        changed(partition="7b.2"),
        changed(own_index=3, addresses={3: "10.0.0.1"}),
        changed(generation=4),
    ]
)
FOUND = st.one_of(
    st.just(Found()),
    st.builds(
        lambda ran, configured, hosts, applied, process: structs.replace(
            running(ran, configured=identity(configured) if configured else None, hosts=hosts, applied=applied),
            process=process,
        ),
        LISTS,
        st.one_of(st.none(), LISTS),
        LISTS,
        LISTS,
        st.sampled_from(Process),
    ),
)


def after(taken: Step, desired: MemberList | Leave | None, found: Found) -> Found:
    """What the step and the supervisor make of it."""
    match taken, desired:
        case Step.STOP, _:
            return Found(hosts=found.hosts)
        case Step.START, MemberList():
            return running(desired)
        case Step.UPDATE_HOSTS, MemberList():
            return structs.replace(found, hosts=hosts_file(desired).content)
        case Step.SET_QUORUM, MemberList():
            return structs.replace(found, current=identity(desired).name, configured=identity(desired))
        case Step.RELOAD, _:
            return structs.replace(found, applied_title=found.hosts_title)
        case Step.APPLY, _:
            title = found.hosts_title
            runs = structs.replace(found, process=Process.RUNNING, running=found.configured, applied_title=title)
            return runs if found.current else Found(hosts=found.hosts)
    return found


@given(
    desired=st.one_of(st.none(), LISTS, st.sampled_from([Leave(""), Leave("7b.1"), Leave("7b.2")])), found=FOUND
)
def test_from_any_state_the_steps_end_and_never_restart_a_process_with_the_right_identity(
    desired: MemberList | Leave | None, found: Found
) -> None:
    taken = []
    for _ in range(6):
        taken.append(step(desired, found))
        is_right = isinstance(desired, MemberList) and found.running == identity(desired)
        if found.is_to_run and is_right:
            assert taken[-1] not in (Step.STOP, Step.START, Step.APPLY)
        found = after(taken[-1], desired, found)
    assert taken[-1] is Step.NOTHING, taken
    if isinstance(desired, Leave):
        assert not found.configured or found.configured.partition == desired.partition


def with_tls(found: Found, **facts: Any) -> Found:
    return structs.replace(found, **{"certificate": "11", "loaded_certificate": "11", **facts})


SECURE = running(running=identity_of(LIST, "RECOVERY", tls=True))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Found(), Step.NOTHING),
        (Found(certificate="11"), Step.START),
        (stopped(SECURE), Step.NOTHING),
        (with_tls(stopped(SECURE)), Step.START),
        (with_tls(SECURE), Step.NOTHING),
        (with_tls(SECURE, certificate="22"), Step.RELOAD),
        (with_tls(SECURE, certificate=""), Step.NOTHING),
        (with_tls(running(), certificate="22"), Step.STOP),
    ],
    ids=[
        "without a certificate nothing starts",
        "the certificate is mounted",
        "stopped, and the certificate is gone",
        "stopped",
        "running",
        "another certificate",
        "the certificate is gone",
        "it runs without TLS",
    ],
)
def test_tls_needs_a_certificate_and_another_one_a_reload(found: Found, expected: Step) -> None:
    assert next_step(LIST, found, Recovery(), answers=True, tls=True) is expected


def test_a_certificate_is_loaded_only_by_a_process_that_uses_it_and_answers() -> None:
    assert next_step(LIST, with_tls(running(), certificate="22"), Recovery(), answers=True) is Step.NOTHING
    changed_certificate = with_tls(SECURE, certificate="22")
    assert next_step(LIST, changed_certificate, Recovery(), answers=False, tls=True) is Step.NOTHING
    assert next_step(None, changed_certificate, Recovery(), answers=True, tls=True) is Step.RELOAD
