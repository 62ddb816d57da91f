import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imex_sandbox.kubernetes import oci
from imex_sandbox.kubernetes.oci import Image

NAME = "imex-dra.io/test/hello:1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "greeting").write_text("hello")
    return root


def write_image(directory: Path, tree: Path) -> Path:
    layer = oci.write_layer(directory / "layer", {".": tree}, {"bin/sh": "busybox"})
    return oci.write(directory / "image.tar", Image(NAME, [layer], ["/hello"]))


def read_json(archive: Path, name: str) -> Any:
    with tarfile.open(archive) as tar:
        member = tar.extractfile(name)
        assert member
        return json.load(member)


def test_the_index_refers_to_the_image_and_its_layers(tmp_path: Path, tree: Path) -> None:
    archive = write_image(tmp_path, tree)
    (manifest,) = read_json(archive, "index.json")["manifests"]
    assert manifest["annotations"]["io.containerd.image.name"] == NAME
    (layer,) = read_json(archive, blob(manifest))["layers"]
    with tarfile.open(archive) as outer, tarfile.open(fileobj=outer.extractfile(blob(layer))) as inner:
        assert inner.getnames() == [".", "./etc", "./etc/greeting", "bin/sh"]
        assert inner.getmember("bin/sh").linkname == "busybox"


def blob(descriptor: Any) -> str:
    return str(descriptor["digest"]).replace("sha256:", "blobs/sha256/")


def test_the_archive_does_not_depend_on_modification_times(tmp_path: Path, tree: Path) -> None:
    first = write_image(tmp_path / "one", tree).read_bytes()
    (tree / "etc" / "greeting").touch()
    assert write_image(tmp_path / "two", tree).read_bytes() == first


def test_a_failure_leaves_no_incomplete_layer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        oci.write_layer(tmp_path / "made" / "layer", {".": tmp_path / "missing"})
    assert list((tmp_path / "made").iterdir()) == []
