"""Installing the driver: where its manifests are, and when all nodes of a cluster are ready."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imex_dra.api.meta import ObjectMeta
from imex_dra.base.errors import Misconfigured
from imex_sandbox.cluster.installation import Node, NodeSpec, Taint, manifests_directory, what_is_missing
from tests.paths import ROOT

A, B, C = (Node(ObjectMeta(name=name)) for name in "abc")
TAINTED_B = Node(ObjectMeta(name="b"), NodeSpec((Taint("node.kubernetes.io/not-ready"),)))
RESERVED_B = Node(ObjectMeta(name="b"), NodeSpec((Taint("nvidia.com/gpu"),)))


def test_the_source_tree_has_the_manifests() -> None:
    assert manifests_directory() == ROOT / "deploy"


def test_a_wheel_has_the_manifests(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={tmp_path}"]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    found = manifests_directory((tmp_path / "site/imex_dra/deploy",))
    names = {str(path.relative_to(found)) for path in found.rglob("*.yaml")}
    assert names == {str(path.relative_to(ROOT / "deploy")) for path in (ROOT / "deploy").rglob("*.yaml")}


def test_the_error_for_missing_manifests_names_the_directories(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=f"in none of {tmp_path}/a, {tmp_path}/b: install"):
        manifests_directory((tmp_path / "a", tmp_path / "b"))


@pytest.mark.parametrize(
    ("nodes", "publishing", "message"),
    [
        ([A, B], None, ""),
        ([A, RESERVED_B], {"a", "b"}, ""),
        ([A, B], {"a", "b"}, ""),
        ([A, B, C], {"a", "b", "c"}, ""),
        ([], None, "2 of 2 nodes are not Ready, for example a"),
        ([A], {"a", "b"}, "1 of 2 nodes are not Ready, for example b"),
        ([A, TAINTED_B], {"a", "b"}, "1 of 2 nodes are not Ready, for example b"),
        ([A, B], {"a"}, "1 of 2 nodes have no ResourceSlice, for example b"),
        ([A, B], set(), "2 of 2 nodes have no ResourceSlice, for example a"),
    ],
)
def test_a_cluster_is_ready_when_every_node_is_and_publishes_a_slice(
    nodes: list[Node], publishing: set[str] | None, message: str
) -> None:
    drivers = [] if publishing is None else ["a", "b"]
    assert what_is_missing(["a", "b"], nodes, drivers, publishing or ()) == message
