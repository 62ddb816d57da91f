"""Where a cluster keeps its files, and which names are too long for sockets."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.dra.plugin import sockets
from imex_dra.sandbox.cluster.places import Places, claim_directory


def test_state_follows_the_xdg_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Places("trial").kubeconfig == tmp_path / "imex-dra/trial/kubeconfig"


def test_without_the_variable_it_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Places("trial").state == tmp_path / ".local/state/imex-dra/trial"


@pytest.mark.parametrize("length", range(1, 60))
def test_a_node_is_refused_exactly_if_its_plugin_could_not_have_a_socket(length: int) -> None:
    places, node = Places("trial", run_root=Path("/tmp/imex-1000")), "n" * length
    try:
        sockets(places.node(node) / "k", "123456")
    except Misconfigured:
        with pytest.raises(Misconfigured, match=r"shorten the name of the cluster or of its racks by \d+"):
            places.check(node)
    else:
        places.check(node)


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(Misconfigured, match="nobody else can enter: remove it"):
        claim_directory(tmp_path / "open")


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(Misconfigured, match="must be a directory of yours"):
        claim_directory(tmp_path / "link")
