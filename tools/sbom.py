"""The software bill of materials of an image, in SPDX 2.3: packages of Debian and distributions of Python.

Read from the image itself, an OCI archive, so that it says what is there, not what was asked for.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any, NamedTuple

_DPKG_STATUS = "var/lib/dpkg/status"
_DISTRIBUTION = ".dist-info/METADATA"
_DELETED = ".wh."


class Package(NamedTuple):
    kind: str
    """deb or pypi, as in a package URL."""
    name: str
    version: str
    license: str = ""

    @property
    def id(self) -> str:
        digest = hashlib.sha256("|".join(self[:3]).encode()).hexdigest()[:16]
        return f"SPDXRef-{self.kind}-{digest}"

    @property
    def url(self) -> str:
        namespace = "debian/" if self.kind == "deb" else ""
        return f"pkg:{self.kind}/{namespace}{self.name}@{self.version}"


class Archive:
    """An OCI archive with one image."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path)  # noqa: SIM115 - closed by close()
        index = self._json("index.json")
        self.manifest = self._blob(index["manifests"][0]["digest"])
        self.config = self._blob(self.manifest["config"]["digest"])

    def close(self) -> None:
        self._tar.close()

    @property
    def digest(self) -> str:
        found: str = self._json("index.json")["manifests"][0]["digest"]
        return found

    @property
    def compressed_size(self) -> int:
        return sum(layer["size"] for layer in self.manifest["layers"])

    def files(self) -> dict[str, bytes]:
        """The files that describe packages. A later layer replaces or deletes those of earlier ones."""
        found: dict[str, bytes] = {}
        for layer in self.layers():
            for entry in layer:
                name = entry.name.removeprefix("./")
                parent, _, base = name.rpartition("/")
                if base.startswith(_DELETED):
                    gone = f"{parent}/{base.removeprefix(_DELETED)}"
                    found = {
                        path: c for path, c in found.items() if path != gone and not path.startswith(f"{gone}/")
                    }
                elif name == _DPKG_STATUS or name.endswith(_DISTRIBUTION):
                    content = layer.extractfile(entry)
                    assert content is not None
                    found[name] = content.read()
        return found

    def layers(self) -> Iterator[tarfile.TarFile]:
        for layer in self.manifest["layers"]:
            with tarfile.open(fileobj=self._open(layer["digest"]), mode="r|*") as opened:
                yield opened

    def _blob(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.load(self._open(digest))
        return found

    def _json(self, name: str) -> dict[str, Any]:
        file = self._tar.extractfile(name)
        assert file is not None
        found: dict[str, Any] = json.load(file)
        return found

    def _open(self, digest: str) -> IO[bytes]:
        file = self._tar.extractfile(f"blobs/{digest.replace(':', '/')}")
        assert file is not None
        return file


def packages(files: dict[str, bytes]) -> list[Package]:
    found = set(_debian(files.get(_DPKG_STATUS, b"").decode()))
    for name, content in files.items():
        if name.endswith(_DISTRIBUTION):
            fields = HeaderParser().parsestr(content.decode())
            found.add(Package("pypi", fields["Name"], fields["Version"], fields["License-Expression"] or ""))
    return sorted(found)


def _debian(status: str) -> Iterator[Package]:
    for paragraph in status.split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Package"] and fields["Status"] == "install ok installed":
            yield Package("deb", fields["Package"], fields["Version"])


def document(name: str, digest: str, found: list[Package], created: datetime) -> dict[str, Any]:
    image = {
        "SPDXID": "SPDXRef-image",
        "name": name,
        "versionInfo": digest,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
    }
    contained = [
        {"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS", "relatedSpdxElement": package.id}
        for package in found
    ]
    described = {
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": "SPDXRef-image",
    }
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://imex-dra.io/spdx/{name}/{digest.removeprefix('sha256:')}",
        "creationInfo": {
            "created": created.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: imex-dra tools.sbom"],
        },
        "packages": [image, *map(_package, found)],
        "relationships": [described, *contained],
    }


def _package(package: Package) -> dict[str, Any]:
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": package.url,
    }
    return {
        "SPDXID": package.id,
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": package.license or "NOASSERTION",
        "externalRefs": [reference],
    }
