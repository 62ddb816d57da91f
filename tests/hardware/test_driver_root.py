"""Where the GPU driver is, and what keeps its nvidia-imex from running."""

import shutil
import subprocess
from pathlib import Path

import pytest

from imex_dra.hardware.driverroot import (
    ImexProcess,
    find_driver_root,
    find_library,
    host_imex_problem,
    imex_problem,
    imex_process,
    imex_processes,
    is_too_old,
)
from tests.waiting import until

OPERATOR = "/run/nvidia/driver"
CONTAINER = "4f" * 32
OWN = Path("/run/imex-dra/imex")


def add(root: Path, *names: str, content: str = "") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root / names[-1]


def add_programs(root: Path, directory: str = "usr/bin") -> None:
    add(root, f"{directory}/nvidia-imex", f"{directory}/nvidia-imex-ctl")


def add_process(root: Path, pid: int, *arguments: str, comm: str = "nvidia-imex", cgroup: str = "0::/") -> None:
    add(root, f"proc/{pid}/comm", content=f"{comm}\n")
    add(root, f"proc/{pid}/cmdline", content="".join(f"{argument}\0" for argument in arguments))
    add(root, f"proc/{pid}/cgroup", content=f"{cgroup}\n")


def problem(root: Path, driver_root: str = "/", version: str = "580.95.05") -> str:
    return imex_problem(root, driver_root, version, OWN)


def test_a_driver_of_the_gpu_operator_wins_over_that_of_the_host(tmp_path: Path) -> None:
    add(tmp_path, "usr/lib64/libnvidia-ml.so.1")
    library = add(tmp_path, f"{OPERATOR[1:]}/usr/lib64/libnvidia-ml.so.1")
    assert find_driver_root(tmp_path) == OPERATOR
    assert find_library(tmp_path) == library


def test_an_empty_directory_of_the_gpu_operator_holds_no_driver(tmp_path: Path) -> None:
    (tmp_path / OPERATOR[1:]).mkdir(parents=True)
    assert find_driver_root(tmp_path) == "/"


def test_the_flag_overrides_what_is_found(tmp_path: Path) -> None:
    add(tmp_path, f"{OPERATOR[1:]}/usr/lib64/libnvidia-ml.so.1")
    library = add(tmp_path, "opt/driver/usr/lib/libnvidia-ml.so.1")
    assert find_driver_root(tmp_path, "/opt/driver") == "/opt/driver"
    assert find_library(tmp_path, "/opt/driver") == library
    assert find_library(tmp_path, "/opt/other") is None


def test_a_link_in_a_driver_root_leads_to_a_file_in_it(tmp_path: Path) -> None:
    real = add(tmp_path, f"{OPERATOR[1:]}/opt/libnvidia-ml.so.580")
    (tmp_path / OPERATOR[1:] / "usr/lib64").mkdir(parents=True)
    (tmp_path / OPERATOR[1:] / "usr/lib64/libnvidia-ml.so.1").symlink_to("/opt/libnvidia-ml.so.580")
    assert find_library(tmp_path) == real


@pytest.mark.parametrize("directory", ["usr/bin", "usr/local/bin", "opt/nvidia/imex/bin"])
def test_nothing_keeps_the_programs_of_a_driver_root_from_running(tmp_path: Path, directory: str) -> None:
    add_programs(tmp_path / OPERATOR[1:], directory)
    assert problem(tmp_path, OPERATOR) == ""


@pytest.mark.parametrize("missing", ["nvidia-imex", "nvidia-imex-ctl"])
def test_a_missing_program_is_named_with_what_to_install(tmp_path: Path, missing: str) -> None:
    add_programs(tmp_path)
    add_programs(tmp_path / OPERATOR[1:])
    (tmp_path / OPERATOR[1:] / "usr/bin" / missing).unlink()
    assert problem(tmp_path, OPERATOR) == (
        f"the GPU driver in /run/nvidia/driver has no {missing}: install the package nvidia-imex of the driver's"
        " version there, or start imex node with --driver-root, the directory that has it"
    )


@pytest.mark.parametrize(
    ("version", "too_old"),
    [
        ("570.158.01", False),
        ("570.172.08", False),
        ("580.30", False),
        ("1000.1", False),
        ("570.158", True),
        ("570.133.20", True),
        ("550.54.15", True),
        ("", False),
        ("NO_GPU", False),
    ],
)
def test_a_driver_is_too_old_if_its_nvidia_imex_takes_no_host_names(version: str, too_old: bool) -> None:
    assert is_too_old(version) is too_old


def test_a_driver_that_is_too_old_is_named_with_the_version_to_install(tmp_path: Path) -> None:
    add_programs(tmp_path)
    assert problem(tmp_path, version="570.133.20") == (
        "the GPU driver 570.133.20 is older than 570.158.01, whose nvidia-imex is the first that takes host names:"
        " install 570.158.01 or later"
    )


def test_a_systemd_unit_is_named_with_its_pid_and_how_to_stop_it(tmp_path: Path) -> None:
    add_programs(tmp_path)
    add_process(tmp_path, 1, "/sbin/init", comm="systemd")
    add_process(tmp_path, 812, "/usr/bin/nvidia-imex", cgroup="0::/system.slice/nvidia-imex.service")
    assert problem(tmp_path) == (
        "another nvidia-imex runs on the host (pid 812 of the systemd unit nvidia-imex.service), and the GPU"
        " driver has only one IMEX session: run systemctl disable --now nvidia-imex.service and systemctl mask"
        " nvidia-imex.service"
    )


def test_the_nvidia_imex_of_another_driver_is_named_with_its_container(tmp_path: Path) -> None:
    add_programs(tmp_path)
    pod = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
    add_process(tmp_path, 90, "nvidia-imex", "-c", "/x", cgroup=f"0::{pod}/cri-containerd-{CONTAINER}.scope")
    assert problem(tmp_path) == (
        "another nvidia-imex runs on the host (pid 90 in container 4f4f4f4f4f4f), and the GPU driver has only one"
        " IMEX session: remove what runs that container"
    )


def test_our_own_nvidia_imex_and_one_that_has_ended_are_no_others(tmp_path: Path) -> None:
    add_process(tmp_path, 7, "/usr/bin/nvidia-imex", "-c", f"{OWN}/configs/0a1b/config.cfg")
    add_process(tmp_path, 8)
    add(tmp_path, "proc/9/cmdline")
    assert imex_processes(tmp_path / "proc", OWN) == ([ImexProcess(7)], [])


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        (
            "12:pids:/x\n1:name=systemd:/system.slice/nvidia-imex.service\n",
            ImexProcess(5, unit="nvidia-imex.service"),
        ),
        (f"1:cpu:/kubepods/burstable/pod7/{CONTAINER}\n", ImexProcess(5, container=CONTAINER)),
        (
            f"0::/system.slice/containerd.service/kubepods-pod7.slice:cri:{CONTAINER}",
            ImexProcess(5, "", CONTAINER),
        ),
        ("0::/user.slice/user-0.slice/session-3.scope\n", ImexProcess(5)),
        ("", ImexProcess(5)),
    ],
)
def test_a_cgroup_tells_the_unit_or_the_container(cgroup: str, found: ImexProcess) -> None:
    assert imex_process(5, cgroup) == found


def test_a_real_process_is_found_by_the_name_of_its_program(tmp_path: Path) -> None:
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "nvidia-imex")
    process = subprocess.Popen([program, "600"])
    try:
        until(lambda: process.pid in {other.pid for other in imex_processes(Path("/proc"), OWN)[1]})
        assert "(pid " in problem_on_this_host(tmp_path)
    finally:
        process.kill()
        process.wait(60)


def problem_on_this_host(tmp_path: Path) -> str:
    add_programs(tmp_path / "root")
    (tmp_path / "root/proc").symlink_to("/proc")
    return problem(tmp_path / "root")


def test_a_port_that_another_process_has_is_named_with_it(tmp_path: Path) -> None:
    add_programs(tmp_path)
    add_process(tmp_path, 7, "/usr/bin/nvidia-imex", "-c", f"{OWN}/configs/0a1b/config.cfg")
    add_process(tmp_path, 31, "/usr/bin/chat", comm="chat")
    add_socket(tmp_path, 7, "1001")
    add_socket(tmp_path, 31, "1002")
    add_table(tmp_path, ("C350", "0A", "1001"))
    assert problem(tmp_path) == ""
    add_table(tmp_path, ("C350", "0A", "1001"), ("C355", "01", "1002"))
    assert problem(tmp_path) == (
        "chat (pid 31) has port 50005 of the host, which nvidia-imex needs: stop it, and reserve the ports on all"
        " nodes with sysctl net.ipv4.ip_local_reserved_ports=50000,50005"
    )


def add_socket(root: Path, pid: int, inode: str) -> None:
    (root / f"proc/{pid}/fd").mkdir()
    (root / f"proc/{pid}/fd/3").symlink_to(f"socket:[{inode}]")


def add_table(root: Path, *sockets: tuple[str, str, str]) -> None:
    """Local port, state and inode of each."""
    lines = [f"0: 0100007F:{port} 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1" for port, state, inode in sockets]
    add(root, "proc/1/net/tcp", content="\n".join(["  sl  local_address", *lines, ""]))


def test_a_host_that_manages_nvidia_imex_must_run_it_and_have_its_ctl(tmp_path: Path) -> None:
    assert "there is no nvidia-imex-ctl in /: install" in host_imex_problem(tmp_path, "/")
    add(tmp_path, "usr/bin/nvidia-imex-ctl")
    assert "no nvidia-imex runs on the host" in host_imex_problem(tmp_path, "/")
    assert "systemctl enable --now nvidia-imex" in host_imex_problem(tmp_path, "/")
    add_process(tmp_path, 7, "/usr/bin/nvidia-imex", "-c", "/etc/nvidia-imex/config.cfg")
    assert host_imex_problem(tmp_path, "/") == ""
    assert "there is no nvidia-imex-ctl in /opt/driver" in host_imex_problem(tmp_path, "/opt/driver")
