"""mpirun and the rank servers as processes, each in a container's namespaces; no cluster is needed for that."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imex_dra.sandbox.mpi.keys import Key
from tests.mpi.pods import Job, Pod, alive, gone, make_keys, marker
from tests.sandbox.waiting import eventually

WHERE = "echo $RANK $OMPI_COMM_WORLD_RANK $LOCAL_RANK $WORLD_SIZE $(uname -n)"


def confined() -> bool:
    return subprocess.run(["unshare", "-Urmpuf", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not confined(), reason="no user namespaces for an ordinary user here")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("mpi") / "ssh")


@contextmanager
def serving(name: str, keys: Path, directory: Path) -> Iterator[Pod]:
    worker = Pod(name, keys, directory / f"{name}.log")
    try:
        worker.serve(FROM_THE_POD=name)
        yield worker
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def workers(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pod]]:
    directory = tmp_path_factory.mktemp("workers")
    with serving("job-worker-0", keys, directory) as first, serving("job-worker-1", keys, directory) as second:
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
    code, out, err = job.run("sh", "-c", WHERE)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "0 0 0 4 job-worker-0",
        "1 1 1 4 job-worker-0",
        "2 2 0 4 job-worker-1",
        "3 3 1 4 job-worker-1",
    ]


@pytest.mark.usefixtures("workers")
def test_a_rank_has_its_pods_environment_and_of_the_launchers_what_was_exported(job: Job) -> None:
    say = "echo $FROM_THE_POD $SENT $GIVEN $KEPT"
    words = ("-np", "1", "-x", "SENT", "-x", "GIVEN=yes", "sh", "-c", say)
    assert job.run(*words, SENT="sent", KEPT="back")[1] == "job-worker-0 sent yes\n"


@pytest.mark.usefixtures("workers")
def test_lines_of_many_ranks_never_mix(job: Job) -> None:
    script = "i=0; while [ $i -lt 300 ]; do printf $RANK-; printf 'a%.0s' $(seq 100); echo; i=$((i+1)); done"
    code, out, _ = job.run("sh", "-c", script)
    lines = out.splitlines()
    assert code == 0
    assert set(lines) == {f"{rank}-{'a' * 100}" for rank in range(4)}
    assert len(lines) == 1200


@pytest.mark.usefixtures("workers")
def test_output_and_errors_stay_apart_and_are_tagged_on_request(job: Job) -> None:
    script = "echo out; printf unfinished >&2"
    code, out, err = job.run("-np", "1", "--tag-output", "sh", "-c", script)
    assert (code, out, err) == (0, "[1,0]<stdout>:out\n", "[1,0]<stderr>:unfinished")


@pytest.mark.usefixtures("workers")
def test_the_first_rank_that_fails_ends_the_job_with_its_code(job: Job) -> None:
    nap = marker()
    script = f'if [ $RANK = 2 ]; then exit 7; fi; trap "" TERM; sleep {nap}'
    code, _, err = job.run("sh", "-c", script)
    assert code == 7
    assert "rank 2 on job-worker-1 ended with exit code 7; the job of 4 ranks was ended" in err
    assert gone(nap)


@pytest.mark.usefixtures("workers")
def test_a_rank_that_a_signal_ended_is_told_by_the_signals_name(job: Job) -> None:
    code, _, err = job.run("-np", "1", "sh", "-c", "kill -SEGV $$")
    assert code == 128 + signal.SIGSEGV
    assert "rank 0 on job-worker-0 was ended by SIGSEGV" in err


@pytest.mark.usefixtures("workers")
def test_a_program_that_is_not_there_is_named_with_its_host(job: Job) -> None:
    code, _, err = job.run("-np", "1", "no-such-program")
    assert code == 127
    assert "job-worker-0: no-such-program is not on the PATH here" in err


@pytest.mark.usefixtures("workers")
def test_a_program_of_an_image_is_found_by_its_name(job: Job) -> None:
    assert job.run("-np", "1", "/opt/no/such/build/uname", "-n") == (0, "job-worker-0\n", "")


@pytest.mark.usefixtures("workers")
def test_a_directory_that_is_not_there_is_named_with_its_host(job: Job) -> None:
    code, _, err = job.run("-np", "1", "-wdir", "/no/such", "true")
    assert code == 127
    assert "job-worker-0: there is no directory /no/such here" in err


@pytest.mark.usefixtures("workers")
def test_nobody_is_orphaned_when_the_launcher_is_killed(job: Job) -> None:
    nap = marker()
    job.start("sh", "-c", f'trap "" TERM; sleep {nap}')
    assert eventually(lambda: len(alive(nap)) == 4, 60)
    job.process.kill()
    assert gone(nap)


@pytest.mark.usefixtures("workers")
def test_a_launcher_that_is_told_to_end_tells_its_ranks(job: Job) -> None:
    nap = marker()
    job.start("sh", "-c", f'trap "echo bye; exit 0" TERM; sleep {nap} & wait')
    assert eventually(lambda: len(alive(nap)) == 4, 60)
    job.signal(signal.SIGTERM)
    code, out, err = job.finish()
    assert code == 128 + signal.SIGTERM
    assert out == "bye\n" * 4
    assert "told to end by SIGTERM" in err
    assert gone(nap)


@pytest.mark.usefixtures("workers")
def test_users_signals_reach_every_rank(job: Job) -> None:
    nap = marker()
    job.start("sh", "-c", f'trap "echo heard; exit 0" USR1; sleep {nap} & wait')
    assert eventually(lambda: len(alive(nap)) == 4, 60)
    job.signal(signal.SIGUSR1)
    assert job.finish() == (0, "heard\n" * 4, "")


def test_a_launcher_waits_for_a_worker_that_is_not_there_yet(keys: Path, job: Job, tmp_path: Path) -> None:
    hostfile = tmp_path / "late"
    hostfile.write_text("job-worker-8 slots=1\n")
    job.start("--hostfile", str(hostfile), "-mca", "plm_rsh_args", "-o ConnectionAttempts=60", "uname", "-n")
    with serving("job-worker-8", keys, tmp_path):
        assert job.finish() == (0, "job-worker-8\n", "")


def test_a_worker_that_never_comes_is_named(job: Job, tmp_path: Path) -> None:
    hostfile = tmp_path / "never"
    hostfile.write_text("job-worker-9.job.default.svc slots=1\n")
    words = ("--hostfile", str(hostfile), "-mca", "plm_rsh_args", "-o ConnectionAttempts=1")
    code, _, err = job.run(*words, "true")
    assert code == 1
    assert (
        "job-worker-9.job.default.svc does not answer: Connection refused. Does the pod job-worker-9 run?" in err
    )


def test_a_worker_that_dies_ends_the_job(keys: Path, job: Job, tmp_path: Path, workers: list[Pod]) -> None:
    nap = marker()
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{workers[0].name} slots=1\njob-worker-7 slots=2\n")
    with serving("job-worker-7", keys, tmp_path) as mortal:
        job.start("--hostfile", str(hostfile), "sleep", nap)
        assert eventually(lambda: len(alive(nap)) == 3, 60)
        mortal.kill()
        code, _, err = job.finish()
    assert code == 1
    assert "job-worker-7 is lost (ranks 1, 2): see kubectl describe pod job-worker-7" in err
    assert gone(nap)


def test_ranks_of_the_launchers_own_host_run_beside_it(job: Job, tmp_path: Path, workers: list[Pod]) -> None:
    hostfile = tmp_path / "both"
    hostfile.write_text(f"job-launcher.job.default.svc slots=1\n{workers[0].name} slots=1\n")
    code, out, _ = job.run("--hostfile", str(hostfile), "sh", "-c", "echo $RANK $(uname -n)")
    assert code == 0
    assert sorted(out.splitlines()) == ["0 job-launcher", "1 job-worker-0"]


def test_a_rank_of_our_own_host_dies_with_the_launcher_too(job: Job, tmp_path: Path) -> None:
    nap = marker()
    hostfile = tmp_path / "here"
    hostfile.write_text("job-launcher slots=2\n")
    job.start("--hostfile", str(hostfile), "sleep", nap)
    assert eventually(lambda: len(alive(nap)) == 2, 60)
    job.process.kill()
    assert gone(nap)


def test_a_launcher_without_the_jobs_key_starts_nothing(
    keys: Path, hostfile: Path, tmp_path: Path, workers: list[Pod]
) -> None:
    nap = marker()
    stolen = make_keys(tmp_path / "stolen")
    (stolen / "id_rsa.pub").write_text((keys / "id_rsa.pub").read_text())
    intruder = Pod("intruder", stolen, tmp_path / "intruder.log")
    code, _, err = Job(intruder, hostfile).run("sleep", nap)
    assert code == 1
    assert "does not hold this job's key" in err
    assert eventually(lambda: "a launcher without this job's key was refused" in workers[0].said)
    assert gone(nap)


def test_an_impostor_in_a_workers_place_is_told_nothing(keys: Path, job: Job, tmp_path: Path) -> None:
    key = Key((keys / "id_rsa").read_bytes(), (keys / "id_rsa.pub").read_bytes())
    hostfile = tmp_path / "impostor"
    hostfile.write_text("job-worker-6 slots=1\n")
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(key.address("job-worker-6"))
        impostor.listen()
        job.start("--hostfile", str(hostfile), "-x", "SECRET=word", "true")
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(_frame(b'{"nonce":"abc"}'))
            said = connection.recv(65536)
            connection.sendall(_frame(b'{"proof":"guessed"}'))
            said += connection.recv(65536)
    code, _, err = job.finish()
    assert code == 1
    assert "what answers for job-worker-6 does not hold this job's key" in err
    assert b"word" not in said


@pytest.mark.usefixtures("workers")
def test_the_server_reaps_what_ranks_leave_behind(job: Job, tmp_path: Path) -> None:
    nap = marker()
    escaped = tmp_path / "escaped"
    leave = f"setsid sh -c 'touch {escaped}; exec sleep {nap}' & while [ ! -e {escaped} ]; do sleep 0.05; done"
    assert job.run("-np", "1", "sh", "-c", leave) == (0, "", "")
    assert eventually(lambda: len(alive(nap)) == 1, 60)
    orphans = alive(nap)
    os.kill(orphans[0], signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{orphans[0]}").exists(), 60)


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body
