from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, versions


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    assets, path = tmp_path / "assets", tmp_path / "path"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("IMEX_KUBERNETES", "")
    return {"assets": assets, "path": path, "cache": binaries.cache_directory("kubelet")}


def install(directory: Path, name: str, version: str = versions.KUBERNETES[versions.DEFAULT]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
    program.chmod(0o755)
    return program


def test_kubebuilder_assets_precede_the_cache_and_the_cache_precedes_the_path(
    directories: dict[str, Path],
) -> None:
    for directory in ("path", "cache", "assets"):
        program = install(directories[directory], "kubelet")
        assert binaries.find("kubelet") == program


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("kubelet", f"kubernetes/{versions.kubernetes()}"),
        ("etcd", f"kubernetes/{versions.kubernetes()}"),
        ("ctr", f"containerd/{binaries.CONTAINERD}"),
        ("mpi-operator", f"mpi-operator/{binaries.MPI_OPERATOR}"),
        ("helm", f"helm/{binaries.HELM}"),
    ],
)
def test_each_version_has_its_own_cache_directory(name: str, directory: str) -> None:
    assert binaries.cache_directory(name) == binaries.cache_root() / directory


@pytest.mark.usefixtures("directories")
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "kube-apiserver",
            "run `imex up`, which builds it, or set KUBEBUILDER_ASSETS to a directory that contains",
        ),
        ("mpi-operator", "run `imex up`, which builds it, or set KUBEBUILDER_ASSETS"),
        (
            "containerd",
            "run `python -m imex_sandbox.kubernetes.build`, which builds it, or set KUBEBUILDER_ASSETS",
        ),
        ("no-such-tool", "install no-such-tool$"),
    ],
)
def test_the_error_for_a_missing_program_says_how_to_get_it(name: str, advice: str) -> None:
    with pytest.raises(Misconfigured, match=f"{name} was not found: {advice}"):
        binaries.require([name])


def test_missing_programs_are_listed(directories: dict[str, Path]) -> None:
    install(directories["assets"], "etcd")
    assert binaries.missing(["etcd", "kube-scheduler"]) == ["kube-scheduler"]


def test_a_containerd_on_the_path_is_not_used(directories: dict[str, Path]) -> None:
    install(directories["path"], "containerd")
    assert binaries.missing(["containerd"]) == ["containerd"]


@pytest.mark.parametrize("name", versions.RELEASED)
def test_a_kubernetes_program_on_the_path_is_used_only_in_the_selected_minor_version(
    directories: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    newer = install(directories["path"] / "newer", name, "v1.37.0")
    same = install(directories["path"] / "same", name, "v1.36.1")
    monkeypatch.setenv("PATH", f"{newer.parent}:{same.parent}")
    monkeypatch.setattr("sys.prefix", "/nowhere")
    assert binaries.find(name) == same
    monkeypatch.setenv("IMEX_KUBERNETES", "1.37")
    assert binaries.find(name) == newer


def test_the_error_for_a_program_of_another_version_names_both_versions(directories: dict[str, Path]) -> None:
    program = install(directories["path"], "kubelet", "v1.30.2")
    with pytest.raises(Misconfigured, match=rf"{program} is v1\.30\.2; Kubernetes 1\.36 is selected"):
        binaries.find("kubelet")


def test_a_program_that_reports_no_version_is_not_used(directories: dict[str, Path]) -> None:
    install(directories["path"], "kubelet", "")
    with pytest.raises(Misconfigured, match="kubelet is of an unknown version"):
        binaries.find("kubelet")


@pytest.mark.usefixtures("directories")
def test_a_selected_version_has_its_own_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMEX_KUBERNETES", "1.34")
    assert binaries.cache_directory("kubelet").name == versions.KUBERNETES["1.34"]


def test_an_unknown_version_is_rejected_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMEX_KUBERNETES", "1.33")
    with pytest.raises(Misconfigured, match=r"IMEX_KUBERNETES is 1\.33: the sandbox runs Kubernetes 1\.34, 1\.36"):
        versions.kubernetes()
