import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, build, toolchain, versions
from tests.paths import ROOT
from tests.sandbox.kubernetes.fakego import FakeGo
from tests.waiting import until

# The Python environment has a kubectl.
BUILT = [name for name in binaries.BUILT if name != "kubectl"]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    fake = FakeGo(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


def start_build(go: FakeGo, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "imex_sandbox.kubernetes.build"],
        env={**go.environment, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def run_build(go: FakeGo, **environment: str) -> tuple[int, str]:
    """The exit code, and what is written to stderr."""
    with start_build(go, **environment) as process:
        _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def temporary_directories() -> list[Path]:
    return list(binaries.cache_root().rglob(".build-*"))


def test_all_missing_programs_are_built_and_temporary_files_are_removed(go: FakeGo) -> None:
    code, stderr = run_build(go)
    assert code == 0
    assert f"building {', '.join(BUILT)} from source" in stderr
    assert binaries.missing(binaries.BUILT) == []
    assert temporary_directories() == []


def test_the_control_plane_is_one_program_with_a_link_for_each_name(go: FakeGo) -> None:
    build.build(build.COMBINED_PROGRAMS)
    program = binaries.cache_directory("etcd") / build.COMBINED
    assert [binaries.find(name).resolve() for name in build.COMBINED_PROGRAMS] == [program] * 4
    assert go.built() == ["imex-dra.io/sandbox/kubernetes"]


def test_programs_of_the_control_plane_that_exist_are_not_replaced(go: FakeGo) -> None:
    """A cache that an earlier version filled, or that holds official programs."""
    cached = binaries.cache_directory("kube-apiserver") / "kube-apiserver"
    cached.parent.mkdir(parents=True)
    cached.touch(mode=0o755)
    build.build(build.COMBINED_PROGRAMS)
    assert not cached.is_symlink()
    assert binaries.find("kube-scheduler").resolve().name == build.COMBINED


def test_one_missing_program_of_the_control_plane_is_built_alone(go: FakeGo) -> None:
    build.build(["etcd"])
    assert go.built() == ["go.etcd.io/etcd/server/v3"]


@pytest.mark.parametrize("minor", versions.KUBERNETES)
def test_each_version_of_kubernetes_has_its_own_module_file(
    go: FakeGo, monkeypatch: pytest.MonkeyPatch, minor: str
) -> None:
    monkeypatch.setenv("IMEX_KUBERNETES", minor)
    build.build(build.COMBINED_PROGRAMS)
    calls = [call for call in go.calls.read_text().splitlines() if "imex-dra.io/sandbox/kubernetes" in call]
    assert len(calls) == 2
    expected = "" if minor == versions.DEFAULT else f"-modfile=go-{minor}.mod"
    assert all(("-modfile" in call) == bool(expected) and expected in call for call in calls)
    assert f"gitVersion={versions.KUBERNETES[minor]} " in calls[1]
    assert (binaries.cache_root() / "kubernetes" / versions.KUBERNETES[minor] / "kube-apiserver").exists()


def test_a_complete_cache_needs_no_go_toolchain(go: FakeGo) -> None:
    run_build(go)
    go.calls.unlink()
    assert run_build(go, PATH="/nowhere") == (0, "")
    assert not go.calls.exists()


def test_only_missing_programs_are_built(go: FakeGo) -> None:
    run_build(go)
    (binaries.cache_directory("kubelet") / "kubelet").unlink()
    go.calls.unlink()
    run_build(go)
    assert go.built() == ["k8s.io/kubernetes/cmd/kubelet"]


def test_the_mpi_operator_appears_only_together_with_its_manifest(go: FakeGo) -> None:
    run_build(go, GO_BUILD="case $* in *mpi-operator) exit 2;; esac")
    assert "mpi-operator" in binaries.missing(binaries.BUILT)
    run_build(go)
    manifest = binaries.find("mpi-operator").with_suffix(".yaml")
    assert "CustomResourceDefinition" in manifest.read_text()


def test_a_failed_build_reports_the_output_of_go(go: FakeGo) -> None:
    code, stderr = run_build(go, GO_BUILD="echo 'undefined: x' >&2; exit 2")
    assert code == 1
    assert "go could not build" in stderr
    assert "undefined: x" in stderr
    assert temporary_directories() == []


def test_a_killed_build_leaves_no_incomplete_program_and_the_next_build_continues(go: FakeGo) -> None:
    with start_build(go, GO_BUILD="exec sleep 600") as process:
        until(go.built)
        process.kill()
    assert binaries.missing(binaries.BUILT) == BUILT
    assert run_build(go)[0] == 0
    assert temporary_directories() == []


def test_an_interrupted_build_removes_its_temporary_files(go: FakeGo) -> None:
    with start_build(go, GO_BUILD="exec sleep 600") as process:
        until(go.built)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "build stopped" in stderr
    assert temporary_directories() == []


def test_a_second_build_waits_for_the_first(go: FakeGo) -> None:
    gate = go.path / "gate"
    with start_build(go, GO_BUILD=f"while [ ! -e {gate} ]; do sleep 0.05; done") as first:
        until(go.built)
        with start_build(go) as second:
            assert second.stderr
            assert "waiting for another build" in second.stderr.readline()
            gate.touch()
            assert second.wait(120) == 0
            assert first.wait(120) == 0
    assert len(go.built()) == len(build.targets(BUILT))


def run_runc_build(go: FakeGo, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "imex_sandbox.kubernetes.runc"],
        env={**go.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


def test_without_a_c_compiler_runc_is_not_built_and_the_reason_is_given(go: FakeGo) -> None:
    code, stderr = run_runc_build(go, PATH=str(go.path))
    assert code == 0
    assert "runc is not built, because this machine has no gcc, pkg-config, apt-get, dpkg" in stderr
    assert go.built() == []


def test_runc_is_built_once_with_c(go: FakeGo) -> None:
    environment = {"CGO_ENABLED": "1", "PKG_CONFIG_PATH": "/seccomp"}
    program = f"from imex_sandbox.kubernetes import build; build.build_runc({environment})"
    for _ in range(2):
        recorder = 'echo "$CGO_ENABLED $PKG_CONFIG_PATH" >> $GO_CALLS.environment'
        subprocess.run(
            [sys.executable, "-c", program], env={**go.environment, "GO_BUILD": recorder}, check=True, timeout=120
        )
    assert go.built() == ["github.com/opencontainers/runc"]
    assert Path(f"{go.calls}.environment").read_text() == "1 /seccomp\n"
    assert binaries.find_built("runc") == binaries.cache_directory("runc") / "runc"
    assert run_runc_build(go, PATH="/nowhere") == (0, "")


def test_the_wheel_contains_the_go_modules(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={tmp_path}"]
    subprocess.run(argv, cwd=ROOT / "sandbox", check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    installed = tmp_path / "site/imex_sandbox/kubernetes/modules"
    names = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    modules = {target.module for target in (*build.targets(BUILT), build.RUNC)}
    files = {f"{module}/go.mod" for module in modules}
    files |= {f"kubernetes/{versions.module_file(version)}" for version in versions.KUBERNETES.values()}
    sums = {file.removesuffix("mod") + "sum" for file in files}
    assert names == files | sums | {"kubernetes/main.go", "mpi-operator/main.go", "go.txt"}


@pytest.mark.usefixtures("go")
def test_an_old_go_is_rejected_if_no_newer_one_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_VERSION", "go1.19")
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    with pytest.raises(
        Misconfigured, match=r"Go 1\.26\.0 or later is not on the PATH, and installing .*go\.txt failed"
    ):
        toolchain.find_go(tmp_path / "go.mod", tmp_path / "go.txt")


def test_a_go_on_the_path_that_is_new_enough_is_used(go: FakeGo, tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    assert toolchain.find_go(tmp_path / "go.mod", tmp_path / "go.txt") == go.path / "go"


def test_environment_variables_of_the_caller_do_not_change_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "1", "GOWORK": "/x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    environment = toolchain.environment()
    assert environment["GOTOOLCHAIN"] == "local"
    assert environment["GOFLAGS"] == "-mod=readonly"
    assert (environment["CGO_ENABLED"], environment["GOWORK"]) == ("0", "off")
    assert environment["GOPROXY"] == "https://proxy.example"
