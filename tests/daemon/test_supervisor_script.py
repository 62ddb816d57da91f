"""supervisor.sh in the shells that images have, with real processes and real signals."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from imex_dra.daemon.supervisor import SCRIPT, Process, Supervisor
from imex_dra.imex.config import Identity
from tests.daemon.simulatednode import STOPS_WITH_PARENT, RunningSupervisor
from tests.waiting import until

ONE = Identity("7b.1", 4, "imex-0a1b2c3d-%03d", 0, "127.0.0.1", "RECOVERY")
TWO = Identity("7b.1", 4, "imex-0a1b2c3d-%03d", 1, "127.0.0.1", "RECOVERY")

LASTING = """
trap 'date +%s.%N >> {notes}/reloads' USR1
trap 'echo TERM >> {notes}/stops; exit 0' TERM
echo "$(date +%s.%N) $$ $*" >> {notes}/starts
while :; do sleep 0.02; done
"""
FAILING = """
echo "$(date +%s.%N) $$ $*" >> {notes}/starts
[ ! -e {notes}/works ] || exec sleep 600
echo the last line
exit 3
"""
STUBBORN = """
trap '' TERM
echo "$(date +%s.%N) $$ $*" >> {notes}/starts
while :; do sleep 0.02; done
"""

SHELLS = [
    pytest.param(("dash",), id="dash"),
    pytest.param(
        ("busybox", "sh"),
        id="busybox",
        marks=pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed"),
    ),
]


class Container:
    """A directory, the supervisor in it, and what the process that stands for nvidia-imex writes down."""

    def __init__(self, directory: Path, shell: Sequence[str]) -> None:
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.directory = directory / "imex"
        self.files = Supervisor(self.directory)
        self.shell = shell
        self.supervisors: list[RunningSupervisor] = []

    def start(self, script: str = LASTING, **environment: str) -> RunningSupervisor:
        command = ["sh", "-c", script.format(notes=self.notes), "nvidia-imex"]
        started = RunningSupervisor(self.directory, command, shell=self.shell, environment=environment)
        self.supervisors.append(started)
        return started

    def configure(self, identity: Identity | None = ONE) -> None:
        self.directory.mkdir(exist_ok=True)
        if identity is not None:
            self.files.write_config(identity)
        self.files.set_current(identity)

    def started(self, script: str = LASTING, **environment: str) -> RunningSupervisor:
        """With a process that runs."""
        self.configure()
        supervisor = self.start(script, **environment)
        supervisor.until(lambda found: found.is_to_run)
        until(lambda: self.starts)
        return supervisor

    def read(self, name: str) -> list[str]:
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def starts(self) -> list[list[str]]:
        """Time, pid and arguments of each."""
        return [line.split() for line in self.read("starts")]

    @property
    def start_times(self) -> list[float]:
        return [float(start[0]) for start in self.starts]

    @property
    def reload_times(self) -> list[float]:
        return [float(line) for line in self.read("reloads")]


@pytest.fixture(params=SHELLS)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path, request.param)
    yield container
    for supervisor in container.supervisors:
        supervisor.close()


def exists(pid: int) -> bool:
    """Zombies do not count: an orphan may be reaped late."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_nothing_runs_without_a_configuration(container: Container) -> None:
    supervisor = container.start()
    found = supervisor.until(lambda found: (container.directory / "status").exists())
    assert (found.process, found.pid, found.running, found.exit_code) == (Process.STOPPED, 0, None, None)
    container.files.apply()
    container.configure()
    assert container.starts == []
    container.files.apply()
    found = supervisor.until(lambda found: found.process is Process.RUNNING)
    until(lambda: container.starts)
    assert container.starts == [[container.starts[0][0], str(found.pid), "-c", str(container.files.config(ONE))]]
    assert found.running == ONE
    assert found.started_at


def test_the_process_does_not_hold_the_fifo_and_only_the_supervisor_is_listening(container: Container) -> None:
    supervisor = container.started()
    pid = supervisor.find().pid
    targets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
    assert "control" not in targets
    supervisor.process.kill()
    supervisor.process.wait(60)
    assert exists(pid)
    assert container.files.find() is None


def test_to_apply_what_runs_already_changes_nothing(container: Container) -> None:
    supervisor = container.started()
    pid = supervisor.find().pid
    for _ in range(5):
        container.files.apply()
    container.files.reload(pid)
    until(lambda: container.reload_times)
    assert [int(start[1]) for start in container.starts] == [pid]


def test_another_configuration_stops_the_process_and_starts_the_next(container: Container) -> None:
    supervisor = container.started()
    before = supervisor.find()
    container.configure(TWO)
    container.files.apply()
    container.files.apply()
    after = supervisor.until(lambda found: found.running == TWO and found.pid)
    assert after.pid != before.pid
    assert (after.exit_code, after.restarts) == (None, 0)
    assert after.started_at > before.started_at
    assert container.read("stops") == ["TERM"]
    assert not exists(before.pid)
    until(lambda: len(container.starts) == 2)


def test_without_a_configuration_the_process_is_stopped(container: Container) -> None:
    supervisor = container.started()
    container.configure(None)
    container.files.apply()
    found = supervisor.until(lambda found: found.process is Process.STOPPED)
    assert (found.pid, found.exit_code) == (0, None)
    assert container.read("stops") == ["TERM"]


def test_a_process_that_is_killed_is_started_again_at_once(container: Container) -> None:
    supervisor = container.started()
    before = supervisor.find()
    os.kill(before.pid, signal.SIGKILL)
    after = supervisor.until(lambda found: found.pid not in (0, before.pid))
    assert (after.process, after.exit_code, after.restarts) == (Process.RUNNING, 128 + signal.SIGKILL, 1)
    assert after.started_at > before.started_at


def test_a_process_that_fails_again_is_started_later_and_later(container: Container) -> None:
    container.configure()
    supervisor = container.start(FAILING)
    until(lambda: len(container.starts) == 4)
    _, second, third = (after - before for before, after in pairwise(container.start_times))
    assert second >= 1
    assert third >= 2
    found = supervisor.until(lambda found: found.process is Process.FAILED and found.restarts == 4)
    assert (found.exit_code, found.pid, found.running) == (3, 0, ONE)
    until(lambda: container.files.last_output() == "the last line\n")


def test_a_process_that_ran_for_long_is_started_again_at_once(container: Container) -> None:
    container.configure()
    container.start(FAILING, STABLE_AFTER="0")
    until(lambda: len(container.starts) >= 9)
    times = container.start_times
    assert times[8] - times[0] < 0 + 1 + 2 + 4 + 8 + 10 + 10


def test_commands_are_taken_while_the_next_start_is_waited_for(container: Container) -> None:
    container.configure()
    supervisor = container.start(FAILING)
    supervisor.until(lambda found: found.restarts == 5)
    (container.notes / "works").touch()
    container.files.apply()  # the same configuration waits
    container.configure(TWO)
    container.files.apply()
    found = supervisor.until(lambda found: found.process is Process.RUNNING)
    assert found.running == TWO
    until(lambda: len(container.starts) == 6)
    assert container.start_times[-1] - container.start_times[-2] < 8


def test_a_configuration_that_is_removed_is_not_started_again(container: Container) -> None:
    container.configure()
    supervisor = container.start(FAILING)
    supervisor.until(lambda found: found.restarts >= 2)
    container.configure(None)
    supervisor.until(lambda found: found.process is Process.STOPPED)


def test_a_reload_is_forwarded_and_the_status_names_the_hosts_file_of_that_moment(container: Container) -> None:
    hosts = container.directory / "hosts"
    container.configure()
    hosts.write_text("# generation 1 of 7b.1\n")
    supervisor = container.started()
    assert supervisor.find().applied_title == "# generation 1 of 7b.1"
    hosts.write_text("# generation 2 of 7b.1\n")
    container.files.reload(supervisor.find().pid)
    supervisor.until(lambda found: found.applied_title == "# generation 2 of 7b.1")
    until(lambda: len(container.reload_times) == 1)
    assert len(container.starts) == 1


def test_many_reloads_at_once_become_two_an_interval_apart(container: Container) -> None:
    supervisor = container.started(RELOAD_INTERVAL="2")
    found = supervisor.find()
    for _ in range(5):
        container.files.reload(found.pid)
    until(lambda: len(container.reload_times) == 2)
    first, second = container.reload_times
    assert second - first >= 1.9
    until(lambda: len(supervisor.group()) <= 7)  # the timer has ended
    container.files.reload(found.pid)
    until(lambda: len(container.reload_times) == 3)


def test_a_reload_for_a_process_that_has_ended_does_not_hit_the_next_one(container: Container) -> None:
    supervisor = container.started()
    before = supervisor.find().pid
    os.kill(before, signal.SIGKILL)
    container.files.reload(before)
    container.files.reload(before)
    after = supervisor.until(lambda found: found.pid not in (0, before))
    until(lambda: len(container.starts) == 2)
    container.files.reload(after.pid)
    until(lambda: container.reload_times)
    assert supervisor.find().pid == after.pid


def terminate(supervisor: RunningSupervisor) -> None:
    supervisor.process.terminate()


def interrupt(supervisor: RunningSupervisor) -> None:
    supervisor.process.send_signal(signal.SIGINT)


def terminate_all(supervisor: RunningSupervisor) -> None:
    os.killpg(supervisor.process.pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [terminate, interrupt, terminate_all])
def test_on_a_signal_the_process_is_stopped_and_the_supervisor_ends(
    container: Container, end: Callable[[RunningSupervisor], None]
) -> None:
    supervisor = container.started()
    pid = supervisor.find().pid
    end(supervisor)
    assert supervisor.process.wait(60) == 0
    assert set(container.read("stops")) == {"TERM"}
    assert not exists(pid)
    assert "state=stopped" in (container.directory / "status").read_text()
    until(lambda: container.files.find() is None)
    until(lambda: not supervisor.group())


def test_on_a_signal_the_supervisor_ends_also_while_nothing_runs(container: Container) -> None:
    container.configure()
    failing = container.start(FAILING)
    failing.until(lambda found: found.restarts == 3)
    assert failing.stop() == 0
    until(lambda: not failing.group())
    container.configure(None)
    assert container.start().stop() == 0


SIGNALS_ITS_PARENT = """#!/bin/sh
kill -TERM $PPID
PATH={path} exec {command} "$@"
"""


@pytest.mark.parametrize("command", ["mkdir", "rm", "mkfifo", "mv"])
def test_a_signal_during_the_start_is_not_lost(container: Container, tmp_path: Path, command: str) -> None:
    container.configure()
    program = tmp_path / "bin" / command
    program.parent.mkdir()
    program.write_text(SIGNALS_ITS_PARENT.format(path=os.environ["PATH"], command=command))
    program.chmod(0o755)
    run = subprocess.run(
        [*container.shell, SCRIPT, container.directory, "--", "touch", container.notes / "starts"],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        check=False,
        timeout=60,
    )
    assert run.returncode == 0
    assert not (container.notes / "starts").exists()
    assert container.files.find() is None


def _is_unsupervised(files: Supervisor) -> bool:
    return files.find() is None


@pytest.mark.parametrize("written", ["hosts", "address", "control", "status", "certificate", "started"])
def test_at_no_moment_of_the_start_a_signal_is_lost(container: Container, written: str) -> None:
    """The file has just been written when the signal is sent, so it arrives a little later each time."""
    for number in range(5):
        directory = container.directory.with_name(f"imex-{number}")
        files = Supervisor(directory)
        directory.mkdir()
        files.write_config(ONE)
        files.set_current(ONE)
        command = [*STOPS_WITH_PARENT, *container.shell, SCRIPT, directory, "--", "sleep", "600"]
        with subprocess.Popen(list(map(str, command)), process_group=0) as process:
            try:
                while not (directory / written).exists():
                    assert process.poll() is None
                process.terminate()
                assert process.wait(60) == 0
                # A child that has just been started may not have closed its end of the FIFO yet.
                until(partial(_is_unsupervised, files))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert "state=stopped" in (directory / "status").read_text()


@pytest.mark.parametrize("with_supervisor", [True, False])
def test_a_process_that_ignores_sigterm_is_killed(container: Container, with_supervisor: bool) -> None:
    supervisor = container.started(STUBBORN, STOP_TIMEOUT="1")
    pid = supervisor.find().pid
    if with_supervisor:
        assert supervisor.stop() == 0
    else:
        container.configure(None)
        container.files.apply()
        supervisor.until(lambda found: found.process is Process.STOPPED)
    assert not exists(pid)


def test_the_next_supervisor_starts_what_is_configured(container: Container) -> None:
    first = container.started()
    pid = first.find().pid
    first.close()
    assert not exists(pid)
    assert container.files.find() is None
    (container.directory / "hosts").write_text("# generation 2 of 7b.1\n")
    found = container.start().until(lambda found: found.is_to_run)
    assert (found.running, found.applied_title) == (ONE, "# generation 2 of 7b.1")
    assert found.pid != pid


def test_a_supervisor_beside_a_former_one_is_the_only_one_that_counts(container: Container) -> None:
    """As when a pod is deleted by force: the next one starts while it still ends."""
    former = container.started()
    pid = former.find().pid
    later = container.start()
    later.until(lambda found: found.is_to_run and found.pid != pid)
    found = later.until(lambda found: len(container.starts) == 2)
    former.stop()
    assert container.read("stops") == ["TERM"]
    assert later.find() == found
    assert exists(found.pid)
    container.configure(TWO)
    container.files.apply()
    later.until(lambda found: found.is_to_run and found.running == TWO)


def test_a_former_supervisor_does_not_start_its_process_again(container: Container) -> None:
    former = container.started()
    pid = former.find().pid
    later = container.start()
    found = later.until(lambda found: found.is_to_run and found.pid != pid)
    os.kill(pid, signal.SIGKILL)
    assert former.process.wait(60) == 0
    assert later.find() == found


def test_a_former_supervisor_that_waits_to_start_its_process_again_ends_instead(container: Container) -> None:
    container.configure()
    former = container.start(FAILING)
    former.until(lambda found: found.restarts == 4)  # the next start is 4 s later
    (container.notes / "works").touch()
    later = container.start()
    later.until(lambda found: found.is_to_run)
    until(lambda: len(container.starts) == 5)
    found = later.find()
    assert former.process.wait(60) == 0
    until(lambda: not former.group())
    assert len(container.starts) == 5
    assert later.find() == found, "the time of the last start is that of the supervisor that counts"


def test_of_much_output_the_log_has_the_beginning_and_the_file_the_end(container: Container) -> None:
    container.configure()
    supervisor = container.start("seq 1 5000; exit 1")
    until(lambda: container.files.last_output().endswith("4999\n5000\n"))
    assert (container.directory / "output").stat().st_size <= 2000
    # The supervisor may log the end of the process before its output has been counted.
    until(
        lambda: "\n4800 lines of nvidia-imex were not logged: at most 200 in 60 s\n" in supervisor.log.read_text()
    )
    logged = supervisor.log.read_text().splitlines()
    assert ("200" in logged, "201" in logged) == (True, False)
    supervisor.until(lambda found: found.restarts >= 3)
    # The output of a process may still be read when the next one starts, but does not stay.
    until(lambda: len(list(container.directory.glob("output*"))) <= 2)


def test_anything_else_in_the_fifo_is_ignored(container: Container) -> None:
    supervisor = container.started()
    pid = supervisor.find().pid
    with (container.directory / "control").open("w") as control:
        control.write("\nfoo\nreload\nreload 1\nexited 1 0\nexited\nkill\nkill 1\nretry\n*\n$(exit)\n")
    container.files.reload(pid)
    until(lambda: container.reload_times)
    assert supervisor.find().pid == pid
    assert len(container.starts) == 1


def in_pid_namespace(*command: Any) -> list[str]:
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *map(str, command)]


@pytest.mark.skipif(
    subprocess.run(in_pid_namespace("true"), capture_output=True, check=False).returncode != 0,
    reason="needs a PID namespace",
)
def test_it_works_as_pid_1(container: Container) -> None:
    container.configure()
    command = ["sh", "-c", LASTING.format(notes=container.notes), "nvidia-imex"]
    with subprocess.Popen(
        in_pid_namespace(*container.shell, SCRIPT, container.directory, "--", *command)
    ) as parent:
        try:
            until(lambda: (found := container.files.find()) and 1 < found.pid < 100)
            until(lambda: container.starts)
            child = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
            os.kill(int(child), signal.SIGTERM)
            assert parent.wait(60) == 0
        finally:
            parent.kill()
    assert container.read("stops") == ["TERM"]


def test_a_new_certificate_is_noticed_and_loaded_with_the_next_reload(
    container: Container, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    supervisor = container.started(TLS_DIRECTORY=str(secret), CERTIFICATE_INTERVAL="0.1", RELOAD_INTERVAL="0")
    assert (supervisor.find().certificate, supervisor.find().loaded_certificate) == ("", "")
    (secret / "tls.crt").write_text("one")
    first = supervisor.until(lambda found: found.certificate)
    assert first.loaded_certificate == ""
    container.files.reload(first.pid)
    supervisor.until(lambda found: found.loaded_certificate == first.certificate)
    (secret / "ca.crt").write_text("two")
    second = supervisor.until(lambda found: found.certificate != first.certificate)
    assert (second.loaded_certificate, second.pid) == (first.certificate, first.pid)
    os.kill(second.pid, signal.SIGKILL)
    supervisor.until(lambda found: found.is_to_run and found.loaded_certificate == second.certificate)
    assert supervisor.stop() == 0
    until(lambda: not supervisor.group())


TALKATIVE = """
echo "$(date +%s.%N) $$ $*" >> {notes}/starts
number=0
while [ $number -lt 500 ]; do number=$((number + 1)); echo "line $number   \\\\ end"; done
printf unfinished
exit 3
"""


def test_the_log_has_a_limited_number_of_lines_and_says_how_many_are_missing(container: Container) -> None:
    container.configure()
    supervisor = container.start(TALKATIVE, LOG_LINES="5", LOG_WINDOW="3600")
    omitted = "496 lines of nvidia-imex were not logged: at most 5 in 3600 s"
    until(lambda: omitted in supervisor.log.read_text())
    lines = supervisor.log.read_text().splitlines()
    assert [line for line in lines if line.startswith("line ")][:6].count("line 5   \\ end") == 1
    assert "line 6   \\ end" not in lines
    # Why a process ended is known in full.
    until(lambda: container.files.last_output().endswith("line 500   \\ end\nunfinished\n"))


CHATTY = """
echo "$(date +%s.%N) $$ $*" >> {notes}/starts
while :; do echo again; sleep 0.05; done
"""


def test_after_a_while_lines_are_logged_again(container: Container) -> None:
    supervisor = container.started(CHATTY, LOG_LINES="2", LOG_WINDOW="1")

    def lines() -> list[str]:
        return supervisor.log.read_text().splitlines()

    def omissions() -> list[int]:
        return [number for number, line in enumerate(lines()) if "lines of nvidia-imex were not logged" in line]

    until(lambda: len(omissions()) >= 2)
    # How many are logged before depends on when the window began: time is counted in whole seconds.
    first, second = omissions()[:2]
    assert set(lines()[:first]) == {"again"}
    assert set(lines()[first + 1 : second]) == {"again"}


def test_a_pod_in_the_network_of_pods_says_its_address_and_the_next_one_another(container: Container) -> None:
    assert container.start(POD_IP="fd00::7").find().address == "fd00::7"
    container.supervisors.pop().close()
    assert container.start(POD_IP="10.1.0.8").find().address == "10.1.0.8"
    container.supervisors.pop().close()
    assert container.start(POD_IP="").find().address == "", "in the network of the host"
