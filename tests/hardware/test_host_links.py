"""Symbolic links under a mounted host root lead where they lead on the host, never to files of the container."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imex_dra.hardware.driverroot import find_library
from imex_dra.hardware.host import resolve_in_root
from imex_dra.hardware.isolation import detect_isolation


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "host/usr/lib64").mkdir(parents=True)
    return tmp_path / "host"


@pytest.mark.parametrize(
    ("target", "path", "resolved"),
    [
        ("/run", "link/cdi", "run/cdi"),
        ("run", "link/cdi", "run/cdi"),
        ("../../../run", "link", "run"),
        ("/usr/../run/./x", "link/y", "run/x/y"),
        ("/", "link/a", "a"),
        ("/link", "link", "link"),
    ],
)
def test_a_link_is_resolved_as_on_the_host(root: Path, target: str, path: str, resolved: str) -> None:
    (root / "link").symlink_to(target)
    assert resolve_in_root(root, path) == resolve_in_root(root, f"/{path}") == root / resolved


def test_links_to_links_are_resolved(root: Path) -> None:
    (root / "a").symlink_to("/b/c")
    (root / "b").symlink_to("d")
    assert resolve_in_root(root, "a/x") == root / "d/c/x"


@given(st.lists(st.sampled_from(["..", "a", "b", "/", "usr"]), max_size=6), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_path_leads_out_of_the_root(root: Path, parts: list[str], data: st.DataObject) -> None:
    for name in ("a", "b"):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(data.draw(st.sampled_from(["/", "..", "/a", "../../b", "/usr/..", "b/../.."])))
    assert resolve_in_root(root, "/".join(parts)).is_relative_to(root)


def test_the_nvml_library_is_found_behind_an_absolute_link_of_the_host(root: Path) -> None:
    real = root / "opt/driver/libnvidia-ml.so.580.95.05"
    real.parent.mkdir(parents=True)
    real.touch()
    (root / "usr/lib64/libnvidia-ml.so.1").symlink_to("/opt/driver/libnvidia-ml.so.580.95.05")
    assert find_library(root) == real


def test_a_library_of_the_container_is_not_mistaken_for_the_host_s(root: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").touch()
    (root / "usr/lib64/libnvidia-ml.so.1").symlink_to(tmp_path / "ours")
    assert find_library(root) is None


def test_cdi_specs_are_found_where_var_run_is_a_link(root: Path) -> None:
    (root / "run/cdi").mkdir(parents=True)
    (root / "run/cdi/nvidia.com-imex.json").write_text("/dev/nvidia-caps-imex-channels/channel0")
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    assert detect_isolation(root).reason.startswith("/var/run/cdi/nvidia.com-imex.json offers a channel")
