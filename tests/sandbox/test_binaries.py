from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import binaries


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    found = {"assets": tmp_path / "assets", "path": tmp_path / "path"}
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(found["assets"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(found["path"]))
    return {**found, "cache": binaries.cache("kubelet")}


def put(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_assets_come_before_the_cache_and_the_cache_before_the_path(places: dict[str, Path]) -> None:
    for place in ("path", "cache", "assets"):
        program = put(places[place], "kubelet")
        assert binaries.find("kubelet") == program


def test_the_cache_is_kept_per_version(places: dict[str, Path]) -> None:
    assert places["cache"].parts[-3:] == ("imex-dra", "kubernetes", binaries.KUBERNETES)


@pytest.mark.usefixtures("places")
def test_a_missing_one_says_what_builds_it() -> None:
    with pytest.raises(Misconfigured, match="kube-apiserver was not found: run `make kube`"):
        binaries.find("kube-apiserver")


def test_what_is_missing_is_listed(places: dict[str, Path]) -> None:
    put(places["assets"], "etcd")
    assert binaries.missing(["etcd", "kube-scheduler"]) == ["kube-scheduler"]


def test_a_container_runtime_of_the_machine_is_not_taken_for_ours(places: dict[str, Path]) -> None:
    put(places["path"], "containerd")
    assert binaries.missing(["containerd"]) == ["containerd"]
