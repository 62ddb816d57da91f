"""The files of a cluster: where they are, which names are too long for sockets, and who may access them."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.dra.sockets import sockets
from imex_sandbox.cluster.paths import ClusterPaths, create_private_directory


def test_the_state_directory_is_below_xdg_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert ClusterPaths("trial").kubeconfig == tmp_path / "imex-dra/trial/kubeconfig"


def test_the_default_state_directory_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ClusterPaths("trial").state == tmp_path / ".local/state/imex-dra/trial"


@pytest.mark.parametrize("length", range(1, 60))
def test_a_node_name_is_refused_only_if_the_sockets_of_its_plugin_would_be_too_long(length: int) -> None:
    paths, node = ClusterPaths("trial", run_root=Path("/tmp/imex-1000")), "n" * length
    try:
        sockets(paths.node(node) / "k", "123456")
    except Misconfigured:
        with pytest.raises(Misconfigured, match=r"shorten the name of the cluster or of its racks by \d+"):
            paths.check_socket_length(node)
    else:
        paths.check_socket_length(node)


def test_a_directory_that_other_users_can_access_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(Misconfigured, match="not a directory that only you can access: remove it"):
        create_private_directory(tmp_path / "open")


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(Misconfigured, match="not a directory that only you can access"):
        create_private_directory(tmp_path / "link")
