from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import packages

APT = r"""#!/bin/sh
for word in "$@"; do
  case "$word" in
  -oDir::Cache::archives=*) archives=${word#*=} ;;
  update) touch "$APT_LISTS"; exit 0 ;;
  esac
done
[ -e "$APT_LISTS" ] || { echo "E: Unable to locate package runc" >&2; exit 100; }
touch "$archives/runc.deb"
"""
DPKG = r"""#!/bin/sh
mkdir -p "$3/usr/sbin" && echo runc > "$3/usr/sbin/runc"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has an apt-get that finds packages only after an update."""
    path = tmp_path / "path"
    path.mkdir()
    for name, script in (("apt-get", APT), ("dpkg", DPKG)):
        (path / name).write_text(script)
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("APT_LISTS", str(tmp_path / "lists"))
    return tmp_path


def test_packages_are_extracted_into_the_cache(machine: Path) -> None:
    (machine / "lists").touch()
    directory = packages.extract("tools", ["runc"])
    assert directory.is_relative_to(machine / "cache")
    assert (directory / "usr/sbin/runc").read_text() == "runc\n"


def test_package_lists_are_downloaded_if_the_machine_has_none(machine: Path) -> None:
    assert (packages.extract("tools", ["runc"]) / "usr/sbin/runc").exists()


def test_packages_are_extracted_only_once(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = packages.extract("tools", ["runc"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert packages.extract("tools", ["runc"]) == directory


def test_different_packages_have_different_directories(machine: Path) -> None:
    assert packages.extract("tools", ["runc"]) != packages.extract("tools", ["runc", "busybox-static"])


def test_a_failed_download_reports_the_packages_and_the_output_of_apt(machine: Path) -> None:
    (machine / "path" / "apt-get").write_text("#!/bin/sh\necho 'E: no network' >&2; exit 100\n")
    with pytest.raises(Misconfigured, match="could not download runc: E: no network"):
        packages.extract("tools", ["runc"])
    assert [path.name for path in (machine / "cache/imex-dra/debian").iterdir()] == ["lock"]


def test_a_machine_without_apt_is_reported(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Misconfigured, match="runc cannot be downloaded, because this machine has no apt-get"):
        packages.extract("tools", ["runc"])
