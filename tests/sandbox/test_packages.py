from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import packages

APT = r"""#!/bin/sh
for word in "$@"; do
  case "$word" in
  -oDir::Cache::archives=*) archives=${word#*=} ;;
  -oDir::State::lists=*) own_lists=yes ;;
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
    """With an apt-get that knows packages only after an update."""
    path = tmp_path / "path"
    path.mkdir()
    for name, script in (("apt-get", APT), ("dpkg", DPKG)):
        (path / name).write_text(script)
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("APT_LISTS", str(tmp_path / "lists"))
    return tmp_path


def test_packages_are_unpacked_aside(machine: Path) -> None:
    (machine / "lists").touch()
    tree = packages.unpacked("tools", ["runc"])
    assert tree.is_relative_to(machine / "cache")
    assert (tree / "usr/sbin/runc").read_text() == "runc\n"


def test_lists_of_our_own_are_fetched_where_the_machine_has_none(machine: Path) -> None:
    assert (packages.unpacked("tools", ["runc"]) / "usr/sbin/runc").exists()


def test_a_tree_is_unpacked_once(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = packages.unpacked("tools", ["runc"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert packages.unpacked("tools", ["runc"]) == tree


def test_other_packages_are_another_tree(machine: Path) -> None:
    assert packages.unpacked("tools", ["runc"]) != packages.unpacked("tools", ["runc", "busybox-static"])


def test_a_failure_names_the_packages_and_aptgets_reason(machine: Path) -> None:
    (machine / "path" / "apt-get").write_text("#!/bin/sh\necho 'E: no network' >&2; exit 100\n")
    with pytest.raises(Misconfigured, match="could not fetch runc: E: no network"):
        packages.unpacked("tools", ["runc"])
    assert [path.name for path in (machine / "cache/imex-dra/debian").iterdir()] == ["lock"]


def test_without_apt_it_says_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Misconfigured, match="runc can't be fetched: this machine has no apt-get"):
        packages.unpacked("tools", ["runc"])
