"""mpirun and rank servers as processes, each in the namespaces of a container, without a cluster."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imex_sandbox.mpi.connection import JobKey
from tests.sandbox.mpi.pods import Job, Pod, make_keys, sleeping, unique_duration, until_sleeping
from tests.waiting import until

PRINT_PLACEMENT = "echo $RANK $OMPI_COMM_WORLD_RANK $LOCAL_RANK $WORLD_SIZE $(uname -n)"


def has_user_namespaces() -> bool:
    return subprocess.run(["unshare", "-Urmpuf", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not has_user_namespaces(), reason="this machine does not allow unprivileged user namespaces"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("mpi") / "ssh")


@contextmanager
def running_worker(name: str, keys: Path, directory: Path) -> Iterator[Pod]:
    worker = Pod(name, keys, directory / f"{name}.log")
    try:
        worker.serve(POD_VARIABLE=name)
        yield worker
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def workers(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pod]]:
    directory = tmp_path_factory.mktemp("workers")
    with (
        running_worker("job-worker-0", keys, directory) as first,
        running_worker("job-worker-1", keys, directory) as second,
    ):
        yield [first, second]


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hostfile"
    path.write_text("".join(f"job-worker-{n}.job.default.svc slots=2\n" for n in range(2)))
    return path


@pytest.fixture
def job(keys: Path, hostfile: Path, tmp_path: Path) -> Iterator[Job]:
    launcher = Pod("job-launcher", keys, tmp_path / "launcher.log")
    yield Job(launcher, hostfile)
    launcher.kill()


@pytest.mark.usefixtures("workers")
def test_ranks_run_in_their_workers_containers(job: Job) -> None:
    code, out, err = job.run("sh", "-c", PRINT_PLACEMENT)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "0 0 0 4 job-worker-0",
        "1 1 1 4 job-worker-0",
        "2 2 0 4 job-worker-1",
        "3 3 1 4 job-worker-1",
    ]


@pytest.mark.usefixtures("workers")
def test_a_rank_has_the_variables_of_its_pod_and_the_exports_of_the_launcher(job: Job) -> None:
    script = "echo $POD_VARIABLE $EXPORTED $ASSIGNED $NOT_EXPORTED"
    words = ("-np", "1", "-x", "EXPORTED", "-x", "ASSIGNED=yes", "sh", "-c", script)
    assert job.run(*words, EXPORTED="exported", NOT_EXPORTED="no")[1] == "job-worker-0 exported yes\n"


@pytest.mark.usefixtures("workers")
def test_lines_of_different_ranks_are_not_mixed(job: Job) -> None:
    script = "i=0; while [ $i -lt 300 ]; do printf $RANK-; printf 'a%.0s' $(seq 100); echo; i=$((i+1)); done"
    code, out, _ = job.run("sh", "-c", script)
    lines = out.splitlines()
    assert code == 0
    assert set(lines) == {f"{rank}-{'a' * 100}" for rank in range(4)}
    assert len(lines) == 1200


@pytest.mark.usefixtures("workers")
def test_stdout_and_stderr_are_separate_and_can_be_tagged(job: Job) -> None:
    script = "echo out; printf unfinished >&2"
    code, out, err = job.run("-np", "1", "--tag-output", "sh", "-c", script)
    assert (code, out, err) == (0, "[1,0]<stdout>:out\n", "[1,0]<stderr>:unfinished")


@pytest.mark.usefixtures("workers")
def test_the_first_rank_that_fails_terminates_the_job_with_its_exit_code(job: Job) -> None:
    duration = unique_duration()
    script = f'if [ $RANK = 2 ]; then exit 7; fi; trap "" TERM; sleep {duration}'
    code, _, err = job.run("sh", "-c", script)
    assert code == 7
    assert "rank 2 on job-worker-1 exited with code 7; the job of 4 ranks was terminated" in err
    until_sleeping(duration, 0)


@pytest.mark.usefixtures("workers")
def test_the_signal_that_killed_a_rank_is_reported(job: Job) -> None:
    code, _, err = job.run("-np", "1", "sh", "-c", "kill -SEGV $$")
    assert code == 128 + signal.SIGSEGV
    assert "rank 0 on job-worker-0 was killed by SIGSEGV" in err


@pytest.mark.usefixtures("workers")
def test_a_missing_program_is_reported_with_its_host(job: Job) -> None:
    code, _, err = job.run("-np", "1", "no-such-program")
    assert code == 127
    assert "job-worker-0: no-such-program is not on the PATH of this container" in err
    rule = '{command: "*no-such-program*", argv: [mpirun, hostname]}'
    assert (
        f"images are not pulled; add a rule for the launcher to the file of `imex up --stand-ins`, such as {rule}"
        in err
    )


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("program", ["all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "alltoall_perf"])
def test_another_program_of_nccl_tests_names_the_one_with_a_stand_in(job: Job, program: str) -> None:
    code, _, err = job.run("-np", "1", f"/opt/nccl_tests/build/{program}", "-b", "8")
    assert code == 127
    assert "of nccl-tests only all_reduce_perf has a stand-in" in err
    assert f'{{command: "*{program}*", argv: [mpirun, all_reduce_perf]}}' in err


@pytest.mark.usefixtures("workers")
def test_a_program_with_a_path_in_an_image_is_found_by_its_name(job: Job) -> None:
    assert job.run("-np", "1", "/opt/no/such/build/uname", "-n") == (0, "job-worker-0\n", "")


@pytest.mark.usefixtures("workers")
def test_a_missing_working_directory_is_reported_with_its_host(job: Job) -> None:
    code, _, err = job.run("-np", "1", "-wdir", "/no/such", "true")
    assert code == 127
    assert "job-worker-0: the working directory /no/such does not exist" in err


@pytest.mark.usefixtures("workers")
def test_ranks_are_killed_when_the_launcher_is_killed(job: Job) -> None:
    duration = unique_duration()
    job.start("sh", "-c", f'trap "" TERM; sleep {duration}')
    until_sleeping(duration, 4)
    job.process.kill()
    until_sleeping(duration, 0)


@pytest.mark.usefixtures("workers")
def test_a_terminated_launcher_terminates_its_ranks(job: Job) -> None:
    duration = unique_duration()
    job.start("sh", "-c", f'trap "echo terminated; exit 0" TERM; sleep {duration} & wait')
    until_sleeping(duration, 4)
    job.signal(signal.SIGTERM)
    code, out, err = job.finish()
    assert code == 128 + signal.SIGTERM
    assert out == "terminated\n" * 4
    assert "received SIGTERM; the job of 4 ranks was terminated" in err
    until_sleeping(duration, 0)


@pytest.mark.usefixtures("workers")
def test_user_signals_are_forwarded_to_every_rank(job: Job) -> None:
    duration = unique_duration()
    job.start("sh", "-c", f'trap "echo received; exit 0" USR1; sleep {duration} & wait')
    until_sleeping(duration, 4)
    job.signal(signal.SIGUSR1)
    assert job.finish() == (0, "received\n" * 4, "")


def test_a_launcher_waits_for_a_worker_that_is_not_running_yet(keys: Path, job: Job, tmp_path: Path) -> None:
    hostfile = tmp_path / "late"
    hostfile.write_text("job-worker-8 slots=1\n")
    job.start("--hostfile", str(hostfile), "-mca", "plm_rsh_args", "-o ConnectionAttempts=60", "uname", "-n")
    with running_worker("job-worker-8", keys, tmp_path):
        assert job.finish() == (0, "job-worker-8\n", "")


def test_a_worker_that_does_not_start_is_reported(job: Job, tmp_path: Path) -> None:
    hostfile = tmp_path / "never"
    hostfile.write_text("job-worker-9.job.default.svc slots=1\n")
    words = ("--hostfile", str(hostfile), "-mca", "plm_rsh_args", "-o ConnectionAttempts=1")
    code, _, err = job.run(*words, "true")
    assert code == 1
    assert "cannot connect to job-worker-9.job.default.svc: Connection refused" in err
    assert "Check that the pod job-worker-9 is running" in err


def test_a_killed_worker_terminates_the_job(keys: Path, job: Job, tmp_path: Path, workers: list[Pod]) -> None:
    duration = unique_duration()
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{workers[0].name} slots=1\njob-worker-7 slots=2\n")
    with running_worker("job-worker-7", keys, tmp_path) as killed:
        job.start("--hostfile", str(hostfile), "sleep", duration)
        until_sleeping(duration, 3)
        killed.kill()
        code, _, err = job.finish()
    assert code == 1
    assert "lost the connection to job-worker-7 (ranks 1, 2): run kubectl describe pod job-worker-7" in err
    until_sleeping(duration, 0)


def test_ranks_on_the_host_of_the_launcher_run_in_its_container(
    job: Job, tmp_path: Path, workers: list[Pod]
) -> None:
    hostfile = tmp_path / "both"
    hostfile.write_text(f"job-launcher.job.default.svc slots=1\n{workers[0].name} slots=1\n")
    code, out, _ = job.run("--hostfile", str(hostfile), "sh", "-c", "echo $RANK $(uname -n)")
    assert code == 0
    assert sorted(out.splitlines()) == ["0 job-launcher", "1 job-worker-0"]


def test_local_ranks_are_killed_when_the_launcher_is_killed(job: Job, tmp_path: Path) -> None:
    duration = unique_duration()
    hostfile = tmp_path / "here"
    hostfile.write_text("job-launcher slots=2\n")
    job.start("--hostfile", str(hostfile), "sleep", duration)
    until_sleeping(duration, 2)
    job.process.kill()
    until_sleeping(duration, 0)


def test_a_launcher_without_the_key_of_the_job_starts_nothing(
    keys: Path, hostfile: Path, tmp_path: Path, workers: list[Pod]
) -> None:
    duration = unique_duration()
    other_keys = make_keys(tmp_path / "other")
    (other_keys / "id_rsa.pub").write_text((keys / "id_rsa.pub").read_text())
    launcher = Pod("other-launcher", other_keys, tmp_path / "other.log")
    code, _, err = Job(launcher, hostfile).run("sleep", duration)
    assert code == 1
    assert "does not have the key of this job" in err
    until(lambda: "rejected a launcher that does not have the key of this job" in workers[0].log)
    until_sleeping(duration, 0)


def test_a_server_without_the_key_of_the_job_receives_no_request(keys: Path, job: Job, tmp_path: Path) -> None:
    key = JobKey((keys / "id_rsa").read_bytes(), (keys / "id_rsa.pub").read_bytes())
    hostfile = tmp_path / "hosts"
    hostfile.write_text("job-worker-6 slots=1\n")
    with socket.socket(socket.AF_UNIX) as fake_server:
        fake_server.bind(key.address("job-worker-6"))
        fake_server.listen()
        job.start("--hostfile", str(hostfile), "-x", "SECRET=word", "true")
        connection, _ = fake_server.accept()
        with connection:
            connection.sendall(_frame(b'{"nonce":"abc"}'))
            received = connection.recv(65536)
            connection.sendall(_frame(b'{"proof":"guessed"}'))
            received += connection.recv(65536)
    code, _, err = job.finish()
    assert code == 1
    assert "the process that responds as job-worker-6 does not have the key of this job" in err
    assert b"word" not in received


@pytest.mark.usefixtures("workers")
def test_the_server_reaps_orphaned_processes_of_ranks(job: Job, tmp_path: Path) -> None:
    duration = unique_duration()
    started = tmp_path / "started"
    detach = (
        f"setsid sh -c 'touch {started}; exec sleep {duration}' & while [ ! -e {started} ]; do sleep 0.05; done"
    )
    assert job.run("-np", "1", "sh", "-c", detach) == (0, "", "")
    until_sleeping(duration, 1)
    (orphan,) = sleeping(duration)
    os.kill(orphan, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{orphan}").exists())


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body
