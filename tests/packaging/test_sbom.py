"""The bill of materials of an image is read from its layers."""

import json
from datetime import UTC, datetime
from pathlib import Path

from imex_sandbox.kubernetes import oci
from tools.sbom import Archive, Package, document, packages

STATUS = """\
Package: bash
Status: install ok installed
Version: 5.2.15-2

Package: perl
Status: deinstall ok config-files
Version: 5.36.0-7
"""
METADATA = "Metadata-Version: 2.4\nName: click\nVersion: 8.5.1\nLicense-Expression: BSD-3-Clause\n\nA long text."
SITE = "opt/imex/lib/python3.11/site-packages"


def layer(directory: Path, name: str, files: dict[str, str]) -> Path:
    sources: dict[str, Path] = {}
    for path, content in files.items():
        source = directory / f"{name}-{len(sources)}"
        source.write_text(content)
        sources[path] = source
    return oci.write_layer(directory / name, sources)


def packages_in(directory: Path, *layers: dict[str, str]) -> list[Package]:
    written = [layer(directory, f"layer{number}", files) for number, files in enumerate(layers)]
    archive = Archive(oci.write(directory / "image.tar", oci.Image("test", written, ["/bin/sh"])))
    found = packages(archive.files())
    archive.close()
    return found


def test_it_lists_installed_packages_of_debian_and_distributions_of_python(tmp_path: Path) -> None:
    metadata = {f"{SITE}/click-8.5.1.dist-info/METADATA": METADATA}
    found = packages_in(tmp_path, {"var/lib/dpkg/status": STATUS}, metadata)
    assert found == [Package("deb", "bash", "5.2.15-2"), Package("pypi", "click", "8.5.1", "BSD-3-Clause")]
    assert [package.url for package in found] == ["pkg:deb/debian/bash@5.2.15-2", "pkg:pypi/click@8.5.1"]


def test_what_a_later_layer_replaces_or_deletes_is_not_listed(tmp_path: Path) -> None:
    before = {"var/lib/dpkg/status": STATUS, f"{SITE}/click-8.5.1.dist-info/METADATA": METADATA}
    after = {
        "var/lib/dpkg/status": STATUS.replace("5.2.15-2", "5.2.15-3"),
        f"{SITE}/.wh.click-8.5.1.dist-info": "",
    }
    assert packages_in(tmp_path, before, after) == [Package("deb", "bash", "5.2.15-3")]


def test_the_document_relates_every_package_to_the_image() -> None:
    found = [Package("deb", "bash", "5.2"), Package("pypi", "click", "8.5.1", "BSD-3-Clause")]
    written = document("imex-dra:1", "sha256:ab", found, datetime(2026, 1, 2, tzinfo=UTC))
    ids = [package["SPDXID"] for package in written["packages"]]
    assert len(set(ids)) == 3
    related = [relation["relatedSpdxElement"] for relation in written["relationships"]]
    assert sorted(related) == sorted(ids)
    assert written["spdxVersion"] == "SPDX-2.3"
    assert written["creationInfo"]["created"] == "2026-01-02T00:00:00Z"
    assert json.loads(json.dumps(written))["packages"][2]["licenseDeclared"] == "BSD-3-Clause"
